"""Images of prompts: parameters of towers, tokens by size, and what their passes add to a step."""

import json
from pathlib import Path

import pytest

from rlsim.costs.operators.device import device_of
from rlsim.costs.vision import TOWER, tower_s
from rlsim.errors import InputError
from rlsim.loading.models import load_card
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.project import project
from rlsim.results.projection import Projection
from rlsim.schema.model import parameter_counts
from rlsim.schema.scenario import Scenario
from rlsim.schema.vision import Images
from rlsim.tables.profile import load_profile

SEES = {"model": "Qwen/Qwen2.5-VL-7B-Instruct", "workload.prompt_tokens": {"kind": "constant", "tokens": 1700},
        "workload.images.tokens": 1024, "speculation": {"method": "none"}, "simulation.replications": 1}  # fmt: skip


@pytest.fixture(scope="module")
def seeing() -> Scenario:
    return load_scenario("quickstart", SEES)


def tower_seconds(answer: Projection, phase: str) -> float:
    return sum(part.seconds for part in answer.candidate.parts if part.phase == phase and part.name == TOWER)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Qwen2.5-VL-7B-Instruct", 8.29), ("Qwen2.5-VL-3B-Instruct", 3.75), ("Qwen3-VL-8B-Instruct", 8.77),
     ("Qwen3-VL-2B-Instruct", 2.13), ("Qwen2-VL-7B-Instruct", 8.29), ("InternVL3-8B", 7.94)],
)  # fmt: skip
def test_models_that_see_have_the_parameters_of_their_repositories(name: str, billions: float) -> None:
    assert parameter_counts(load_card(name)).total == pytest.approx(billions * 1e9, rel=0.03)


def test_tokens_follow_the_size_by_the_rules_of_the_families() -> None:
    assert Images(width_pixels=1344, height_pixels=896).image_tokens == 48 * 32
    assert Images(width_pixels=1345, height_pixels=896).image_tokens == 49 * 32
    assert Images(width_pixels=1344, height_pixels=896, token_pixels=32).image_tokens == 42 * 28
    assert Images(width_pixels=1344, height_pixels=896, tile_pixels=448).image_tokens == (6 + 1) * 256
    assert Images(width_pixels=448, height_pixels=448, tile_pixels=448).image_tokens == 256
    assert Images(tokens=100, per_prompt=2.5).prompt_tokens == 250


def test_a_towers_pass_takes_what_its_flops_take_at_some_share_of_the_peak(seeing: Scenario) -> None:
    tower = seeing.model.vision
    assert tower is not None
    patches = 4 * 1024
    flops = 2 * patches * tower.num_layers * sum(n * k for _, n, k in tower.layer_matrices())
    flops += 2 * 1024 * sum(n * k for _, n, k in tower.merger_matrices(seeing.model.hidden_size))
    flops += tower.attention_flops(patches)
    profile = load_profile("h100_sxm")
    operators = device_of(profile, "vllm").operators
    seconds = tower_s(seeing, operators)
    assert 1.0 < seconds * profile.flops("bf16") / flops < 4.0
    # Windows: four of 32 layers see the whole image, the others 64 patches.
    assert tower.attention_flops(patches) == 4 * patches * 1280 * (4 * patches + 28 * 64)
    double = vary(seeing, "workload.images.per_prompt=1.6")
    assert tower_s(double, operators) == pytest.approx(1.6 * seconds)


def test_updates_take_three_passes_and_frozen_ones_one_and_generation_one_a_prompt(seeing: Scenario) -> None:
    answer, frozen = project(seeing), project(vary(seeing, "trainer.frozen_vision=true"))
    blind = project(vary(seeing, "workload.images=null"))
    logprob_s = tower_seconds(answer, "logprob_s")
    passes = 1 + int(seeing.trainer.reference_logprobs)
    assert logprob_s > 0
    assert tower_seconds(answer, "train_s") == pytest.approx(3 * logprob_s / passes, rel=1e-6)
    assert tower_seconds(frozen, "train_s") == pytest.approx(logprob_s / passes, rel=1e-6)
    assert tower_seconds(blind, "train_s") == 0.0
    phases = [(one.candidate.phases.generation_s.mean, one.candidate.step_s.mean) for one in (blind, answer)]
    assert phases[0][0] < phases[1][0] and phases[0][1] < frozen.candidate.step_s.mean < phases[1][1]


def test_what_no_model_sees_and_no_prompt_holds_is_refused() -> None:
    with pytest.raises(InputError, match=r"Qwen3-1\.7B has no vision tower"):
        load_scenario("quickstart", {**SEES, "model": "qwen3-1.7b"})
    with pytest.raises(InputError, match=r"mean \(107\) must be at least the 1024"):
        load_scenario("quickstart", {**SEES, "workload.prompt_tokens": {"kind": "constant", "tokens": 107}})
    with pytest.raises(InputError, match="token_pixels must be 32 for"):
        sized = {key: value for key, value in SEES.items() if key != "workload.images.tokens"}
        sized |= {"model": "Qwen3-VL-8B-Instruct", "workload.images": {"width_pixels": 900, "height_pixels": 900}}
        load_scenario("quickstart", sized)
    with pytest.raises(InputError, match="either tokens or both"):
        load_scenario("quickstart", {**SEES, "workload.images": {"width_pixels": 100}})


def test_images_that_nobody_states_are_missing_until_they_are_stated(seeing: Scenario) -> None:
    blind = load_scenario("quickstart", {"model": "Qwen/Qwen2.5-VL-7B-Instruct"})
    assert "state workload.images" in blind.missing[0].part
    assert not seeing.missing
    unknown = load_scenario("quickstart", {"model": "Qwen/Qwen2.5-Omni-7B"})
    assert "the vision tower of" in unknown.missing[0].part


def test_a_config_tells_its_tower(tmp_path: Path) -> None:
    tower = load_card("Qwen3-VL-8B-Instruct").vision
    text = {
        "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
        "hidden_act": "silu", "max_position_embeddings": 262144,
    }  # fmt: skip
    vision = {
        "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "hidden_act": "gelu_pytorch_tanh",
        "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "deepstack_visual_indexes": [8, 16, 24],
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"text_config": text, "vision_config": vision}))
    found = load_card(path).vision
    assert tower is not None and found is not None
    assert found.model_dump(exclude={"source"}) == tower.model_dump(exclude={"source"})
    path.write_text(json.dumps({"text_config": text, "vision_config": {"hidden_size": 7}}))
    assert load_card(path).vision is None
