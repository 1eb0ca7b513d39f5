"""Terms of training steps: fitted on predictions, within physical bounds, never beyond what was measured."""

from pathlib import Path

import numpy as np
import pytest
from measured_tables import TRAINING

from rlsim.errors import InputError
from rlsim.evidence import training
from rlsim.evidence.joint import _must_hold
from rlsim.evidence.published import published_table
from rlsim.evidence.tables import Table
from rlsim.evidence.trained_terms import TermFit, fit_terms, usable_rows
from rlsim.evidence.training import TrainerRow, recipe_of, trainer_row
from rlsim.files.yaml import lists_beside
from rlsim.loading.models import list_cards
from rlsim.parameters.posterior import DEFAULT, load_posterior
from rlsim.parameters.sets import load_training_parameters, shipped
from rlsim.parameters.terms import START, TRAINING_BOUNDS, moved, value_of
from rlsim.schema.trainer import Trainer
from rlsim.tables.profile import list_profiles

ON_A_BOUND = 0.01
"""Logarithm within which a term lies on its bound."""
DEVICE = ("compute", "memory")


@pytest.fixture(scope="module")
def measured() -> tuple[list[TrainerRow], np.ndarray]:
    rows, seconds = usable_rows([Table.read(published_table("training_steps.csv"))], shipped())
    return rows, np.array(seconds)


@pytest.mark.parametrize("name", list(TRAINING_BOUNDS))
def test_every_term_lies_within_its_bounds_and_on_none(name: str) -> None:
    low, high = np.log(TRAINING_BOUNDS[name])
    fitted, start = (float(np.log(value_of(load_training_parameters(of), name))) for of in ("pretraining", START))
    assert low + ON_A_BOUND < fitted < high - ON_A_BOUND
    assert low < start < high


def test_published_steps_are_met_by_terms_and_no_part_exceeds_them(
    measured: tuple[list[TrainerRow], np.ndarray],
) -> None:
    over = []
    for row, seconds in zip(*measured, strict=True):
        parts = row.cost(shipped()).parts
        assert max(part.seconds for part in parts) < seconds, row.scenario.model.name
        over.append(sum(part.seconds for part in parts if part.bound in DEVICE) / seconds)
    # Where kernels are nearly all of a step their sum has the error of the prediction, either way.
    assert np.mean(np.array(over) > 1.1) < 0.04
    assert max(over) < 1.35
    rows, seconds = measured
    errors = np.abs([row.seconds(shipped()) / one - 1 for row, one in zip(rows, seconds, strict=True)])
    tuned = np.array([row.framework == "megatron_bridge" for row in rows])
    experts = np.array([row.scenario.model.moe is not None for row in rows])
    assert np.median(errors[tuned & experts]) < 0.06 and np.quantile(errors[tuned & experts], 0.9) < 0.17
    assert np.median(errors[tuned & ~experts]) < 0.05 and np.quantile(errors[tuned & ~experts], 0.9) < 0.155
    told = load_training_parameters().fit.families["mixtures of experts, tuned recipes"]["in the fit"]
    assert told.median == pytest.approx(np.median(errors[tuned & experts]), abs=0.002)


def test_a_fit_finds_its_terms_and_counts_a_layout_once(measured: tuple[list[TrainerRow], np.ndarray]) -> None:
    rows = [row for row in measured[0] if row.framework == "megatron_bridge"][::16]
    truth = moved(shipped(), {"training/moe_host_layer_s": 0.3, "training/grouped_efficiency": -0.2})
    fit = TermFit(rows, np.array([row.seconds(truth) for row in rows]), load_training_parameters())
    before = fit.errors(np.array([value.start for value in fit.values]))
    _, errors, _ = fit.solve()
    assert np.median(np.abs(errors)) < 0.01 < np.median(np.abs(before))
    twice = TermFit([rows[0], *rows[:2]], np.ones(3), load_training_parameters())
    assert twice.weights.tolist() == [0.5, 0.5, 1.0]


def test_a_posterior_leaves_fitted_terms_where_they_are_and_must_hold_what_it_claims() -> None:
    posterior = load_posterior(DEFAULT)
    assert posterior is not None
    assert {z for name, z in posterior.shifts.items() if name.startswith("training/")} == {0.0}
    assert all(abs(posterior.mean_of(name)) <= 0.03 for name in posterior.columns if name.startswith("trainer on"))
    _must_hold({"training": 0.05, "refit": 0.9}, {"training": 0.05, "refit": 0.1})
    with pytest.raises(InputError, match=r"times of kind training are off by 6\.0 % in the median"):
        _must_hold({"training": 0.06}, {"training": 0.05})
    with pytest.raises(InputError, match=r"refit\.csv: no table of training steps"):
        fit_terms([Path(published_table("refit.csv"))])


DEEPSEEK = {
    **TRAINING, "model": "DeepSeekV3", "gpu": "GB300", "num_gpus": "256", "precision": "MXFP8", "gbs": "4096",
    "pp": "2", "cp": "1", "ep": "32", "release": "NeMo 26.06", "cuda_graphs": "[]", "moe_dispatcher": "",
}  # fmt: skip


def test_every_recipe_names_known_models_devices_precisions_and_words() -> None:
    lists = lists_beside(training.__file__, "recipes.yaml")
    devices = {name.partition("_")[0] for name in list_profiles()} | {"any"}
    assert all(Trainer.model_validate(keys) for keys in (*lists["words"].values(), lists["unnamed"]))
    for framework, models in lists["recipes"].items():
        assert set(models) <= {"any", *list_cards()}, framework
        assert set(lists["mtp_layers"].get(framework, {})) <= set(models)
        for model, of_devices in models.items():
            assert set(of_devices) <= devices, model
            for entries in of_devices.values():
                assert {word for words in entries.values() for word in words.split()} <= set(lists["words"])
                assert {word for name in entries for word in name.split()[1:]} <= {"bf16", "fp8", "nvfp4"}


@pytest.mark.parametrize(("release", "precision", "graphs", "dispatcher", "overlap"), [
    ("25.09", "bf16", None, None, None),
    ("25.11", "bf16", "none", "alltoall", False),
    ("26.04.01", "bf16", "none", "hybridep", True),
    ("26.06", "fp8", "iteration", "hybridep", True),
    ("26.06", "bf16", "none", "alltoall", True),
    ("27.01", "fp8", "iteration", "hybridep", True),
])  # fmt: skip
def test_the_newest_recipe_that_is_not_newer_counts(
    release: str, precision: str, graphs: str | None, dispatcher: str | None, overlap: bool | None
) -> None:
    found = recipe_of("megatron_bridge", release, ("gpt-oss-120b", "gb200", precision))
    told = [found.get(name) for name in ("cuda_graphs", "moe_dispatcher", "exchange_overlap")]
    assert told == [graphs, dispatcher, overlap]


def test_a_recipe_is_of_its_framework_model_and_device_and_rows_win_over_it() -> None:
    assert recipe_of("prime_rl", "26.06", ("gpt-oss-120b", "gb200", "fp8")) == {"mtp_layers": 0}
    wrapped, kept = (recipe_of("automodel", None, (model, "h100", "bf16")) for model in ("kimi-k2", "gpt-oss-120b"))
    assert wrapped == kept | {"recompute": "full"} | {"neighbouring_experts": True, "flash_attention_2": False}
    assert recipe_of("megatron_bridge", None, ("deepseek-v3", "gb300", "fp8")) == {"mtp_layers": 1}
    serial = recipe_of("megatron_bridge", "26.02", ("llama-3.1-70b", "gb300", "nvfp4"))
    assert serial["tensor_overlap"] is False
    assert recipe_of("megatron_bridge", "26.02", ("llama-3.1-70b", "gb300", "fp8")) == {"mtp_layers": 0}
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


@pytest.mark.parametrize(("tokens", "context_parallel", "measured"),
    [(16384, 1, 295 / 237), (32768, 2, 335 / 277), (65536, 4, 368 / 320), (131072, 8, 389 / 357)])  # fmt: skip
def test_real_routing_costs_what_measured_pairs_say(tokens: int, context_parallel: int, measured: float) -> None:
    """Qwen3-235B-A22B on 256 H100, BF16, TP4 PP8 VP4 EP8 with DeepEP (Megatron-Core, page of 2026-05)."""
    forced = {
        **TRAINING, "framework": "Megatron-LM (MCore)", "model": "Qwen3_235B_a22B", "num_gpus": "256", "gbs": "256",
        "seq_len": str(tokens), "tp": "4", "pp": "8", "vp": "4", "cp": str(context_parallel), "ep": "8",
        "moe_dispatcher": "deepep", "notes": "routing forced balanced"}  # fmt: skip
    real = {**forced, "notes": "dropless, routing not balanced: the pair gives the cost of real routing"}
    first, second = (trainer_row(cells).seconds(shipped()) for cells in (forced, real))
    assert second / first == pytest.approx(measured, rel=0.08)
