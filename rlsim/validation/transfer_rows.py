"""Measured weight transfers between trainer and engine beside those of the cost model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from pydantic import ValidationError

from rlsim.costs.borrowed import tables_error
from rlsim.costs.device import device_of
from rlsim.costs.overheads import overheads_of
from rlsim.costs.weight_transfer import WeightTransfer
from rlsim.errors import RlsimError
from rlsim.hardware.cards import load_card
from rlsim.hardware.parameters import load_engine_parameters, load_parameters
from rlsim.hardware.profile import load_profile
from rlsim.schema.messages import as_input_error
from rlsim.schema.scenario import Scenario
from rlsim.validation.measured import MeasuredRow, MeasuredTable, Names, measured_value
from rlsim.validation.names import device_profile_name, model_card_name
from rlsim.validation.rows import SkippedRow, number
from rlsim.validation.table import TableRow

MEASURED = ("refit_s", "time_s")
_ALGORITHMS = (
    (("delta", "per-tensor", "per tensor", "plain", "checkpoint", "mooncake", "p2p", "full experts", "fallback"), None),
    (("reshard", "sharded"), "reshard"),
    (("broadcast", "nccl"), "broadcast"),
)
"""Algorithm of a transfer by words of its method, first match first; None are those that rlsim has no model of."""
_SIZES = re.compile(r"\b(tp|pp|cp|ep)\s*(\d{1,4})\b", re.IGNORECASE)


def validate_transfers(
    table: str,
    digest: str,
    records: Sequence[TableRow],
    progress: Callable[[int, int], None] | None = None,
    seed: int = 0,
) -> MeasuredTable:
    """Every row of a table of measured transfers beside its prediction; nothing is drawn."""
    rows, names = [], Names()
    for done, record in enumerate(records, start=1):
        cells = record.cells
        about = ", ".join(name for name in (cells.get("framework", ""), cells.get("method", "")) if name)
        measured = measured_value(cells, MEASURED)
        details = {name: cells.get(name, "") for name in ("model", "gpu", "train_gpus", "gen_gpus")}
        row = MeasuredRow(names.of(record), about, "s", measured, details=details)
        try:
            names.check(record)
            if measured is None:
                raise SkippedRow("refit_s or time_s is not given")
            transfer, deviation = _transfer(_document(cells))
            rows.append(row.predict(transfer, deviation))
        except (SkippedRow, RlsimError) as reason:
            rows.append(row.skip(reason))
        if progress is not None:
            progress(done, len(records))
    return MeasuredTable("transfers", table, digest, tuple(rows))


def algorithm(method: str) -> str:
    """How the weights travel: broadcast or reshard; SkippedRow for algorithms that are not modelled."""
    given = method.lower()
    for words, found in _ALGORITHMS:
        if any(word in given for word in words):
            if found is None:
                break
            return found
    raise SkippedRow(f"transfer by {method[:60]!r} is not modelled" if method else "method is not given")


def parallel_sizes(text: str) -> dict[str, int]:
    """Sizes by name in texts such as ``Megatron TP1/PP16/EP16``."""
    return {name.lower(): max(1, int(size)) for name, size in _SIZES.findall(text.replace("_", " "))}


def _sizes(cells: Mapping[str, str], side: str) -> dict[str, int]:
    """Parallel sizes of one side (train or gen): from its text, or from a column of each."""
    found = parallel_sizes(cells.get(f"{side}_parallelism", "") or cells.get(f"{side}_layout", ""))
    for name in ("tp", "pp", "cp", "ep"):
        if cells.get(f"{side}_{name}", ""):
            found[name] = _whole(cells, f"{side}_{name}")
    return found


def _document(cells: Mapping[str, str]) -> dict[str, object]:
    placement = cells.get("placement", "").lower()
    for words, reason in (
        ("receive only", "only received, not loaded into the engine"),
        ("host memory", "from host memory, not from a trainer"),
        ("colocated", "a colocated hand-over in a framework of its own"),
    ):
        if words in placement:
            raise SkippedRow(f"{reason}: not modelled")
    kind = algorithm(cells["method"])
    training, engine = _sizes(cells, "train"), _sizes(cells, "gen")
    if kind == "reshard" and "tp" not in engine:
        raise SkippedRow("tensor parallel size of the engine is not given")
    train_gpus, gen_gpus = (_whole(cells, name) for name in ("train_gpus", "gen_gpus"))
    told = (cells.get(name, "") for name in ("train_parallelism", "train_layout", "framework", "backend"))
    sharded = "fsdp" in " ".join(told).lower()
    return {
        "name": "transfer",
        "model": load_card(model_card_name(cells["model"])),
        "hardware": load_profile(device_profile_name(cells["gpu"])),
        "cluster": {"num_gpus": train_gpus + gen_gpus, "generation_gpus": gen_gpus, "training_gpus": train_gpus},
        "workload": {
            "prompts_per_step": 8,
            "generations_per_prompt": 1,
            "response_tokens": {"kind": "constant", "tokens": 8},
            "max_sequence_tokens": 1024,
        },
        "engine": {
            "tensor_parallel": engine.get("tp", 1),
            "pipeline_parallel": engine.get("pp", 1),
            "expert_parallel": engine.get("ep", 1),
            "dispatch": "round_robin",
        },
        "trainer": {
            "backend": "fsdp" if sharded else "megatron",
            "tensor_parallel": training.get("tp", 1),
            "pipeline_parallel": training.get("pp", 1),
            "context_parallel": training.get("cp", 1),
            "expert_parallel": training.get("ep", 1),
        },
        "loop": {"mode": "async", "policy_lag": 1, "refit": kind},
    }


def _transfer(document: Mapping[str, object]) -> tuple[float, float]:
    """Seconds of the transfer, and the deviation of its logarithm. Whether the engine fits its GPUs is not asked."""
    try:
        scenario = Scenario.model_validate(document)
    except ValidationError as error:
        raise SkippedRow(str(as_input_error(error, "row", Scenario)).removeprefix("row: ")) from None
    device = device_of(scenario.hardware, scenario.engine.name)
    overheads = overheads_of(
        scenario, load_parameters(), load_engine_parameters(), tables_error(device.operators.sources)
    )
    return WeightTransfer(scenario, device.fabric, overheads).transfer().seconds, overheads.step_error


def _whole(cells: Mapping[str, str], column: str) -> int:
    value = number(cells, column)
    if value != int(value) or not 1 <= value <= 1_000_000:
        raise SkippedRow(f"{column} must be a whole number of at least 1")
    return int(value)
