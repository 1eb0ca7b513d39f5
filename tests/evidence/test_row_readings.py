"""What rows of transfers and of memory mean: cells as layouts, weights, scenarios and probabilities."""

import json
import math
from typing import Any

import pytest

from rlsim.evidence import training, transfers
from rlsim.evidence.memory import rows as memory_rows
from rlsim.evidence.memory.scenarios import card_of_row, device_of_row, engine_row, trainer_row
from rlsim.evidence.tables import SkippedRow
from rlsim.evidence.transfers import transfer_job, weights_of
from rlsim.results.validation import ComparedRow
from rlsim.units import GIB

TRANSFER = {"framework": "verl", "model": "Qwen/Qwen3-30B-A3B", "method": "nccl broadcast", "gpu": "h100"}
GIVEN = {"train_gpus": "16", "gen_gpus": "8"}


def job(**cells: str) -> Any:
    return transfer_job({**TRANSFER, **GIVEN, **cells})[0]


@pytest.mark.parametrize(
    ("cells", "pools"),
    [
        ({"train_gpus": "16", "gen_gpus": "8"}, (16, 8)),
        ({"num_gpus": "48", "train_gpus": "16"}, (16, 32)),
        ({"num_gpus": "48"}, (24, 24)),
        ({"num_gpus": "49", "gen_gpus": "9"}, (9, 9)),
        ({"gen_gpus": "4", "train_tp": "4", "train_pp": "2"}, (8, 4)),
        ({"gen_gpus": "4", "train_tp": "2", "train_cp": "2", "train_pp": "3"}, (12, 4)),
        ({"gen_gpus": "4", "train_parallelism": "TP2/DP8", "train_ep": "8"}, (16, 4)),
        ({"gen_gpus": "4", "train_tp": "2", "train_ep": "8", "train_pp": "2"}, (16, 4)),
        ({"gen_gpus": "64", "train_tp": "4"}, (64, 64)),
        ({"num_gpus": "1"}, "gen_gpus is not given"),
        ({"train_gpus": "16"}, "gen_gpus is not given"),
    ],
)
def test_pools_are_given_or_what_the_layout_needs(cells: dict[str, str], pools: tuple[int, int] | str) -> None:
    if isinstance(pools, str):
        with pytest.raises(SkippedRow, match=pools):
            transfers._pools(cells, "nccl_broadcast")
        return
    assert transfers._pools(cells, "nccl_broadcast") == pools


def test_pools_that_take_turns_are_the_same_gpus() -> None:
    for cells in ({"num_gpus": "8", "gen_gpus": "4"}, {"gen_gpus": "8", "train_gpus": "4"}, {"train_gpus": "8"}):
        assert transfers._pools(cells, "cuda_ipc") == (8, 8)
    with pytest.raises(SkippedRow, match="num_gpus"):
        transfers._pools({}, "cuda_ipc")


def test_a_job_has_the_layout_that_its_row_states() -> None:
    found = job(train_parallelism="Megatron TP2 PP2 EP4", gen_tp="2", gen_pp="2")
    assert (found.sender.gpus, found.receiver.gpus, found.receiver.replica_gpus) == (16, 8, 4)
    assert (found.sender.copy_gpus, found.sender.expert_parallel, found.sender.pipeline_parallel) == (8, 4, 2)
    assert not found.sender.fsdp and found.sender.onload_bytes == 0 and not found.sender.in_host_memory
    assert (found.full_experts, found.quantised, found.receiver.loads) == (False, False, True)
    # A row without a layout: FSDP over all GPUs, a replica in a node of eight.
    plain = job(gen_gpus="16")
    assert plain.sender.fsdp and plain.sender.copy_gpus == 16 and plain.receiver.replica_gpus == 8
    assert job(gen_gpus="12").receiver.replica_gpus == 12
    assert job(train_layout="hsdp 2x4", train_tp="2").sender.copy_gpus == 8
    assert job(train_layout="fsdp1").sender.full_state and not plain.sender.full_state
    assert job(framework="nemo_rl", train_tp="4").sender.copy_gpus == 4
    assert job(framework="nemo_rl", train_tp="4", train_ep="8").sender.copy_gpus == 8
    whole = plain.full_bytes
    assert job(notes="CPU offload").sender.onload_bytes == pytest.approx(2 * whole / 16)
    assert job(placement="host memory").sender.in_host_memory
    assert job(notes="all experts to every rank").full_experts and not job(notes="receive only").receiver.loads
    narrow = job(weight_dtype="BF16 to FP8")
    assert narrow.quantised and narrow.wire_bytes == whole
    ready = job(weight_dtype="BF16 to FP8", notes="prequantised")
    assert not ready.quantised and ready.full_bytes == whole
    assert plain.changed_share == transfers.CHANGED_SHARE_SPARSE
    assert job(model="Qwen/Qwen3-8B").changed_share == transfers.CHANGED_SHARE_DENSE


def test_weights_without_a_card_are_what_a_row_and_its_name_say() -> None:
    known = weights_of({"model": "Qwen/Qwen3-8B"})
    assert known.bytes == pytest.approx(2 * 8.19e9, rel=0.01) and known.expert_share == 0 and not known.estimated
    assert weights_of({"model": "Qwen/Qwen3-8B", "weight_gb": "9"}).bytes == 9e9
    assert weights_of({"model": "Qwen/Qwen3-8B", "weight_gb": "16.4"}).bytes == known.bytes
    own = weights_of({"model": "someone/own-12b"})
    assert own.bytes == 24e9 and own.estimated and own.expert_share == 0
    layers = round((12e9 / 12 / transfers.LAYER_WIDTH**2) ** (1 / 3))
    each = transfers.TENSORS_PER_ATTENTION + transfers.TENSORS_PER_FFN
    assert own.tensors == own.stacked_tensors == layers * each + 3
    assert weights_of({"model": "someone/own", "params_total_b": "5"}).bytes == 10e9
    assert weights_of({"model": "someone/own", "weight_gb": "7"}).bytes == 7e9
    small, large = (weights_of({"model": f"someone/own-{size}b-a3b"}) for size in (199, 201))
    assert small.expert_share == large.expert_share == transfers.ESTIMATED_EXPERT_SHARE
    assert small.stacked_tensors < small.tensors != large.tensors
    with pytest.raises(SkippedRow, match="weight_gb is not given"):
        weights_of({"model": "someone/own"})


def test_tensors_are_those_of_every_layer_with_router_and_shared_experts() -> None:
    shape = transfers._Shape(layers=10, experts=8, shared=1, dense=2)
    attention, dense = transfers.TENSORS_PER_ATTENTION, transfers.TENSORS_PER_FFN
    sparse = attention + 1 + transfers.TENSORS_PER_EXPERT * 9
    assert shape.tensors(8) == 2 * (attention + dense) + 8 * sparse + 3
    assert transfers._Shape(layers=10).tensors(0) == 10 * (attention + dense) + 3


def test_a_measurement_counts_once_and_an_objection_to_it_everywhere() -> None:
    def row(name: str, seconds: float, skipped: str | None = None, gpus: str = "8") -> ComparedRow:
        about = {"group": "g", "unit": "s", "measured": seconds, "details": {"model": "a/B", "gen_gpus": gpus}}
        return ComparedRow(id=name, **about, **({"skipped": skipped} if skipped else {"predicted": 10.0}))

    found = list(transfers.each_once([
        row("first", 10.0), row("same", 10.01), row("other", 10.5), row("pool", 10.0, gpus="16"),
        row("bad", 20.0, f"{transfers.FLAGGED}: wrong"), row("copied", 20.0), row("open", 10.0, "nothing"),
    ]))  # fmt: skip
    assert [one.id for one in found if one.predicted is not None] == ["first", "other", "pool"]
    reasons = {one.id: one.skipped for one in found}
    assert "earlier row" in str(reasons["same"]) and "flag of another row" in str(reasons["copied"])
    assert reasons["open"] == "nothing"


MODEL = {
    "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64,
    "intermediate_size": 4096, "vocab_size": 1000, "tie_word_embeddings": True, "max_position_embeddings": 4096,
}  # fmt: skip
ENGINE = {"framework": "vllm 0.11", "model": "Qwen/Qwen3-8B", "gpu": "h100", "release": "0.11.0rc1"}
TRAINER = {"framework": "megatron", "model": "Qwen/Qwen3-8B", "gpu": "h100", "num_gpus": "8", "seq_len": "4096"}


def test_a_card_is_what_a_row_gives_of_its_model() -> None:
    plain = card_of_row({"model": "own", "model_json": json.dumps(MODEL)})
    assert (plain.num_layers, plain.num_heads, plain.num_kv_heads, plain.head_dim) == (4, 16, 4, 64)
    assert plain.tied_embeddings and plain.gated_ffn and plain.moe is None is plain.mla and plain.mtp_layers == 0
    sparse = {"num_experts": 8, "top_k": 2, "moe_ffn": 512, "shared": 256, "first_dense": 1, "gated": False}
    latent = {"mla": True, "q_lora_rank": 0, "kv_lora_rank": 128, "qk_rope": 32, "qk_nope": 96, "v_head": 64}
    found = card_of_row({"model": "own", "model_json": json.dumps(MODEL | sparse | latent), "notes": "mtp 1"})
    assert found.moe is not None and found.mla is not None
    assert (found.moe.num_experts, found.moe.top_k, found.moe.first_dense_layers) == (8, 2, 1)
    assert (found.moe.num_shared_experts, found.moe.shared_expert_intermediate_size) == (1, 256)
    assert not found.moe.gated and not found.gated_ffn and found.mtp_layers == 1
    assert (found.mla.q_lora_rank, found.head_dim, found.num_kv_heads) == (None, 128, 16)
    without = card_of_row({"model": "own", "model_json": json.dumps(MODEL | sparse | {"shared": 0})})
    assert without.moe is not None and without.moe.num_shared_experts == 0


def test_a_device_without_a_profile_is_the_memory_that_its_row_gives() -> None:
    assert device_of_row({"gpu": "h100"}).name == "h100_sxm"
    assert device_of_row({"gpu": "nobody's", "gpu_mem_gib": "48"}).memory_bytes.value == 48 * GIB
    with pytest.raises(SkippedRow, match="gpu_mem_gib is not given"):
        device_of_row({"gpu": "nobody's"})


def test_an_engine_is_its_cells() -> None:
    one = engine_row({**ENGINE, "tp": "2", "pp": "2", "max_num_seqs": "64", "cuda_graphs": "0", "etp": "2"}, 1024)
    engine = one.engine
    assert (engine.tensor_parallel, engine.pipeline_parallel, engine.attention_data_parallel) == (2, 2, 1)
    assert (engine.max_running_sequences, engine.cuda_graphs, engine.version) == (64, False, "0.11.0")
    assert (engine.gpu_memory_utilization, engine.max_batched_tokens, engine.lora_rank) == (0.9, 8192, None)
    assert (one.cluster.num_gpus, one.cluster.generation, one.workload.max_sequence_tokens) == (8, 4, 1024)
    plain = engine_row({**ENGINE, "tp": "2", "etp": "2", "notes": "dp attention", "release": "main"}, 1024).engine
    assert plain.attention_data_parallel == 2 and plain.cuda_graphs and plain.version is None


def test_a_trainer_is_its_cells() -> None:
    cells = {**TRAINER, "tp": "2", "pp": "2", "cp": "2", "vp": "2", "mbs": "2", "recompute": "selective:core_attn,mlp"}
    found = trainer_row(cells).trainer
    assert (found.tensor_parallel, found.pipeline_parallel, found.context_parallel) == (2, 2, 2)
    assert (found.virtual_stages, found.micro_batch_samples, found.micro_batch_tokens) == (2, 2, None)
    assert (found.recompute, found.backend, found.sequence_packing) == ("selective", "megatron", False)
    assert found.sequence_parallel and found.optimizer_bytes_per_parameter == 12
    assert trainer_row({**cells, "vp": "5"}).trainer.virtual_stages == 1
    for offload, host in (("", False), ("all", False), ("optimizer", True)):
        assert trainer_row({**TRAINER, "offload": offload}).trainer.optimizer_on_host == host
    shards = trainer_row({**TRAINER, "fsdp": "1", "precision": "fp8", "tokens": "4096"}).trainer
    assert (shards.backend, shards.precision, shards.micro_batch_tokens) == ("fsdp", "fp8", 4096)
    assert shards.sequence_packing and trainer_row({**TRAINER, "notes": "sp False"}).trainer.sequence_parallel is False


def test_a_counted_quantity_has_its_interval_and_its_unit() -> None:
    cells = {**ENGINE, "tp": "1", "gpu_memory_utilization": "0.9", "max_model_len": "4096"}
    gib, tokens = (memory_rows.counted({**cells, "measured_quantity": name}) for name in ("kv_gib", "kv_tokens"))
    # 2 bytes of 8 heads of 128 for key and value in 36 layers.
    assert gib[1] * GIB / tokens[1] == pytest.approx(2 * 2 * 8 * 128 * 36)
    for low, middle, high in (gib, tokens):
        assert low < middle < high and middle - low == pytest.approx(high - middle)
    assert 0.5 * 80 < gib[1] < 0.75 * 80
    static = memory_rows.counted({**TRAINER, "measured_quantity": "static_allocated", "tp": "8"})
    whole = memory_rows.counted({**TRAINER, "measured_quantity": "nvidia_smi", "tp": "8"})
    allocated = memory_rows.counted({**TRAINER, "measured_quantity": "peak_allocated", "tp": "8"})
    assert static[1] < allocated[1] < whole[1]
    # A first iteration has no moments yet, 8 of the optimizer's 12 bytes; nor do they count beside its activations.
    cells = {**TRAINER, "tp": "8", "measured_quantity": "peak_allocated", "recompute": "none", "mbs": "4"}
    later, first = (memory_rows.counted({**cells, "notes": text}) for text in ("", "after iteration 1; then out"))
    assert later[1] - first[1] == pytest.approx(8.19e9 * 8 / 8 / GIB, rel=0.08)
    little = [memory_rows.counted({**cells, "seq_len": "16", "notes": text})[1] for text in ("", "after iteration 1")]
    assert static[1] == pytest.approx(little[1]) and little[1] < little[0]
    # Weights and gradients of 2 and 4 bytes, 12 of the optimizer's, over 8 GPUs.
    assert static[1] == pytest.approx(8.19e9 * 18 / 8 / GIB, rel=0.08)
    assert memory_rows._around(10.0, 0.1) == pytest.approx((10 - 1.645, 10, 10 + 1.645))


def test_more_memory_makes_a_run_more_likely_and_a_remark_counts_both_mistakes() -> None:
    p = [
        memory_rows.probability({**TRAINER, "tp": "8", "gpu": "none", "gpu_mem_gib": f"{gib}"}) for gib in (18, 24, 80)
    ]
    assert p == sorted(p) and p[0] < 0.1 and p[2] > 0.9
    assert memory_rows.probability({**ENGINE, "gpu": "none", "gpu_mem_gib": "80"}) > 0.9
    assert not math.isnan(p[1])


def test_graphs_and_precisions_are_the_words_of_a_row() -> None:
    graphs = {"full_iteration": "iteration", "none (full_iteration off)": None, "transformer_engine": "modules",
              "attn, moe_router": "modules", "attn": None, "": None}  # fmt: skip
    assert {scopes: training._graphs(scopes) for scopes in graphs} == graphs
    precisions = {"BF16": "bf16", "bfloat16": "bf16", " MXFP8 ": "fp8", "fp8 blockwise": "fp8", "NVFP4": "nvfp4"}
    assert {given: training.training_precision(given) for given in precisions} == precisions
    with pytest.raises(SkippedRow):
        training.training_precision("fp32")
