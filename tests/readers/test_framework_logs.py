"""What today's frameworks write beside their plain records: several rows of a step, a second process, means over the
whole run, timers in an order of their own. The files and commits stand in rlsim/readers/logs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlsim.loading.scenario import load_scenario
from rlsim.readers.logs.learning import values_of
from rlsim.readers.logs.reading import RunLog, read_log, read_text_log
from rlsim.readers.logs.rows import single_steps
from rlsim.readers.logs.steady import steady_of
from tests.readers.test_wandb_file import history, run_file


def lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """JSON lines as an export of wandb has them: ``_step`` counts the rows."""
    return "".join(json.dumps({"_step": place, "_runtime": 10 * place, **row}) + "\n" for place, row in enumerate(rows))


def listed(log: RunLog, quantity: str) -> list[float]:
    return [round(float(value), 3) for value in log.values[quantity]]


SLIME: list[dict[str, Any]] = [
    row
    for n in range(8)
    for row in (
        {"rollout/response_len/mean": 500.0 + n, "perf/rollout_time": 30.0 + n, "rollout/step": n},
        {"rollout/raw_reward": 0.2, "rollout/step": n},
        {"perf/step_time": 60.0 + n, "perf/actor_train_time": 45.0 if n == 0 else 15.0, "rollout/step": n},
        {"train/loss": 0.1, "train/step": 4 * n},
        *([{"eval/aime": 0.3, "eval/step": n}] if n % 4 == 0 else []),
    )
]


def test_rows_of_one_step_of_slime_are_one_step_with_the_trainers_number(tmp_path: Path) -> None:
    log = read_text_log(lines(SLIME), "export")
    assert log.steps == tuple(range(8)) and log.remarks == ()
    assert listed(log, "step") == [60.0 + n for n in range(8)] and listed(log, "generation")[3] == 33.0
    # The first step of the trainer is left out with that of the rollout.
    assert steady_of(log).found["train"].low == 15.0
    # A run file of wandb has the same rows.
    path = tmp_path / "run-1.wandb"
    path.write_bytes(run_file([history(place, **row) for place, row in enumerate(SLIME)]))
    assert listed(read_log(path), "step") == listed(log, "step") and read_log(path).steps == log.steps


def test_the_orchestrator_of_prime_rl_is_no_second_run() -> None:
    rows = []
    for n in range(1, 9):
        own = {
            "time/step": 60.0 if n < 5 else 34.0,
            "time/pack": 0.2,
            "time/wait_for_policy": 2.0,
            "time/save_ckpt": 0.3,
        }
        tokens = {"train/agg/effective/num_output_tokens/mean": 900.0}
        rows.append({"step": n, **tokens, **own})
        rows.append({"step": n, "perf/peak_memory": 60.0})
        trainer = {"time/step": 33.0, "time/wait_for_batch": 4.0, "time/forward_backward": 28.0, "time/save_ckpt": 0.0}
        rows.append({"step": n, **trainer})
    for text in (lines(rows), "".join(json.dumps(row) + "\n" for row in rows)):
        log = read_text_log(text, "log")
        assert log.steps == tuple(range(1, 9)) and listed(log, "step") == [33.0] * 8 and log.remarks == ()
    alone = read_text_log(lines(rows[::3]), "orchestrator")
    assert listed(alone, "step") == [60.0] * 4 + [34.0] * 4
    console = "".join(
        f"00:00:01 SUCCESS [orchestrator] Step {n} |  1m 10s | Reward 0.3000 | Trainable 8/8 (100.0%)\n"
        f"00:00:02 SUCCESS [trainer] Step {n} |   33.{n}s | Loss 0.0010 | Peak Mem. 30.0 GiB\n"
        for n in range(1, 6)
    )
    both = read_text_log(console, "both")
    assert listed(both, "step") == [33.1, 33.2, 33.3, 33.4, 33.5] and both.remarks == ()


def test_the_mean_over_all_steps_so_far_is_taken_apart() -> None:
    seconds, elapsed, rows = [400.0, *[220.0] * 19, *[330.0] * 10], 0.0, []
    for n, one in enumerate(seconds, start=1):
        elapsed += one
        speed = {"train_speed(s/it)": round(elapsed / n, 6), "iteration": f"{n}/99"}
        rows.append({"loss": 0.1, "completions/mean_length": 700.0, **speed})
        if n % 10 == 0:  # a validation is told with the step before it
            elapsed += 90.0
            rows.append({"eval_loss": 0.2, **speed, "train_speed(s/it)": round(elapsed / n, 6)})
    for text in ("".join(f"{json.dumps(row)}\n" for row in rows), "".join(f"{row}\n" for row in rows)):
        found = listed(read_text_log(text, "logging.jsonl"), "step")
        assert found == pytest.approx(seconds, abs=1e-3)


def test_running_means_of_resumed_runs_and_of_every_few_steps_are_of_their_own_beginning() -> None:
    def told(first: int, every: int, count: int) -> list[tuple[int, float]]:
        return [(first + every * k, (5.0 * every * k + 50.0) / (every * k)) for k in range(1, count + 1)]

    # The first step of a run takes 50 s longer; a resumed one begins with what it logs first.
    assert single_steps(told(0, 1, 3)) == [(1, 55.0), (2, pytest.approx(5.0)), (3, pytest.approx(5.0))]
    assert [step for step, _ in single_steps(told(100, 10, 3))] == [110, 120, 130]
    assert [seconds for _, seconds in single_steps(told(100, 10, 3))] == pytest.approx([10.0, 5.0, 5.0])
    both = single_steps([*told(0, 1, 6), *told(4, 1, 3)])
    assert [step for step, _ in both] == [1, 2, 3, 4, 5, 6, 5, 6, 7]
    assert [seconds for _, seconds in both] == pytest.approx([55.0, *[5.0] * 5, 55.0, 5.0, 5.0])


def test_timers_that_are_printed_by_their_size_are_in_no_order_of_lines() -> None:
    blocks = []
    for n in range(1, 30):
        timers = {"policy_training": 5.0 + n % 3, "exposed_generation": 6.0, "weight_sync": 4.5,
                  "policy_and_reference_logprobs": 4.0 + n % 2, "checkpointing": 9.0 * (n % 10 == 0)}  # fmt: skip
        ranked = sorted(timers.items(), key=lambda one: -one[1])
        shown = "".join(f"  • {name}: {value:.2f}s (9.1%)\n" for name, value in ranked if value)
        total = f"\nTiming:\n  • Total step time: {20.0 + timers['checkpointing']:.2f}s\n"
        blocks.append(f"{total}{shown}step_metrics={{'loss': 0.1}}\ntrain step {n}/99  trainer_v={n}  lag=1  \n")
    log = read_text_log("".join(blocks), "single controller")
    assert len(log.steps) == 29 and listed(log, "train") == [5.0 + n % 3 for n in range(1, 30)]
    assert listed(log, "step") == [20.0] * 29  # every tenth without its checkpoint


def test_agentic_roll_tells_a_step_twice_and_verl_names_its_timer_twice() -> None:
    text = ""
    for n in range(5):
        metrics = {"time/step_model_update": 3.0, "time/step_rollout": 14.0 + n, "time/step_train": 4.0,
                   "time/step_shrink": 1.0}  # fmt: skip
        whole = {"step": n, "metrics": {**metrics, "time/step_total": 30.0 + n}}
        text += f"[INFO] [DRIVER 0 / 1] pipeline rollout global step {n} start...\n[INFO] {json.dumps(metrics)}\n"
        text += f"[INFO] metrics_tag: {json.dumps(whole)}\n[INFO] pipeline step {n} finished\n"
    log = read_text_log(text, "agentic")
    assert log.steps == (0, 1, 2, 3, 4) and log.remarks == ()
    assert listed(log, "step") == [30.0 + n for n in range(5)] and listed(log, "refit") == [4.0] * 5
    text = ""
    for n in range(1, 7):
        text += f"[FullyAsyncTrainer] _fit_update_weights, timing_s/param_sync: {n}.5000 seconds version: {n}\n"
        text += f"step:{n} - fully_async/rollouter/idle_ratio:0.1\nstep:{n} - timing_s/gen:20.0 - timing_s/step:60.0 - "
        text += (
            f"timing_s/update_actor:35.0 - timing_s/timing_s/param_sync:{n}.5 - fully_async/trainer/idle_ratio:0.25\n"
        )
    log = read_text_log(text, "fully asynchronous").of_loop("async")
    assert log.remarks == () and listed(log, "refit") == [n + 0.5 for n in range(1, 7)]
    assert listed(log, "exposed_generation") == [15.0] * 6


def test_megatron_swift_and_lent_gpus_and_pauses_are_understood() -> None:
    timer = "profiling/Time taken: MegatronGRPOTrainer"
    rows = [{"completions/mean_length": 700.0, f"{timer}._generate_completions": 30.0,
             f"{timer}._move_model_to_vllm": 6.0, f"{timer}._score_completions": 0.5} for _ in range(6)]  # fmt: skip
    log = read_text_log(lines(rows), "Megatron-SWIFT")
    assert (listed(log, "generation")[0], listed(log, "refit")[0], listed(log, "data")[0]) == (24.0, 6.0, 0.5)
    verl = "timing_s/gen:5.0 - timing_s/switch_wait:12.0 - timing_s/update_weights:3.0 - timing_s/switch_to_trainer:2.0"
    text = "".join(f"step:{n} - {verl} - timing_s/switch_to_rollout:1.0 - timing_s/step:60.0\n" for n in range(1, 7))
    log = read_text_log(text, "separate").of_loop("async")
    assert (listed(log, "exposed_generation")[0], listed(log, "refit")[0]) == (17.0, 6.0)
    cells = {
        "rollout": 10.0,
        "train_step": 8.0,
        "update_weights": 2.0,
        "rollout_pause_generation": 0.5,
        "teacher_logp": 3.0,
    }
    grid = "".join(f"│ timeperf/{name} │ {value:.4e} │\n" for name, value in cells.items())
    text = "".join(f"Epoch 1/2 Step {n}/9 Train step {n}/18 done.\n{grid}" for n in range(1, 7))
    log = read_text_log(text, "AReaL")
    assert (listed(log, "step")[0], listed(log, "refit")[0]) == (23.5, 2.5)


def test_records_that_add_several_steps_of_verls_trainer_up_are_of_one_step() -> None:
    """MetricsAggregator of detach_utils.py at 1dda039b9: the first record holds one step less."""
    text = ""
    for n in range(1, 9):
        held = 3 if n == 1 else 4
        text += (
            f"step:{n} - training/global_step:{4 * n - 1} - timing_s/gen:{held * 20.0} - timing_s/step:{held * 60.0} - "
        )
        text += f"timing_s/update_actor:{held * 35.0} - fully_async/trainer/idle_ratio:0.333333\n"
    log = read_text_log(text, "fully asynchronous").of_loop("async")
    assert log.span == 4 and steady_of(log).span == 4
    assert listed(log, "step") == [60.0] * 8 and listed(log, "train") == [35.0] * 8
    assert listed(log, "exposed_generation") == pytest.approx([20.0] * 8, abs=1e-3)
    # Other trainers of verl count a step a record, and a resumed run goes on with its count.
    plain = read_text_log(text.replace("fully_async/trainer/idle_ratio", "training/epoch"), "one step a record")
    assert plain.span == 1 and listed(plain, "step")[1] == 240.0
    assert read_text_log("".join(text.splitlines(keepends=True)[4:]), "resumed").values["step"].tolist() == [60.0] * 4


def test_a_record_of_several_steps_is_compared_with_the_mean_of_as_many() -> None:
    seconds = np.array([175.0, 175.0, 299.0, 151.0, 161.0, 165.0, 296.0, 178.0])
    run = SimpleNamespace(scenario=load_scenario("qwen8b_async_lag1"),
                          every_step=[SimpleNamespace(seconds=one, phases={}) for one in seconds.tolist()])  # fmt: skip
    assert values_of(run, "step").tolist() == seconds.tolist()  # type: ignore[arg-type]
    assert values_of(run, "step", 4).tolist() == [200.0, 200.0]  # type: ignore[arg-type]
