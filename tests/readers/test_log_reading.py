"""Readers of run logs: every form, what they keep, and what damaged or hostile files get."""

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rlsim.errors import InputError
from rlsim.files.reading import LINE_CHARACTERS
from rlsim.readers.logs.reading import RunLog, read_log
from rlsim.readers.logs.steady import steady_of
from rlsim.readers.logs.tensorboard import SCALAR_BYTES
from tests.readers.event_files import counted, event, event_file, frame, simple, tensor, tensor_listed

Command = Callable[..., tuple[int, str, str]]
STEP, TRAIN = "timing/train/total_step_time", "timing/train/policy_training"


def read(path: Path, content: bytes | str) -> RunLog:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_log(path)


def values(log: RunLog, quantity: str) -> list[float]:
    return [round(float(value), 4) for value in log.values[quantity]]


# TensorBoard


@pytest.mark.parametrize("form", [simple, tensor, tensor_listed])
def test_scalars_of_event_files(form: Callable[[float], bytes], tmp_path: Path) -> None:
    events = [event(n, {STEP: form(100.0 + n), TRAIN: form(30.5), "loss": form(0.1)}) for n in range(1, 6)]
    log = read(tmp_path / "events.out.tfevents.1.host", event_file(events))
    assert (log.form, log.steps) == ("TensorBoard", (1, 2, 3, 4, 5))
    assert values(log, "step") == [101, 102, 103, 104, 105] and values(log, "train") == [30.5] * 5


def test_repeated_steps_long_and_damaged_records_are_told(tmp_path: Path) -> None:
    for number, steps in ((1, (1, 2, 3)), (2, (3, 4))):
        content = event_file(event(n, {STEP: simple(10.0 * number)}) for n in steps)
        (tmp_path / f"events.out.tfevents.{number}.host").write_bytes(content)
    assert values(read_log(tmp_path), "step") == [10, 10, 20, 20]
    image = event(1, {"image": counted(4, b"\0" * (SCALAR_BYTES + 1))})
    log = read(tmp_path / "long", event_file([image, event(1, {STEP: simple(5.0)})]))
    assert values(log, "step") == [5]
    with pytest.raises(InputError, match="record 4: its check sum"):
        read(tmp_path / "data", damaged()["data"])
    with pytest.raises(InputError, match="record 2: its check sum"):
        read(tmp_path / "length", damaged()["length"])
    with pytest.raises(InputError, match="record 4: the file is cut short"):
        read(tmp_path / "cut", damaged()["cut"])
    data = frame(event(7, {STEP: simple(1.0)}))
    content = event_file([]) + data * (2**20 // len(data))
    assert values(read(tmp_path / "many", content), "step") == [1]


def write_events(path: Path, steps: range, seconds: float) -> None:
    path.write_bytes(event_file(event(n, {STEP: simple(seconds + 0.1 * n)}) for n in steps))


def test_files_of_two_runs_are_refused_and_those_of_a_resumed_one_remarked(tmp_path: Path) -> None:
    first, second = (tmp_path / f"events.out.tfevents.{number}.host" for number in (1, 2))
    write_events(first, range(1, 16), 84.0)
    assert read_log(tmp_path).remarks == ()
    for steps in (range(1, 8), range(1, 16), range(0, 12), range(2, 20)):
        write_events(second, steps, 168.0)
        with pytest.raises(InputError, match=r"holds several runs \(steps [12] to .* are told twice: .* 84.*, then 16"):
            read_log(tmp_path)
    write_events(second, range(1, 8), 85.0)  # started again, or a run that takes as long
    assert "steps 1 to 7 are told twice" in read_log(tmp_path).remarks[0]
    write_events(second, range(13, 30), 90.0)
    log = read_log(tmp_path)
    assert "steps 13 to 15 are told twice, as after a restart" in log.remarks[0]
    assert steady_of(log).remarks == log.remarks
    assert values(log, "step")[11:13] == [85.2, 91.3]
    write_events(second, range(13, 30), 84.0)  # the very same values
    assert read_log(tmp_path).remarks == ()
    write_events(second, range(16, 30), 190.0)
    assert read_log(tmp_path).remarks == ()


def test_a_text_log_that_was_resumed_is_remarked_and_two_runs_in_it_are_refused(tmp_path: Path) -> None:
    def console(*parts: tuple[range, float]) -> str:
        lines = [f"step:{n} - timing_s/gen:{s + n} - timing_s/step:{3 * s + n}\n" for steps, s in parts for n in steps]
        return "".join(lines)

    log = read(tmp_path / "resumed.log", console((range(1, 13), 20.0), (range(9, 21), 30.0)))
    assert log.remarks == (
        "steps 9 to 12 are told twice, as after a restart, and counted as told last ('timing_s/step' 70.5, then 100.5 "
        "in the median); of two runs give one alone",
    )
    assert values(log, "generation")[7:9] == [28, 39]
    log = read(tmp_path / "one.log", console((range(13), 9.0), (range(12, 20), 30.0)))
    assert log.remarks[0].startswith("step 12 is told twice")
    with pytest.raises(InputError, match=r"two\.log: holds several runs"):
        read(tmp_path / "two.log", console((range(1, 13), 20.0), (range(1, 13), 30.0)))


def damaged() -> dict[str, bytes]:
    good = event_file(event(n, {STEP: simple(float(n))}) for n in range(1, 4))
    flipped = bytearray(good)
    flipped[-8] ^= 1
    length = bytearray(good)
    length[len(event_file([])) + 9] ^= 1  # the check sum of a length
    return {"cut": good[:-3], "cut in a header": good + b"\x05\0\0", "data": bytes(flipped), "length": bytes(length),
            "endless": good + struct.pack("<Q", 2**63) + b"\0" * 16, "no event": event_file([b"\xff" * 40]),
            "group": event_file([b"\x0b\x0c"]), "field beyond": event_file([b"\x2a\x7f\x01"]),
            "nan": event_file([event(1, {STEP: simple(float("nan"))})]),
            "negative": event_file([event(1, {STEP: simple(-1.0)})]),
            "infinite": event_file([event(1, {STEP: simple(float("inf"))})]),
            "negative step": event_file([event(2**64 - 5, {STEP: simple(1.0)})]),
            "no time": event_file([event(1, {"<img src=x onerror=alert(1)>\x1b[31m": simple(1.0)})]),
            "no text": event_file([b"\x10\x01" + counted(5, counted(1, counted(1, b"\xff\xfe") + simple(1.0)))]),
            "pickle": pickle.dumps({"a": 1}), "empty": b"", "only a version": event_file([])}  # fmt: skip


@pytest.mark.parametrize("name", damaged())
def test_damaged_event_files_are_one_message(name: str, run: Command, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(damaged()[name])
    code, out, err = run("log", tmp_path / "log", "quickstart", "--out", tmp_path / "found")
    assert (code, out) == (2, "") and err.startswith("rlsim: ") and err.count("\n") == 1
    assert "\x1b" not in err and not (tmp_path / "found").exists()


# text


def test_wandb_phases_and_mlperf_lines(tmp_path: Path) -> None:
    text = (
        f'"Step","my run - {STEP}","my run - {STEP}__MIN","my run - {STEP}__MAX"\n'
        '"1","100.5","1","2"\n"2","","",""\n"3","101.5","1","2"\n'
    )
    log = read(tmp_path / "chart.csv", text)
    assert log.steps == (1, 3) and values(log, "step") == [100.5, 101.5]
    with pytest.raises(InputError, match="several runs"):
        read(tmp_path / "two.csv", f"Step,a - {STEP},b - {STEP}\n1,2,3\n")
    with pytest.raises(InputError, match="several runs"):
        read(tmp_path / "two.csv", f"Step,a - {STEP},b - {TRAIN}\n1,2,3\n")
    log = read(tmp_path / "one.csv", f"Step,a - {STEP},a - {TRAIN},val - loss\n1,2,3,4\n")
    assert values(log, "step") == [2] and values(log, "train") == [3]
    head = "timing/train/"
    cells = {"total_step_time": 99, "policy_training": 30, "training_prep": 2, "policy_and_reference_logprobs": 8}
    cells |= {"prepare_for_generation/total": 5, "logprob_inference_prep": 1}
    text = "step," + ",".join(head + name for name in cells) + "\n3," + ",".join(map(str, cells.values())) + "\n"
    log = read(tmp_path / "nemo.csv", text)
    found = {name: log.values[name][0] for name in log.values}
    assert found == {"step": 99, "train": 32, "logprob": 8, "refit": 6}

    def line(key: str, value: object, **metadata: object) -> str:
        told = {"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", "key": key, "value": value}
        return f"0: :::MLLOG {json.dumps({**told, 'metadata': metadata})}\n"

    text = line("global_batch_size", 256) + "noise\n" + line("submission_org", "x")
    text += line("tracked_stats", {"train_step_time": 345.9, "weight_sync_time": 15.2}, samples_count=256)
    text += line("train_step_time", 350.5, samples_count=512)
    log = read(tmp_path / "mlperf.out", text)
    assert (log.form, log.steps, log.samples) == ("MLPerf log", (256, 512), 256)
    assert values(log, "step") == [345.9, 350.5] and np.isnan(log.values["refit"][1])


def test_cells_with_commas_between_thousands_are_numbers(tmp_path: Path) -> None:
    log = read(tmp_path / "cells.csv", f'step,{STEP},{TRAIN}\n"1,001","1,084.2",24\n"1,002","1,083","1,08"\n')
    assert log.steps == (1001, 1002)
    assert [values(log, "step"), float(log.values["train"][0])] == [[1084.2, 1083], 24]


def test_the_pass_of_a_critic_is_one_of_the_log_probs_of_verl(tmp_path: Path) -> None:
    """verl/trainer/ppo/ray_trainer.py times old_log_prob, ref, values, update_critic and update_actor apart."""
    cells = {"step": 72.5, "old_log_prob": 5.9, "ref": 5.4, "values": 4.7, "update_critic": 13.5, "update_actor": 16}
    for left, logprob in (((), 16.0), (("old_log_prob",), 10.1), (("old_log_prob", "ref"), 4.7), (("values",), 11.3)):
        row = {"step": 1, "data": {f"timing_s/{name}": value for name, value in cells.items() if name not in left}}
        log = read(tmp_path / "ppo.jsonl", json.dumps(row) + "\n")
        assert values(log, "logprob") == [logprob] and values(log, "train") == [29.5]


def test_json_arrays_nested_records_and_lines_and_console_of_verl(tmp_path: Path) -> None:
    rows = [{"_step": n, "timing": {"train": {"total_step_time": 9.0 + n}}} for n in (4, 5)]
    assert values(read(tmp_path / "a.json", json.dumps(rows)), "step") == [13, 14]
    lines = "".join(
        json.dumps({"step": n, "data": {"timing_s/step": 50.0, "timing_s/old_log_prob": 4.0, "timing_s/ref": 3.0}})
        + "\n"
        for n in (1, 2)
    )
    log = read(tmp_path / "verl.jsonl", lines)
    assert log.steps == (1, 2) and values(log, "logprob") == [7, 7]
    text = "".join(
        f"(TaskRunner pid=7) step:{n} - actor/x:5.0 - timing_s/gen:{30 + n}.5 - timing_s/step:60.25 - x:nan\n"
        for n in (1, 2)
    )
    log = read(tmp_path / "console.txt", text)
    assert log.form == "console of verl" and values(log, "generation") == [31.5, 32.5]
    assert values(log, "step") == [60.25, 60.25]


HOSTILE = {
    "nan": f"step,{STEP}\n1,nan\n", "negative": f"step,{STEP}\n1,-4\n", "infinite": f"step,{STEP}\n1,1e999\n",
    "huge": f'{{"step": 1, "{STEP}": 1{"0" * 400}}}\n', "endless step": f"step,{STEP}\n1e999,4\n",
    "nested": '{"a": ' + "[" * 100_000, "nested objects": '{"a": ' * 50_000 + "1" + "}" * 50_000,
    "array": "[" * 100_000, "array of numbers": "[1, 2]", "mlperf": ":::MLLOG {no json\n",
    "mlperf key": ':::MLLOG {"value": 1}\n', "no metric": "<script>,../../etc/passwd\n1,2\n",
    "endless step of timers": '{"profiling/": 5}\n{"train/global_step": 1e400, "step": 47}\n',
    "long": '{"a": "' + "x" * LINE_CHARACTERS + '"}\n', "pickle": pickle.dumps({"a": 1}, protocol=0).decode(),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_one_message(name: str, run: Command, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(HOSTILE[name])
    code, out, err = run("log", tmp_path / "log.txt", "quickstart", "--out", tmp_path / "found")
    assert (code, out) == (2, "") and err.startswith("rlsim: ") and err.count("\n") == 1
    assert not (tmp_path / "found").exists()


def test_a_folder_without_event_files(run: Command, tmp_path: Path) -> None:
    code, _, err = run("log", tmp_path, "quickstart")
    assert code == 2 and "tfevents" in err


def test_of_two_spellings_of_a_metric_the_exact_one_counts(tmp_path: Path) -> None:
    both = {"step": [1, 2], "timing_s_gen": [9.0, 9.0], "timing_s/gen": [4.0, 4.0], "timing_s/step": [8.0, 8.0]}
    for names in (list(both), ["step", *reversed(list(both)[1:])]):
        rows = zip(*(both[name] for name in names), strict=True)
        text = "\n".join(",".join(map(str, row)) for row in (names, *rows)) + "\n"
        path = tmp_path / "run.csv"
        path.write_text(text)
        assert read_log(path).values["generation"].tolist() == [4.0, 4.0]
