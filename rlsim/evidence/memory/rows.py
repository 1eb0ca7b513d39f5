"""Published memory of GPUs and hosts beside what is counted, and runs that ran or ran out of memory."""

from collections.abc import Sequence

from rlsim.costs.memory import (
    SPREAD,
    beside_fits,
    engine_fits,
    engine_memory,
    engine_spread,
    host_bytes,
    leftover_bytes,
    trainer_fits,
    trainer_parts,
    trainer_spread,
    update_parts,
)
from rlsim.errors import Infeasible
from rlsim.evidence import training
from rlsim.evidence.memory.scenarios import WORDS, engine_row, is_engine, trainer_row
from rlsim.evidence.rows import Comparison, MeasuredRow, Predict, Prediction
from rlsim.evidence.tables import Row, SkippedRow, Table, measured_value, whole_number
from rlsim.parameters.sets import Fitted
from rlsim.results import Interval, MemoryParts
from rlsim.results.validation import Detail
from rlsim.schema.scenario import Scenario
from rlsim.units import BYTES_PER_ELEMENT, GIB

VERDICT = "fits"
PEAKS = ("peak_allocated", "peak_reserved", "nvidia_smi")
ENGINE_PARTS = {
    "weights_gib": "weights",
    "activation_gib": "activations",
    "non_torch_gib": "runtime",
    "graphs_gib": "graphs",
}
"""Columns of start-up logs by the part that they are of."""
DEVIATION, OF_GRAPHS = 0.2, 0.42
"""Standard deviation of parts of an engine, and of graphs that of the rows of graph_bytes (costs/memory.yaml)."""
CACHE = ("kv_tokens", "kv_gib")
FIRST_ITERATION = "after iteration 1"
"""In the notes of a peak: it is that of a first iteration, after which the run ended or nobody looked again."""
LIKELY = 0.9
"""Probability from which a run is said to fit."""


def objection(cells: Row) -> str:
    """Why what a row measured is not compared; empty where nothing speaks against it."""
    parts = [part.strip() for part in cells.get("flag", "").split(";")]
    objecting = [part for part in parts if part and not part.startswith(tuple(WORDS["informs"]))]
    return f"flag {objecting[0][:100]}" if objecting else ""


def _measured_rows(name: str, cells: Row) -> list[MeasuredRow]:
    if cells.get("kind") == VERDICT:
        return []  # a run that ran or did not: counted in a remark
    quantity = cells.get("measured_quantity", "")
    unit = "tokens" if quantity == "kv_tokens" else "GiB"
    about: dict[str, Detail] = {column: cells.get(column, "") for column in ("framework", "model", "gpu", "release")}
    group = "engine cache" if quantity in CACHE else "trainer peak" if quantity in PEAKS else quantity
    return [MeasuredRow(name, group, unit, measured_value(cells, "value"), cells, about)]


def _predictor(table: Table, fitted: Fitted) -> Predict:
    def predict(row: MeasuredRow) -> Prediction:
        if row.measured is None:
            raise SkippedRow("value is not given")
        if reason := objection(row.cells):
            raise SkippedRow(reason)
        cuts = (f"{row.group}, {row.cells['framework']}",)
        try:
            low, value, high = counted(row.cells)
        except Infeasible as error:
            raise SkippedRow(f"does not fit: {error}") from None
        if not value > 0:
            raise SkippedRow("nothing is counted")
        return Prediction(Interval(value, max(0.0, low), high), {}, cuts)

    return predict


def counted(cells: Row) -> tuple[float, float, float]:
    """Low end, value and high end of what a row measured, in its unit. Raises Infeasible, and SkippedRow."""
    quantity = cells["measured_quantity"]
    if quantity == "sleep_leftover_gib":
        return _around(leftover_bytes(engine_row(cells, 1024)) / GIB, DEVIATION)
    if not is_engine(cells):
        return _trainer(cells, quantity)
    if quantity in ENGINE_PARTS:
        part = getattr(engine_memory(engine_row(cells, 2)).parts, ENGINE_PARTS[quantity]) or 0.0
        return _around(part / GIB, OF_GRAPHS if quantity == "graphs_gib" else DEVIATION)
    scenario = engine_row(cells, min(whole_number(cells, "max_model_len", 1024), 1024))
    memory, spread = engine_memory(scenario), engine_spread(scenario)
    each = memory.kv_capacity_tokens / memory.kv_bytes if quantity == "kv_tokens" else 1 / GIB
    return tuple((memory.kv_bytes + away * spread) * each for away in (-1.645, 0.0, 1.645))  # type: ignore[return-value]


def _around(value: float, deviation: float) -> tuple[float, float, float]:
    return value * (1 - 1.645 * deviation), value, value * (1 + 1.645 * deviation)


def engine_of(cells: Row) -> tuple[Scenario, MemoryParts, float]:
    """Scenario of an engine's row, its parts, and standard deviation of its cache in bytes."""
    scenario = engine_row(cells, 1024)
    return scenario, engine_memory(scenario).parts, engine_spread(scenario)


def trainer_of(cells: Row) -> tuple[Scenario, float]:
    """Scenario of a trainer's row, and standard deviation of the logarithm of its bytes."""
    scenario = _scenario(cells)
    return scenario, trainer_spread(scenario, trainer_parts(scenario, scenario.cluster.training, True))


def _scenario(cells: Row) -> Scenario:
    # A table of training steps says more of a trainer than one of memory.
    return training.trainer_row(cells).scenario if cells.get("training_kind") else trainer_row(cells)


def _trainer(cells: Row, quantity: str) -> tuple[float, float, float]:
    scenario = _scenario(cells)
    if quantity == "host_ram":
        return _around(host_bytes(scenario) / GIB, DEVIATION)
    parts = trainer_parts(scenario, scenario.cluster.training, True)
    if quantity == "static_allocated":
        return _around((parts.weights + (parts.gradients or 0.0) + (parts.optimizer or 0.0)) / GIB, SPREAD["trainer"])
    outside = parts.runtime if quantity != "nvidia_smi" else 0.0
    slack = (parts.slack or 0.0) if quantity == "peak_allocated" else 0.0
    late = _moments_to_come(scenario, parts) if FIRST_ITERATION in cells.get("notes", "") else 0.0
    return _around((parts.total - outside - slack - late) / GIB, trainer_spread(scenario, parts))


def _moments_to_come(scenario: Scenario, parts: MemoryParts) -> float:
    """Bytes of Adam's moments, which a first forward and backward pass runs without: FusedAdam makes them in its first
    step (TransformerEngine pytorch/optimizers/fused_adam.py: initialize_state where there is none), when activations
    are gone; Megatron-Core keeps FP32 weights from the start (distrib_optimizer.py)."""
    held, each = parts.optimizer or 0.0, scenario.trainer.optimizer_bytes_per_parameter
    moments = held * max(0.0, 1 - BYTES_PER_ELEMENT["fp32"] / each)
    return min(moments, parts.activations + (parts.logits or 0.0))


def probability(cells: Row) -> float:
    """Probability that the run of a row fits."""
    if is_engine(cells):
        return engine_fits(engine_row(cells, whole_number(cells, "max_model_len", 4096)))
    scenario = _scenario(cells)
    alone = not cells.get("gpu_memory_utilization")  # no engine takes turns with the trainer
    parts = trainer_parts(scenario, scenario.cluster.training, True) if alone else update_parts(scenario)
    return min(beside_fits(scenario), trainer_fits(scenario, parts))


def _verdicts(table: Table, rows: Sequence[object]) -> dict[str, tuple[str, ...]]:
    """A remark on runs that ran or did not."""
    found: list[tuple[bool, float]] = []
    for record in table.rows:
        if record.cells.get("kind") == VERDICT:
            try:
                found.append((record.cells["measured_quantity"] == VERDICT, probability(record.cells)))
            except SkippedRow:
                continue
    ran, failed = [p for fits, p in found if fits], [p for fits, p in found if not fits]
    wrong, refused = sum(p > LIKELY for p in failed), sum(p < 0.5 for p in ran)
    text = (
        f"of {len(failed)} runs that ran out of memory {wrong} are said to fit (above {LIKELY:.0%}), "
        f"of {len(ran)} that ran {refused} are refused"
    )
    return {"remarks": (text,)} if found else {}


MEMORY = Comparison(_measured_rows, _predictor, _verdicts, harmless_flags=None)
"""Published memory beside what is counted."""
