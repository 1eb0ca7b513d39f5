"""rlsim size: the fewest GPUs that fit, the knee, what keeps to a deadline or a budget, and the engine's share."""

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import typer

from rlsim.costs.memory import (
    engine_memory,
    engine_parts,
    fit_probability,
    resident_bytes,
    sure_factor,
    surely,
    trainer_memory,
)
from rlsim.errors import Infeasible, InputError
from rlsim.loading.scenario import load_scenario, scenario_of_text, vary
from rlsim.planning.new import Answers
from rlsim.planning.size import KNEE_GAIN, Wanted, knee_of, memory_share, size
from rlsim.planning.support import SHAPE, coverage
from rlsim.projection.project import project
from rlsim.projection.uncertainty.evidence import load_evidence
from rlsim.report.style import DEFAULT_STYLE
from rlsim.report.text.run import render_size
from rlsim.report.text.support import render_coverage
from rlsim.results.planning import ClusterSize, Sizing
from rlsim.results.record import Interval

SMALL = Answers("qwen3-1.7b", "h100_sxm", 8, (16, 8), 500)
SMALL_SCENARIO = Wanted(SMALL).scenario("h100_sxm", 8)
Run = Callable[..., tuple[int, str, str]]


@cache
def sized(model: str = "qwen3-8b", lora: int | None = None) -> Sizing:
    return size(Wanted(Answers(model, "h100_sxm", 8, (16, 8), 500), lora_rank=lora), ["h100_sxm"])


def cluster(gpus: int, step_s: float, speedup: float | None) -> ClusterSize:
    return ClusterSize(
        gpus=gpus, step_s=Interval(step_s, step_s, step_s), step_p90_s=step_s, usd_per_step=1.0, speedup=speedup,
        layout="", changes={}, generation_share=0.5, training_share=0.5,
    )  # fmt: skip


def test_the_least_cluster_fits_engines_span_nodes_and_adapters_need_fewer() -> None:
    one = sized().devices[0]
    least = one.at(one.least)
    assert least is not None and one.least == 2
    wanted = Wanted(Answers("qwen3-8b", "h100_sxm", 8, (16, 8), 500))
    fits = vary(wanted.scenario("h100_sxm", 2), least.changes)
    assert fit_probability(fits) >= 0.95
    half = wanted.scenario("h100_sxm", 1, recompute="full")
    assert fit_probability(half) < 0.95
    full, lora = sized().devices[0], sized(lora=32).devices[0]
    assert full.least is not None and lora.least is not None
    assert lora.least < full.least
    assert sized(lora=32).lora_rank == 32
    # 811 GB of BF16 weights exceed the 640 GB of eight H100.
    one = size(Wanted(Answers("llama-3.1-405b", "h100_sxm", 8, (8, 8), 500)), ["h100_sxm"]).devices[0]
    least = one.at(one.least)
    assert least is not None
    assert least.changes["engine.tensor_parallel"] == 8
    assert least.changes["engine.pipeline_parallel"] == 2
    told = size(Wanted(Answers("llama-3.1-405b", "rtx_4090", 8, (8, 8), 500)), ["rtx_4090"])
    assert told.best is None
    assert told.devices[0].least is None
    assert "engines of up to 4 nodes" in told.devices[0].reason
    assert "nearest is trainer.tensor_parallel=" in told.devices[0].reason
    # 64 L40S need full recomputation; at 128, where it is not needed, it is still faster.
    one = size(Wanted(Answers("llama-3.1-70b", "l40s", 8, (64, 16), 2000)), ["l40s"]).devices[0]
    assert "recompute full" in one.sizes[0].layout
    assert all(each.speedup is None or each.speedup > 1 for each in one.sizes)


def test_steps_shorten_to_the_knee_a_deadline_takes_the_cheapest_and_a_budget_the_fastest() -> None:
    one = sized().devices[0]
    steps = [each.step_s.mean for each in one.sizes]
    assert steps == sorted(steps, reverse=True)
    assert [each.gpus for each in one.sizes] == [2 * 2**i for i in range(len(steps))]
    assert knee_of([cluster(8, 100, None), cluster(16, 60, 1.67), cluster(32, 50, 1.2), cluster(64, 30, 1.67)]) == 16
    assert KNEE_GAIN < 1.67
    every = sized().devices[0].sizes
    deadline = 1.01 * every[1].step_p90_s
    within = size(Wanted(Answers("qwen3-8b", "h100_sxm", 8, (16, 8), 500), deadline_s=deadline), ["h100_sxm"])
    assert within.devices[0].chosen == every[1].gpus
    budget = 1.001 * every[1].usd_per_step
    bought = size(Wanted(Answers("qwen3-8b", "h100_sxm", 8, (16, 8), 500), budget_usd=budget), ["h100_sxm"])
    assert bought.devices[0].chosen == every[1].gpus
    hopeless = size(Wanted(SMALL, deadline_s=0.01), ["h100_sxm"])
    assert hopeless.best is None
    assert "no step keeps to 0.01 s with 90 %" in hopeless.devices[0].reason
    said = " ".join(render_size(hopeless).split())
    held = "(a synchronous step, generation in bf16, no drafts)"
    assert said.startswith(f"No size keeps to the deadline {held}: h100_sxm: no step keeps to 0.01 s")
    dear = size(Wanted(SMALL, budget_usd=1e-6), ["h100_sxm"])
    said = " ".join(render_size(dear).split())
    assert said.startswith(f"No size keeps to the budget {held}: h100_sxm: no step costs as little as 1e-06 USD")


def test_a_scenario_is_sized_with_its_loop_and_an_unmeasured_winner_is_named() -> None:
    batch = {"workload.prompts_per_step": 16, "workload.generations_per_prompt": 8}
    small = {"simulation.replications": 1, "trainer.global_batch_samples": 128, **batch}
    scenario = load_scenario("quickstart", small)
    found = size(Wanted(base=scenario, deadline_s=1e4))
    assert [one.device for one in found.devices] == ["h100_sxm"] and found.batch == (16, 8)
    assert "lag 0 to 1" in found.held and "eagle3" in found.held and found.verdict == ()
    plain = size(Wanted(base=scenario, deadline_s=1e4, max_staleness=0, drafts=False, precision="fp8"))
    assert plain.held == "a synchronous step, generation in fp8, no drafts"
    assert plain.devices[0].sizes[0].step_s.mean > found.devices[0].sizes[0].step_s.mean
    won = size(Wanted(SMALL, deadline_s=1e4), ["h100_sxm", "mi300x"])
    assert won.best == "mi300x" and "Best on a measured device: " in won.verdict[0]
    assert "a round default" in render_size(won) and "not measured" in render_size(won)


def test_the_task_of_a_scenario_says_its_agents_adapters_and_optimizer() -> None:
    observed = {"kind": "constant", "tokens": 100}
    agent: dict[str, object] = {"turns": {"kind": "constant", "turns": 3}, "max_turns": 4}
    agent |= {"observation_tokens": observed, "environment_s": {"kind": "constant", "seconds": 0}}
    response = {"kind": "constant", "tokens": 50}
    small = {"simulation.replications": 1, "workload.prompts_per_step": 4, "workload.generations_per_prompt": 4}
    own = {"trainer.lora_rank": 8, "trainer.global_batch_samples": 16, "trainer.optimizer": "muon"}
    given = vary(SMALL_SCENARIO, small | own | {"workload.agent": agent, "workload.response_tokens": response})
    found = size(Wanted(base=given, max_staleness=0, drafts=False))
    told = render_size(found)
    assert (found.lora_rank, found.turns, found.response_tokens) == (8, 3, 3 * 50 + 2 * 100)
    assert (
        "LoRA of rank 8" in told
        and "mean trajectory 350 tokens in 3 turns" in told
        and "samples, mean response" not in told
    )
    assert "adapters trained with Muon" in told


@pytest.mark.parametrize(
    "split", [(), ("cluster.generation_gpus=8", "cluster.training_gpus=4", "cluster.num_gpus=12", "lag=1")]
)
def test_engines_over_nodes_are_tried_of_a_scenario_whose_engine_fills_its_own(split: tuple[str, ...]) -> None:
    given = load_scenario("quickstart", ["engine.tensor_parallel=8", *split])
    tried = Wanted(base=given).scenario("h100_sxm", 16, stages=2)
    assert tried.engine.gpus_per_replica == tried.decoding_gpus == 16
    assert tried.cluster.training_gpus == given.cluster.training_gpus


def test_the_engine_may_take_what_the_trainer_leaves() -> None:
    scenario = load_scenario("quickstart", ["k=0"])
    share = memory_share(scenario)
    available = scenario.hardware.memory_bytes.value
    held = trainer_memory(scenario)
    # As sure as what is offered, beside the context of the engine's own process.
    beside = (held.runtime + held.weights) * sure_factor(surely(scenario)) + (engine_parts(scenario)[0].context or 0.0)
    assert share.fit_probability == 0.95
    assert share.safe * available + beside <= available < (share.safe + 0.01) * available + beside
    even = memory_share(vary(scenario, {"simulation.fit_probability": 0.5}))
    assert even.safe > share.safe and even.least <= share.least
    assert share.after_offload > share.safe > share.least
    engine_memory(vary(scenario, {"engine.gpu_memory_utilization": share.least}))
    with pytest.raises(Infeasible):
        engine_memory(vary(scenario, {"engine.gpu_memory_utilization": share.least - 0.02}))
    kept = memory_share(vary(scenario, {"trainer.offload": False, "trainer.optimizer_bytes_per_parameter": 2}))
    assert kept.safe == kept.after_offload < share.safe


def test_an_engine_beside_a_trainer_that_stays_fits_or_is_refused() -> None:
    """26.2 GiB of weights, gradients and optimizer of a stage of two, on GPUs of 80 GB."""
    stays = load_scenario("quickstart", ["trainer.offload=false", "simulation.replications=1", "k=0"])
    parts = trainer_memory(stays)
    assert resident_bytes(stays) == parts.weights + (parts.gradients or 0.0) + (parts.optimizer or 0.0)
    room = 1 - resident_bytes(stays) / stays.hardware.memory_bytes.value
    for share, fits in ((room - 0.001, True), (room + 0.001, False)):
        scenario = vary(stays, {"engine.gpu_memory_utilization": share})
        if fits:
            project(scenario)
            continue
        with pytest.raises(Infeasible, match="beside a trainer that stays there"):
            project(scenario)
        project(vary(scenario, {"trainer.offload": True}))
    sharded = vary(stays, {"trainer.backend": "fsdp", "trainer.pipeline_parallel": 1})
    assert resident_bytes(sharded) == trainer_memory(sharded).optimizer
    assert resident_bytes(vary(sharded, {"trainer.critic": True})) == 2 * resident_bytes(sharded)
    assert resident_bytes(vary(stays, {"trainer.offload": True})) == 0.0


def test_the_command(run: Run, tmp_path: Path) -> None:
    words = ("size", "qwen3-1.7b", "--device", "h100_sxm,a100_sxm", "--batch", "16x8", "--response-tokens", "500")
    code, out, _ = run(*words, "--json")
    assert code == 0
    told = json.loads(out)
    assert told["schema"] == "rlsim.size/1"
    assert [one["device"] for one in told["devices"]] == ["h100_sxm", "a100_sxm"]
    answer = Sizing.model_validate_json(json.dumps(told))
    assert answer.best in ("h100_sxm", "a100_sxm")
    assert f"Take {next(one for one in answer.devices if one.device == answer.best).chosen}" in render_size(answer)
    (tmp_path / "size.json").write_text(json.dumps(told))
    assert Sizing.read(tmp_path / "size.json") == answer


@pytest.mark.parametrize(("asked", "told"), [
    (("--deadline", "0.01"), "no size keeps to the deadline"),
    (("--budget", "0.000001"), "no size keeps to the budget"),
])  # fmt: skip
def test_without_a_size_to_take_the_answer_is_printed_and_the_exit_code_is_that_of_a_plan(
    run: Run, tmp_path: Path, asked: tuple[str, str], told: str
) -> None:
    small = ("size", "qwen3-1.7b", "--device", "h100_sxm", "--batch", "16x8", "--response-tokens", "500", *asked)
    code, out, err = run(*small, "--json", "--out", tmp_path / "o")
    answer = json.loads(out)
    assert (code, answer["best"]) == (2, None) and answer["devices"][0]["sizes"]
    assert err.startswith(f"rlsim: infeasible: {told}") and err.count("\n") == 1
    assert json.loads((tmp_path / "o" / "size.json").read_text()) == answer
    code, out, _ = run(*small)
    assert code == 2 and out.startswith(told.capitalize()) and "Nothing fits" not in out


GIVEN = {
    "--model": "Qwen/Qwen3-8B", "--hardware": "h100_sxm", "--gpus": "8", "--batch": "8x4", "--response-tokens": "300"
}  # fmt: skip


def words(**changed: str) -> list[str]:
    given = GIVEN | {f"--{name.replace('_', '-')}": value for name, value in changed.items()}
    return [word for pair in given.items() for word in pair]


def test_a_new_scenario_loads_projects_states_its_assumptions_and_stays(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "mine.yaml"
    code, out, err = run("new", str(target), *words())
    assert (code, err) == (0, "") and "next: rlsim project" in out
    scenario = load_scenario(target)
    assert (scenario.name, scenario.cluster.num_gpus, scenario.workload.prompts_per_step) == ("mine", 8, 8)
    assert scenario.workload.max_sequence_tokens == 2048
    assert len(scenario.assumptions) == 3 and all(one.keys for one in scenario.assumptions)
    assert project(load_scenario(target, ["simulation.replications=1"])).candidate.step_s.mean > 0
    target.write_text("mine\n")
    code, _, err = run("new", str(target), *words())
    assert code == 2 and "exists already; --overwrite" in err and target.read_text() == "mine\n"
    assert run("new", str(target), *words(), "--overwrite")[0] == 0


@pytest.mark.parametrize(("changed", "told"), [
    ({"model": "qwen3-9b"}, "unknown model 'qwen3-9b'"),
    ({"hardware": "h10"}, "unknown hardware profile"),
    ({"gpus": "0"}, "--gpus 0: must be a whole number"),
    ({"batch": "64"}, "--batch 64: must be PROMPTSxSAMPLES"),
    ({"response_tokens": "many"}, "--response-tokens many"),
    ({"model": "llama-3.1-405b", "gpus": "2"}, "infeasible: no plan fits"),
])  # fmt: skip
def test_bad_answers_leave_nothing(run: Run, tmp_path: Path, changed: dict[str, str], told: str) -> None:
    code, out, err = run("new", str(tmp_path / "mine.yaml"), *words(**changed))
    assert (code, out) == (2, "") and told in err
    assert list(tmp_path.iterdir()) == []


def test_it_asks_on_terminals_and_after_a_bad_answer(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "mine.yaml"
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    code, _, err = run("new", str(target), "--model", "qwen3-8b")
    assert code == 2 and "needs --hardware, --gpus, --batch, --response-tokens" in err
    answers = iter(["qwen3-9b", "qwen3-8b", "h100_sxm", "8", "8x4", "300"])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "prompt", lambda *_, **__: next(answers))
    code, _, err = run("new", str(target))
    assert code == 0 and "unknown model 'qwen3-9b'" in err and target.exists()


def test_tables_releases_counts_and_what_is_refused() -> None:
    found = coverage("Qwen/Qwen3-30B-A3B", "h100_sxm", "vllm", 16)
    assert found.tables is not None and {"gemm", "moe"} <= set(found.tables.operators)
    rows = [row.about for row in load_evidence().rows if row.kind == "iteration"]
    counts = found.counts["iteration"]
    assert counts["any"] == len(rows)
    assert counts["model"] == sum(row["model"] == "Qwen3-30B-A3B" for row in rows)
    assert counts["model, device and software"] <= counts["model and device"] <= counts["model"]
    reasons = {one.name: one.reason for one in found.tried}
    assert (
        "not supported by h100_sxm" in reasons["NVFP4 weights"] and "MTP head" in reasons["the model's own MTP drafts"]
    )
    assert reasons["FP8 weights"] == "" and next(one for one in found.tried if not one.reason).measured
    again = project(scenario_of_text(found.scenario, "again"))
    assert again.provenance == found.provenance
    text = render_coverage(found, SHAPE, DEFAULT_STYLE)
    for words in ("Qwen3-30B-A3B on h100_sxm with vllm", "moe", "refused: engine.weight_precision nvfp4", "experts"):
        assert words in text


def test_a_device_without_tables_is_said_to_be_modelled(run: Run) -> None:
    code, out, err = run("support", "qwen3-8b", "a100_sxm", "sglang", "--gpus", "8", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["tables"] is None and answer["provenance"]["measured"] < 0.5


@pytest.mark.parametrize(
    "words", [("qwen3-9b", "h100_sxm", "vllm"), ("qwen3-8b", "h10", "vllm"), ("qwen3-8b", "h100_sxm", "tgi")]
)
def test_unknown_names_are_refused(words: tuple[str, str, str]) -> None:
    with pytest.raises(InputError, match="unknown"):
        coverage(*words)


def test_engines_that_prefill_alone_are_staged_too_where_a_size_looks_further() -> None:
    """One GPU that prefills holds no engine of two stages: the layout that is looked at next has as many more."""
    apart = {
        "model": "qwen2.5-7b", "speculation.method": "none", "cluster.num_gpus": 4, "cluster.generation_gpus": 2,
        "cluster.training_gpus": 2, "engine.prefill": {"gpus": 1}, "loop.mode": "async", "loop.policy_lag": 1,
        "engine.dispatch": "round_robin", "trainer.pipeline_parallel": 1, "trainer.tensor_parallel": 2,
    }  # fmt: skip
    base = load_scenario("quickstart", apart)
    staged = Wanted(base=base).scenario("h100_sxm", 8, 2)
    assert staged.engine.prefill is not None and staged.engine.prefill.gpus == 2
    assert (staged.decoding_gpus, staged.cluster.generation, staged.cluster.num_gpus) == (2, 4, 6)
