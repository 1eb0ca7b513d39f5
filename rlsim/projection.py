"""project(): a candidate against the autoregressive baseline on the same drawn work."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rlsim.costs.model import ScenarioCosts, build_costs, memory_parts
from rlsim.costs.seam import Part, PhaseCost
from rlsim.datafiles import shown_path
from rlsim.hardware.fitted import parameters_of
from rlsim.hardware.tables import OperatorTables
from rlsim.loading import dump_scenario, scenario_digest
from rlsim.results import PHASES, Arm, MemoryUse, Projection, Quantity, Share
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import Speculation
from rlsim.schema.workload import TraceLength
from rlsim.simulation.length_files import ignored_ids
from rlsim.simulation.loop import cycle_steps, run_loop
from rlsim.simulation.trace import StepRecord, Trace
from rlsim.simulation.world import Draws, StepWork, World
from rlsim.speculation.acceptance import Acceptance, acceptance_of
from rlsim.statistics import interval, widened

Progress = Callable[[int, int], None]
SHOWN_PARTS = 12
"""Parts of the generation phase shown; the others are added up."""


@dataclass(frozen=True)
class ArmRun:
    """What the replications of one arm left behind: steps of each after the warm-up, and the first one's trace."""

    scenario: Scenario
    costs: ScenarioCosts
    acceptance: Acceptance
    steps: list[list[StepRecord]]
    trace: Trace
    work: StepWork


def baseline_of(scenario: Scenario) -> Scenario:
    """The same scenario without speculation."""
    return Scenario.model_validate({**dict(scenario), "speculation": Speculation()})


def project(scenario: Scenario, progress: Progress | None = None, tables: OperatorTables | None = None) -> Projection:
    """Simulate ``scenario`` and its autoregressive baseline, replication by replication on the same drawn work.

    progress: called with (done, total) simulated arms. tables: operator tables in place of the profile's own.
    Raises Infeasible where a configuration cannot run and InputError where it makes no sense.
    """
    arms = [baseline_of(scenario), scenario] if scenario.speculation.active else [baseline_of(scenario)]
    costs = [build_costs(arm, tables) for arm in arms]
    draws = [Draws(scenario, replication) for replication in range(scenario.simulation.replications)]
    runs: list[ArmRun] = []
    for arm, cost in zip(arms, costs, strict=True):
        if runs and scenario.speculation.online_training:
            for work in draws:
                work.forget_costs()
        runs.append(simulate_arm(arm, cost, draws, _advance(progress, len(runs) * len(draws), len(arms) * len(draws))))
    return _answer(scenario, runs[0], runs[-1])


def _advance(progress: Progress | None, before: int, total: int) -> Callable[[int], object]:
    return lambda done: progress(before + done, total) if progress is not None else None


def simulate_arm(
    scenario: Scenario,
    costs: ScenarioCosts,
    draws: Sequence[Draws],
    advance: Callable[[int], object] = lambda done: None,
) -> ArmRun:
    """Simulate one side of a comparison: one replication for each entry of ``draws``.

    advance: called with the number of replications done.
    """
    acceptance = acceptance_of(scenario.speculation)
    warmup = scenario.simulation.warmup_steps
    kept, first = [], Trace(detailed=True)
    for index, work in enumerate(draws):
        trace = first if index == 0 else Trace()
        with _cycles_left_alone():
            run_loop(World(scenario, costs, costs.replicas, acceptance, work), trace)
        kept.append(trace.steps[warmup:])
        advance(index + 1)
    return ArmRun(scenario, costs, acceptance, kept, first, draws[0].step(warmup, costs))


@contextmanager
def _cycles_left_alone() -> Iterator[None]:
    """No search for reference cycles meanwhile: the simulation makes many small objects and no cycles among them, and
    the searches through all that live are a tenth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _answer(scenario: Scenario, base: ArmRun, cand: ArmRun) -> Projection:
    parts = phase_parts(cand)
    step_s = [step_values(run, lambda s: s.seconds) for run in (base, cand)]
    generation = [step_values(run, _phase("generation_s")) for run in (base, cand)]
    rollout_speedup, end_to_end_speedup = speedups(
        generation, step_s, cand.costs.overheads.speedup_error if scenario.speculation.active else 0.0
    )
    return Projection(
        scenario=scenario.name,
        question=scenario.question,
        digest=scenario_digest(scenario),
        seed=scenario.simulation.seed,
        mode=scenario.loop.mode,
        num_gpus=scenario.cluster.num_gpus,
        model=scenario.model.name,
        hardware=scenario.hardware.name,
        baseline=arm_of(base, phase_parts(base)),
        candidate=arm_of(cand, parts),
        rollout_speedup=rollout_speedup,
        end_to_end_speedup=end_to_end_speedup,
        provenance=_provenance(parts),
        assumptions=_assumptions(cand),
        warnings=_warnings(scenario, cand),
        resolved_scenario=dump_scenario(scenario),
    )


def speedups(
    generation_s: Sequence[Sequence[float]], step_s: Sequence[Sequence[float]], error: float
) -> tuple[Quantity, Quantity]:
    """Rollout and end-to-end speed-up from seconds of (baseline, candidate), pair by pair on the same drawn work.

    The pairs are measured steps, or means over several of them. A speed-up is the ratio of the mean times; its
    interval is that of one more pair, from the deviations of the pairs linearised around the ratio (ratio estimator,
    W. G. Cochran, Sampling Techniques, 3rd ed., chapter 6).
    error: standard deviation of the logarithm of a predicted generation speed-up; the step has its share of it.
    """
    share = min(1.0, float(np.mean(generation_s[1]) / np.mean(step_s[1])))
    return widened(_ratio(*generation_s), error), widened(_ratio(*step_s), error * share)


def step_values(run: ArmRun, of: Callable[[StepRecord], float]) -> list[float]:
    """Value of every measured step, replication by replication; asynchronous: mean of every cycle of policy_lag steps.

    Entries of equal index of two arms belong together. Steps of synchronous runs are independent; consecutive cycles of
    an asynchronous one share stragglers and slots and are slightly correlated, which intervals over them neglect.
    """
    size = cycle_steps(run.scenario)
    return [
        float(np.mean([of(step) for step in steps[first : first + size]]))
        for steps in run.steps
        for first in range(0, len(steps), size)
    ]


def replication_means(run: ArmRun, of: Callable[[StepRecord], float]) -> list[float]:
    """Mean over the measured steps of each replication."""
    return [float(np.mean([of(step) for step in steps])) for steps in run.steps]


def _phase(name: str) -> Callable[[StepRecord], float]:
    return lambda step: step.phases[name]


def _ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Quantity:
    """Ratio of two means with the interval of its linearised pairs; 1 where there is nothing to divide by."""
    below = float(np.mean(denominators))
    if below <= 0:
        return Quantity(1.0, 1.0, 1.0)
    ratio = float(np.mean(numerators)) / below
    return interval([ratio + (a - ratio * b) / below for a, b in zip(numerators, denominators, strict=True)])


def arm_of(run: ArmRun, shares: tuple[Share, ...]) -> Arm:
    """One side of the answer; ``shares`` as from :func:`phase_parts`."""
    scenario = run.scenario
    speculation, error = scenario.speculation, run.costs.overheads.step_error
    steps = [step for replication in run.steps for step in replication]
    consumed = sum(sum(step.staleness.values()) for step in steps)
    ages = sorted({age for step in steps for age in step.staleness})
    return Arm(
        method=speculation.method if speculation.active else "none",
        draft_length=speculation.draft_length if speculation.active else 0,
        acceptance_length=_reached_acceptance(run),
        step_s=widened(interval(step_values(run, lambda s: s.seconds)), error),
        phases={name: widened(interval(step_values(run, _phase(name))), error) for name in PHASES},
        tokens_per_s_per_gpu=widened(interval(_tokens_per_s_per_gpu(run)), error),
        memory=_memory(run),
        shares=shares,
        staleness={age: sum(step.staleness.get(age, 0) for step in steps) / max(consumed, 1) for age in ages},
        facts={"replicas": float(run.costs.replicas), **_mean_facts(steps)},
        spans=tuple(run.trace.spans),
        curves=tuple(run.trace.curves),
    )


def _tokens_per_s_per_gpu(run: ArmRun) -> list[float]:
    """Rates over whole cycles: a mean of rates of single steps would overrate the short ones."""
    tokens, seconds = step_values(run, lambda s: s.total_tokens), step_values(run, lambda s: s.seconds)
    return [t / s / run.scenario.cluster.num_gpus for t, s in zip(tokens, seconds, strict=True)]


def _reached_acceptance(run: ArmRun) -> Quantity:
    """Mean tokens per verification as drawn (the mean of the process for the autoregressive arm)."""
    return interval(step_values(run, lambda s: s.facts["tokens_per_verification"]))


def _mean_facts(steps: list[StepRecord]) -> dict[str, float]:
    names = dict.fromkeys(name for step in steps for name in step.facts)
    return {name: float(np.mean([step.facts.get(name, 0.0) for step in steps])) for name in names}


def _memory(run: ArmRun) -> tuple[MemoryUse, ...]:
    resident = max((step.facts.get("peak_kv_tokens", 0.0) for steps in run.steps for step in steps), default=0.0)
    available = run.scenario.hardware.memory_bytes.value
    return (
        MemoryUse("generation", memory_parts(run.costs, resident), available),
        MemoryUse("training", run.costs.trainer_bytes, available),
    )


def phase_parts(run: ArmRun) -> tuple[Share, ...]:
    """Seconds per step by phase and part: measured spans of the simulation, split as the cost model splits them."""
    steps = [step for replication in run.steps for step in replication]
    mean = {name: float(np.mean([s.phases[name] for s in steps])) for name in PHASES}
    work = run.work
    generation = run.costs.iteration_costs.parts(run.trace.tally.iterations_at, run.trace.tally.context_at)
    if run.scenario.loop.mode == "sync":
        rollouts = float(np.mean([s.facts.get("rollouts", 1.0) for s in steps]))
        rewards_s = run.scenario.workload.environment_s * rollouts
        out = _scaled("generation_s", mean["generation_s"] - rewards_s, generation)
        out += _scaled("generation_s", rewards_s, [Part("environment", rewards_s, "host", "assumed")])
        wakes = [replace(part, seconds=(rollouts - 1) * part.seconds) for part in run.costs.wake().parts]
        out += _scaled("prepare_s", mean["prepare_s"], [*run.costs.prepare().parts, *wakes])
    else:
        out = _scaled("generation_s", mean["generation_s"], generation)
        out += _scaled("refit_s", mean["refit_s"], list(run.costs.refit().parts))
    costs: dict[str, PhaseCost] = {"data_s": work.data, "logprob_s": work.logprob, "train_s": work.train}
    for name, cost in costs.items():
        out += _scaled(name, mean[name], list(cost.parts))
    return tuple(out)


def _scaled(phase: str, seconds: float, parts: list[Part]) -> list[Share]:
    """Parts scaled to a phase's duration, largest first, the smallest added up."""
    total = sum(part.seconds for part in parts)
    if total <= 0 or seconds <= 0:
        return []
    ordered = sorted(parts, key=lambda part: -part.seconds)
    shares = [Share(phase, p.name, p.seconds / total * seconds, p.bound, p.root) for p in ordered if p.seconds > 0]
    if len(shares) <= SHOWN_PARTS:
        return shares
    rest = sum(share.seconds for share in shares[SHOWN_PARTS - 1 :])
    return [*shares[: SHOWN_PARTS - 1], Share(phase, "other", rest, "mixed", "modelled")]


def _provenance(shares: tuple[Share, ...]) -> dict[str, float]:
    """Share of the candidate's time by root."""
    total = sum(share.seconds for share in shares)
    out = {root: sum(s.seconds for s in shares if s.root == root) / total for root in ("measured", "modelled")}
    return {**out, "assumed": 1.0 - out["measured"] - out["modelled"]}


def _assumptions(run: ArmRun) -> tuple[str, ...]:
    scenario, found = run.scenario, run.costs.overheads
    stated, pool = scenario.trainer.device_efficiency, "colocated" if scenario.cluster.colocated else "split"

    def origin(name: str, given: float | None) -> str:
        return "stated" if given is not None else f"{parameters_of(scenario).origin(name)}: {found.source}"

    own = [
        f"Host work per engine iteration: {found.host_iteration_s * 1e3:.3g} ms + "
        f"{found.host_sequence_s * 1e6:.3g} us per sequence (engine.host_iteration_s, engine.host_sequence_s; where "
        f"not stated, {_release(scenario)}, fitted: {found.source}).",
        f"Training kernels reach {found.dense_efficiency:.0%} (dense; {origin('dense_efficiency', stated)}) and "
        f"{found.moe_efficiency:.0%} (MoE; {origin('moe_efficiency', stated)}) of the operator tables' speed; a weight "
        f"tensor takes {found.refit_tensor_s * 1e3:.2g} ms of a refit "
        f"({origin(f'{pool}_tensor_s', scenario.loop.refit_tensor_s)}).",
        f"Largest captured CUDA graph: {scenario.engine.largest_graph_tokens} tokens; larger iterations launch every "
        "kernel from the host (engine.max_captured_tokens).",
        f"Prompt groups share {scenario.workload.group_correlation:g} of the variance of log length "
        "(workload.group_correlation).",
    ]
    if scenario.trainer.critic:
        own.append("The value model has the policy's size and layout; no measured PPO step backs its times.")
    if scenario.workload.usable_group_share < 1:
        own.append(
            f"Dynamic sampling: {scenario.workload.usable_group_share:.0%} of the prompt groups are usable, whatever "
            "their lengths (workload.usable_group_share); the rollouts of a step follow each other."
        )
    if scenario.model.moe is not None:
        own.append(
            f"A MoE layer's forward pass in training takes at least {found.moe_host_layer_s * 1e3:.3g} ms of host time "
            f"({origin('moe_host_layer_s', scenario.trainer.moe_host_layer_s)})."
        )
    if scenario.speculation.active and not scenario.speculation.draft_graph:
        own.append("Draft passes run outside CUDA graphs: each is at least as long as its launches (draft_graph).")
    own.append(
        f"90 % intervals hold the spread of the workload and the model's error on models left out of its fit "
        f"({found.step_error:.0%} of a time, {found.speedup_error:.0%} of a speed-up, standard deviations)."
    )
    if found.tables_error > 0:
        own.append(f"{found.tables_error:.0%} of a time among these is the self-check error of the measured tables.")
    return (*(assumption.text for assumption in scenario.assumptions), *own)


def _release(scenario: Scenario) -> str:
    """Whose host times an engine has: its release's own, or those of the nearest fitted one."""
    engine = scenario.engine
    host = parameters_of(scenario).release(engine.name, engine.version)
    asked = f"{engine.name} {engine.version or 'of the newest release'}"
    found = f"{host.engine} {host.version}"
    return (
        f"of {found}"
        if engine.name == host.engine and engine.version in (None, host.version)
        else (f"of {found} for {asked}, which has no fit")
    )


def truncated_share(run: ArmRun) -> float:
    """Share of the drawn samples whose response is cut where prompt and response reach max_sequence_tokens."""
    totals = np.concatenate([one.batch.total_tokens for one in run.work.rollouts])
    return float(np.mean(totals >= run.scenario.workload.max_sequence_tokens))


def _warnings(scenario: Scenario, cand: ArmRun) -> tuple[str, ...]:
    out = []
    workload = scenario.workload
    if isinstance(workload.response_tokens, TraceLength) and (cut := truncated_share(cand)) > 0:
        out.append(
            f"{cut:.0%} of the responses are longer than workload.max_sequence_tokens = "
            f"{workload.max_sequence_tokens:,} leaves them and are cut there."
        )
    out += [
        f"{ids} of {shown_path(Path(length.path))} is not used: samples of a prompt are alike by "
        f"workload.group_correlation = {workload.group_correlation:g}."
        for length in (workload.prompt_tokens, workload.response_tokens)
        if isinstance(length, TraceLength) and (ids := ignored_ids(length.path))
    ]
    facts = _mean_facts([s for steps in cand.steps for s in steps])
    if facts.get("preemptions", 0.0) > 0:
        out.append(
            f"KV cache overflows: {facts['preemptions']:.0f} preemptions per step; evicted sequences are prefilled "
            "again."
        )
    if scenario.loop.mode == "async" and scenario.simulation.warmup_steps < scenario.loop.policy_lag + 1:
        out.append("simulation.warmup_steps is below policy_lag + 1: the first steps still hold the start-up.")
    if scenario.speculation.active and facts.get("eager_share", 0.0) > 0.02:
        out.append(
            f"{facts['eager_share']:.0%} of the engine's iterations exceed the largest captured CUDA graph "
            f"({scenario.engine.largest_graph_tokens} tokens) and launch eagerly."
        )
    return tuple(out)
