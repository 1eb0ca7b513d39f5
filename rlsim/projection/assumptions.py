"""What an answer rests on and what a reader must know about it, in sentences."""

import dataclasses
from pathlib import Path

import numpy as np

from rlsim.costs.efficiency import queries_of
from rlsim.costs.engine.draft_policy import counted
from rlsim.costs.engine.iteration import PolicyChoice
from rlsim.costs.engine.releases import draft_graph
from rlsim.costs.links import node_link
from rlsim.costs.memory import engine_fits, host_bytes, host_fits, safe_bytes, trainer_fits
from rlsim.costs.transfer.job import adapter_alone, job_of
from rlsim.costs.transfer.methods import tensor_s
from rlsim.files.reading import shown_path
from rlsim.parameters.sets import own_sets
from rlsim.projection.efficiency import engines_of
from rlsim.projection.model_assumptions import (
    drafting_assumptions,
    host_source,
    model_assumptions,
    said,
    training_assumptions,
)
from rlsim.projection.scale import carried, pools_of
from rlsim.projection.summary import phase_estimate
from rlsim.projection.uncertainty.inputs import NETWORK, beyond_reach, guesses_of
from rlsim.projection.uncertainty.predictive import open_draws
from rlsim.projection.uncertainty.sources import sources_of
from rlsim.projection.variant import SimulatedVariant
from rlsim.report.format import percent
from rlsim.schema.asynchrony import STYLES
from rlsim.schema.engine_parameters import OTHER
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import LOOKUP_METHODS
from rlsim.schema.stated import ACCEPTANCE, PROMPT, RESPONSE
from rlsim.schema.workload import (
    ConstantTime,
    LognormalLength,
    LognormalTime,
    QuantileTime,
    Time,
    TraceLength,
    Workload,
)
from rlsim.units import GIB, GIGA, MICROSECOND
from rlsim.workload.batches import at_cap
from rlsim.workload.lengths import ignored_ids

MOVED = ("logprob", "train")
"""Phases that a warning of an unknown network adds up."""
TOLD_LAUNCH_SHARE = 0.05
"""Share of a rollout that waits for launches from which an answer says that it hangs on them."""
TOLD_HOST_SHARE = 0.2
"""Share of an update that waits for the host from which an answer says so."""
TOLD_REACH_SHARE = 0.1
"""Share of verifications behind contexts that a drafter does not know from which an answer warns."""
TOLD_EAGER_SHARE = 0.02
"""Share of eager iterations from which an answer warns of them."""

SURE_TO_FIT = 0.95
"""Probability of fitting below which an answer warns."""


def assumptions_of(run: SimulatedVariant) -> tuple[str, ...]:
    """What the scenario's author assumed, then what the model assumes for it; each names the key that changes it."""
    scenario, found = run.scenario, run.prices.overheads
    alike = scenario.workload.generations_per_prompt > 1
    own = [*_terms(run), *([said("groups", share=scenario.workload.group_correlation)] if alike else [])]
    if run.prices.stand_in is not None:
        device = scenario.hardware.name
        own.append(said("stand-in", engine=scenario.engine.name, device=device, other=run.prices.stand_in))
    if scenario.trainer.critic:
        own.append(said("critic"))
    if scenario.workload.usable_group_share < 1:
        own.append(said("dynamic", share=percent(scenario.workload.usable_group_share)))
    if scenario.loop.streaming:
        own.append(said("streaming"))
    if scenario.cluster.reference_gpus:
        own.append(said("reference pool", gpus=scenario.cluster.reference_gpus))
    if scenario.engine.migration != "none":
        own.append(said("migration", us=run.prices.kv_token_s / MICROSECOND))
    if (offload := scenario.engine.kv_offload) is not None and (tier := run.prices.tier) is not None:
        gib, us = offload.capacity_bytes / GIB, tier.token_s / MICROSECOND
        own.append(said("kv offload", gib=gib, us=us, latency=offload.latency_s))
        own += [said("kv prefetch")] if offload.prefetch else []
    own += [*_tail_batching(scenario.workload), *_agents(scenario)]
    style = scenario.loop.style
    if scenario.loop.mode == "async" and style is not None:
        own.append(said("style", style=style, description=STYLES[style].description))
    if (pools := pools_of(scenario)) > 1:
        step = phase_estimate(run, "step")
        doubling = float(np.mean([trace.doubling.get("step", 0.0) for trace in run.traces]))
        share, error = carried(scenario)[0] * doubling / step.mean, abs(step.carried)
        own.append(said("pools", count=pools, added=percent(share, 1), error=percent(error, 1)))
    running = None if scenario.loop.supervised else run.prices.engine_memory.running_sequences
    own += model_assumptions(scenario, running)
    own += _drafting(scenario, run.prices.engine.choice)
    own.append(said("intervals"))
    devices = dict.fromkeys((scenario.hardware, scenario.training_device))
    bare = [device.name for device in devices if device.operator_tables is None]
    if found.tables_error > 0:
        own.append(
            said("datasheet" if bare else "tables", error=percent(found.tables_error), device=" and ".join(bare))
        )
    return (*(assumption.text for assumption in scenario.assumptions), *own)


def _terms(run: SimulatedVariant) -> list[str]:
    """Where the times come from that operators do not hold: of a measured stack, where all do."""
    scenario, found, engine = run.scenario, run.prices.overheads, run.prices.overheads.engine
    stack = scenario.simulation.measured_stack
    if stack is not None:
        return [said("measured stack", name=stack.name, source=stack.source)]
    trained = [*training_assumptions(scenario, found.training)]
    if scenario.loop.supervised:
        return [*trained, *([said("reference swap")] if scenario.trainer.reference_logprobs else [])]
    job, stated = job_of(scenario), scenario.loop.refit_tensor_s is not None
    hosted = said(
        "host",
        iteration_ms=engine.iteration_s * 1e3,
        sequence_us=engine.sequence_s * 1e6,
        source=host_source(scenario),
    )
    generated = [hosted, *_eager_prefill(scenario, engine.prefill_s), *_prefill_engines(run)]
    captured, family = said("captured", tokens=run.prices.engine.captured_tokens), found.refit.family.framework
    if scenario.loop.rollouts_alone:
        return [*generated, captured]
    return [
        *trained,
        *generated,
        said(
            "refit",
            what="The adapter alone travels" if adapter_alone(scenario) else "Weights travel",
            method=job.method,
            framework="software that nobody names" if family == OTHER else family,
            tensor_ms=tensor_s(job, found.refit) * 1e3,
            source="stated" if stated else f"fitted: {found.refit.source}",
        ),
        captured,
    ]


def _eager_prefill(scenario: Scenario, least_s: float) -> list[str]:
    name = scenario.engine.name
    source = own_sets(scenario).engines.family(name).prefill.source
    return [said("eager prefill", prefill_ms=least_s * 1e3, engine=name, source=source)] if least_s > 0 else []


def _prefill_engines(run: SimulatedVariant) -> list[str]:
    """A sentence on engines that prefill alone; [] without."""
    service, steps = run.prices.prefill, run.every_step
    if service is None:
        return []
    generation_s = sum(step.phases.generation_s for step in steps)
    share = run.counters.prefill_tokens * service.token_s / (service.engines * generation_s)
    return [said("prefill engines", engines=service.engines, share=percent(min(1.0, share)))]


def _tail_batching(workload: Workload) -> list[str]:
    """A sentence on races for a step's batch; [] without."""
    if not workload.racing:
        return []
    prompts, samples = workload.launched_prompts, workload.launched_generations
    return [said("tail batching", prompts=prompts, samples=samples, rounds=workload.cycle_steps)]


def _agents(scenario: Scenario) -> list[str]:
    """Sentences on trajectories of several turns; [] without."""
    agent = scenario.workload.agent
    if agent is None:
        return []
    prefix = "stays in the prefix cache, reclaimable" if agent.keep_prefix else "is prefilled again every turn"
    common, time = percent(agent.environment_group_correlation), _shown_time(agent.environment_s)
    out = [said("environments", time=time, common=common, prefix=prefix)]
    if (nodes := agent.nodes) is not None:
        out.append(said("nodes", count=nodes.count, places=nodes.sandboxes_each, usd=f"{nodes.hourly_usd:g}"))
    if agent.starts:
        out.append(said("starts", time=_shown_time(agent.start_s), ready=agent.started_sandboxes))
    if agent.call_failure_share:
        out.append(said("calls", share=percent(agent.call_failure_share), attempts=agent.call_attempts))
    if agent.calls_per_s is not None:
        out.append(said("service", rate=f"{agent.calls_per_s:g}"))
    if agent.replay is not None:
        out.append(said("replay", path=Path(agent.replay.path).name))
    if scenario.loop.mode == "async" and scenario.loop.asynchrony.stale == "cancel":
        out.append(said("old trajectories", style=scenario.loop.style or "a loop with loop.stale cancel"))
    if (judge := agent.judge) is not None:
        time = _shown_time(judge.trajectory_s)
        out.append(said("judge", gpus=judge.gpus, time=time, concurrency=judge.concurrency))
    return out


def _shown_time(time: Time) -> str:
    if isinstance(time, ConstantTime):
        return f"{time.seconds:g} s"
    if isinstance(time, LognormalTime):
        return f"{time.mean_s:g} s in the mean (log-normal, sigma {time.log_sigma:g})"
    if isinstance(time, QuantileTime):
        return f"{time.seconds[0]:g} to {time.seconds[-1]:g} s (quantiles)"
    return f"times of {shown_path(Path(time.path))}"


def _drafting(scenario: Scenario, choice: PolicyChoice | None) -> list[str]:
    """What speculation adds to the host's time, whether speculating engines showed it, and how acceptance varies."""
    if not scenario.speculation.active:
        return []
    if scenario.simulation.measured_stack is not None:
        return drafting_assumptions(scenario, choice)
    engines = own_sets(scenario).engines
    family = engines.family(scenario.engine.name)
    rows = family.drafting_rows
    host = said(
        "drafting",
        iteration_ms=family.drafting_iteration_s * 1e3,
        sequence_us=family.drafting_sequence_s * 1e6,
        origin=f"fitted to {rows} iterations" if rows else "assumed, no iteration tells",
        engines=engines.name,
        engine=scenario.engine.name,
        graph=_draft_graph(scenario),
    )
    return [host, *drafting_assumptions(scenario, choice)]


def _draft_graph(scenario: Scenario) -> str:
    """How draft passes are launched, and who says so; empty where no network drafts."""
    engine, drafting = scenario.released_engine, scenario.speculation
    if drafting.method in LOOKUP_METHODS:
        return ""
    release = f"as {engine.name} {engine.version or 'does in its newest release'}"
    which = release if drafting.draft_graph is None else "as stated"
    return said(f"draft {draft_graph(engine, scenario.model, drafting)}", which=which)


def _length_warnings(run: SimulatedVariant) -> list[str]:
    workload, out = run.scenario.workload, []
    cut = float(np.mean(np.concatenate([at_cap(workload, one.batch) for one in run.first_step.rollouts])))
    length = workload.response_tokens
    longer = isinstance(length, LognormalLength) and (
        length.cut_share is not None or length.mean_tokens >= workload.longest_response_tokens
    )
    if (isinstance(length, TraceLength) or longer) and cut > 0:
        most = (
            ""
            if workload.max_response_tokens is None
            else f" or max_response_tokens = {workload.max_response_tokens:,}"
        )
        out.append(said("cut", share=percent(cut), cap=workload.max_sequence_tokens, most=most))
    for length in (workload.prompt_tokens, workload.response_tokens):
        if isinstance(length, TraceLength) and (ids := ignored_ids(length.path)):
            path = shown_path(Path(length.path))
            out.append(said("ids", ids=ids, path=path, share=workload.group_correlation))
    return out


def caveats_of(scenario: Scenario) -> tuple[str, ...]:
    """Clauses that a verdict on ``scenario`` needs: guessed inputs, and a start-up within the answer."""
    *most, last = guesses_of(scenario) or ("",)
    unknown = ["the network between nodes assumed (cluster.fabric)"] if node_link(scenario).log_spread else []
    guessed = [f"{', '.join(most)}{' and ' if most else ''}{last} assumed"] if last else []
    started = ["the start-up of the loop in it (simulation.warmup_steps)"] if _starts(scenario) else []
    return (*unknown, *guessed, *started)


def deciding_guess(run: SimulatedVariant) -> tuple[str, ...]:
    """A clause that names the guessed input with most of the variance of a step, where one has more than half of it."""
    first = next(iter(sources_of(run)), None)
    if first is None or first.share <= 0.5:
        return ()
    key = next((one.key for one, _ in open_draws(run) if one.name == first.name), "")
    words = {PROMPT: "the prompts", RESPONSE: "the responses", ACCEPTANCE: "the acceptance"}
    return tuple(f"{what} deciding (state {name})" for name, what in words.items() if key.startswith(name))


def doubtful_memory(run: SimulatedVariant) -> tuple[str, ...]:
    """Clauses on training GPUs and their hosts that hold what is counted with less than an even chance."""
    fits = {"GPUs'": trainer_fits(run.scenario, run.prices.trainer_bytes), "nodes' host": host_fits(run.scenario)}
    return tuple(f"the training {of} memory enough with {percent(one)} alone" for of, one in fits.items() if one < 0.5)


def _starts(scenario: Scenario) -> bool:
    """Whether measured steps of a lagged loop begin before its first batches are trained on."""
    return scenario.loop.mode == "async" and scenario.measured_steps.start < scenario.loop.asynchrony.pace


def warnings_of(run: SimulatedVariant) -> tuple[str, ...]:
    """Warnings of a run, in sentences."""
    scenario, steps = run.scenario, len(run.every_step)
    out = [*_memory_warning(run), *_room_warnings(scenario), *_link_warnings(run), *_length_warnings(run)]
    if run.counters.preemptions > 0:
        out.append(said("overflow", preemptions=run.counters.preemptions / steps))
    if (share := _beyond_budget(run)) > 0:
        each, most = run.prices.iteration.tokens_per_sequence, scenario.released_engine.budget_tokens
        out.append(said("budget", share=percent(share), each=each, most=most))
    if run.agents.timed_out:
        out.append(said("timeout", trajectories=run.agents.timed_out / steps))
    if _starts(scenario):
        out.append(said("start-up", batches=scenario.loop.asynchrony.pace))
    if run.unsettled:
        way = "consume from stock" if run.unsettled < 0 else "leave in flight"
        out.append(said("unsettled", share=percent(abs(run.unsettled)), way=way, warmup=scenario.measured_steps.start))
    asked, error = scenario.simulation, phase_estimate(run, "step").error
    if asked.replications is None and error > asked.precision:
        exact = ", or simulation.exact," if pools_of(scenario) > 1 else ""
        wanted, count = percent(asked.precision, 1), len(run.traces)
        out.append(said("imprecise", error=percent(error, 1), asked=wanted, count=count, exact=exact))
    engine = run.prices.engine
    tokens, eager = engine.captured_tokens, engine.eager_share(counted(engine, run.counters).iterations_at)
    if scenario.engine.cuda_graphs and eager > TOLD_EAGER_SHARE:
        out.append(said("eager", share=percent(eager), tokens=tokens, hanging=_hanging(run)))
    # Fewer captured tokens may cost much where most iterations are captured and nobody stated how many are.
    lost = max((one.below.get("generation", 0.0) for one, _ in open_draws(run) if one.stepped), default=0.0)
    if eager <= TOLD_EAGER_SHARE and lost >= TOLD_LAUNCH_SHARE:
        out.append(said("near limit", tokens=tokens, factor=np.exp(lost)))
    if (share := beyond_reach(run)) >= TOLD_REACH_SHARE:
        out.append(said("reach", share=percent(share), tokens=scenario.speculation.reach_tokens))
    # Faster kernels would not shorten an update whose host launches them too slowly.
    parts = [part for step in run.every_step for part in step.cost.train.parts]
    floor_s, update_s = sum(p.seconds for p in parts if p.name == "host floor"), sum(p.seconds for p in parts)
    told = floor_s >= TOLD_HOST_SHARE * update_s > 0
    return (*out, *([said("host floor", share=percent(floor_s / update_s))] if told else []))


def _memory_warning(run: SimulatedVariant) -> list[str]:
    """A sentence on training GPUs that may not hold what is counted, and on what a tidy allocator would change."""
    parts, available = run.prices.trainer_bytes, run.scenario.training_device.memory_bytes.value
    fits = trainer_fits(run.scenario, parts)
    if fits >= SURE_TO_FIT:
        return []
    loose = ""
    if parts.slack:
        tidy = trainer_fits(run.scenario, dataclasses.replace(parts, slack=None))
        loose = f", expandable segments that leave no memory unused {percent(tidy)}"
    missing = (safe_bytes(run.scenario, parts) - available) / GIB
    return [said("tight", pool="training", fits=percent(fits), missing=missing, loose=loose, parts=parts.listed)]


def _room_warnings(scenario: Scenario) -> list[str]:
    """Sentences on engines that may have no room for their longest sequence, and on hosts that may not hold what is
    offloaded to them."""
    out = []
    if not scenario.loop.supervised and (fits := engine_fits(scenario)) < SURE_TO_FIT:
        out.append(said("little room", fits=percent(fits), tokens=scenario.workload.max_sequence_tokens))
    if (fits := host_fits(scenario)) < SURE_TO_FIT:
        each, node = host_bytes(scenario) / GIB, scenario.training_device.host_memory_bytes.value / GIB
        out.append(said("tight host", fits=percent(fits), needed=each, node=node))
    return out


def _link_warnings(run: SimulatedVariant) -> list[str]:
    """A sentence on the network between nodes where nobody stated it: what was taken, and what the step may take."""
    link = node_link(run.scenario)
    found = next((one for one, _ in open_draws(run) if one.name == NETWORK), None)
    if found is None or link.bytes_per_s is None:
        return []
    base_s = sum(run.phases_s[f"{phase}_s"] for phase in ("logprob", "train"))
    slow_s, fast_s = (
        sum(run.phases_s[f"{phase}_s"] * float(np.exp(found.moves(phase, np.array([way]))[0])) for phase in MOVED)
        for way in (1.0, -1.0)
    )
    factor = np.exp(link.log_spread)
    rates = [rate / GIGA for rate in (link.bytes_per_s, link.bytes_per_s / factor, link.bytes_per_s * factor)]
    nodes = run.scenario.cluster.num_gpus / run.scenario.hardware.gpus_per_node.value
    return [
        said("network", nodes=nodes, rate=rates[0], low=rates[1], high=rates[2], base=base_s, slow=slow_s, fast=fast_s)
    ]


def _beyond_budget(run: SimulatedVariant) -> float:
    """Share of the engines' iterations that decode more tokens than their budget holds."""
    engine, (counters, drafted) = run.scenario.released_engine, engines_of(run)
    counts = np.array(counters.iterations_at)
    tokens = np.arange(counts.size) / engine.attention_data_parallel * queries_of(run.scenario, drafted)
    return float(counts[tokens > engine.budget_tokens].sum() / max(1, counts.sum()))


def _hanging(run: SimulatedVariant) -> str:
    """What of a rollout, and of what its step leaves open, hangs on launches beyond the captured graphs."""
    launches = run.prices.engine.launch_share(run.counters)
    if launches <= TOLD_LAUNCH_SHARE:
        return ""
    open_share = sum(one.share for one in sources_of(run) if one.kind == "launches")
    return said("hanging", launches=percent(launches), variance=percent(max(0.0, open_share)))
