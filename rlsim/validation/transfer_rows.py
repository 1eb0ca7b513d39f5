"""Measured weight transfers between trainer and engine beside those of the cost model."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rlsim.costs.weight_transfer import WeightTransfer
from rlsim.hardware.cards import load_card
from rlsim.hardware.profile import load_profile
from rlsim.validation.halves import TableRecords, compare_each, half_overheads, row_scenario
from rlsim.validation.measured import MeasuredRow, MeasuredTable, measured_value
from rlsim.validation.names import device_profile_name, model_card_name
from rlsim.validation.rows import SkippedRow, whole_number

MEASURED = ("refit_s", "time_s")
_ALGORITHMS = (
    (("delta", "per-tensor", "per tensor", "plain", "checkpoint", "mooncake", "p2p", "full experts", "fallback"), None),
    (("reshard", "sharded"), "reshard"),
    (("broadcast", "nccl"), "broadcast"),
)
"""Algorithm of a transfer by words of its method, first match first; None are those that rlsim has no model of."""
_SIZES = re.compile(r"\b(tp|pp|cp|ep)\s*(\d{1,4})\b", re.IGNORECASE)


def validate_transfers(records: TableRecords) -> MeasuredTable:
    """Every row of a table of measured transfers beside its prediction; nothing is drawn."""
    return MeasuredTable("transfers", records.table, records.digest, compare_each(records, _described, _compared))


def _described(name: str, cells: Mapping[str, str]) -> MeasuredRow:
    about = ", ".join(told for told in (cells.get("framework", ""), cells.get("method", "")) if told)
    details = {column: cells.get(column, "") for column in ("model", "gpu", "train_gpus", "gen_gpus")}
    return MeasuredRow(name, about, "s", measured_value(cells, MEASURED), details=details)


def _compared(row: MeasuredRow, cells: Mapping[str, str]) -> MeasuredRow:
    if row.measured is None:
        raise SkippedRow("refit_s or time_s is not given")
    scenario = row_scenario(_document(cells))
    device, overheads = half_overheads(scenario)
    return row.predict(WeightTransfer(scenario, device.fabric, overheads).transfer().seconds, overheads.step_error)


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
            found[name] = whole_number(cells, f"{side}_{name}")
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
    train_gpus, gen_gpus = (whole_number(cells, name) for name in ("train_gpus", "gen_gpus"))
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
