"""From traces to the answer: intervals, parts of each phase, provenance, memory and engine statistics."""

import dataclasses
import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.engine.draft_policy import counted, tokens_factor
from rlsim.costs.interface import Part, PhaseCost, add_up
from rlsim.costs.memory import engine_fits, kv_bytes_per_gpu_token, trainer_fits, trainer_parts
from rlsim.projection.efficiency import efficiency_of
from rlsim.projection.uncertainty.estimate import Estimate
from rlsim.projection.uncertainty.predictive import DRAWS, Prediction, around, prediction_of
from rlsim.projection.variant import SimulatedVariant, seconds_of
from rlsim.results import (
    PHASES,
    EngineStatistics,
    Interval,
    MemoryUse,
    PhasePart,
    Provenance,
    Sampling,
    StepPhases,
    Variant,
)
from rlsim.results.record import interval
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.scenario import Scenario
from rlsim.simulation.trace import StepRecord
from rlsim.units import SECONDS_PER_HOUR, FloatArray
from rlsim.workload.draw import steps_per_lag_cycle

SHOWN_PARTS = 12
"""Parts of a phase shown; the others are added up."""


LEAST_BATCHES = 8
"""Batches that the error of a simulation is taken from at least, where it has as many cycles: with fewer, Student's t
and the estimate itself are too wide to be of use (from 8 on the 90 % bounds are within 16 % of a normal's)."""


IN_A_ROW = ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s")
"""Phases that add up to a synchronous step."""


class Timed(Struct, frozen=True, eq=False):
    """Seconds of a simulated scenario's generation and step, and the draws of all its phases. in_a_row: mean seconds of
    the phases of a synchronous step; none of an asynchronous one, whose phases overlap."""

    generation: Estimate
    step: Estimate
    prediction: Prediction
    in_a_row: Mapping[str, float]

    @property
    def step_s(self) -> float:
        """Mean seconds of a step."""
        return self.step.mean

    @property
    def interval(self) -> Interval:
        """The step with its 90 % interval, as ``project`` shows it."""
        return self.step.interval


def timed(run: SimulatedVariant) -> Timed:
    """Generation and step of a run over all measured steps."""
    names = IN_A_ROW if run.scenario.loop.mode == "sync" else ()
    rows = {name: mean_value(run, seconds_of(name)) for name in names}
    return Timed(phase_estimate(run, "generation_s"), phase_estimate(run, "step"), prediction_of(run), rows)


def beside_first(run: SimulatedVariant, other: Timed) -> Estimate:
    """The step of a variant that was simulated on the work of the first replication of ``run``, carried over to what
    that answers.

    Phase by phase where both are synchronous: the draw of one phase says nothing of what another saves. With what the
    model does not know of the variant, and the simulation's own error of the answer.
    """
    own, after_s = phase_estimate(run, "step"), 0.0
    rows = other.in_a_row if run.scenario.loop.mode == "sync" else {}
    for name, other_s in (rows or {"step": other.step.mean}).items():
        first_s = float(np.mean([seconds_of(name)(one) for one in run.steps[0]]))
        after_s += mean_value(run, seconds_of(name)) * other_s / first_s if first_s else other_s
    return replace(other.step, mean=after_s, error=own.error, degrees=own.degrees)


def phase_estimate(run: SimulatedVariant, name: str) -> Estimate:
    """Seconds of a phase of the contract, or of ``step``."""
    found = simulated_estimate(run, name)
    return replace(found, factors=prediction_of(run).factor(name, found.mean))


def simulated_estimate(run: SimulatedVariant, name: str) -> Estimate:
    """Seconds of a phase of the contract, or of ``step``, as if the model missed nothing: what its own error takes."""
    values = step_values(run, seconds_of(name))
    mean = float(np.mean(values))
    parts, carried = _independent_means(run, values), run.carried_s(name) / mean if mean else 0.0
    return Estimate.of(mean, np.ones(DRAWS), parts, carried, run.fitted_batches)


def _independent_means(run: SimulatedVariant, values: Sequence[float]) -> FloatArray:
    """Batch means: of each replication, and of consecutive parts of it where there are fewer than LEAST_BATCHES.

    Single cycles are no batches, since neighbours share stragglers and slots.
    """
    parts = math.ceil(LEAST_BATCHES / len(run.traces))
    by_replication = np.array(values).reshape(len(run.traces), -1)
    batches = (batch for cycles in by_replication for batch in np.array_split(cycles, parts))
    return np.array([batch.mean() for batch in batches if batch.size])


def speedups(before: Timed, after: Timed) -> tuple[Estimate, Estimate]:
    """Rollout and end-to-end speed-up of ``after`` over ``before``, ratios of mean times on the same drawn work.

    Their intervals hold the model's draws, which move both alike where they are alike, and the simulation's own error:
    a loop that trains on what is done first makes other batches of the same work once anything takes another time.
    """
    return before.generation.over(after.generation), before.step.over(after.step)


def contract_name(phase: str, mode: str) -> str:
    """The phase that logs call so, or step; a synchronous weight update is printed with all that stands around it."""
    return "step" if phase == "step" else "prepare_s" if phase == "refit" and mode == "sync" else f"{phase}_s"


def mean_value(run: SimulatedVariant, of: Callable[[StepRecord], float]) -> float:
    """Mean of a value of the measured steps."""
    return float(np.mean(step_values(run, of)))


def sampling_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean of independent values, which more of them would shrink; None of a single value."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def step_values(run: SimulatedVariant, of: Callable[[StepRecord], float]) -> list[float]:
    """Value of every measured step, replication by replication; asynchronous: mean of every cycle of policy_lag steps.

    Entries of equal index of two variants belong together. Steps of synchronous runs are independent; consecutive
    cycles of an asynchronous one share stragglers and slots and are slightly correlated, which intervals over them
    neglect.
    """
    size, rows = steps_per_lag_cycle(run.scenario), run.values(of)
    return [float(row[first : first + size].mean()) for row in rows for first in range(0, len(row), size)]


def iteration_tokens(run: SimulatedVariant) -> list[float]:
    """Tokens that an iteration of the engine gives a sequence, as :func:`step_values`; 1 where nothing is drafted."""
    factor = tokens_factor(run.prices.engine, run.counters)
    return [factor * tokens for tokens in step_values(run, lambda step: step.tokens_per_verification)]


def around_phase(run: SimulatedVariant, name: str) -> Interval:
    """A phase of the contract, or ``step``, with its 90 % interval, seconds."""
    return phase_estimate(run, name).interval


def variant_of(run: SimulatedVariant, parts: tuple[PhasePart, ...]) -> Variant:
    """One side of the answer; ``parts`` as from :func:`phase_parts`."""
    speculation, predicted, steps = run.scenario.speculation, prediction_of(run), run.every_step
    consumed = sum(sum(step.staleness.values()) for step in steps)
    ages = sorted({age for step in steps for age in step.staleness})
    tokens = Counter[int]()
    for step in steps:
        tokens.update(step.token_ages)

    own = phase_estimate(run, "step")
    ledgers = [trace.ledger for trace in run.traces if trace.ledger is not None]
    return Variant(
        method=speculation.method if speculation.active else "none",
        draft_length=speculation.draft_length if speculation.active else 0,
        acceptance_length=interval(iteration_tokens(run)),
        step_s=own.interval,
        phases=StepPhases(**{name: around_phase(run, name) for name in PHASES}),
        tokens_per_s_per_gpu=around(tokens_per_s_per_gpu(run), 1.0 / predicted.step_factor),
        memory=memory_of(run),
        memory_phases=memory_phases(run),
        parts=parts,
        staleness={age: sum(step.staleness.get(age, 0) for step in steps) / consumed for age in ages},
        token_ages={age: tokens[age] / max(sum(tokens.values()), 1) for age in sorted(tokens)},
        statistics=_statistics(run),
        # The error that the interval holds: neighbouring steps are not independent, and a control may move their mean.
        sampling=Sampling(own.mean * own.error if len(steps) > 1 else None, float(np.std([s.seconds for s in steps]))),
        # Where the response tokens of a step went, mean over all steps and replications.
        ledger=functools.reduce(operator.add, ledgers).scaled(1.0 / len(steps)) if ledgers else None,
        efficiency=efficiency_of(run),
        spans=tuple(run.traces[0].spans),
        curves=tuple(run.traces[0].curves),
    )


def tokens_per_s_per_gpu(run: SimulatedVariant) -> float:
    """Mean of the rates over whole cycles: a mean of rates of single steps would overrate the short ones."""
    tokens, seconds = step_values(run, lambda s: s.total_tokens), step_values(run, lambda s: s.seconds)
    return float(np.mean([t / s / run.scenario.cluster.num_gpus for t, s in zip(tokens, seconds, strict=True)]))


def _statistics(run: SimulatedVariant) -> EngineStatistics:
    steps, engine, replicas = run.every_step, run.prices.engine, run.prices.replicas
    count, counters = len(steps), counted(engine, run.counters)
    rewards_s = run.rewards_s if run.scenario.loop.mode == "sync" else 0.0
    # Rewards come after the last token: the rate is of the time in which tokens come.
    seconds = sum(step.phases.generation_s for step in steps) - rewards_s * count
    generated = sum(step.generated_tokens for step in steps) - run.agents.skipped_tokens
    imbalances = [value for trace in run.traces for value in trace.imbalances]
    repeated = run.scenario.workload.usable_group_share < 1
    agents = run.agents if run.scenario.workload.agent is not None else None
    return EngineStatistics(
        replicas=float(replicas),
        decode_iterations=counters.iterations / count,
        mean_batch=counters.mean_batch,
        mean_context_tokens=counters.mean_context_tokens,
        eager_share=engine.eager_share(counters.iterations_at),
        prefill_iterations=counters.prefill_iterations / count,
        prefill_tokens=counters.prefill_tokens / count,
        preemptions=counters.preemptions / count,
        peak_kv_tokens=_peak_kv_tokens(run),
        tokens_per_s=generated / seconds if seconds > 0 else 0.0,
        iterations_per_s=counters.iterations / seconds / replicas if seconds > 0 else 0.0,
        tokens_per_verification=float(np.mean([step.tokens_per_verification for step in steps]))
        * tokens_factor(engine, run.counters),
        replica_imbalance=float(np.mean(imbalances)) if imbalances else None,
        rollouts=float(np.mean([step.rollouts for step in steps])) if repeated else None,
        turns=agents.turns / count if agents else None,
        environment_queue_s=agents.queued_s / agents.turns if agents else None,
        reused_tokens=agents.reused_tokens / count if agents else None,
        loaded_tokens=agents.loaded_tokens / count if agents and run.scenario.engine.kv_offload else None,
        timed_out=agents.timed_out / count if agents else None,
    )


def _peak_kv_tokens(run: SimulatedVariant) -> float:
    return max(trace.peak_kv_tokens for trace in run.traces)


def memory_of(run: SimulatedVariant) -> dict[str, MemoryUse]:
    """Memory of the generating and of the training GPUs, by pool."""
    scenario, training = run.scenario, run.scenario.training_device.memory_bytes.value
    trainer, pools = run.prices.trainer_bytes, dict[str, MemoryUse]()
    if not scenario.loop.rollouts_alone:
        pools["training"] = MemoryUse.of(trainer, training, trainer_fits(scenario, trainer))
    if scenario.loop.supervised:
        return pools
    cached = _peak_kv_tokens(run) / scenario.engine.attention_data_parallel * kv_bytes_per_gpu_token(scenario)
    engine = dataclasses.replace(run.prices.engine_memory.parts, kv_cache=cached)
    return {"generation": MemoryUse.of(engine, scenario.hardware.memory_bytes.value, engine_fits(scenario)), **pools}


def memory_phases(run: SimulatedVariant) -> dict[str, MemoryUse]:
    """Memory of a GPU by phase of the step: of the generating one, and of the training one, be they one or two.

    At the hand-over the engine's cache is gone, and on shared GPUs the trainer's weights are beside its own.
    """
    scenario, pools, trainer = run.scenario, memory_of(run), run.prices.trainer_bytes
    if scenario.loop.supervised or scenario.loop.rollouts_alone:
        return {"update" if name == "training" else name: use for name, use in pools.items()}
    cluster, engine = scenario.cluster, run.prices.engine_memory.parts
    available = pools["training"].available_bytes
    beside = trainer.weights if cluster.colocated else 0.0
    handed = dataclasses.replace(engine, activations=0.0, weights=engine.weights + beside)
    passes = trainer_parts(scenario, cluster.training, False)
    if cluster.colocated:
        passes = dataclasses.replace(passes, engine=trainer.engine)
    return {
        "generation": pools["generation"],
        "hand-over": MemoryUse.of(handed, pools["generation"].available_bytes, engine_fits(scenario)),
        "log-probs": MemoryUse.of(passes, available, trainer_fits(scenario, passes)),
        "update": pools["training"],
    }


def phase_parts(run: SimulatedVariant) -> tuple[PhasePart, ...]:
    """Seconds per step by phase and part; the parts of a phase add up to it."""
    steps, mean, prices = run.every_step, run.phases_s, run.prices
    if run.scenario.loop.mode == "sync":
        rewards = Part("environment", run.rewards_s, "host", "assumed")
        again = float(np.mean([step.rollouts for step in steps])) - 1.0
        prepare = (*prices.prepare.parts, *prices.wake.repeated(again).parts)
        out = [("generation_s", (*_generation(run, mean["generation_s"] - rewards.seconds, len(steps)), rewards))]
        out += [("prepare_s", prepare)]
    else:
        out = [("generation_s", _generation(run, mean["generation_s"], len(steps)))]
        # A price is of one publication, of which a step has less than one under loop.update_every.
        updates = mean["refit_s"] / prices.refit.seconds if prices.refit.seconds else 1.0
        out += [("refit_s", prices.refit.repeated(updates).parts)]
    out += [("data_s", _mean(run, "data_s", (step.cost.data for step in steps)))]
    out += [("logprob_s", _mean(run, "logprob_s", (step.cost.logprob for step in steps)))]
    out += [("train_s", _mean(run, "train_s", (step.cost.train for step in steps)))]
    return tuple(part for name, parts in out for part in _shown(name, parts))


def _mean(run: SimulatedVariant, phase: str, costs: Iterable[PhaseCost]) -> tuple[Part, ...]:
    whole = PhaseCost.of(part for cost in costs for part in cost.parts)
    return whole.repeated(run.moved(phase) / len(run.every_step)).parts


def _generation(run: SimulatedVariant, phase_s: float, steps: int) -> tuple[Part, ...]:
    """What a replica did in ``phase_s`` of generation, mean over replicas; imbalance is its wait for the slowest one.

    Where iterations that were under way when the measured steps began or ended make the sum longer than the phase,
    their excess is spread over the parts.
    """
    whole = run.prices.engine.parts(run.counters)
    # A control of tokens moves what engines do, one of environments what they wait for.
    moved = run.moved("generation_s") if run.scenario.workload.agent is None else 1.0
    each = [replace(part, seconds=moved * part.seconds / steps / run.prices.replicas) for part in whole]
    busy_s = sum(part.seconds for part in each)
    if busy_s > phase_s:
        return tuple(replace(part, seconds=part.seconds / busy_s * phase_s) for part in each)
    return (*each, *_idle(run, phase_s - busy_s, steps))


def _idle(run: SimulatedVariant, idle_s: float, steps: int) -> tuple[Part, ...]:
    """What a replica waited for: environments and a judge as far as trajectories of its own were there, else others."""
    if run.scenario.workload.agent is None:
        return (Part("imbalance", idle_s, "schedule"),)
    per_step = 1.0 / steps / run.prices.replicas
    environment_s = min(idle_s, run.agents.environment_idle_s * per_step)
    judge_s = min(idle_s - environment_s, run.agents.judge_idle_s * per_step)
    return (
        Part("environment", environment_s, "environment", "assumed"),
        Part("judge", judge_s, "judge", "assumed"),
        Part("imbalance", idle_s - environment_s - judge_s, "schedule"),
    )


def _shown(phase: str, parts: Iterable[Part]) -> list[PhasePart]:
    """Parts of a phase, largest first, the smallest added up."""
    ordered = sorted((part for part in parts if part.seconds > 0), key=lambda part: -part.seconds)
    if len(ordered) <= SHOWN_PARTS:
        return [_phase_part(phase, part) for part in ordered]
    # One place of SHOWN_PARTS is for the sum of the others.
    rest = [replace(part, name="other") for part in ordered[SHOWN_PARTS - 1 :]]
    sources = {part.source for part in rest if part.measured < 1.0}
    (other,) = add_up(rest)
    source: Literal["modelled", "assumed"] = "modelled" if "modelled" in sources else "assumed"
    mixed = _phase_part(phase, replace(other, source=source), "mixed")
    return [*(_phase_part(phase, part) for part in ordered[: SHOWN_PARTS - 1]), mixed]


def _phase_part(phase: str, part: Part, bound: str = "") -> PhasePart:
    return PhasePart(
        phase=phase,
        name=part.name,
        seconds=part.seconds,
        bound=bound or part.bound,
        # A part goes by the larger share of its seconds; the exact share stands beside it.
        label="measured" if part.measured >= 0.5 else part.source,
        measured=part.measured,
        source=part.source,
    )


def provenance_of(parts: Sequence[PhasePart]) -> Provenance:
    """Shares of the seconds of ``parts`` that are measured, modelled and assumed."""
    total = sum(part.seconds for part in parts)
    measured = sum(part.seconds * part.measured for part in parts)
    assumed = sum(part.seconds * (1.0 - part.measured) for part in parts if part.source == "assumed")
    # The rest and not a third sum, so that the shares add up to 1; rounding may leave it just below 0.
    shares = measured / total, max(0.0, 1.0 - (measured + assumed) / total), assumed / total
    # The last digit hangs on the order in which a version of Python adds up.
    return Provenance(*(round(share, 12) for share in shares))


def price_usd(scenario: Scenario, gpus: int = 0) -> float:
    """Price of a GPU for an hour (hardware.price_per_gpu_hour_usd), of two kinds in the mean over the GPUs, with its
    share of what the CPU nodes of sandboxes cost (workload.agent.nodes). gpus: default those of the scenario."""
    nodes = scenario.workload.agent and scenario.workload.agent.nodes
    beside = nodes.hourly_usd / (gpus or scenario.cluster.num_gpus) if nodes else 0.0
    return _mean_gpu(scenario, lambda one: one.price_per_gpu_hour_usd.value) + beside


def cost_usd(scenario: Scenario, seconds: float) -> float:
    """Price of all GPUs of the scenario, and of the CPU nodes of its sandboxes, for ``seconds``, busy or not."""
    return scenario.cluster.num_gpus * price_usd(scenario) * seconds / SECONDS_PER_HOUR


def energy_j(scenario: Scenario, seconds: float) -> float:
    """Energy in joules of all GPUs at their power limit (hardware.power_w) for ``seconds``: an upper bound."""
    return scenario.cluster.num_gpus * _mean_gpu(scenario, lambda one: one.power_w.value) * seconds


def _mean_gpu(scenario: Scenario, of: Callable[[HardwareProfile], float]) -> float:
    """A value of the GPUs, in the mean over all of them."""
    if scenario.training_hardware is None:
        return of(scenario.hardware)
    cluster = scenario.cluster
    others = cluster.num_gpus - cluster.generation  # a reference pool is of the trainer's kind
    return (cluster.generation * of(scenario.hardware) + others * of(scenario.training_hardware)) / cluster.num_gpus
