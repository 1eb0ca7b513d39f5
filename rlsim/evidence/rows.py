"""One measured row of any kind, its prediction, and the loop that puts every row of a table beside its prediction; what
published tables call models, devices, precisions and releases, by rlsim's names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from rlsim.errors import RlsimError
from rlsim.evidence.tables import Row, SkippedRow, Table
from rlsim.files.yaml import lists_beside
from rlsim.loading.models import card_of_published, load_card
from rlsim.parameters.sets import Fitted
from rlsim.results import Interval
from rlsim.results.record import widened
from rlsim.results.validation import ComparedRow, Detail, PhaseError
from rlsim.schema.messages import as_input_error
from rlsim.schema.scenario import Scenario
from rlsim.tables.profile import profile_called

Section = TypeVar("Section", bound=BaseModel)
INFORMATION_FLAGS = ("parallelism_corrected",)
"""Flags of published tables that inform and object to nothing; a row with any other flag is skipped."""
FLAGGED = "flag "
"""Beginning of the reason of a row that was skipped because of its flag."""


@dataclass(frozen=True)
class MeasuredRow:
    """A measured value, in ``unit``, and the cells that its prediction follows from.

    group: what it is scored together with. details: what its kind says of it, by name. phased: whether its phases are
    compared with it, as those of a measured RL step are.
    """

    id: str
    group: str
    unit: str
    measured: float | None
    cells: Row
    details: Mapping[str, Detail] = field(default_factory=dict)
    phased: bool = False


@dataclass(frozen=True)
class Prediction:
    """Predicted value with its 90 % interval, in the unit of its row; further details, sets of rows, and phases."""

    value: Interval
    details: Mapping[str, Detail] = field(default_factory=dict)
    cuts: tuple[str, ...] = ()
    phases: Mapping[str, PhaseError] = field(default_factory=dict)

    @classmethod
    def within(cls, value: float, deviation: float, cuts: tuple[str, ...] = (), **details: Detail) -> Prediction:
        """``value`` with the interval of a logarithm's standard ``deviation``; SkippedRow unless it is above 0."""
        if not math.isfinite(value) or value <= 0:
            raise SkippedRow("the prediction is not above 0")
        return cls(widened(Interval(value, value, value), deviation), details, cuts)


FURTHER_SPREAD = "further_spread"
"""Detail of a row: standard deviation of its logarithm beyond that of the fitted terms."""
Predict = Callable[[MeasuredRow], Prediction]


@dataclass(frozen=True)
class Comparison:
    """How tables of one kind are put beside predictions.

    describe: the measured rows of a record by id and cells. predictor: what predicts those of a table under fitted
    values. order: in which predictions that share work are made. extra_fields: further fields of the Validation.
    harmless_flags: flags that object to rows of other kinds only; None: the kind judges its flags.
    """

    describe: Callable[[str, Row], Sequence[MeasuredRow]]
    predictor: Callable[[Table, Fitted], Predict]
    extra_fields: Callable[[Table, Sequence[ComparedRow]], Mapping[str, Any]] | None = None
    order: Callable[[MeasuredRow], str] | None = None
    harmless_flags: tuple[str, ...] | None = ()


def compare(table: Table, of: Comparison, predict: Predict) -> list[ComparedRow]:
    """Every measured row of ``table`` beside its prediction, or skipped with what ``predict`` raised; in its order."""
    described = [
        (row, problem)
        for (name, problem), record in zip(named(table, of.harmless_flags), table.rows, strict=True)
        for row in of.describe(name, record.cells)
    ]
    # Rows that share an engine follow each other, while its prices are in the cache.
    keys = [of.order(row) if of.order else "" for row, _ in described]
    places = sorted(range(len(described)), key=keys.__getitem__)
    out: dict[int, ComparedRow] = {}
    for done, place in enumerate(places, start=1):
        out[place] = _compared(*described[place], predict)
        # A record may hold several measured rows (phases); progress counts records.
        table.report(done * len(table.rows) // len(described))
    return [out[place] for place in range(len(described))]


def _compared(row: MeasuredRow, problem: str, predict: Predict) -> ComparedRow:
    about: dict[str, Any] = {"id": row.id, "group": row.group, "unit": row.unit, "measured": row.measured}
    try:
        if problem:
            raise SkippedRow(problem)
        found = predict(row)
    except (SkippedRow, RlsimError) as reason:
        return ComparedRow(**about, details=row.details, skipped=first_line(reason), phases={} if row.phased else None)
    value = found.value
    return ComparedRow(
        **about, predicted=value.mean, low=value.low, high=value.high, details={**row.details, **found.details},
        cuts=found.cuts, phases=found.phases if row.phased else None,
    )  # fmt: skip


def named(table: Table, harmless_flags: tuple[str, ...] | None = ()) -> list[tuple[str, str]]:
    """Id of each row (or the line that it stands in), and why it cannot be compared: unreadable, repeated, flagged.

    harmless_flags: flags that object to nothing, beside those that never do; None: no flag does.
    """
    lines: dict[str, int] = {}
    out = []
    for record in table.rows:
        name = record.cells.get("id", "") or f"line {record.line}"
        flag = record.cells.get("flag", "")
        problem = record.problem
        if not problem and name in lines:
            problem = f"the id appears before, in line {lines[name]}"
        elif not problem:
            lines[name] = record.line
            harmless = not flag or harmless_flags is None or flag in (*INFORMATION_FLAGS, *harmless_flags)
            problem = "" if harmless else f"{FLAGGED}{flag[:100]}"
        out.append((name, problem))
    return out


def first_line(reason: object) -> str:
    """First line of the reason of a skipped row: messages of scenarios go on with hints."""
    return str(reason).partition("\n")[0]


def constant_workload(sequences: int, prompt: int, response: int, longest: int) -> dict[str, object]:
    """A workload of ``sequences`` alike, with tokens of prompt, response and the longest sequence."""
    return {
        "prompts_per_step": sequences,
        "generations_per_prompt": 1,
        "prompt_tokens": {"kind": "constant", "tokens": prompt},
        "response_tokens": {"kind": "constant", "tokens": response},
        "max_sequence_tokens": longest,
    }


def row_scenario(document: Mapping[str, object]) -> Scenario:
    """The scenario that a row describes; SkippedRow with what is wrong with it."""
    return row_values(Scenario, document)


def row_values(section: type[Section], document: Mapping[str, object]) -> Section:
    """A section of the scenario that a row describes; SkippedRow with what is wrong with it."""
    try:
        return section.model_validate(document)
    except ValidationError as error:
        raise SkippedRow(str(as_input_error(error, "row", section)).removeprefix("row: ")) from None


_RELEASE = re.compile(r"v?(\d+(?:\.\d+){1,3})((?:rc|\.post|\.dev)\d+)?(?:[-+.].*)?$")
_CONTAINER_BELOW = (0, 9)
"""TensorRT-LLM's releases of 2025 and later are 0.15 and newer; what tables call 0.5 to 0.8 is a Dynamo container."""


def model_card_name(name: str, listed: bool = False) -> str:
    """Model card of a model as a table calls it; SkippedRow, saying how to list all if ``listed``."""
    found = card_of_published(name)
    if found is None:
        raise SkippedRow(f"no model card for {name[:60]!r}{'; rlsim models list names all' if listed else ''}")
    return found


def device_profile_name(gpu: str, listed: bool = False) -> str:
    """Hardware profile of a GPU as a table calls it (H100, GB300 NVL72); SkippedRow as :func:`model_card_name`.

    A name with another memory in brackets is another variant of the GPU, and none of the profiles.
    """
    # An "A100 (40 GB)" has other bandwidth than the profile of 80 GB.
    found = None if re.search(r"\(.*\d\s*gb", gpu.lower()) else profile_called(gpu)
    if found is not None:
        return found
    shown = f"no hardware profile for {gpu[:60]!r}" if gpu else "gpu is not given"
    raise SkippedRow(shown + ("; rlsim hardware list names all" if listed else ""))


BLOCK_SCALED: tuple[str, ...] = tuple(lists_beside(__file__)["block_scaled"])
MXFP4: tuple[str, ...] = tuple(lists_beside(__file__)["mxfp4"])


def by_modelopt(name: str) -> bool:
    """Whether a quantised checkpoint of this name is NVIDIA's own: one scale a tensor in FP8, and the cache in FP8."""
    return name.strip().lower().startswith("nvidia/")


def weight_precision(text: str, card: str, name: str = "") -> str:
    """Weight format of an engine that serves the model of ``card``. SkippedRow where it is not given or not known.

    name: of the checkpoint, where the table gives it; NVIDIA's own are scaled by the tensor whoever else publishes one.
    """
    given = text.strip().lower()
    if not given:
        raise SkippedRow("precision is not given")
    if given in ("bf16", "bfloat16", "fp16"):
        return "bf16"
    # Official FP8 checkpoints of some models are scaled by blocks, which other kernels serve.
    if given.startswith(("fp8", "w8a8", "mxfp8", "float8")):
        return "fp8_block" if card in BLOCK_SCALED and not by_modelopt(name) else "fp8"
    if card in MXFP4 and given.startswith(("fp4", "mxfp4", "w4")):
        return "mxfp4"
    if given.startswith(("fp4", "nvfp4")):
        return "nvfp4"
    if given.startswith(("int4", "w4a16")) and load_card(card).moe is not None:
        return "int4"
    raise SkippedRow(f"precision {given[:40]!r} is not simulated")


def release(engine: str, text: str) -> str | None:
    """Release of an engine without what its build appends; None where the text names none (nightly builds)."""
    found = _RELEASE.match(text.strip().lower())
    if found is None:
        return None
    numbers = tuple(int(part) for part in found.group(1).split("."))
    if engine == "trtllm" and numbers < _CONTAINER_BELOW:
        return None
    return found.group(1) + (found.group(2) or "")
