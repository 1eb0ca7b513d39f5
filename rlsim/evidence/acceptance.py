"""Acceptance of drafted tokens over draft length and position: measured beside predicted, and fitted.

Nothing else of rlsim predicts it: a point of a table is predicted by the two-parameter process (first acceptance and
its decay) that is fitted to the other points of its series. The fit to all points is what a scenario can state.

And what follows from it, a measured speed-up at a fixed batch: acceptance length x t(decode) / t(draft and verify), as
since Leviathan et al. (arXiv 2211.17192), by the iterations of a server.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import yaml
from scipy.optimize import least_squares

from rlsim.costs.memory import weight_bytes
from rlsim.errors import InputError, shortened
from rlsim.evidence.engines import engine_document, prepared_engine
from rlsim.evidence.iterations import decode_step_s
from rlsim.evidence.rows import (
    Comparison,
    MeasuredRow,
    Predict,
    Prediction,
    device_profile_name,
    model_card_name,
    named,
    release,
    row_scenario,
    row_values,
    weight_precision,
)
from rlsim.evidence.tables import (
    Row,
    SkippedRow,
    Table,
    TableRow,
    measured_value,
    number,
    read_table,
    table_digest,
    whole_number,
)
from rlsim.files.reading import shown_path
from rlsim.loading.models import load_card
from rlsim.parameters.sets import Fitted
from rlsim.results.validation import ComparedRow, DraftLengths
from rlsim.schema.base import changed
from rlsim.schema.drafter import default_eagle3_draft
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.model import ModelCard
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import Speculation
from rlsim.tables.profile import load_profile
from rlsim.workload.acceptance import two_parameter_rates

ACCEPTANCE_BY_K = "acceptance_by_k"
LEAST_OTHERS = 2
"""Other points of a series, at least: the process has two parameters."""
LEAST_DEVIATION = 0.01
"""Standard deviation of the logarithm of a prediction, at least: published lengths have two decimals."""
MOST_DRAFTED = 64


def _predictor(table: Table, fitted: Fitted) -> Predict:
    series: dict[str, dict[int, list[float]]] = {}
    for (_, problem), record in zip(named(table), table.rows, strict=True):
        try:
            drafted, length = _point(record.cells)
        except SkippedRow:
            continue
        if not problem:
            series.setdefault(record.cells["series"], {}).setdefault(drafted, []).append(length)

    def predict(row: MeasuredRow) -> Prediction:
        drafted, length = _point(row.cells)
        others = []
        for k, lengths in series[row.cells["series"]].items():
            # The row's own measurement does not count among the points that predict it.
            count = len(lengths) - (k == drafted)
            if count:
                others.append((k, (sum(lengths) - (length if k == drafted else 0.0)) / count))
        if len(others) < LEAST_OTHERS:
            raise SkippedRow(f"its series has fewer than {LEAST_OTHERS} other draft lengths to fit the process to")
        (first, decay), deviation = fitted_process(others)
        predicted = acceptance_length(first, decay, drafted)
        return Prediction.within(predicted, deviation, first_acceptance=first, acceptance_decay=decay)

    return predict


def _measured_rows(name: str, cells: Row) -> list[MeasuredRow]:
    unit, about = shortened(cells.get("unit", "") or "1", 12), ("series", "x_name", "y_name")
    details = {column: cells.get(column, "") for column in about}
    return [MeasuredRow(name, cells.get("curve_kind", ""), unit, measured_value(cells, "y"), cells, details)]


CURVES = Comparison(_measured_rows, _predictor)
"""Points of curves beside their predictions; nothing is drawn, and no fitted value counts."""


def _point(cells: Row) -> tuple[int, float]:
    """Drafted tokens and acceptance length of a row; SkippedRow where it is no point of such a curve."""
    if cells["curve_kind"] != ACCEPTANCE_BY_K:
        raise SkippedRow("nothing of rlsim predicts this yet")
    drafted, length = number(cells, "x"), number(cells, "y")
    _check_point(ACCEPTANCE_BY_K, drafted, length)
    return int(drafted), length


def fitted_process(points: Sequence[tuple[int, float]]) -> tuple[tuple[float, float], float]:
    """First acceptance and decay of a series of (drafted tokens, acceptance length), and the deviation of its log."""

    def off(parameters: np.typing.NDArray[np.float64]) -> list[float]:
        return [math.log(acceptance_length(parameters[0], parameters[1], k) / length) for k, length in points]

    found = least_squares(off, [0.8, 0.98], bounds=([0.0, 0.3], [1.0, 1.0]))
    # Two parameters are fitted: with two points nothing is left to measure the deviation by.
    spare = max(1, len(points) - 2)
    deviation = math.sqrt(float(np.sum(np.square(off(found.x)))) / spare)
    return (float(found.x[0]), float(found.x[1])), max(LEAST_DEVIATION, deviation)


def acceptance_length(first: float, decay: float, drafted: int) -> float:
    """Mean tokens of a verification of ``drafted`` tokens with two-parameter acceptance."""
    return 1.0 + float(two_parameter_rates(float(first), float(decay), drafted).sum())


BY_POSITION, DRIFT, LENGTH = "acceptance_by_position", "draft_drift", "mean_acceptance_length"
NEEDED = ("curve_kind", "series", "x", "y_name", "y")
Points = list[tuple[float, float]]
Lengths = list[tuple[int, float]]
"""Acceptance lengths by drafted tokens."""


@dataclass(frozen=True)
class ProcessFit:
    """First acceptance and decay of a series, and how far its acceptance lengths lie from them in tokens."""

    first: float
    decay: float
    points: int
    rms_tokens: float
    worst_tokens: float

    @classmethod
    def of(cls, points: Lengths) -> ProcessFit:
        """The process that is fitted to ``points``."""
        (first, decay), _ = fitted_process(points)
        off = [acceptance_length(first, decay, k) - length for k, length in points]
        misses = (math.sqrt(float(np.mean(np.square(off)))), max(map(abs, off)))
        return cls(round(first, 4), round(decay, 4), len(points), *(float(f"{miss:.3g}") for miss in misses))


@dataclass(frozen=True)
class FittedCurves:
    """Everything that was fitted to a table, by series."""

    table: str
    digest: str
    processes: Mapping[str, ProcessFit]

    def to_yaml(self) -> str:
        """The fits with their residuals; each ``speculation`` stands as in a scenario."""
        fits = {}
        for name, fit in self.processes.items():
            rest = asdict(fit)
            speculation = {"first_acceptance": rest.pop("first"), "acceptance_decay": rest.pop("decay")}
            fits[name] = {"speculation": speculation, **rest}
        about = {"table": self.table, "data_digest": self.digest, "command": f"rlsim calibrate curves {self.table}"}
        document: dict[str, object] = {**about, "acceptance": fits}
        return yaml.safe_dump(document, sort_keys=False, width=120, default_flow_style=None)


def fit_curves(path: Path) -> FittedCurves:
    """Fit every curve of a table that says something of acceptance; rows of other kinds are left alone.

    Raises InputError with file and line where a row cannot be, or nothing can be fitted.
    """
    records = read_table(path, NEEDED)
    lengths = read_curves(path, records)
    if not lengths:
        raise InputError(
            f"{shown_path(path)}: holds no curve of acceptance; curve_kind {ACCEPTANCE_BY_K} or {BY_POSITION} with two "
            "or more points is needed"
        )
    processes = {name: ProcessFit.of(points) for name, points in lengths.items()}
    return FittedCurves(shown_path(path), table_digest(records), processes)


def read_curves(path: Path, records: Sequence[TableRow]) -> dict[str, Lengths]:
    """Acceptance lengths over drafted tokens by series, of those with two draft lengths or more."""
    by_k, positions = (curves_of(path, records, kind) for kind in (ACCEPTANCE_BY_K, BY_POSITION))
    lengths = {name: [(int(k), length) for k, length in points] for name, points in by_k.items()}
    lengths |= {name: _lengths_of(path, name, points) for name, points in positions.items()}
    return {name: points for name, points in lengths.items() if len({k for k, _ in points}) >= 2}


def curves_of(path: Path, records: Sequence[TableRow], kind: str) -> dict[str, Points]:
    """Points of the series of one kind, in the order of their x."""
    out: dict[str, Points] = {}
    for record in records:
        cells = record.cells
        if cells.get("curve_kind") != kind or (kind == DRIFT and cells.get("y_name") != LENGTH):
            continue
        try:
            if record.problem:
                raise SkippedRow(record.problem)
            if not cells["series"]:
                raise SkippedRow("series is not given")
            x, y = number(cells, "x"), number(cells, "y")
            _check_point(kind, x, y)
        except SkippedRow as reason:
            wrong = str(reason).removeprefix(f"line {record.line} ")
            raise InputError(f"{shown_path(path)}: line {record.line}: {wrong}") from None
        out.setdefault(cells["series"], []).append((x, y))
    return {name: sorted(points) for name, points in out.items()}


def _check_point(kind: str, x: float, y: float) -> None:
    if kind != DRIFT and (x % 1 or not 1 <= x <= MOST_DRAFTED):
        raise SkippedRow(f"x must be a whole number of drafted tokens or a position, 1 to {MOST_DRAFTED}; got {x:g}")
    if kind == ACCEPTANCE_BY_K and not 1 <= y <= x + 1:
        raise SkippedRow(f"y must be an acceptance length from 1 to x + 1 = {x + 1:g}; got {y:g}")
    if kind == BY_POSITION and y > 1:
        raise SkippedRow(f"y must be a cumulative acceptance rate from 0 to 1; got {y:g}")
    if kind == DRIFT and y < 1:
        raise SkippedRow(f"y must be an acceptance length of at least 1; got {y:g}")


def _lengths_of(path: Path, name: str, points: Points) -> Lengths:
    """Acceptance lengths over draft length from cumulative rates of positions 1, 2, ..."""
    if [position for position, _ in points] != list(range(1, len(points) + 1)):
        raise InputError(f"{shown_path(path)}: series {name[:60]} needs every position from 1 on, each once")
    # A verification yields one token of the model itself beside the accepted drafts.
    sums = 1.0 + np.cumsum([rate for _, rate in points])
    return [(k, float(length)) for k, length in enumerate(sums, start=1)]


CONTEXT_TOKENS = 500
"""Mean context of the measured runs (prompt and half of the answer). Unpublished: an assumption; small at batch 1."""
WEIGHTS_SHARE = 0.5
"""Share of an engine's memory that weights take at most where a row states no tensor parallelism. Assumption."""
SPEEDUP_DEVIATION = 0.06
"""Standard deviation of ln(predicted / measured) over the rows that come with rlsim (p90 of the error 11 %)."""
NEAR_ONE = 0.05
"""Distance from 1 below which a measured speed-up has no sign."""
SERIES = ("source", "model", "draft", "gpu", "tp", "engine", "batch_or_concurrency", "dataset")
"""Columns that rows of several draft lengths share."""
_SERVED: Mapping[str, tuple[str, ...]] = {
    "p-eagle": ("p-eagle", "peagle"), "dflash": ("dflash",), "dspark": ("dspark",), "mtp": ("mtp", "nextn"),
    "eagle3": ("eagle-3", "eagle3"), "eagle": ("eagle",),
}  # fmt: skip
_TREE = re.compile(r"topk=(\d+) num_draft_tokens=(\d+)")


def _method(draft: str, model: ModelCard) -> dict[str, object]:
    """Keys of speculation that a published drafter's name says; SkippedRow for one that drafts no chain or tree."""
    name = draft.lower()
    found = next((method for method, words in _SERVED.items() if any(word in name for word in words)), "")
    if not found:
        raise SkippedRow(f"draft {draft[:40]!r} is not simulated")
    if found == "p-eagle":
        layers = int(stated[1]) if (stated := re.search(r"(\d{1,2})[- ]layer", name)) else 1
        head = changed(default_eagle3_draft(model), num_layers=layers)
        return {"method": "eagle3", "parallel_drafting": True, "draft": head}
    if found != "eagle":
        return {"method": found}
    # EAGLE and EAGLE-2 read one state and draft from the model's whole vocabulary.
    head = changed(default_eagle3_draft(model), vocab_size=model.vocab_size, fused_hidden_states=1)
    return {"method": "eagle3", "draft": head}


def _drafting(cells: Row, model: ModelCard) -> dict[str, object]:
    k, length = whole_number(cells, "k"), number(cells, "acceptance_length")
    out = {**_method(cells["draft"], model), "draft_length": k, "acceptance_length": min(length, k + 1.0)}
    tree = _TREE.search(cells.get("notes", ""))
    if tree and int(tree[1]) > 1:
        out |= {"tree_width": int(tree[1]), "verified_positions": int(tree[2])}
    return out


def _batch(cells: Row) -> int:
    found = re.match(r"\D{0,20}(\d{1,5})", cells["batch_or_concurrency"])
    if found is None or int(found[1]) < 1:
        raise SkippedRow("batch_or_concurrency is no number of sequences")
    return int(found[1])


def _tensor_parallel(cells: Row, card: str, precision: str, device: HardwareProfile) -> int:
    if cells.get("tp", ""):
        return whole_number(cells, "tp")
    room = WEIGHTS_SHARE * device.memory_bytes.value
    return 1 << max(0, math.ceil(math.log2(weight_bytes(load_card(card), precision) / room)))


def _engine_of(text: str) -> tuple[str, str]:
    """Engine and what follows its name: vLLM V1, SGLang v0.4.4, TensorRT-LLM 2025-06."""
    name, _, rest = text.lower().partition(" ")
    known = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm", "trtllm": "trtllm"}
    if name not in known:
        raise SkippedRow(f"engine {text[:40]!r} is not simulated")
    return known[name], rest


def speculating_engines(cells: Row) -> tuple[Scenario, Scenario]:
    """The engine of a measured speed-up without and with its drafts; SkippedRow where it is open."""
    (name, rest), batch = _engine_of(cells["engine"]), _batch(cells)
    card = model_card_name(cells["model"])
    model, device = load_card(card), load_profile(device_profile_name(cells["gpu"]))
    precision = weight_precision(cells.get("precision", "") or "bf16", card, cells["model"])
    drafts, most = _drafting(cells, model), max(16, 1 << (batch - 1).bit_length())
    engine = {
        "name": name,
        "version": release(name, cells.get("engine_version", "") or rest),
        "tensor_parallel": _tensor_parallel(cells, card, precision, device),
        "weight_precision": precision,
        "max_running_sequences": most,
        # Benchmarks of speculation capture the batch that they serve.
        "max_captured_tokens": max(512, most * row_values(Speculation, drafts).queries),
        "gpu_memory_utilization": 0.95,
        "dispatch": "round_robin",
    }
    lengths = (most, CONTEXT_TOKENS, 1, 2048)
    plain, drafted = (row_scenario(engine_document(model, device, engine, one, lengths)) for one in ({}, drafts))
    return plain, drafted


def _speedup_predictor(table: Table, fitted: Fitted) -> Predict:
    def predict(row: MeasuredRow) -> Prediction:
        setups, batch = speculating_engines(row.cells), _batch(row.cells)
        plain_s, drafted_s = (
            decode_step_s(prepared_engine(one, fitted).table, batch, CONTEXT_TOKENS) for one in setups
        )
        value = (setups[1].speculation.acceptance_length or 1.0) * plain_s / drafted_s
        cuts = (f"k = {row.cells['k']}", "trees" if setups[1].speculation.tree_width > 1 else "chains")
        return Prediction.within(value, SPEEDUP_DEVIATION, cuts, step_ms=1e3 * drafted_s)

    return predict


def _measured_speedups(name: str, cells: Row) -> list[MeasuredRow]:
    measured = measured_value(cells, "speedup")
    rates = [measured_value(cells, column) for column in ("sd_tokens_per_s", "ar_tokens_per_s")]
    if measured is None and rates[0] and rates[1]:
        measured = rates[0] / rates[1]
    group = f"{cells['engine']}, {cells['model']} on {cells['gpu']}, batch {cells['batch_or_concurrency']}"
    return [MeasuredRow(name, group, "x", measured, cells)]


def _choices(table: Table, rows: Sequence[ComparedRow]) -> Mapping[str, object]:
    """Draft lengths that are chosen beside the best ones, of chains; no drafts count as 1."""
    scored = [
        ((row.predicted, row.measured), "chains" in row.cuts, tuple(record.cells.get(column, "") for column in SERIES))
        for row, record in zip(rows, table.rows, strict=True) if row.predicted is not None and row.measured
    ]  # fmt: skip
    series: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for pair, chain, of in scored:
        if chain:
            series.setdefault(of, [(1.0, 1.0)]).append(pair)
    several = [pairs for pairs in series.values() if len(pairs) > 2]
    regrets = [1.0 - max(pairs)[1] / max(measured for _, measured in pairs) for pairs in several]
    clear = [pair for pair, *_ in scored if abs(pair[1] - 1.0) > NEAR_ONE]
    right = sum((measured > 1) == (predicted > 1) for predicted, measured in clear)
    return {
        "draft_lengths": DraftLengths(
            series=len(regrets),
            regret=float(np.mean(regrets)) if regrets else None,
            right=sum(regret < 1e-9 for regret in regrets),
            clear=len(clear),
            right_sign_share=right / len(clear) if clear else None,
        )
    }


SPECULATION = Comparison(
    _measured_speedups, _speedup_predictor, _choices,
    lambda row: "|".join(row.cells.get(column, "") for column in (*SERIES, "engine_version", "k")),
)  # fmt: skip
