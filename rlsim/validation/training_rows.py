"""Measured training steps beside the trainer half alone: forward, backward and optimizer of one global batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from rlsim.costs.trainer_prices import TrainedBatch, TrainerInputs, step_cost
from rlsim.hardware.cards import load_card
from rlsim.hardware.profile import load_profile
from rlsim.validation.halves import TableRecords, compare_each, half_overheads, row_scenario
from rlsim.validation.measured import MeasuredRow, MeasuredTable, measured_value
from rlsim.validation.names import device_profile_name, model_card_name
from rlsim.validation.rows import SkippedRow, number, whole_number

MEASURED = ("step_time_s", "implied_step_time_s")
"""Columns with the time of a step, the one that was measured first."""
FULL_MODELS = ("pretrain", "sft", "rl")
"""Kinds of training that update every parameter, by the beginning of their names."""
MOST_SAMPLES, MOST_TOKENS = 200_000, 1_048_576
"""Sequences of a batch and tokens of a sequence at most."""


@dataclass(frozen=True)
class TrainerSetup:
    """A trainer as a row describes it; equal setups take equally long."""

    model: str
    device: str
    gpus: int
    samples: int
    sequence_tokens: int
    micro_batch_samples: int
    backend: str
    tensor_parallel: int
    pipeline_parallel: int
    context_parallel: int
    expert_parallel: int
    precision: str
    recompute: str
    optimizer: str


def validate_training(records: TableRecords) -> MeasuredTable:
    """Every row of a table of measured training steps beside its prediction; nothing is drawn."""
    remarks = (
        "recomputation that a row does not state is taken as none; heads for multi-token prediction are not trained",
    )
    return MeasuredTable(
        "training", records.table, records.digest, compare_each(records, _described, _compared), remarks
    )


def _described(name: str, cells: Mapping[str, str]) -> MeasuredRow:
    about = ", ".join(cells.get(column, "") for column in ("model", "gpu", "framework") if cells.get(column))
    details = {column: cells.get(column, "") for column in ("model", "gpu", "precision", "release")}
    return MeasuredRow(name, about, "s", measured_value(cells, MEASURED), details=details)


def _compared(row: MeasuredRow, cells: Mapping[str, str]) -> MeasuredRow:
    if row.measured is None:
        raise SkippedRow(f"{' and '.join(MEASURED)} are not given")
    measured_itself = measured_value(cells, MEASURED[:1]) is not None
    cut = "step time measured" if measured_itself else "step time from the throughput"
    return replace(row, cuts=(cut,)).predict(*_predicted(trainer_setup(cells)))


def trainer_setup(cells: Mapping[str, str]) -> TrainerSetup:
    """The trainer of a row. Raises SkippedRow where the row leaves something essential open or unsupported."""
    kind = cells.get("training_kind", "") or "pretrain"
    if "lora" in kind or not kind.startswith(FULL_MODELS):
        raise SkippedRow(f"training_kind {kind[:40]!r} is not simulated: not every parameter is trained")
    if cells.get("layers_override", ""):
        raise SkippedRow("layers of the model were left out")
    if cells.get("packed", "") in ("1", "true"):
        raise SkippedRow("lengths of packed sequences are not given")
    samples, tokens = whole_number(cells, "gbs"), whole_number(cells, "seq_len")
    if samples > MOST_SAMPLES or tokens > MOST_TOKENS:
        raise SkippedRow(f"more than {MOST_SAMPLES:,} sequences or {MOST_TOKENS:,} tokens")
    framework = cells.get("framework", "").lower()
    sharded = number(cells, "fsdp", 0.0) > 0 or "fsdp" in framework or "torchtitan" in framework
    return TrainerSetup(
        model=model_card_name(cells["model"]),
        device=device_profile_name(cells["gpu"]),
        gpus=whole_number(cells, "num_gpus"),
        samples=samples,
        sequence_tokens=tokens,
        micro_batch_samples=whole_number(cells, "mbs", 1),
        backend="fsdp" if sharded else "megatron",
        tensor_parallel=whole_number(cells, "tp", 1),
        pipeline_parallel=whole_number(cells, "pp", 1),
        context_parallel=whole_number(cells, "cp", 1),
        expert_parallel=whole_number(cells, "ep", 1),
        precision=training_precision(cells["precision"]),
        recompute=_recompute(cells.get("recompute", "")),
        optimizer="muon" if cells.get("optimizer", "").lower() == "muon" else "adam",
    )


def training_precision(text: str) -> str:
    """Precision of a trainer's products: BF16, or FP8 with whatever scaling; SkippedRow for others."""
    given = text.strip().lower()
    if given.startswith(("bf16", "bfloat16")):
        return "bf16"
    if given.startswith(("fp8", "mxfp8")):
        return "fp8"
    raise SkippedRow(f"training precision {given[:40]!r} is not simulated" if given else "precision is not given")


def _recompute(text: str) -> str:
    """Which activations a row recomputes; lists of single modules are small shares of a layer and count as none."""
    given = text.strip().lower()
    if given.startswith("selective"):
        return "selective"
    return "full" if given.startswith(("full", "recompute", "offload")) else "none"


@lru_cache(maxsize=1024)
def _predicted(setup: TrainerSetup) -> tuple[float, float]:
    """Seconds of the step, and the deviation of its logarithm."""
    scenario = row_scenario(_document(setup))
    device, overheads = half_overheads(scenario)
    inputs = TrainerInputs(
        scenario.model, device, scenario.trainer, setup.gpus, overheads.training, setup.sequence_tokens,
        draft_training_share=0.0, reference_swap_s=0.0, critic_pass_swap_s=0.0, critic_update_swap_s=0.0,
        driver_sample_s=0.0,
    )  # fmt: skip
    batch = TrainedBatch.of(np.full(setup.samples, float(setup.sequence_tokens)), setup.samples)
    return step_cost(inputs, batch).train.seconds, overheads.step_error


def _document(setup: TrainerSetup) -> dict[str, object]:
    return {
        "name": "trainer",
        "model": load_card(setup.model),
        "hardware": load_profile(setup.device),
        "cluster": {"num_gpus": setup.gpus},
        "workload": {
            "prompts_per_step": setup.samples,
            "generations_per_prompt": 1,
            "prompt_tokens": {"kind": "constant", "tokens": 1},
            "response_tokens": {"kind": "constant", "tokens": 1},
            "max_sequence_tokens": setup.sequence_tokens,
        },
        "trainer": {
            "backend": setup.backend,
            "tensor_parallel": setup.tensor_parallel,
            "pipeline_parallel": setup.pipeline_parallel,
            "context_parallel": setup.context_parallel,
            "expert_parallel": setup.expert_parallel,
            "precision": setup.precision,
            "recompute": setup.recompute,
            "optimizer": setup.optimizer,
            "sequence_packing": False,
            "micro_batch_samples": setup.micro_batch_samples,
            "policy_logprobs": False,
            "reference_logprobs": False,
        },
    }
