"""What a run's log changes of the predictions: phases, explanations, lengths, what-ifs."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.readers.logs.answer import Asked, RunAnswer, answer_run
from rlsim.readers.logs.reading import RunLog, read_log
from rlsim.readers.logs.steady import Measured, steady_of
from rlsim.schema.scenario import Scenario

Command = Callable[..., tuple[int, str, str]]
SMALL = ("simulation.replications=2", "speculation.method=none")
NEMO = {"step": "total_step_time", "generation": "generation", "train": "policy_training", "refit": "weight_sync"}
NEMO |= {"logprob": "policy_and_reference_logprobs"}

# MLPerf Training, GRPO reference, batch 256, seed 1, steps 1 to 17 (mlcommons/training,
# llm_post_training/rcp_logs/GBS256/seed_1.out, commit aa344c7f): step, policy training, exposed generation,
# weight sync.
MLPERF_256 = (
    (471.214, 245.105, 3.752, 14.755), (445.917, 69.949, 339.039, 15.817), (296.649, 69.416, 191.008, 14.869),
    (325.353, 67.133, 223.357, 15.272), (319.062, 68.674, 214.696, 15.225), (531.29, 67.491, 428.039, 15.023),
    (459.671, 70.019, 353.064, 15.264), (546.807, 64.661, 447.875, 14.967), (508.901, 68.724, 403.298, 15.547),
    (664.267, 67.848, 560.412, 15.406), (444.712, 74.095, 333.101, 14.595), (512.744, 66.065, 412.038, 14.797),
    (282.598, 66.272, 181.542, 15.044), (329.545, 69.081, 223.174, 15.339), (297.314, 73.069, 187.449, 14.897),
    (315.222, 68.822, 210.659, 15.423), (322.395, 75.325, 209.25, 14.612),
)  # fmt: skip
MLPERF_512 = {"train": 127.6, "exposed_generation": 418.0, "refit": 14.6, "step": 600.0}
"""Medians of batch 512 of the same reference (GBS512, three seeds), as summarised beside its rows."""
MLPERF_NAMES = ("train_step_time", "policy_training_time", "exposed_generation_time", "weight_sync_time")


def scenario() -> Scenario:
    return load_scenario("quickstart", SMALL)


def usual_s(given: Scenario) -> dict[str, float]:
    found = project(given).candidate
    return {"step": found.step_s.mean, "generation": found.phases.generation_s.mean, "train": found.phases.train_s.mean,
            "refit": found.phases.prepare_s.mean, "logprob": found.phases.logprob_s.mean}  # fmt: skip


def write_log(path: Path, times: Mapping[str, float], steps: int, noise: float = 0.0, **extra: float) -> RunLog:
    """A log of NeMo-RL with the same times in every step, but for noise."""
    rng = np.random.default_rng(3)
    names = {f"timing/train/{NEMO[name]}": value for name, value in times.items()} | extra
    lines = ["step," + ",".join(names)]
    noisy = [[v * math.exp(noise * rng.standard_normal()) for v in names.values()] for _ in range(steps)]
    lines += [f"{step}," + ",".join(f"{v:.5f}" for v in row) for step, row in enumerate(noisy, start=1)]
    path.write_text("\n".join(lines) + "\n")
    return read_log(path)


def after_s(answer: RunAnswer, phase: str) -> float:
    found = next(line for line in answer.phases if line.quantity == phase).after
    assert found is not None
    return found.mean


def test_a_slow_trainer_is_found_and_named_and_what_no_term_can_follow_is_told(tmp_path: Path) -> None:
    given = scenario()
    times = usual_s(given)
    slow = {**times, "train": 1.15 * times["train"], "logprob": 1.15 * times["logprob"]}
    slow["step"] += 0.15 * (times["train"] + times["logprob"])
    answer = answer_run(write_log(tmp_path / "log.csv", slow, 10), given)
    for phase in ("train", "logprob"):
        assert after_s(answer, phase) == pytest.approx(slow[phase], rel=0.04)
    assert after_s(answer, "generation") == pytest.approx(times["generation"], rel=0.04)
    explained = answer.explained["train"]
    assert explained.surprise == pytest.approx(math.log(1.15), abs=0.03)
    assert abs(explained.left) < 0.35 * explained.surprise
    assert "training" in explained.by_source[0][0] or "log-probs and update" in explained.by_source[0][0]
    assert sum(change for _, change in explained.by_source) + explained.left == pytest.approx(explained.surprise)
    answer = answer_run(write_log(tmp_path / "log.csv", {**times, "train": 3 * times["train"]}, 10), given)
    assert [line.quantity for line in answer.phases if line.contradicts] == ["train"]
    assert any(remark.startswith("train: measured outside") for remark in answer.remarks)


def test_less_than_a_hundredth_of_a_step_is_no_contradiction(tmp_path: Path) -> None:
    """What a driver does between phases stands in another timer of every framework."""
    given = scenario()
    times = usual_s(given)
    for data_s, told in ((0.03, False), (0.5, False), (2.5, True)):
        log = write_log(tmp_path / "log.csv", times, 8, **{"timing/train/data_processing": data_s})
        line = next(one for one in answer_run(log, given).phases if one.quantity == "data")
        assert line.contradicts == told
        assert line.untold_s == pytest.approx(0.01 * times["step"], rel=0.05)


def test_the_prediction_beside_a_log_is_the_one_that_project_answers(tmp_path: Path) -> None:
    """Steps of drawn lengths are moved by their tokens in every answer: a log of just these times is as predicted."""
    given = load_scenario("quickstart")
    times = usual_s(given)
    answer = answer_run(write_log(tmp_path / "log.csv", times, 10), given)
    for line in answer.phases:
        assert line.before is not None
        assert line.before.mean == pytest.approx(times[line.quantity], rel=0.012), line.quantity
        surprise = answer.explained[line.quantity].surprise
        assert surprise == pytest.approx(math.log(times[line.quantity] / line.before.mean), abs=1e-4), line.quantity


def test_noisy_steps_move_less_and_the_error_of_a_median_is_that_of_repeated_runs(tmp_path: Path) -> None:
    given = scenario()
    times = usual_s(given)
    moved = {}
    for name, noise in (("quiet", 0.0), ("noisy", 0.3)):
        log = write_log(tmp_path / f"{name}.csv", {"train": 1.12 * times["train"]}, 7, noise)
        answer = answer_run(log, given)
        measured_s = answer.phases[0].measured.median
        moved[name] = math.log(after_s(answer, "train") / times["train"]) / math.log(measured_s / times["train"])
    assert moved["quiet"] > 0.5 and 0 < moved["noisy"] < 0.7 * moved["quiet"]
    rng = np.random.default_rng(0)
    medians = [float(np.median(rng.lognormal(5, 0.3, 40))) for _ in range(2000)]
    one = Measured.of(rng.lognormal(5, 0.3, 40))
    assert one.error(np.full(5, 100.0)) == pytest.approx(float(np.log(medians).std()), rel=0.25)
    # Of a single measured step the spread is that of the simulated ones, of which two have one.
    single = Measured.of(np.array([100.0]))
    assert single.error(np.array([90.0, 110.0])) > single.error(np.array([100.0, 100.0])) == 0.0


def test_warm_up_drift_and_lengths_of_the_log_are_taken_or_told(tmp_path: Path) -> None:
    def csv(steps: Sequence[float], train: Sequence[float]) -> RunLog:
        rows = "".join(f"{n},{a},{b}\n" for n, (a, b) in enumerate(zip(steps, train, strict=True), start=1))
        (tmp_path / "log.csv").write_text("step,timing_s/step,timing_s/update_actor\n" + rows)
        return read_log(tmp_path / "log.csv")

    slow = steady_of(csv([900, 500, *[100] * 10], [300, 90, *[30] * 10]))
    assert (slow.first, slow.dropped, slow.found["step"].median) == (3, 2, 100)
    assert steady_of(csv([900, 100, 100], [30, 30, 30])).dropped == 0
    part = steady_of(csv([900, 500, *[100] * 10], [300, 90, *[30] * 10]), (1, 2))
    assert (part.first, part.last, part.found["step"].mean) == (1, 2, 700)
    growing = steady_of(csv([100.0] * 20, [20 + n for n in range(20)]))
    assert "train moved from" in growing.remarks[0]
    with pytest.raises(InputError, match="no step of 50:60"):
        steady_of(csv([100] * 5, [30] * 5), (50, 60))
    given, extra = scenario(), {"train/mean_gen_tokens_per_sample": 1200.0, "train/mean_prompt_length": 107.4}
    log = write_log(tmp_path / "log.csv", {"step": 100.0}, 5, **extra)
    answer = answer_run(log, given)
    assert [(one.key, one.stated, one.measured) for one in answer.taken] == [
        ("workload.response_tokens.mean_tokens", 800, 1200)
    ]
    assert answer_run(log, given, Asked(as_stated=True)).taken == ()
    with pytest.raises(InputError, match="mean response of 9,000 tokens must be below the cap"):
        answer_run(write_log(tmp_path / "far.csv", {"step": 9.0}, 5, **{"response_length/mean": 9000.0}), given)
    log = write_log(tmp_path / "log.csv", {"step": 100.0}, 5)
    with pytest.raises(InputError, match="a run moves the posterior"):
        answer_run(log, load_scenario("quickstart", [*SMALL, "simulation.posterior=none"]))


def mlperf_log(path: Path) -> Path:
    head = {"namespace": "", "time_ms": 0, "event_type": "POINT_IN_TIME"}
    events = [{**head, "key": "global_batch_size", "value": 256, "metadata": {}}]
    for step, row in enumerate(MLPERF_256, start=1):
        value = dict(zip(MLPERF_NAMES, row, strict=True))
        events.append({**head, "key": "tracked_stats", "value": value, "metadata": {"step": step}})
    path.write_text("".join(f":::MLLOG {json.dumps(one)}\n" for one in events))
    return path


@pytest.mark.nightly
def test_a_log_of_mlperf_predicts_the_next_batch(tmp_path: Path) -> None:
    given = load_scenario("mlperf_grpo", ["simulation.replications=1"])
    answer = answer_run(read_log(mlperf_log(tmp_path / "seed_1.out")), given,
                        Asked(what_ifs=["workload.prompts_per_step=32"]))  # fmt: skip
    assert (answer.steady.first, answer.steady.last, answer.steady.dropped) == (2, 17, 1)
    for line in answer.phases:
        assert line.before is not None and line.after is not None and not line.contradicts
        assert line.after.high / line.after.low < line.before.high / line.before.low
    (found,) = answer.what_ifs
    assert found.samples == 2
    for phase, measured_s in MLPERF_512.items():
        after, before = found.phases[phase], found.before[phase]
        assert after.mean == pytest.approx(measured_s, rel=0.12)
        assert after.high - after.low < 0.7 * (before.high - before.low)
    assert found.phases["train"].low <= MLPERF_512["train"] <= found.phases["train"].high


# the command


def test_the_command_writes_a_scenario_that_predicts_the_run(run: Command, tmp_path: Path) -> None:
    times = usual_s(scenario())
    write_log(tmp_path / "log.csv", {"step": 1.3 * times["step"], "generation": 1.5 * times["generation"]}, 8)
    words = [word for one in SMALL for word in ("--set", one)]
    more = ["--what-if", "cluster.num_gpus=16 workload.prompts_per_step=128", "--what-if",
            "engine.gpu_memory_utilization=0.05"]  # fmt: skip
    out = tmp_path / "found"
    code, text, err = run("log", tmp_path / "log.csv", "quickstart", *words, *more, "--out", out)
    assert (code, err) == (0, "") and "with this run" in text and "infeasible" in text
    assert {path.name for path in out.iterdir()} == {"log.json", "posterior.npz", "scenario.yaml", "phases.png"}
    found = json.loads((out / "log.json").read_text())
    assert [one["reason"] == "" for one in found["what_if"]] == [True, False]
    after = {one["phase"]: one["after"]["mean"] for one in found["phases"]}
    calibrated = project(load_scenario(out / "scenario.yaml")).candidate
    assert calibrated.step_s.mean == pytest.approx(after["step"], rel=0.03)
    again = tmp_path / "again"
    assert run("log", tmp_path / "log.csv", "quickstart", *words, *more, "--out", again)[0] == 0
    for name in ("log.json", "posterior.npz", "scenario.yaml", "phases.png"):
        assert (again / name).read_bytes() == (out / name).read_bytes()
