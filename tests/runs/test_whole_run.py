"""Whole runs: closed forms, seams, interruptions, and the same bytes from wherever they are asked for."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict
from small_runs import CONSTANT, SPLIT, small

import rlsim
from rlsim.errors import Infeasible, InputError
from rlsim.files.journal import journal_name
from rlsim.loading.scenario import dump_scenario, scenario_digest, vary
from rlsim.projection.uncertainty.response import StepResponse
from rlsim.projection.variant import simulate_variant
from rlsim.report.style import DEFAULT_STYLE
from rlsim.report.text.run import render
from rlsim.results import PHASES
from rlsim.results.run import CAUSES, COLUMNS
from rlsim.runs.chapters import BlockRecord
from rlsim.runs.losses import Course, Losses, losses_of
from rlsim.runs.run import OPTIONAL
from rlsim.schema.scenario import Scenario
from rlsim.workload.draw import Stretch, draw

Cli = Callable[..., tuple[int, str, str]]
JOURNAL = journal_name("run")
FAULTY = {
    "run.checkpoint": {"every_steps": 4, "seconds": 3.0, "blocking_share": 0.5},
    "run.faults": {"gpu_hours_between": 2.0, "restart_s": 20.0, "replica_restart_s": 10.0},
    "run.stalls": {"probability": 0.2, "seconds": 5.0},
    "run.slow_nodes": {"share": 0.2, "factor": 1.3},
    "run.validation": {"every_steps": 5, "samples": 16},
    "run.response_growth": ((0, 0.5), (30, 2.0)),
}


@settings(max_examples=12)
@given(steps=st.integers(1, 300), validation=st.tuples(st.integers(1, 40), st.floats(0, 1000)),
       checkpoint=st.tuples(st.integers(1, 40), st.floats(0, 1000)))  # fmt: skip
def test_equal_steps_add_up(steps: int, validation: tuple[int, float], checkpoint: tuple[int, float]) -> None:
    scenario = small(
        CONSTANT,
        {"run.validation": {"every_steps": validation[0], "seconds": validation[1]},
         "run.checkpoint": {"every_steps": checkpoint[0], "seconds": checkpoint[1]}},
    )  # fmt: skip
    step_s = rlsim.project(scenario).candidate.step_s.mean
    stated = steps // validation[0] * validation[1] + steps // checkpoint[0] * checkpoint[1]
    answer = rlsim.run(scenario, steps)
    assert answer.candidate.seconds.mean == pytest.approx(steps * step_s + stated, rel=1e-9)
    assert answer.candidate.samples == steps * 32
    assert answer.baseline is None and answer.speedup is None


@settings(max_examples=6)
@given(steps=st.integers(1, 40), lag=st.integers(1, 3))
def test_an_asynchronous_run_begins_with_an_empty_pool(steps: int, lag: int) -> None:
    scenario = small(SPLIT, CONSTANT, {"loop.policy_lag": lag, "loop.poll_s": 0})
    amounts = {"replications": 1, "steps": steps, "warmup_steps": 0}
    alone = scenario.model_copy(update={"simulation": scenario.simulation.model_copy(update=amounts)})
    (trace,) = simulate_variant(alone).traces
    assert rlsim.run(scenario, steps).candidate.seconds.mean == pytest.approx(trace.steps[steps - 1].end_s, rel=1e-9)


@pytest.mark.parametrize("mode", [{}, SPLIT])
def test_every_second_has_a_cause_and_the_text_says_what_counts(mode: dict[str, object]) -> None:
    answer = rlsim.run(small(mode, FAULTY), 30, replications=2)
    for side in answer.sides.values():
        assert side.ledger.keys() <= set(CAUSES)
        assert sum(loss.seconds.mean for loss in side.ledger.values()) == pytest.approx(side.seconds.mean, rel=1e-12)
        assert side.steps["end_s"][-1] == pytest.approx(side.seconds.mean, rel=1e-9)
        of_causes = np.sum([side.steps[f"{cause}_s"] for cause in CAUSES], axis=0)
        assert np.allclose(of_causes, side.steps["step_s"], rtol=1e-12)
        assert side.seconds.low < side.seconds.mean < side.seconds.high
        assert side.sampling.run_error_s is not None and side.sampling.run_error_s > 0
    text = render(rlsim.run(small(mode, FAULTY), 12))
    for words in ("12 steps take", "Whole run", "How the steps evolve", "Where the time goes", "steps done again"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 120
    plain = render(rlsim.run(small(mode), 12))
    assert "Where the time goes" not in plain
    assert "Not in this run: growth of the responses, validation, checkpoints, failures" in plain


def test_chapters_leave_no_seam_and_replications_are_independent() -> None:
    whole, parted = (rlsim.run(small(FAULTY), 21, chapter_steps=size).candidate for size in (21, 4))
    for name in ("steps_s", "validation_s", "checkpoints_s", "stalls_s", *PHASES, "response_tokens", "trained_tokens"):
        assert np.allclose(whole.steps[name], parted.steps[name], rtol=1e-12), name
    scenario = small({"simulation.steps": 6})
    growth = ((0, 0.5), (10, 1.5))
    whole, late = draw(scenario, 0, stretch=Stretch(0, growth)), draw(scenario, 0, stretch=Stretch(3, growth))
    for one, other in zip(whole.steps[3:], late.steps, strict=False):
        assert np.array_equal(one.trained_tokens, other.trained_tokens)
        assert all(np.array_equal(a, b) for a, b in zip(one.iterations, other.iterations, strict=True))
    scenario = small({"hardware.price_per_gpu_hour_usd.value": 3.6})
    side = rlsim.run(scenario, 5).candidate
    assert side.cost_usd.mean == pytest.approx(8 * 0.001 * side.seconds.mean)
    assert side.energy_at_most_j.high == pytest.approx(8 * scenario.hardware.power_w.value * side.seconds.high)
    assert 0 < side.busy_share <= 1
    plain, given_run = small(), small(FAULTY)
    assert scenario_digest(plain) != scenario_digest(given_run)
    assert rlsim.project(plain).candidate == rlsim.project(given_run).candidate
    one, three = (rlsim.run(small(), 6, replications=count, baseline=False).candidate for count in (1, 3))
    assert one.sampling.run_error_s is None
    assert three.sampling.run_error_s is not None and 0 < three.sampling.run_error_s < three.seconds.mean / 10
    assert three.samples == one.samples
    generated = {"run.validation": {"every_steps": 2, "samples": 8}, "trainer.global_batch_samples": 32}
    assert rlsim.run(small(generated), 4, baseline=False).candidate.ledger["validation"].events == 2


@pytest.mark.parametrize("generation_bound", [True, False])
def test_asynchronous_seams_are_worth_less_than_half_a_percent(generation_bound: bool) -> None:
    cluster = {"generation_gpus": 2, "training_gpus": 6} if generation_bound else {}
    scenario = small(SPLIT, {f"cluster.{key}": value for key, value in cluster.items()})
    whole, parted = (rlsim.run(scenario, 512, chapter_steps=size, baseline=False) for size in (512, 128))
    exposed = [sum(answer.candidate.steps["exposed_generation_s"]) / 512 for answer in (whole, parted)]
    assert parted.candidate.seconds.mean == pytest.approx(whole.candidate.seconds.mean, rel=0.005)
    assert exposed[0] > 0


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_interrupted_run_ends_with_the_bytes_of_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = small(SPLIT, FAULTY)

    def stop(done: int, total: int) -> None:
        if done >= 0.6 * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rlsim.run(scenario, 40, out=tmp_path / "torn", chapter_steps=10, progress=stop)
    assert set(files(tmp_path / "torn")) == {JOURNAL}
    with (tmp_path / "torn" / JOURNAL).open("ab") as journal:
        journal.write(b'{"cell": 7, "row": {"torn')
    module = sys.modules["rlsim.runs.run"]
    simulated: list[object] = []
    original = module.simulate_chapter
    monkeypatch.setattr(module, "simulate_chapter", lambda *of: simulated.append(of) or original(*of))  # type: ignore[func-returns-value]
    torn = rlsim.run(scenario, 40, out=tmp_path / "torn", chapter_steps=10)
    assert len(simulated) == 3
    whole = rlsim.run(scenario, 40, out=tmp_path / "whole", chapter_steps=10)
    assert torn == whole
    assert files(tmp_path / "torn") == files(tmp_path / "whole")
    assert set(files(tmp_path / "whole")) == {"run.json", "steps.csv", "run.png", "scenario.yaml"}
    assert len(files(tmp_path / "whole")["steps.csv"].splitlines()) == 2 * 40 + 1


def test_a_data_set_lasts_as_many_whole_batches_as_it_has_prompts_for() -> None:
    scenario = small(CONSTANT)
    batch = scenario.workload.prompts_per_step
    for rows, epochs, steps in ((5 * batch, 2, 10), (6 * batch - 1, 2, 10), (4 * batch, 0.5, 2)):
        assert rlsim.run(scenario, rows=rows, epochs=epochs) == rlsim.run(scenario, steps)
    twice = small(CONSTANT, {"workload.generated_batch_factor": 2.0})
    assert rlsim.run(twice, rows=6 * batch).num_steps == 3  # groups that are thrown away use up prompts too
    for wrong in ({"rows": batch - 1}, {"rows": batch, "epochs": 0}, {"rows": batch, "steps": 1}):
        with pytest.raises(InputError, match="--rows"):
            rlsim.run(scenario, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", FAULTY)
def test_a_condition_of_a_run_is_stated_where_it_holds_and_missed_where_not(key: str) -> None:
    given = {key: FAULTY[key]} | ({"run.checkpoint": FAULTY["run.checkpoint"]} if key == "run.faults" else {})
    held, plain = (rlsim.run(small(CONSTANT, one), 3).assumptions for one in (given, {}))
    assert any(key in text for text in held) and not any(key in text for text in plain)
    word = OPTIONAL[key.removeprefix("run.")]
    assert word in next(text for text in plain if text.startswith("Not in this run"))
    assert word not in next(text for text in held if text.startswith("Not in this run"))


@pytest.mark.parametrize(
    ("alone", "words"),
    [
        (
            "supervised",
            ("autoregressive", "synchronous", "generated", "acceptance", "exposed", "growth", "publication"),
        ),
        ("rollouts_alone", ("synchronous", "trained on", "exposed", "age:", "checkpoints", "publication")),
    ],
)
def test_what_is_left_out_of_a_step_has_no_words(alone: str, words: tuple[str, ...]) -> None:
    plain = small(CONSTANT, {"workload.generations_per_prompt": 1, "trainer.reference_logprobs": False})
    whole, part = (render(rlsim.run(one, 2)) for one in (plain, vary(plain, f"loop.{alone}=true")))
    assert all(word in whole for word in words)
    assert not any(word in part for word in words)


def test_a_run_is_as_unsure_as_its_steps() -> None:
    scenario = small(CONSTANT)
    step, whole = rlsim.project(scenario).candidate.step_s, rlsim.run(scenario, 20).candidate.seconds
    assert [whole.low / whole.mean, whole.high / whole.mean] == pytest.approx(
        [step.low / step.mean, step.high / step.mean], rel=1e-9
    )
    assert 1 - whole.low / whole.mean < whole.high / whole.mean - 1  # as factors are, and not their inverses


def test_what_no_run_can_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="chapter_steps must be at least 1, got 0"):
        rlsim.run(small(), 3, chapter_steps=0)
    assert rlsim.run(small(CONSTANT), 2, chapter_steps=1).candidate.samples == 64
    three = rlsim.run(small(CONSTANT), rows=3 * small(CONSTANT).workload.prompts_per_step)
    assert (three.num_steps, three.replications) == (3, 1)
    for words, told in (
        ({"steps": 0}, "a run needs 1 to 100,000 steps"),
        ({"steps": 50_001, "replications": 2}, "got 50,001 x 2"),
        ({"steps": 3, "replications": 0}, "--replications must be 1 to"),
        ({}, "needs either --steps N or"),
        ({"steps": 3, "samples": 3}, "needs either --steps N or"),
        ({"samples": 0}, "--samples must be at least 1, got 0"),
    ):
        with pytest.raises(InputError, match=told):
            rlsim.run(small(), **words)
    (tmp_path / JOURNAL).write_text('{"run":"another"}\n')
    with pytest.raises(InputError, match="belongs to another, interrupted run"):
        rlsim.run(small(), 3, out=tmp_path)
    with pytest.raises(InputError, match=r"give seconds instead"):
        rlsim.vary(rlsim.load_scenario("mlperf_grpo"), {"run.validation": {"every_steps": 1, "samples": 3}})
    faults = {"run.checkpoint": {"every_steps": 50, "seconds": 1.0},
              "run.faults": {"gpu_hours_between": 0.1, "restart_s": 600.0}}  # fmt: skip
    with pytest.raises(Infeasible, match=r"run\.checkpoint\.every_steps"):
        rlsim.run(small(faults), 3)


def test_command_and_library_say_the_same(run: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(DEFAULT_STYLE.width))
    scenario = small(SPLIT, FAULTY)
    path = tmp_path / "scenario.yaml"
    path.write_text(dump_scenario(scenario))
    answer = rlsim.run(scenario, samples=12 * 32 - 5, out=tmp_path / "library")
    command = ("run", path, "--samples", 12 * 32 - 5, "--out", tmp_path / "command")
    assert run(*command, "--json") == (0, answer.to_json(), "")
    assert files(tmp_path / "command") == files(tmp_path / "library")
    assert run(*command)[1] == render(answer)
    found = json.loads(answer.to_json())
    assert found["schema"] == "rlsim.run/1" and found["steps"] == 12
    assert set(found["candidate"]["steps"]) == set(COLUMNS)
    assert found["speedup"]["mean"] == pytest.approx(
        found["baseline"]["seconds"]["mean"] / found["candidate"]["seconds"]["mean"]
    )
    frame = answer.to_frame()
    assert frame["candidate"]["step_s"].sum() == pytest.approx(answer.candidate.seconds.mean)
    alone = run("run", path, "--steps", 12, "--no-baseline", "--json")
    assert json.loads(alone[1])["baseline"] is None
    assert json.loads(alone[1])["candidate"] == found["candidate"]


STEP_S, GENERATION_S = 10.0, 6.0
REDO_S = 2.0


def course(steps: int, replications: int = 1) -> Course:
    """Synchronous steps of 10 s: 6 of generation, 1 of log-probs, 2 of training, 1 of all else."""
    response = StepResponse(GENERATION_S, 1.0, 2.0, 0.0, 1.0)
    block = BlockRecord(0, steps, asdict(response), [1.0], [1.0], 8.0, 300.0, REDO_S)
    times = {"step_s": STEP_S, "generation_s": GENERATION_S, "exposed_generation_s": GENERATION_S, "validation_s": 0.0}
    return Course({name: np.full((replications, steps), value) for name, value in times.items()}, (block,))


def lost(scenario: Scenario, steps: int = 400) -> Losses:
    return losses_of(scenario, course(steps))


def faulty(hours: float, every: int, mode: dict[str, Any], **keys: float) -> Scenario:
    checkpoint = {"every_steps": every, "seconds": 0.0}
    faults = {"gpu_hours_between": hours, "restart_s": 30.0, "replica_restart_s": 12.0, **keys}
    return small(mode, {"run.checkpoint": checkpoint, "run.faults": faults})


def test_failures_come_at_their_rate_and_undo_less_where_tokens_are_kept() -> None:
    rate = 8 / (2.0 * 3600)
    found = lost(faulty(2.0, 8, {}))
    restarts, again = found.totals["restarts"], found.totals["steps_again"]
    count = restarts.mean() / 30.0
    elapsed = 400 * STEP_S + restarts.mean() + again.mean()
    assert count == pytest.approx(rate * elapsed, rel=0.06)
    assert again.mean() / count == pytest.approx(8 * STEP_S / 2, rel=0.1)
    assert not found.totals["replica_faults"].any()
    split = {"cluster": {"num_gpus": 8, "generation_gpus": 4, "training_gpus": 4}}
    found = lost(faulty(0.5, 1, split))
    count = found.totals["replica_faults"] * 4 / (12.0 + REDO_S)
    assert np.allclose(count, np.rint(count))
    assert count.mean() == pytest.approx(4 / (0.5 * 3600) * 400 * GENERATION_S, rel=0.05)

    def redo_s(keep: bool) -> float:
        from rlsim.runs.chapters import chapters_of, simulate_chapter

        scenario = faulty(5.0, 4, SPLIT, keep_tokens=keep)
        alone = scenario.model_copy(update={"simulation": scenario.simulation.model_copy(update={"replications": 1})})
        return simulate_chapter(alone, chapters_of(alone, 8)[0]).blocks[0].redo_s

    assert 0 < redo_s(True) < redo_s(False)


@pytest.mark.parametrize("factor", [1.0, 1.5, 3.0])
def test_slow_nodes_everywhere_slow_everything_but_the_host(factor: float) -> None:
    found = lost(small({"run.slow_nodes": {"share": 1.0, "factor": factor}}), 10)
    assert found.totals["slow_nodes"] == pytest.approx(10 * (factor - 1) * (GENERATION_S + 3.0))


@pytest.mark.parametrize("tensor_parallel", [1, 2, 4])
def test_replicas_of_a_node_are_slow_together(tensor_parallel: int) -> None:
    """A node that generates and one that trains, each slow in a tenth of the steps; then two smaller that train."""
    keys = {"run.slow_nodes": {"share": 0.1, "factor": 2.0}, "engine.tensor_parallel": tensor_parallel}
    split = {"cluster": {"num_gpus": 8, "generation_gpus": 4, "training_gpus": 4}}
    found = lost(small(split, keys))
    assert found.totals["slow_nodes"].mean() == pytest.approx(400 * 0.1 * (GENERATION_S + 3.0), rel=0.05)
    other = {"cluster": {"num_gpus": 12, "generation_gpus": 4, "training_gpus": 8}, "training_hardware": "gb200_nvl72"}
    found = lost(small(other, keys))  # two trays of four
    assert found.totals["slow_nodes"].mean() == pytest.approx(400 * (0.1 * GENERATION_S + 0.19 * 3.0), rel=0.05)


def test_the_mean_of_a_run_is_that_of_all_histories() -> None:
    """Rare failures that undo much: the one history of a replication seldom meets one."""
    found = lost(faulty(50.0, 400, {}))
    for cause, totals in found.totals.items():
        assert found.by_step[cause].sum() == pytest.approx(totals.mean())
    again = found.totals["steps_again"]
    assert again.mean() > 3 * np.median(again) and found.events["restarts"] < 1
    side = rlsim.run(faulty(2.0, 4, {}), 8).candidate
    assert sum(side.steps["step_s"]) == pytest.approx(side.seconds.mean)


@pytest.mark.parametrize("mode", [{}, SPLIT], ids=["sync", "async"])
def test_a_run_may_have_more_steps_than_a_projection(mode: dict[str, Any]) -> None:
    found = rlsim.run(small(CONSTANT, mode), 100, replications=17)
    assert (found.replications, len(found.candidate.steps["step_s"])) == (17, 100)


def test_the_gpus_of_a_reference_pool_fail_too() -> None:
    pool = {"cluster": {"num_gpus": 16, "reference_gpus": 8}, "trainer.reference_logprobs": True}
    counts = [lost(faulty(2.0, 8, mode)).totals["restarts"].mean() for mode in ({}, pool)]
    assert counts[1] / counts[0] == pytest.approx(2.0, rel=0.15)


def test_slow_nodes_are_rare_on_few_nodes_and_stalls_come_with_their_probability() -> None:
    found = lost(small({"run.slow_nodes": {"share": 0.01, "factor": 2.0}}))
    assert found.totals["slow_nodes"].mean() == pytest.approx(400 * 0.01 * 9.0, rel=0.1)
    found = lost(small({"run.stalls": {"probability": 0.1, "seconds": 7.0}}))
    assert found.totals["stalls"].mean() == pytest.approx(400 * 0.1 * 7.0, rel=0.05)
    assert set(np.unique(found.totals["stalls"] % 7.0)) == {0.0}


@settings(max_examples=30)
@given(every=st.integers(1, 6), seconds=st.floats(0, 200), share=st.floats(0, 1), steps=st.integers(1, 40))
def test_checkpoints_wait_for_the_one_before(every: int, seconds: float, share: float, steps: int) -> None:
    checkpoint = {"every_steps": every, "seconds": seconds, "blocking_share": share}
    found = lost(small({"run.checkpoint": checkpoint}), steps).totals["checkpoints"]
    count = steps // every
    blocking = seconds * share
    waited = max(0.0, seconds - blocking - every * STEP_S)
    assert found == pytest.approx(count * blocking + max(0, count - 1) * waited, abs=1e-6)


def test_a_checkpoint_counts_only_when_it_is_complete() -> None:
    def again(share: float) -> float:
        checkpoint = {"every_steps": 4, "seconds": 35.0, "blocking_share": share}
        scenario = small({"run.checkpoint": checkpoint, "run.faults": {"gpu_hours_between": 4.0, "restart_s": 1.0}})
        found = lost(scenario)
        return float(found.totals["steps_again"].sum() / found.totals["restarts"].sum())

    # Written beside the steps it is complete when the next one is begun: 4 to 8 steps are undone. Else 0 to 4 are, and
    # what of its writing is done.
    assert again(0.0) == pytest.approx(6 * STEP_S, rel=0.1)
    assert again(1.0) == pytest.approx((4 * STEP_S + 35.0) / 2, rel=0.1)


def test_an_asynchronous_pool_loses_the_rate_of_its_slow_nodes() -> None:
    """Of four nodes that generate c work at 1/f of their rate: all together at 1 - c/4 (1 - 1/f)."""
    split = {"cluster": {"num_gpus": 64, "generation_gpus": 32, "training_gpus": 32}, "loop": SPLIT["loop"]}
    scenario = small(split, {"run.slow_nodes": {"share": 0.5, "factor": 3.0}})
    response = StepResponse(GENERATION_S, 1.0, 2.0, 0.0, 1.0, generation_ratio=1e3)  # nobody waits for the trainer
    block = BlockRecord(0, 1, asdict(response), [1.0], [1.0], 8.0, 300.0, REDO_S)
    found = losses_of(scenario, Course(course(1).values, (block,))).totals["slow_nodes"]
    rates = 1.0 - np.arange(5) / 4 * (1 - 1 / 3)
    assert np.unique(found.round(4)) == pytest.approx(STEP_S * (1 / rates - 1), abs=1e-3)


@pytest.mark.parametrize(("every", "restart_s"), [(8, 30.0), (40, 0.0), (3, 500.0)])
def test_a_run_gets_nowhere_where_a_failure_costs_what_lies_between_two(every: int, restart_s: float) -> None:
    """A restart and half of the steps between two checkpoints, against the seconds between failures of 8 GPUs."""
    edge_hours = (restart_s + every * STEP_S / 2) * 8 / 3600
    assert lost(faulty(1.02 * edge_hours, every, {}, restart_s=restart_s), 1).events["restarts"] >= 0
    with pytest.raises(Infeasible) as raised:
        lost(faulty(0.98 * edge_hours, every, {}, restart_s=restart_s), 1)
    assert (raised.value.needed, raised.value.available) == pytest.approx((edge_hours * 450, 0.98 * edge_hours * 450))
