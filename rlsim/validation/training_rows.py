"""Measured training steps beside the trainer half alone: forward, backward and optimizer of one global batch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from rlsim.costs.operators.device import Device, device_of
from rlsim.costs.overheads import training_overheads
from rlsim.costs.trainer.prices import TrainedBatch, TrainerInputs, step_cost
from rlsim.loading.models import load_card
from rlsim.parameters.fitted import current
from rlsim.parameters.sets import Fitted, stack_of_release
from rlsim.schema.model import ModelCard
from rlsim.schema.scenario import Scenario
from rlsim.schema.stack import Stack
from rlsim.tables.profile import load_profile
from rlsim.validation.halves import TableRecords, compare_each, row_scenario
from rlsim.validation.measured import MeasuredRow, MeasuredTable, measured_value
from rlsim.validation.names import device_profile_name, model_card_name
from rlsim.validation.rows import SkippedRow, length_tokens, number, whole_number
from rlsim.validation.training_groups import training_cuts, training_details, training_group

MEASURED = ("step_time_s", "implied_step_time_s")
"""Columns with the time of a step, the one that was measured first."""
KINDS = ("pretrain", "sft", "rl", "lora", "peft")
"""Kinds of training, by the beginning of their names; what is added tells of adapters."""
MOST_SAMPLES, MOST_TOKENS = 200_000, 1_048_576
"""Sequences of a batch and tokens of a sequence at most."""


FRAMEWORKS = {
    "megatron-bridge": "megatron_bridge",
    "automodel": "automodel",
    "torchtitan": "torchtitan",
    "prime-rl": "prime_rl",
    "megatron-lm": "megatron_lm",
}
"""Stacks of frameworks by a part of the name that a row gives."""
TRAINED_MTP = {("megatron_bridge", "nemotron-3-super-120b-a12b"): 2}
"""Depths of multi-token prediction that recipes train, by framework and card: rows of Nemotron 3 Super print 84.7 GFLOP
a token, of which its layers and head have 75; two depths of a layer and the head again have 9.4. AutoModel's row prints
74.3."""
_RELEASE = re.compile(r"\d+\.\d+(\.\d+)?")
_LORA_RANK = re.compile(r"\br(\d+)\b")
DEFAULT_LORA_RANK = 16
"""Rank of adapters where a row tells none: that of the rows that do."""


@dataclass(frozen=True)
class TrainerSetup:
    """A trainer as a row describes it; equal setups take equally long.

    layers: of a model that was cut to so many. cuda_graphs, moe_dispatcher: None where the row does not tell.
    """

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
    virtual_stages: int = 1
    lora_rank: int | None = None
    layers: int | None = None
    framework: str = "megatron_bridge"
    release: str | None = None
    cuda_graphs: bool | None = None
    moe_dispatcher: str | None = None


def validate_training(records: TableRecords, fitted: Fitted | None = None) -> MeasuredTable:
    """Every row of a table of measured training steps beside its prediction; nothing is drawn.

    fitted: the sets that it is predicted with; default what rlsim is priced with.
    """
    sets = fitted or current()

    def compared(row: MeasuredRow, cells: Mapping[str, str]) -> MeasuredRow:
        return _compared(row, cells, sets)

    remarks = (
        "recomputation that a row does not state is taken as none; heads for multi-token prediction are not trained, "
        "but two of Nemotron 3 Super in Megatron-Bridge, as the FLOP that its rows print tell",
    )
    return MeasuredTable(
        "training", records.table, records.digest, compare_each(records, _described, compared), remarks
    )


def _described(name: str, cells: Mapping[str, str]) -> MeasuredRow:
    measured = measured_value(cells, MEASURED)
    return MeasuredRow(name, training_group(cells), "s", measured, details=training_details(cells))


def _compared(row: MeasuredRow, cells: Mapping[str, str], fitted: Fitted) -> MeasuredRow:
    if row.measured is None:
        raise SkippedRow(f"{' and '.join(MEASURED)} are not given")
    measured_itself = measured_value(cells, MEASURED[:1]) is not None
    cut = "step time measured" if measured_itself else "step time from the throughput"
    return replace(row, cuts=(cut, *training_cuts(cells))).predict(
        predicted_s(trainer_setup(cells), fitted), fitted.training.error
    )


def trainer_setup(cells: Mapping[str, str]) -> TrainerSetup:
    """The trainer of a row. Raises SkippedRow where the row leaves something essential open or unsupported."""
    kind = cells.get("training_kind", "") or "pretrain"
    if not kind.startswith(KINDS):
        raise SkippedRow(f"training_kind {kind[:40]!r} is not simulated")
    if cells.get("packed", "") in ("1", "true") and not kind.startswith("sft"):
        raise SkippedRow("lengths of packed sequences are not given")
    samples, tokens = whole_number(cells, "gbs"), length_tokens(cells, "seq_len")
    if samples > MOST_SAMPLES or tokens > MOST_TOKENS:
        raise SkippedRow(f"more than {MOST_SAMPLES:,} sequences or {MOST_TOKENS:,} tokens")
    told = cells.get("framework", "").lower()
    model = model_card_name(cells["model"])
    if load_card(model).moe is not None and not cells.get("ep", "") and whole_number(cells, "num_gpus") > 1:
        raise SkippedRow("expert parallel size of a mixture of experts is not given")
    sharded = number(cells, "fsdp", 0.0) > 0 or "fsdp" in told or "torchtitan" in told
    rank = _LORA_RANK.search(kind)
    adapters = "lora" in kind or "peft" in kind
    release = _RELEASE.search(cells.get("release", ""))
    return TrainerSetup(
        model=model,
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
        virtual_stages=whole_number(cells, "vp", 1),
        lora_rank=(int(rank.group(1)) if rank else DEFAULT_LORA_RANK) if adapters else None,
        layers=whole_number(cells, "layers_override") if cells.get("layers_override", "") else None,
        framework=next((name for word, name in FRAMEWORKS.items() if word in told), "megatron_bridge"),
        release=release.group() if release else None,
        cuda_graphs=True if cells.get("cuda_graphs", "").startswith("transformer_engine") else None,
        moe_dispatcher=cells.get("moe_dispatcher", "").lower() or None,
    )


def training_precision(text: str) -> str:
    """Precision of a trainer's products: BF16, NVFP4, or FP8 with whatever scaling; SkippedRow for others."""
    given = text.strip().lower()
    if given.startswith(("bf16", "bfloat16")):
        return "bf16"
    if given.startswith(("fp8", "mxfp8")):
        return "fp8"
    if given.startswith("nvfp4"):
        return "nvfp4"
    raise SkippedRow(f"training precision {given[:40]!r} is not simulated" if given else "precision is not given")


def _recompute(text: str) -> str:
    """Which activations a row recomputes; lists of single modules are small shares of a layer and count as none."""
    given = text.strip().lower()
    if given.startswith("selective"):
        return "selective"
    return "full" if given.startswith(("full", "recompute", "offload")) else "none"


@lru_cache(maxsize=1024)
def row_inputs(setup: TrainerSetup) -> tuple[Scenario, Device, TrainedBatch]:
    """Scenario, device and batch of a row."""
    scenario = row_scenario(_document(setup))
    batch = TrainedBatch.of(np.full(setup.samples, float(setup.sequence_tokens)), setup.samples)
    return scenario, device_of(scenario.hardware, scenario.engine.name), batch


def trainer_inputs_of(setup: TrainerSetup, fitted: Fitted) -> TrainerInputs:
    """What the trainer of a row depends on under fitted values."""
    scenario, device, _ = row_inputs(setup)
    return TrainerInputs(
        scenario.model, device, scenario.trainer, setup.gpus, training_overheads(scenario, fitted),
        setup.sequence_tokens, logprob_passes=0, draft_training_share=0.0, reference_swap_s=0.0, critic_pass_swap_s=0.0,
        critic_update_swap_s=0.0, driver_sample_s=0.0,
    )  # fmt: skip


def predicted_s(setup: TrainerSetup, fitted: Fitted) -> float:
    """Seconds of the step of a row under fitted values."""
    return step_cost(trainer_inputs_of(setup, fitted), row_inputs(setup)[2]).train.seconds


def _card(setup: TrainerSetup) -> ModelCard:
    card = load_card(setup.model)
    if setup.layers is None:
        return card
    moe = card.moe
    if moe is not None and moe.first_dense_layers >= setup.layers:
        raise SkippedRow(f"{setup.layers} layers hold none with experts")
    return card.model_copy(update={"num_layers": setup.layers})


def _stack(setup: TrainerSetup) -> Stack:
    """The newest stack of the row's framework that is not newer than its release, with that release."""
    found = stack_of_release(setup.framework, setup.release)
    if found is None:
        raise SkippedRow(f"no stack of {setup.framework} is known")
    return found if setup.release is None else found.model_copy(update={"release": setup.release})


def _document(setup: TrainerSetup) -> dict[str, object]:
    return {
        "name": "trainer",
        "model": _card(setup),
        "hardware": load_profile(setup.device),
        "stack": _stack(setup),
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
            "virtual_stages": setup.virtual_stages,
            "context_parallel": setup.context_parallel,
            "expert_parallel": setup.expert_parallel,
            "precision": setup.precision,
            "recompute": setup.recompute,
            "optimizer": setup.optimizer,
            "mtp_layers": TRAINED_MTP.get((setup.framework, setup.model), 0),
            "lora_rank": setup.lora_rank,
            "cuda_graphs": setup.cuda_graphs,
            "moe_dispatcher": setup.moe_dispatcher,
            "sequence_packing": False,
            "micro_batch_samples": setup.micro_batch_samples,
            "policy_logprobs": False,
            "reference_logprobs": False,
        },
    }
