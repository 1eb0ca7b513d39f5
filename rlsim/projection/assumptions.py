"""What an answer rests on and what a reader must know about it, in sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlsim.costs.engine.draft_policy import counted
from rlsim.costs.engine.iteration import PolicyChoice
from rlsim.costs.transfer.job import job_of
from rlsim.costs.transfer.methods import TransferTerms, tensor_s
from rlsim.files.reading import shown_path
from rlsim.parameters.sets import own_sets
from rlsim.projection.model_assumptions import drafting_assumptions, model_assumptions, training_assumptions
from rlsim.projection.uncertainty.inputs import guesses_of
from rlsim.projection.uncertainty.predictive import open_draws
from rlsim.projection.uncertainty.sources import sources_of
from rlsim.projection.variant import SimulatedVariant
from rlsim.report.format import percent
from rlsim.schema.asynchrony import STYLES
from rlsim.schema.scenario import Scenario
from rlsim.schema.workload import ConstantTime, LognormalTime, QuantileTime, Time, TraceLength
from rlsim.workload.lengths import ignored_ids

TOLD_LAUNCH_SHARE = 0.05
"""Share of a rollout that waits for launches from which an answer says that it hangs on them."""
TOLD_HOST_SHARE = 0.2
"""Share of an update that waits for the host from which an answer says so."""
TOLD_EAGER_SHARE = 0.02
"""Share of eager iterations from which an answer warns of them."""


def assumptions_of(run: SimulatedVariant) -> tuple[str, ...]:
    """What the scenario's author assumed, then what the model assumes for it; each names the key that changes it."""
    scenario, found = run.scenario, run.prices.overheads
    job = job_of(scenario)

    def origin(name: str, given: float | None) -> str:
        return "stated" if given is not None else f"{own_sets(scenario).steps.origin(name)}: {found.source}"

    own = [
        *training_assumptions(scenario, found.training),
        f"Host work per engine iteration: {found.engine.iteration_s * 1e3:.3g} ms + "
        f"{found.engine.sequence_s * 1e6:.3g} us per sequence (engine.host_iteration_s, "
        f"engine.host_sequence_s; {_host_source(scenario)}).",
        f"Weights travel by {job.method} as {found.refit.family.framework} does it, "
        f"{tensor_s(job, found.refit) * 1e3:.2g} ms per weight tensor ({_refit_source(scenario, found.refit)}; "
        "loop.refit_method).",
        f"Largest captured CUDA graph: {run.prices.engine.captured_tokens} tokens; larger iterations launch every "
        "kernel from the host, which no measurement of an engine backs (engine.max_captured_tokens).",
        f"Prompt groups share {scenario.workload.group_correlation:g} of the variance of log length "
        "(workload.group_correlation).",
    ]
    if run.prices.stand_in is not None:
        own.append(
            f"No operator of {scenario.engine.name} was measured on {scenario.hardware.name}: those of "
            f"{run.prices.stand_in} stand in, counted as modelled (engine.name)."
        )
    if scenario.trainer.critic:
        own.append("The value model has the policy's size and layout; no measured PPO step backs its times.")
    if scenario.workload.usable_group_share < 1:
        own.append(
            f"Dynamic sampling: {percent(scenario.workload.usable_group_share)} of the prompt groups are usable, "
            "whatever their lengths (workload.usable_group_share); the rollouts of a step follow each other."
        )
    own += _agents(scenario) + _style(scenario)
    own += model_assumptions(scenario, run.prices.engine_memory.running_sequences)
    own += _drafting(scenario, run.prices.engine.choice)
    own.append(
        "90 % intervals hold the error of the model, of a mean step: fitted terms, deviations of software, device and "
        "model, and what this layout may miss, as left-out measurements were missed (docs/uncertainty.md)."
    )
    if found.tables_error > 0:
        own.append(f"They hold the self-check error of the measured tables, {percent(found.tables_error)} of a time.")
    return (*(assumption.text for assumption in scenario.assumptions), *own)


def _refit_source(scenario: Scenario, terms: TransferTerms) -> str:
    """Where the host time per tensor comes from: the scenario, or the framework's measured transfers."""
    if scenario.loop.refit_tensor_s is not None:
        return "stated"
    return f"fitted: {terms.source}"


def _host_source(scenario: Scenario) -> str:
    """Where the host time comes from: the scenario, or the fitted release that stands for the engine's."""
    engine, engines = scenario.released_engine, own_sets(scenario).engines
    parameters = own_sets(scenario).steps
    if engine.host_iteration_s is not None:
        return "stated"
    served = engines.family(engine.name).measured_release(engine.version)
    which = f"{engine.name} {served.version}" if served else f"{engine.name} over its releases"
    if served and engine.version != served.version:
        which += f" for {engine.version}, the nearest one measured"
    added = parameters.release(engine.name, engine.version)
    return (
        f"fitted: {engines.name}, of {which}; what the RL framework adds is {parameters.name}'s of {added.engine} "
        f"{added.version}"
    )


def _agents(scenario: Scenario) -> list[str]:
    """What trajectories of several turns assume."""
    agent = scenario.workload.agent
    if agent is None:
        return []
    prefix = "stays in the prefix cache, reclaimable" if agent.keep_prefix else "is prefilled again every turn"
    common = percent(agent.environment_group_correlation)
    out = [
        f"Environments: {_shown_time(agent.environment_s)} after a turn, {common} of the variance common to a prompt "
        "(workload.agent.environment_s; stated, its error is not in the intervals); the "
        f"context {prefix} meanwhile (workload.agent.keep_prefix)."
    ]
    if agent.judge is not None:
        out.append(
            f"A judge on {agent.judge.gpus} GPUs of its own takes {_shown_time(agent.judge.trajectory_s)} for each "
            f"of {agent.judge.concurrency} trajectories at once (workload.agent.judge; stated, not in the USD)."
        )
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
    engines = own_sets(scenario).engines
    family = engines.family(scenario.engine.name)
    origin = f"fitted to {family.drafting_rows} iterations" if family.drafting_rows else "assumed, no iteration tells"
    eager = "" if scenario.speculation.draft_graph else "; draft passes run outside CUDA graphs (draft_graph)"
    own = [
        f"An iteration that verifies drafts takes {family.drafting_iteration_s * 1e3:.2g} ms + "
        f"{family.drafting_sequence_s * 1e6:.2g} us per sequence more of the host ({origin}: {engines.name}, "
        f"{scenario.engine.name}; simulation.engine_parameters){eager}."
    ]
    return own + drafting_assumptions(scenario, choice)


def truncated_share(run: SimulatedVariant) -> float:
    """Share of the drawn samples whose response is cut where prompt and response reach max_sequence_tokens."""
    totals = np.concatenate([one.batch.total_tokens for one in run.first_step.rollouts])
    return float(np.mean(totals >= run.scenario.workload.max_sequence_tokens))


def _length_warnings(run: SimulatedVariant) -> list[str]:
    workload, out = run.scenario.workload, []
    if isinstance(workload.response_tokens, TraceLength) and (cut := truncated_share(run)) > 0:
        out.append(
            f"{percent(cut)} of the responses are longer than workload.max_sequence_tokens = "
            f"{workload.max_sequence_tokens:,} leaves them and are cut there."
        )
    out += [
        f"{ids} of {shown_path(Path(length.path))} is not used: samples of a prompt are alike by "
        f"workload.group_correlation = {workload.group_correlation:g}."
        for length in (workload.prompt_tokens, workload.response_tokens)
        if isinstance(length, TraceLength) and (ids := ignored_ids(length.path))
    ]
    return out


def _style(scenario: Scenario) -> list[str]:
    """Whose rules hold between generation and training, where that is stated."""
    style = scenario.loop.style
    if scenario.loop.mode == "sync" or style is None:
        return []
    return [f"Generation and training follow {style}: {STYLES[style].description} (loop.style; read in its sources)."]


def caveats_of(scenario: Scenario) -> tuple[str, ...]:
    """What a verdict on ``scenario`` cannot be said without: guessed inputs, and a start-up within the answer."""
    *most, last = guesses_of(scenario) or ("",)
    guessed = [f"{', '.join(most)}{' and ' if most else ''}{last} assumed"] if last else []
    started = ["the start-up of the loop in it (simulation.warmup_steps)"] if _starts(scenario) else []
    return (*guessed, *started)


def _starts(scenario: Scenario) -> bool:
    """Whether measured steps of a lagged loop begin before its first batches are trained on."""
    return scenario.loop.mode == "async" and scenario.measured_steps.start < scenario.loop.asynchrony.pace


def warnings_of(run: SimulatedVariant) -> tuple[str, ...]:
    """What a reader of the answer must know about this run."""
    scenario, out = run.scenario, _length_warnings(run)
    statistics_steps = len(run.every_step)
    preemptions = run.counters.preemptions / statistics_steps
    if preemptions > 0:
        out.append(
            f"KV cache overflows: {preemptions:.0f} preemptions per step; evicted sequences are prefilled again."
        )
    if run.agents.timed_out:
        out.append(
            f"{run.agents.timed_out / statistics_steps:.3g} trajectories per step run out of time "
            "(workload.agent.trajectory_timeout_s); the trainer is priced as if they had ended by themselves."
        )
    under_way = scenario.loop.asynchrony.pace
    if _starts(scenario):
        out.append(
            f"simulation.warmup_steps is below the {under_way:g} batches that may be under way: the first steps still "
            "hold the start-up."
        )
    eager = run.prices.engine.eager_share(counted(run.prices.engine, run.counters).iterations_at)
    if scenario.engine.cuda_graphs and eager > TOLD_EAGER_SHARE:
        out.append(
            f"{percent(eager)} of the engine's iterations exceed the largest captured CUDA graph "
            f"({run.prices.engine.captured_tokens} tokens, engine.max_captured_tokens) and launch "
            f"eagerly{_hanging(run)}."
        )
    return (*out, *_near_limit(run, eager), *_host_bound(run))


def _host_bound(run: SimulatedVariant) -> list[str]:
    """That faster kernels would not shorten an update whose host launches them too slowly."""
    parts = [part for step in run.every_step for part in step.cost.train.parts]
    share = sum(part.seconds for part in parts if part.name == "host floor") / max(1e-12, sum(p.seconds for p in parts))
    if share < TOLD_HOST_SHARE:
        return []
    return [
        f"{percent(share)} of the update is the host's floor: it launches kernels more slowly than they run, so a "
        "trainer.precision or device with faster kernels hardly shortens it."
    ]


def _near_limit(run: SimulatedVariant, eager: float) -> list[str]:
    """That fewer captured tokens would cost much, where most iterations are captured and nobody stated how many."""
    lost = max((one.below.get("generation", 0.0) for one, _ in open_draws(run) if one.stepped), default=0.0)
    if eager > TOLD_EAGER_SHARE or lost < TOLD_LAUNCH_SHARE:
        return []
    return [
        f"The largest captured CUDA graph ({run.prices.engine.captured_tokens} tokens, engine.max_captured_tokens) is "
        f"a default that nobody stated: with half of it the engines would need {np.exp(lost):.2g} times as long, which "
        "the interval holds; check what yours captures."
    ]


def _hanging(run: SimulatedVariant) -> str:
    """What of a rollout, and of what its step leaves open, hangs on launches beyond the captured graphs."""
    launches = run.prices.engine.launch_share(run.counters)
    if launches <= TOLD_LAUNCH_SHARE:
        return ""
    open_share = sum(one.share for one in sources_of(run) if one.kind == "launches")
    return (
        f"; {percent(launches)} of the rollout waits for those launches, of which we know the cost within a factor of "
        f"two: {percent(max(0.0, open_share))} of the variance of the step hangs on it, so check what your engine "
        "captures"
    )
