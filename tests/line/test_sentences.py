"""Which sentences an answer has: each where its cause is there, and none without it."""

import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from rlsim.loading.scenario import load_scenario
from rlsim.projection import assumptions, model_assumptions
from rlsim.projection.variant import simulate_variant

SMALL = ("simulation.replications=1", "workload.prompts_per_step=16", "trainer.global_batch_samples=512")
ALWAYS = {"speed", "stack", "host fitted", "host", "refit", "captured", "groups", "draft piecewise", "drafting",
          "intervals"}  # fmt: skip
"""Of the plain scenario, which warns of nothing."""
AGENT = "workload.agent={max_turns: 3%s}"
TURNS = AGENT % ""
LAG = ("loop.mode=async", "cluster.generation_gpus=4")
EXPERTS = ("model=qwen3-30b-a3b", "speculation.method=none", "speculation.draft_length=0",
           "trainer.pipeline_parallel=1", "trainer.tensor_parallel=4", "trainer.expert_parallel=4",
           "engine.tensor_parallel=2", "cluster.num_gpus=16", "trainer.recompute=full")  # fmt: skip
PLAIN = "speculation.method=none"
ANY = "engine.dispatch=round_robin"
CHANGES: dict[tuple[str, ...], str] = {
    # an assumption that is added (+) or left out (-), or a warning (!)
    ("trainer.critic=true",): "+critic",
    ("workload.usable_group_share=0.99",): "+dynamic",
    ("loop.streaming=true", "cluster.generation_gpus=4"): "+streaming",
    LAG: "",
    (*LAG, "loop.style=areal"): "+style",
    (*LAG, "cluster.reference_gpus=2"): "+reference pool, !tight",
    (*LAG, "simulation.warmup_steps=0"): "!start-up",
    (*LAG, TURNS, ANY, "loop.stale=cancel", "loop.max_age=2", "loop.membership=first_done"):
        "+environments, +old trajectories",
    ("engine.migration=transfer",): "+migration",
    (TURNS, "engine.kv_offload.capacity_bytes=1e11"): "+environments, +kv offload",
    ("workload.tail_batching={}",): "+tail batching",
    (TURNS,): "+environments",
    (AGENT % ", judge: {gpus: 1, concurrency: 4, trajectory_s: {kind: constant, seconds: 2}}",):
        "+environments, +judge",
    (AGENT % ", nodes: {count: 2, places: 500}", ANY): "+environments, +nodes",
    (AGENT % ", start_s: {kind: constant, seconds: 2}", ANY): "+environments, +starts",
    (AGENT % ", call_failure_share: 0.1",): "+environments, +calls",
    (AGENT % ", calls_per_s: 100",): "+environments, +service",
    (PLAIN,): "-draft piecewise, -drafting",
    ("speculation=null", "speculation.method=ngram", "speculation.draft_length=3", "speculation.acceptance_length=1.5"):
        "+unhidden, -draft piecewise",
    ("speculation.drift={}",): "+drift",
    ("speculation.sampling={temperature: 1.0}",): "+sampling",
    ("speculation.variation={}",): "+variation",
    ("speculation.draft_graph=full",): "+draft full, -draft piecewise",
    ("engine.version=0.9.0",): "+unhidden",
    ("engine.host_iteration_s=0.002",): "-host fitted",
    ("engine.name=sglang",): "+eager prefill, +draft one, -draft piecewise",
    ("model=qwen3.5-4b",): "+recurrent, +running",
    ("model=qwen3.5-4b", PLAIN): "+recurrent, -draft piecewise, -drafting",
    ("model=gemma-3-4b",): "+windowed",
    ("model=qwen3-4b",): "",
    ("model=qwen3-4b", "workload.max_sequence_tokens=40960"): "",
    ("model=qwen3-4b", "workload.max_sequence_tokens=40961"): "+window beyond",
    (*EXPERTS, "trainer.expert_tensor_parallel=2"):
        "+shared experts, +speed floor, -draft piecewise, -drafting, !host floor",
    EXPERTS: "+speed floor, -draft piecewise, -drafting, !host floor",
    ("trainer.optimizer_on_host=true",): "+host optimizer",
    ("trainer.optimizer_on_host=true", "trainer.optimizer_step=device"): "+host state",
    ("workload.max_response_tokens=500",): "!cut",
    ("engine.max_captured_tokens=8", "hardware.eager_launch_s.value=1e-4"): "!eager, !hanging",
    ("engine.cuda_graphs=false",): "",
    ("engine.max_batched_tokens=64",): "!budget, !eager",
    ("engine.gpu_memory_utilization=0.25",): "!overflow",
    ("trainer.micro_batch_tokens=10240",): "!tight",
    ("simulation.replications=null", "simulation.precision=0.001"): "!imprecise",
}  # fmt: skip


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the sentences that are made, of names.yaml."""
    made, said = list[str](), model_assumptions.said

    def noted(sentence: str, **values: object) -> str:
        made.append(sentence)
        return said(sentence, **values)

    for module in (assumptions, model_assumptions):
        monkeypatch.setattr(module, "said", noted)
    yield made


@pytest.mark.parametrize("overrides", [(), *CHANGES], ids=lambda words: " ".join(words)[:60])
def test_a_cause_has_its_sentence_and_no_other(overrides: tuple[str, ...], names: list[str]) -> None:
    run = simulate_variant(load_scenario("quickstart", [*SMALL, *overrides]))
    rests, rested = assumptions.assumptions_of(run), set(names)
    names.clear()
    warned, warns = assumptions.warnings_of(run), set(names)
    changes = [f"+{name}" for name in rested - ALWAYS] + [f"-{name}" for name in ALWAYS - rested]
    changes += [f"!{name}" for name in warns]
    assert sorted(changes) == sorted(filter(None, CHANGES.get(overrides, "").split(", ")))
    # Each sentence states its values: no field of a format is left.
    assert not any("{" in text or "}" in text for text in (*rests, *warned))


HOSTED = "trainer.optimizer_on_host=true"


@pytest.mark.parametrize("stated", ["trainer.device_efficiency=0.5", "engine.host_iteration_s=0.002",
                                    "loop.refit_tensor_s=1e-4", "trainer.host_memory_bytes_per_s=1e11"])  # fmt: skip
def test_a_stated_value_is_said_to_be_stated_and_one_that_is_not_is_not(stated: str) -> None:
    texts = [" ".join(assumptions.assumptions_of(simulate_variant(load_scenario("quickstart", [*SMALL, *keys]))))
             for keys in ((HOSTED,), (HOSTED, stated))]  # fmt: skip
    before, after = (len(re.findall(r"[(;] ?stated\b", text)) for text in texts)
    assert after == before + 1


@pytest.mark.parametrize(
    ("sentence", "place", "told", "silent"),
    [
        ("reach", "beyond_reach", 0.1, 0.0999),
        ("tight", "trainer_fits", 0.9499, 0.95),
        ("little room", "engine_fits", 0.9499, 0.95),
        ("tight host", "host_fits", 0.9499, 0.95),
        ("eager", "eager_share", 0.0201, 0.02),
        ("hanging", "launch_share", 0.0501, 0.05),
        ("near limit", "open_draws", 0.05, 0.0499),
    ],
)
def test_a_warning_begins_where_it_is_said_to(
    sentence: str, place: str, told: float, silent: float, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = simulate_variant(load_scenario("quickstart", SMALL))
    for value in (told, silent):
        with monkeypatch.context() as patch:
            if place.endswith("_share"):
                patch.setattr(type(run.prices.engine), "eager_share", lambda *_, value=value: max(value, 0.0201))
                patch.setattr(type(run.prices.engine), place, lambda *_, value=value: value)
            elif place == "open_draws":
                one = SimpleNamespace(stepped=True, below={"generation": value}, name="")
                patch.setattr(assumptions, place, lambda run, one=one: ((one, {}),))
            else:
                patch.setattr(assumptions, place, lambda *_, value=value: value)
            names.clear()
            assumptions.warnings_of(run)
        assert (sentence in names) == (value == told)
