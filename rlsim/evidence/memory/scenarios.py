"""The scenario that a row of published memory describes."""

import json
from typing import Any

from rlsim.evidence.rows import constant_workload, device_profile_name, model_card_name, row_scenario
from rlsim.evidence.tables import Row, SkippedRow, number, whole_number
from rlsim.files.yaml import lists_beside
from rlsim.loading.models import load_card
from rlsim.parameters.sets import stack_of_release
from rlsim.schema.architecture import MLACard, MoECard
from rlsim.schema.base import changed
from rlsim.schema.engine import RELEASE
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.model import ModelCard
from rlsim.schema.scenario import Scenario
from rlsim.tables.profile import load_profile
from rlsim.units import GIB

ENGINES = ("vllm", "sglang", "trtllm")
WORDS = lists_beside(__file__, "names.yaml")
STACKS: dict[str, str] = WORDS["stacks"]
"""Stack of a trainer by the beginning of its framework's name, for what its loss and its buffers hold."""
IN_PLACE: tuple[str, ...] = tuple(WORDS["in_place"])
"""Frameworks whose FSDP loss takes BF16 logits in place, in the releases that rows name."""
SGLANG = ("slime", "miles")
"""Stacks whose engine is SGLang, which leaves no copy of its weights on the host."""
CHUNK_TOKENS = 1024
"""Tokens of a chunk of logits where a row says no more than that there are chunks."""


def card_of_row(cells: Row) -> ModelCard:
    """The model of a row: what ``model_json`` gives of it, else its card."""
    if not cells.get("model_json"):
        return load_card(model_card_name(cells["model"]))
    given = json.loads(cells["model_json"])
    mla, moe, heads = None, None, (given["head_dim"], given["num_key_value_heads"])
    if given.get("mla"):
        mla = MLACard(
            q_lora_rank=given["q_lora_rank"] or None, kv_lora_rank=given["kv_lora_rank"],
            qk_rope_head_dim=given["qk_rope"], qk_nope_head_dim=given["qk_nope"], v_head_dim=given["v_head"],
        )  # fmt: skip
        heads = given["qk_nope"] + given["qk_rope"], given["num_attention_heads"]
    if given.get("num_experts"):
        shared = given.get("shared") or 0
        moe = MoECard(
            num_experts=given["num_experts"], top_k=given["top_k"], expert_intermediate_size=given["moe_ffn"],
            num_shared_experts=int(shared > 0), shared_expert_intermediate_size=shared,
            first_dense_layers=given.get("first_dense", 0), gated=given.get("gated", True),
        )  # fmt: skip
    return ModelCard(
        name=cells["model"][:60], hidden_size=given["hidden_size"], num_layers=given["num_hidden_layers"],
        num_heads=given["num_attention_heads"], num_kv_heads=heads[1], head_dim=heads[0],
        intermediate_size=given["intermediate_size"], vocab_size=given["vocab_size"],
        tied_embeddings=given["tie_word_embeddings"], moe=moe, mla=mla, gated_ffn=given.get("gated", True),
        mtp_layers=_mtp(cells), max_position_embeddings=given["max_position_embeddings"], source="row",
    )  # fmt: skip


def _mtp(cells: Row) -> int:
    return int("mtp 1" in cells.get("notes", ""))


def device_of_row(cells: Row) -> HardwareProfile:
    """The row's GPU: its profile, or for one without a profile that of an H100 with the memory that the row gives."""
    gpu, memory_gib = cells.get("gpu", ""), number(cells, "gpu_mem_gib", 0.0)
    if gpu not in WORDS["without_profile"]:
        try:
            return load_profile(device_profile_name(gpu))
        except SkippedRow:
            pass
    if not memory_gib:
        raise SkippedRow(f"no hardware profile for {gpu[:60]!r}, and gpu_mem_gib is not given")
    profile = load_profile("h100_sxm")
    return changed(profile, memory_bytes=changed(profile.memory_bytes, value=memory_gib * GIB))


def is_engine(cells: Row) -> bool:
    """Whether the row is of an inference engine."""
    return cells["framework"].split(" ")[0] in ENGINES


def engine_row(cells: Row, longest: int) -> Scenario:
    """The scenario of an engine alone that serves sequences of at most ``longest`` tokens."""
    tensor, stages = whole_number(cells, "tp", 1), whole_number(cells, "pp", 1)
    engine: dict[str, Any] = {
        "name": cells["framework"].split(" ")[0],
        "tensor_parallel": tensor,
        "pipeline_parallel": stages,
        "attention_data_parallel": whole_number(cells, "etp", 1) if "dp attention" in cells.get("notes", "") else 1,
        "weight_precision": cells.get("precision") or "bf16",
        "kv_precision": cells.get("kv_precision") or "bf16",
        "gpu_memory_utilization": number(cells, "gpu_memory_utilization", 0.9),
        "cuda_graphs": cells.get("cuda_graphs") != "0",
        "max_running_sequences": int(number(cells, "max_num_seqs", 0.0)) or None,
        "max_batched_tokens": whole_number(cells, "max_num_batched_tokens", 8192),
        "lora_rank": int(number(cells, "lora_rank", 0.0)) or None,
    }
    release = cells.get("release", "").split("rc")[0]
    if release and RELEASE.fullmatch(release):
        engine["version"] = release
    gpus = tensor * stages
    return row_scenario({
        "name": "row", "model": card_of_row(cells), "hardware": device_of_row(cells),
        "cluster": {"num_gpus": 2 * gpus, "generation_gpus": gpus, "training_gpus": gpus},
        "workload": constant_workload(256, 1, 1, longest), "loop": {"mode": "async"}, "engine": engine,
        "trainer": {"sequence_packing": False},
    })  # fmt: skip


def trainer_row(cells: Row) -> Scenario:
    """The scenario of a trainer, with its stack's buffers and the bytes that its loss holds."""
    name = cells["framework"].lower()
    card, gpus = card_of_row(cells), whole_number(cells, "num_gpus", 1)
    sizes = [whole_number(cells, size, 1) for size in ("tp", "pp", "cp")]
    pieces, samples = whole_number(cells, "vp", 1), whole_number(cells, "mbs", 1)
    fsdp = bool(number(cells, "fsdp", 0.0) or cells.get("zero"))
    notes, tokens, recompute = cells.get("notes", ""), number(cells, "tokens", 0.0), cells.get("recompute", "")
    in_place = fsdp and name.startswith(IN_PLACE) and bool(cells.get("release"))
    found = next((stack for begin, stack in STACKS.items() if name.startswith(begin)), None)
    trainer: dict[str, Any] = {
        "stack": None if found is None else stack_of_release(found, None),
        "backend": "fsdp" if fsdp else "megatron",
        **dict(zip(("tensor_parallel", "pipeline_parallel", "context_parallel"), sizes, strict=True)),
        "expert_parallel": whole_number(cells, "ep", 1),
        "expert_tensor_parallel": whole_number(cells, "etp", 1),
        "virtual_stages": pieces if card.num_layers % (pieces * sizes[1]) == 0 else 1,
        "sequence_parallel": "sp False" not in notes,
        "zero_stage": _zero(cells, fsdp),
        "micro_batch_samples": samples,
        "micro_batch_tokens": int(tokens) or None,
        "sequence_packing": bool(tokens),
        "recompute": next((way for way in ("full", "selective") if recompute.startswith(way)), "none"),
        "recompute_modules": [name for name in recompute.partition(":")[2].split(",") if name],
        "optimizer": "muon" if cells.get("optimizer") == "muon" else "adam",
        "optimizer_bytes_per_parameter": number(cells, "opt_bytes", 12.0),
        # "all": what verl's FSDP workers send to the host between phases and fetch for the update (fsdp_workers.py).
        "optimizer_on_host": cells.get("offload", "") not in ("", "all"),
        "offload": not cells.get("gpu_memory_utilization") or bool(cells.get("offload")),
        "precision": cells["precision"] if cells.get("precision") in ("fp8", "nvfp4") else "bf16",
        "lora_rank": int(number(cells, "lora_rank", 0.0)) or None,
        "mtp_layers": _mtp(cells),
        **_loss(cells, in_place),
        # NeMo-RL's Megatron SFT (examples/configs/sft_openmathinstruct2_megatron.yaml:10 at 7ea279abf).
        "gradient_precision": "fp32" if name.startswith("nemo-rl") and "SFT" in notes else None,
    }
    if trainer["sequence_packing"] and name.startswith(tuple(WORDS["tokens_of_gpu"])):
        trainer["micro_batch_tokens"] *= sizes[2]
    ranks = max(1, gpus // (sizes[0] * sizes[1] * sizes[2]))
    longest = whole_number(cells, "seq_len", 1024)
    each = max(8 * samples, -(-(trainer["micro_batch_tokens"] or 0) // longest))  # enough to fill a micro-batch
    return row_scenario({
        "name": "row", "model": card, "hardware": device_of_row(cells), "cluster": {"num_gpus": gpus},
        "workload": constant_workload(each * ranks, 1, 1, longest),
        "engine": {
            "name": "sglang" if found in SGLANG else "vllm",
            "gpu_memory_utilization": number(cells, "gpu_memory_utilization", 0.01),  # none: no engine beside it
        },
        "trainer": trainer,
    })  # fmt: skip


def _loss(cells: Row, in_place: bool) -> dict[str, Any]:
    """How the loss holds its logits: in chunks, in a fused kernel, or as their own gradients."""
    return {
        "logits_chunk_tokens": CHUNK_TOKENS if cells.get("loss_chunk") == "chunked" else None,
        "fused_cross_entropy": True if cells.get("loss_chunk") == "fused" else None,
        "logits_bytes": 4.0 if in_place else None,
    }


def _zero(cells: Row, fsdp: bool) -> int | None:
    """What data-parallel ranks share: as stated; nothing in plain data parallelism, or without Megatron's optimizer."""
    if cells.get("zero"):
        return int(number(cells, "zero"))
    plain = "ddp" in cells.get("flag", "") if fsdp else "distopt False" in cells.get("notes", "")
    return 0 if plain else None
