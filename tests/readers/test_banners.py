"""The GPU and the releases that logs name: in place of guesses, and in words against what somebody stated."""

import pytest

from rlsim.loading.scenario import load_scenario
from rlsim.readers.logs.banners import banners_of, profile_of
from rlsim.readers.logs.reading import read_text_log
from rlsim.readers.logs.steady import steady_of, with_facts
from rlsim.schema.base import replaced
from rlsim.schema.stated import Assumption
from tests.readers.log_forms import FORMS

STARTED = (
    "INFO 05-11 09:41:06 [api_server.py:1043] vLLM API server version 0.8.5.post1\n"
    "|   0  NVIDIA H200                    On  |   00000000:18:00.0 Off |   0 |\n"
)
GPUS = load_scenario("quickstart").cluster.num_gpus
GUESS = Assumption(text="a guess", keys=("hardware",))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Initializing a V1 LLM engine (v0.17.1) with config: model='x'", {"vllm": "0.17.1", "model": "x"}),
        ("torch==2.6.0+cu124\nvllm==0.11.0\n", {"torch": "2.6.0+cu124", "vllm": "0.11.0"}),
        ("PyTorch version: 2.6.0+cu124. verl version: 0.4.0.", {"torch": "2.6.0+cu124", "verl": "0.4.0"}),
        ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5c)", {"gpu": "H100 80GB HBM3"}),
        ("Using E=128,N=768,device_name=NVIDIA_H100_80GB_HBM3.json", {"gpu": "H100 80GB HBM3"}),
        ("vLLM API server version 0.8..5 post", {}),  # damaged
        ("NVIDIA-SMI 550.54.15  Driver Version: 550.54.15", {}),
        ("NVIDIA H200, then NVIDIA A100-SXM4-80GB", {}),  # of which the run is, nobody says
    ],
)
def test_lines_name_gpu_and_releases(text: str, named: dict[str, str]) -> None:
    assert banners_of(text) == named


def test_products_are_profiles_of_their_board_and_memory() -> None:
    boards = {
        "H100 80GB HBM3": "h100_sxm", "H100 PCIe": "h100_pcie", "H20-3e": "h20_3e", "A100-SXM4-40GB": "a100_40gb",
        "A100 80GB PCIe": "a100_pcie", "A100-PCIE-40GB": None, "GeForce RTX 4090": "rtx_4090", "A10": None,
        "GH200 480GB": "gh200", "RTX PRO 6000 Blackwell Server Edition": "rtx_pro_6000_server",
    }  # fmt: skip
    assert {name: profile_of(name) for name in boards} == boards


def test_a_guess_becomes_the_logs_and_what_somebody_stated_is_contradicted() -> None:
    log = read_text_log(STARTED + "".join(FORMS["verl"](n)[0] for n in range(3, 9)), "log")
    stated = load_scenario("quickstart", ["speculation.method=none", "engine.version=0.17.1"])
    known, taken = with_facts(stated, steady_of(log), stated=False)
    assert known.hardware.name == "h100_sxm" and known.engine.version == "0.17.1" and not taken
    words = " ".join(log.contradictions(known))
    assert "H200 (h200_sxm)" in words and "h100_sxm" in words and "0.8.5.post1" in words and "0.17.1" in words
    guessed = replaced(load_scenario("quickstart", ["speculation.method=none"]), {"assumptions": (GUESS,)})
    known, taken = with_facts(guessed, steady_of(log), stated=False)
    assert known.hardware.name == "h200_sxm" and known.engine.version == "0.8.5.post1" and known.assumptions == ()
    texts = {one.text for one in taken if "tokens" not in one.key}
    release = f"engine.version = 0.8.5.post1 (the scenario has {guessed.engine_version})"
    assert texts == {"hardware = h200_sxm (the scenario has h100_sxm)", release}
    assert log.contradictions(known) == []


ENGINE = "Initializing a V1 LLM engine (v0.17.1) with config: model='{model}', tensor_parallel_size={tp}, seed=0\n"


def test_model_layout_and_gpus_of_a_log_contradict_what_the_scenario_states() -> None:
    scenario = load_scenario("quickstart", ["speculation.method=none", "engine.version=0.17.1"])
    metrics = "".join(FORMS["verl"](n)[0] for n in range(3, 9))
    own = ENGINE.format(model="meta-llama/Llama-3.1-8B-Instruct", tp=1) + f"{{'CPU': 96.0, 'GPU': {GPUS}.0}}\n"
    assert not [one for one in read_text_log(own + metrics, "log").contradictions(scenario) if "scenario" in one]
    other = ENGINE.format(model="Qwen/Qwen3-32B", tp=4) + "{'CPU': 960.0, 'GPU': 640.0}\n"
    words = " ".join(read_text_log(other + metrics, "log").contradictions(scenario))
    assert "model is Qwen/Qwen3-32B" in words and "engine.tensor_parallel is 4" in words and "has 640 GPUs" in words
    # A judge beside the policy: which engine is the rollout's nobody says.
    assert read_text_log(own + other + metrics, "log").contradictions(scenario) == []


@pytest.mark.parametrize(("idle", "side"), [(0.45, "rollout sets the pace"), (0.02, "trainer sets the pace")])
def test_the_side_that_sets_the_pace_of_an_asynchronous_loop_is_said(idle: float, side: str) -> None:
    scenario = load_scenario("qwen8b_async_lag1")
    verl = "".join(
        f"step:{n} - fully_async/trainer/idle_ratio:{idle} - timing_s/update_actor:20.5 - timing_s/step:40.5\n"
        for n in range(1, 9)
    )
    log = read_text_log(verl, "log").of_loop("async")
    assert log.values["exposed_generation"] == pytest.approx(idle * 40.5)
    slime = "".join(
        f"perf {n}: {{'perf/train_wait_time': {40 * idle}, 'perf/actor_train_time': 9.0, 'perf/step_time': 40.0}}\n"
        for n in range(1, 9)
    )
    prime = "".join(f'{{"step": {n}, "time/step": 40.0, "time/wait_for_batch": {40 * idle}}}\n' for n in range(1, 9))
    nemo = "".join(
        f"===== Step {n}/9 =====\n  Total step time: 40.0s\n  exposed_generation: {40 * idle}s (1%)\n"
        for n in range(1, 9)
    )
    for text in (verl, slime, prime, nemo):
        words = read_text_log(text, "log").of_loop("async").contradictions(scenario)
        assert [one for one in words if side in one and f"{100 * idle:.0f} %" in one], text
    assert not any("pace" in one for one in log.contradictions(load_scenario("quickstart")))
