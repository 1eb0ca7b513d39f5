"""Passes around transformers: what is measured is the model that it says, and the shipped terms are those fitted."""

import json
import sys
from pathlib import Path

import pytest
import torch
from transformers.models.qwen3_moe import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from bench.passes import __main__ as program
from bench.passes.models import MODELS, _ExpertModules, random_model
from research.passes import FITTED, fit, measured
from rlsim.loading.models import load_card
from rlsim.schema.trainer import FsdpTerms


def test_every_pass_of_every_shape_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "passes.jsonl"
    monkeypatch.setattr(sys, "argv", ["passes", "--device", "cpu", "--out", str(out), "--tiny"])
    program.main()
    first, *records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert first["machine"]["device_type"] == "cpu" and first["offload_bytes_per_s"] > 0
    assert {(one["kind"], one["shape"]["experts"]) for one in records} >= {
        ("logprob", "grouped_mm"), ("update", "modules"), ("update", "eager"), ("optimizer", ""),
    }  # fmt: skip
    assert all(one["failed"] is None and one["seconds"] > 0 for one in records)


def test_experts_as_modules_compute_what_those_of_transformers_do() -> None:
    config = Qwen3MoeConfig(**MODELS["tiny-experts"][1], hidden_act="silu")
    torch.manual_seed(0)
    fused, apart = Qwen3MoeExperts(config), _ExpertModules(config)
    with torch.no_grad():
        for one in fused.parameters():
            one.normal_(0.0, 0.1)
        for expert in range(config.num_experts):
            gate, up = fused.gate_up_proj[expert].chunk(2)
            apart.gates[expert].weight.copy_(gate)
            apart.ups[expert].weight.copy_(up)
            apart.downs[expert].weight.copy_(fused.down_proj[expert])
    hidden = torch.randn(12, config.hidden_size)
    weights, chosen = torch.rand(12, config.num_experts).topk(2)
    torch.testing.assert_close(apart(hidden, chosen, weights), fused(hidden, chosen, weights))


def test_models_have_the_shapes_of_their_cards() -> None:
    for name, (_, shape) in MODELS.items():
        if name.startswith("tiny"):
            continue
        card = load_card(name)
        assert [shape[word] for word in ("hidden_size", "head_dim", "intermediate_size", "vocab_size")] == [
            card.hidden_size, card.head_dim, card.intermediate_size, card.vocab_size
        ]  # fmt: skip
        heads = (shape["num_attention_heads"], shape["num_key_value_heads"], shape["tie_word_embeddings"])
        assert heads == (card.num_heads, card.num_kv_heads, card.tied_embeddings)
        if card.moe is not None:
            experts = (shape["moe_intermediate_size"], shape["num_experts"], shape["num_experts_per_tok"])
            assert experts == (card.moe.expert_intermediate_size, card.moe.num_experts, card.moe.top_k)


def test_layers_are_recomputed_and_cut() -> None:
    model = random_model("tiny-dense", 3, "", fsdp=False, device=torch.device("cpu"))
    assert len(model.model.layers) == 3 and model.is_gradient_checkpointing


def test_shipped_terms_of_fsdp_are_those_fitted_to_the_measured_passes() -> None:
    found = fit([one for one in measured() if one.fitted])
    for name in FITTED:
        assert getattr(FsdpTerms(), name) == pytest.approx(getattr(found, name), rel=0.03), name
