"""What recipes of training frameworks set, and what rows and scenarios say instead."""

import pytest
from measured_tables import TRAINING

from rlsim.evidence import training
from rlsim.evidence.training import recipe_of, trainer_row
from rlsim.files.yaml import lists_beside
from rlsim.loading.models import list_cards
from rlsim.parameters.sets import shipped
from rlsim.schema.trainer import Trainer
from rlsim.tables.profile import list_profiles

DEEPSEEK = {
    **TRAINING, "model": "DeepSeekV3", "gpu": "GB300", "num_gpus": "256", "precision": "MXFP8", "gbs": "4096",
    "pp": "2", "cp": "1", "ep": "32", "release": "NeMo 26.06", "cuda_graphs": "[]", "moe_dispatcher": "",
}  # fmt: skip


def test_every_recipe_names_known_models_devices_precisions_and_words() -> None:
    lists = lists_beside(training.__file__, "recipes.yaml")
    devices = {name.partition("_")[0] for name in list_profiles()} | {"any"}
    assert all(Trainer.model_validate(keys) for keys in (*lists["words"].values(), lists["unnamed"]))
    for framework, models in lists["recipes"].items():
        assert set(models) <= set(list_cards()), framework
        assert set(lists["mtp_layers"][framework]) <= set(models)
        for model, of_devices in models.items():
            assert set(of_devices) <= devices, model
            for entries in of_devices.values():
                assert {word for words in entries.values() for word in words.split()} <= set(lists["words"])
                assert {word for name in entries for word in name.split()[1:]} <= {"bf16", "fp8", "nvfp4"}


@pytest.mark.parametrize(
    ("release", "precision", "graphs", "dispatcher", "overlap"),
    [
        ("25.09", "bf16", None, None, None),
        ("25.11", "bf16", "none", "alltoall", False),
        ("26.04.01", "bf16", "none", "hybridep", True),
        ("26.06", "fp8", "iteration", "hybridep", True),
        ("26.06", "bf16", "none", "alltoall", True),
        ("27.01", "fp8", "iteration", "hybridep", True),
    ],
)
def test_the_newest_recipe_that_is_not_newer_counts(
    release: str, precision: str, graphs: str | None, dispatcher: str | None, overlap: bool | None
) -> None:
    found = recipe_of("megatron_bridge", release, ("gpt-oss-120b", "gb200", precision))
    told = [found.get(name) for name in ("cuda_graphs", "moe_dispatcher", "exchange_overlap")]
    assert told == [graphs, dispatcher, overlap]


def test_a_recipe_is_of_its_framework_model_and_device() -> None:
    assert recipe_of("automodel", "26.06", ("gpt-oss-120b", "gb200", "fp8")) == {"mtp_layers": 0}
    assert recipe_of("megatron_bridge", None, ("deepseek-v3", "gb300", "fp8")) == {"mtp_layers": 1}
    serial = recipe_of("megatron_bridge", "26.02", ("llama-3.1-70b", "gb300", "nvfp4"))
    assert serial["tensor_overlap"] is False
    assert recipe_of("megatron_bridge", "26.02", ("llama-3.1-70b", "gb300", "fp8")) == {"mtp_layers": 0}


def test_a_row_wins_over_its_recipe_but_for_graphs_which_recipes_set_last() -> None:
    found = trainer_row(DEEPSEEK).scenario.trainer
    assert (found.cuda_graphs, found.moe_dispatcher, found.mtp_layers) == ("iteration", "hybridep", 1)
    partial = {"cuda_graphs": "transformer_engine [attn, moe_router]", "moe_dispatcher": "deepep"}
    own = trainer_row({**DEEPSEEK, **partial, "model": "DeepSeekV3 (w/o MTP)"}).scenario.trainer
    assert (own.cuda_graphs, own.moe_dispatcher, own.mtp_layers) == ("iteration", "deepep", 0)
    unknown = trainer_row({**DEEPSEEK, **partial, "release": "", "model": "DeepSeekV3 (tokendrop)"}).scenario.trainer
    assert (unknown.cuda_graphs, unknown.exchange_overlap, unknown.token_drop) == ("modules", None, True)
    whole = {"cuda_graphs": "local [full_iteration]", "release": ""}
    assert trainer_row({**DEEPSEEK, **whole}).scenario.trainer.cuda_graphs == "iteration"
    none = {"cuda_graphs": "none [full_iteration]", "release": ""}
    assert trainer_row({**DEEPSEEK, **none}).scenario.training_features.cuda_graphs == "modules"


@pytest.mark.parametrize(
    ("tokens", "context_parallel", "measured"),
    [(16384, 1, 295 / 237), (32768, 2, 335 / 277), (65536, 4, 368 / 320), (131072, 8, 389 / 357)],
)
def test_real_routing_costs_what_pairs_with_forced_routing_say(
    tokens: int, context_parallel: int, measured: float
) -> None:
    """Qwen3-235B-A22B on 256 H100, BF16, TP4 PP8 VP4 EP8 with DeepEP (Megatron-Core, page of 2026-05)."""
    forced = {
        **TRAINING, "framework": "Megatron-LM (MCore)", "model": "Qwen3_235B_a22B", "num_gpus": "256", "gbs": "256",
        "seq_len": str(tokens), "tp": "4", "pp": "8", "vp": "4", "cp": str(context_parallel), "ep": "8",
        "moe_dispatcher": "deepep", "notes": "routing forced balanced",
    }  # fmt: skip
    real = {**forced, "notes": "dropless, routing not balanced: the pair gives the cost of real routing"}
    first, second = (trainer_row(cells).seconds(shipped()) for cells in (forced, real))
    assert second / first == pytest.approx(measured, rel=0.08)
