"""How well a simulated step uses its GPUs: MFU, HFU, tokens and memory bandwidth by phase, beside measured runs."""

import csv
import io

import numpy as np

from rlsim.costs.efficiency import (
    PassFlops,
    generation_flops,
    iteration_bytes,
    logprob_flops,
    peak_flops,
    update_flops,
)
from rlsim.costs.engine.draft_policy import counted
from rlsim.costs.interface import EngineCounters
from rlsim.files.reading import TABLE_BYTES, data_folder, read_text
from rlsim.projection.variant import SimulatedVariant
from rlsim.results.efficiency import MeasuredEfficiency, PhaseEfficiency
from rlsim.schema.scenario import Scenario
from rlsim.units import FloatArray

TABLE = "efficiency.csv"
"""What measured runs reached, under calibration/; written by research.efficiency from calibration/published."""


def efficiency_of(run: SimulatedVariant) -> tuple[PhaseEfficiency, ...]:
    """Generation, log-probs and updates of a run, means over its steps; phases without any time are left out."""
    # Tokens are those of the steps as drawn, and so must their seconds be, wherever a control moved the means.
    scenario, seconds = run.scenario, {name: mean_s / run.moved(name) for name, mean_s in run.phases_s.items()}
    steps = len(run.every_step)
    trained = float(np.mean([step.total_tokens for step in run.every_step]))
    lengths = run.first_step.trained_tokens.astype(np.float64)
    lengths = lengths * (trained / lengths.sum())  # those of one step stand for all
    generated = float(np.mean([step.generated_tokens for step in run.every_step]))
    responses = sum(one.generated.response_tokens.size for one in run.first_step.rollouts)
    counters, drafted = engines_of(run)
    # Less one token a response: the first comes from its prefill.
    whole = generation_flops(scenario, counters, (generated - responses) * steps, drafted)
    decoded = PassFlops(whole.model / steps, whole.hardware / steps)
    found = [
        _phase(scenario, "generation_s", seconds["generation_s"], generated, decoded, _bandwidth_use(run)),
        _phase(scenario, "logprob_s", seconds["logprob_s"], trained, logprob_flops(scenario, lengths)),
        _phase(scenario, "train_s", seconds["train_s"], trained, update_flops(scenario, lengths)),
    ]
    return tuple(one for one in found if one is not None)


def _phase(
    scenario: Scenario, name: str, seconds: float, tokens: float, flops: PassFlops, bandwidth: float | None = None
) -> PhaseEfficiency | None:
    if seconds <= 0:
        return None
    training = name != "generation_s"
    gpus = scenario.cluster.training if training else scenario.cluster.generation
    peak = peak_flops(scenario, training)
    return PhaseEfficiency(
        phase=name,
        tokens_per_s_per_gpu=tokens / seconds / gpus,
        mfu=flops.model / seconds / gpus / peak,
        hfu=flops.hardware / seconds / gpus / peak,
        bandwidth_use=bandwidth,
        peak_flops=peak,
        precision=scenario.trainer.precision if training else scenario.engine.weight_precision,
    )


def engines_of(run: SimulatedVariant) -> tuple[EngineCounters, FloatArray]:
    """Counters of the engines of a run, and the tokens that a sequence drafted in an iteration, by batch size."""
    engine, speculation = run.prices.engine, run.scenario.speculation
    counters = counted(engine, run.counters)
    sizes = len(counters.iterations_at)
    if engine.choice is None:
        return counters, np.full(sizes, float(speculation.draft_length if speculation.active else 0))
    return counters, engine.choice.drafted[:sizes]


def contexts_of(counters: EngineCounters) -> FloatArray:
    """Mean context in tokens by batch size; 0 of sizes that never ran."""
    return np.array(counters.context_at) / np.maximum(np.array(counters.iterations_at, dtype=np.float64), 1.0)


def _bandwidth_use(run: SimulatedVariant) -> float | None:
    """Share of the generating GPUs' memory bandwidth that reading weights and caches takes in the generation phase."""
    scenario, (counters, drafted) = run.scenario, engines_of(run)
    times = np.array(counters.iterations_at, dtype=np.float64)
    seconds = sum(step.phases.generation_s for step in run.every_step) * run.prices.replicas
    if seconds <= 0:
        return None
    sizes, contexts = np.arange(len(times), dtype=np.float64), contexts_of(counters)
    read = float((times * iteration_bytes(scenario, run.prices.engine_memory.parts, sizes, contexts, drafted)).sum())
    return read / seconds / scenario.hardware.memory_bandwidth_bytes_per_s.value


def _measured() -> tuple[MeasuredEfficiency, ...]:
    text = read_text(data_folder("calibration") / TABLE, TABLE_BYTES)
    return tuple(map(MeasuredEfficiency.model_validate_strings, csv.DictReader(io.StringIO(text))))


def measured_beside(scenario: Scenario) -> tuple[MeasuredEfficiency, ...]:
    """Measured efficiencies of the scenario's model on its devices; of other models there where none was run. Phases
    alone that a step of it has."""
    every, devices = _measured(), {scenario.hardware.name, scenario.training_device.name}
    without = "decode" if scenario.loop.supervised else "train" if scenario.loop.rollouts_alone else ""
    on_device = [one for one in every if one.device in devices and one.phase != without]
    same = [one for one in on_device if one.model == scenario.model.name]
    measured = {one.phase for one in same}
    # Rows of "any" model stand in for a phase that nobody measured of this one.
    return (*same, *(one for one in on_device if one.model == "any" and one.phase not in measured))
