"""Supervised fine-tuning and DPO are priced as the update of a step of RL on the same samples."""

from collections.abc import Callable

import pytest
from typer.testing import CliRunner

import rlsim
from rlsim.cli.commands import app
from rlsim.costs.trainer.driver import PADDED_BATCH
from rlsim.costs.trainer.training import PHASE_SWAP
from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario, vary
from rlsim.planning.compare import compare
from rlsim.planning.draft_lengths import draft_lengths
from rlsim.planning.improve import improve
from rlsim.planning.plan import plan
from rlsim.planning.size import Wanted, size
from rlsim.planning.sweep import sweep
from rlsim.projection.headroom import headroom
from rlsim.projection.moves import move_named, moves
from rlsim.projection.project import project
from rlsim.projection.uncertainty.sources import Origin, settle
from rlsim.projection.variant import simulate_variant
from rlsim.report.folder import write_out
from rlsim.report.text.planning import eager_remark, render_comparison
from rlsim.report.text.projection import render
from rlsim.schema.scenario import Scenario

RL = ("simulation.replications=2", "workload.generations_per_prompt=2", "trainer.global_batch_samples=null",
      "trainer.policy_logprobs=false")  # fmt: skip
PLAIN = ("speculation.method=none", "speculation.draft_length=0")
DPO = ("loop.supervised=true", "trainer.policy_logprobs=null")
SFT = (*DPO, "trainer.reference_logprobs=false")


@pytest.fixture(scope="module")
def rl() -> Scenario:
    return load_scenario("quickstart", [*RL, *PLAIN])


@pytest.mark.parametrize("stack", ["null", "verl"])
def test_a_step_is_the_update_of_a_step_of_rl_on_the_same_samples(rl: Scenario, stack: str) -> None:
    rl = vary(rl, f"stack={stack}", "trainer.reference_logprobs=false", "trainer.backend=fsdp",
                   "trainer.pipeline_parallel=1", "trainer.recompute=full")  # fmt: skip
    whole, alone = (simulate_variant(one).every_step[0] for one in (rl, vary(rl, *SFT)))
    # Ranks that read a data set are handed nothing, and nobody else has had their GPUs.
    work = [part for part in whole.cost.train.parts if part.name not in (PADDED_BATCH, PHASE_SWAP)]
    assert alone.seconds == alone.phases.train_s == pytest.approx(sum(part.seconds for part in work), rel=1e-12)
    assert len(work) == len(whole.cost.train.parts) - (stack == "verl")


def test_dpo_adds_the_pass_of_its_reference(rl: Scenario) -> None:
    whole, pairs, single = (project(vary(rl, *given)).candidate for given in ((), DPO, SFT))
    assert pairs.step_s.mean == pytest.approx(whole.phases.logprob_s.mean + whole.phases.train_s.mean, rel=1e-12)
    assert pairs.phases.train_s.mean == single.step_s.mean


def test_a_pair_is_two_samples(rl: Scenario) -> None:
    constant = [*SFT, "workload.response_tokens={kind: constant, tokens: 500}"]
    pairs = vary(rl, *constant)
    samples = vary(rl, *constant, f"workload.prompts_per_step={2 * rl.workload.prompts_per_step}",
                        "workload.generations_per_prompt=1")  # fmt: skip
    assert project(pairs).candidate.step_s == project(samples).candidate.step_s


def test_no_engine_takes_memory_and_none_must_fit(rl: Scenario) -> None:
    alone = project(vary(rl, *SFT, "engine.gpu_memory_utilization=0.01")).candidate
    assert list(alone.memory) == ["training"] and "engine" not in alone.memory["training"].parts_bytes
    assert alone.memory["training"].total_bytes < project(rl).candidate.memory["training"].total_bytes


@pytest.mark.parametrize("given", [
    "speculation.method=ngram speculation.draft_length=3 speculation.first_acceptance=0.5",
    "workload.usable_group_share=0.5",
    "workload.generated_batch_factor=2",
    "workload.environment_s=1",
    "workload.tail_batching={}",
    "cluster.generation_gpus=4 cluster.training_gpus=4",
    "trainer.policy_logprobs=true",
    "trainer.critic=true",
])  # fmt: skip
def test_what_needs_a_rollout_is_refused_by_name(rl: Scenario, given: str) -> None:
    with pytest.raises(InputError, match=f"generates nothing: give no .*{given.split('=')[0]}"):
        vary(rl, *SFT, *given.split(" "))


def test_a_reference_needs_pairs_and_a_lag_a_rollout(rl: Scenario) -> None:
    with pytest.raises(InputError, match="is DPO, of pairs"):
        vary(rl, *DPO, "workload.generations_per_prompt=1")
    with pytest.raises(InputError, match="supervised has no rollout"):
        vary(rl, *SFT, "loop.mode=async")


@pytest.mark.parametrize("ask", [
    draft_lengths, headroom, plan, lambda scenario: size(Wanted(base=scenario)),
])  # fmt: skip
def test_commands_of_rollouts_say_that_there_is_none(rl: Scenario, ask: Callable[[Scenario], object]) -> None:
    with pytest.raises(InputError, match=r"loop\.supervised generates nothing, and .* needs a rollout"):
        ask(vary(rl, *SFT))


def test_text_and_files_speak_of_no_engine(rl: Scenario, tmp_path) -> None:
    answer = project(vary(rl, *SFT))
    write_out(answer, tmp_path / "out")
    text = render(answer)
    assert "Nothing is generated: a step takes" in text and ", supervised" in text
    assert not any(word in text for word in ("Engine statistics", "refit", "per engine iteration", "KV cache"))
    assert not any(word in text for word in ("vllm", "decoding")) and "no engine; training" in text
    # A row of a data set is alike to no other; the two samples of a pair are.
    pairs = ("workload.generations_per_prompt=2", "trainer.reference_logprobs=true")
    assert "Prompt groups" in render(project(vary(rl, *DPO, *pairs)))
    assert "Prompt groups" not in render(project(vary(rl, *SFT, "workload.generations_per_prompt=1")))
    assert CliRunner().invoke(app(), ["report", str(tmp_path / "out")]).exit_code == 0
    rlsim.run(vary(rl, *SFT), 2, out=tmp_path / "run")
    assert CliRunner().invoke(app(), ["report", str(tmp_path / "run")]).exit_code == 0
    for folder in ("out", "run"):
        page = (tmp_path / folder / "report.html").read_text()
        assert not any(word in page for word in ("autoregressive", "What the engines did", "synchronous", "by age in"))
        assert not any(f">{word}" in page for word in ("refit (", "exposed gener", "prepare", "engine<", "transfer<"))


def test_moves_of_rollouts_and_of_the_loss_are_none_of_an_update_alone(rl: Scenario) -> None:
    one = vary(rl, *DPO)
    found = {move.name: move.missing(one) for move in moves()}
    for name in ("shared_queue", "fp8_rollout", "engine_tensor_parallel", "no_offload", "no_reference"):
        assert found[name] == "the scenario trains on a data set and generates nothing", name
        assert move_named(name).missing(rl) != found[name]
    assert not any(found[name] for name in ("fp8_training", "no_recompute", "larger_micro_batches"))
    tried = improve(one, only="techniques").moves
    assert tried is not None and {technique.name for technique in tried.techniques} <= {
        move.name for move in moves() if move.update
    }


def test_what_measures_the_trainer_names_no_unknown_framework(rl: Scenario) -> None:
    unnamed, named = (vary(rl, "trainer.backend=fsdp", f"stack={stack}") for stack in ("servers", "verl"))
    texts = [settle(Origin("", "training"), one)[0] for one in (unnamed, named)]
    assert texts[0].endswith("with your framework") and texts[1].endswith("with verl")


def test_a_comparison_shows_the_phases_that_there_are_as_exactly_as_a_short_step_needs(rl: Scenario) -> None:
    one = vary(rl, *DPO)
    text = render_comparison(compare(one, vary(one, "trainer.recompute=full")))
    words = [line.split() for line in text.splitlines() if line.startswith("  ")]
    rows = {first: value for first, value, *_ in (line for line in words if len(line) > 1)}
    assert not rows.keys() & {"generation", "data", "prepare"} and rows.keys() >= {"logprob", "train", "step"}
    assert float(rows["step"]) < 10 and len(rows["step"].split(".")[1]) == 3


def test_a_sweep_without_graphs_warns_of_no_largest_one(rl: Scenario) -> None:
    (cell,) = sweep(vary(rl, "engine.cuda_graphs=false"), {"engine.tensor_parallel": [1]}).done
    assert cell["eager_share"] == 0.0 and not eager_remark([("the cell", cell)])
    (small,) = sweep(vary(rl, "engine.max_captured_tokens=4"), {"engine.tensor_parallel": [1]}).done
    assert eager_remark([("the cell", small)])[0].startswith("Warning: 1 of 1 go beyond")
