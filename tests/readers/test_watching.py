"""A watch beside a run: its level, when it changed, alarms, and sources that vanish or are half written."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

from rlsim.attribution.check import check
from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.readers.logs.answer import answer_run
from rlsim.readers.logs.changes import changes_of
from rlsim.readers.logs.growth import growth_of
from rlsim.readers.logs.reading import RunLog, read_text_log
from rlsim.readers.logs.source import Source
from rlsim.readers.logs.watching import Watcher
from rlsim.report.style import Style
from rlsim.report.text.watch import watch_page, watch_text
from rlsim.results.watch import WatchLine

Command = Callable[..., tuple[int, str, str]]
LEVEL = {"step": 100.0, "generation": 60.0, "train": 25.0, "response_tokens": 800.0}
GROWN = {"gen": 1.35, "old_log_prob": 1.3, "update_actor": 1.3}
"""What responses of 1.35 times the length take: prompts stay as they are."""
SMALL = ("speculation.method=none", "simulation.replications=1")


def run_of(rng: np.random.Generator, count: int, at: int = 0, noise: float = 0.05, **ratios: float) -> RunLog:
    """A run of ``count`` steps whose quantities move by ``ratios`` with step ``at``."""
    values = {name: level * np.exp(noise * rng.standard_normal(count)) for name, level in LEVEL.items()}
    for name, ratio in ratios.items():
        values[name][at - 1 :] *= ratio
    return RunLog("run", "made", tuple(range(1, count + 1)), values, {name: (name,) for name in values})


def test_runs_that_only_differ_by_noise_have_no_change() -> None:
    rng = np.random.default_rng(0)
    found = sum(bool(changes_of(run_of(rng, 200))[0]) for _ in range(200))
    assert found <= 4  # 5 % of false alarms would be 10


@pytest.mark.parametrize(("ratio", "most"), [(1.3, 10), (0.7, 10), (2.0, 3)])
def test_a_change_is_found_with_its_beginning(ratio: float, most: int) -> None:
    rng, late = np.random.default_rng(1), 0
    for _ in range(50):
        changes, level = changes_of(run_of(rng, 80, 41, response_tokens=ratio))
        first = next(one for one in changes if one.quantity == "response_tokens")
        late += first.found > 40 + most
        assert 39 <= first.since <= 44 and first.ratio == pytest.approx(ratio, rel=0.15) and first.work
        assert level is not None and level.medians["response_tokens"] == pytest.approx(800 * ratio, rel=0.1)
    assert late <= 2


def test_one_step_that_stalls_is_no_change() -> None:
    log = run_of(np.random.default_rng(2), 60)
    log.values["step"][30] *= 20
    assert changes_of(log)[0] == ()


@pytest.mark.parametrize(("slow", "quantities"), [(range(13, 16), ("generation", "step")), (range(18, 21), ("step",))])
def test_a_delay_is_named_though_other_work_slowed_the_machine_just_before(
    slow: range, quantities: tuple[str, ...]
) -> None:
    """As beside the loop of bench/: 0.3 s more of data from step 21 on, a fifth more of others shortly before."""
    rows = {"generation": [0.21] * 27, "data": [0.0] * 20 + [0.3] * 7, "step": [0.23] * 20 + [0.53] * 7}
    for name in quantities:
        for n in slow:
            rows[name][n - 1] *= 1.25
    watcher, alarms = Watcher(None, check, every=27), list[WatchLine]()
    for n in range(1, 28):
        values = {name: np.array(one[:n]) for name, one in rows.items()}
        log = RunLog("run", "made", tuple(range(1, n + 1)), values, {name: (name,) for name in values})
        alarms += [line for line in watcher.lines(log) if line.alarm]
    named = [line for line in alarms for one in line.moved if one.quantity == "data" and one.since == 21]
    assert named and named[0].step <= 24


def console(steps: range, seconds: Mapping[str, float], tokens: float = 800) -> str:
    timed = " - ".join(f"timing_s/{name}:{value}" for name, value in seconds.items())
    return "".join(f"step:{n} - response_length/mean:{tokens} - {timed}\n" for n in steps)


def usual_s(*words: str) -> dict[str, float]:
    found = project(load_scenario("quickstart", [*SMALL, *words])).candidate
    return {"gen": found.phases.generation_s.mean, "old_log_prob": found.phases.logprob_s.mean,
            "update_actor": found.phases.train_s.mean, "update_weights": found.phases.prepare_s.mean,
            "step": found.step_s.mean}  # fmt: skip


def lines_of(text: str) -> list[WatchLine]:
    return Watcher(load_scenario("quickstart", SMALL), check).lines(read_text_log(text, "run"))


def test_a_slower_phase_is_an_alarm_and_longer_responses_are_other_work() -> None:
    usual = usual_s()
    first, last = lines_of(console(range(1, 31), usual))
    assert (first.verdict, first.alarm, last.verdict) == ("as expected", False, "as usual")
    slow = usual | {"update_actor": 2 * usual["update_actor"], "step": usual["step"] + usual["update_actor"]}
    found = lines_of(console(range(1, 21), usual) + console(range(21, 41), slow))
    alarm = next(line for line in found if line.alarm)
    assert {one.quantity for one in alarm.moved} >= {"train"} and alarm.moved[0].since == 21
    assert alarm.suspects and alarm.experiment == alarm.suspects[0].cure
    strange = usual | {"gen": 2.3 * usual["gen"], "old_log_prob": 0.35 * usual["old_log_prob"]}
    strange["step"] = sum(strange[name] for name in usual if name != "step")
    unlike = lines_of(console(range(1, 21), strange))[0]
    assert unlike.alarm and "a cause on no list" in unlike.remark and "generation" in unlike.remark
    longer = usual | {name: ratio * usual[name] for name, ratio in GROWN.items()}
    longer["step"] = sum(longer[name] for name in usual if name != "step")
    found = lines_of(console(range(1, 21), usual) + console(range(21, 41), longer, 1080))
    assert not any(line.alarm for line in found) and "other work" in [line.verdict for line in found]


@pytest.mark.parametrize("known", [True, False])
def test_an_alarm_stands_until_the_run_is_faster_again(known: bool) -> None:
    usual = usual_s()
    slow = usual | {"update_actor": 2 * usual["update_actor"], "step": usual["step"] + usual["update_actor"]}
    parts = [(range(1, 21), usual, 800.0), (range(21, 61), slow, 800.0), (range(61, 101), usual, 800.0)]
    text, watcher, lines = "", Watcher(load_scenario("quickstart", SMALL) if known else None, check), list[WatchLine]()
    for steps, seconds, tokens in parts:
        for n in steps:
            text += console(range(n, n + 1), seconds, tokens)
            lines += watcher.lines(read_text_log(text, "run"))
    alarm = next(line for line in lines if line.alarm)
    slow_lines = [line for line in lines if alarm.step < line.step <= 60]
    assert len(slow_lines) >= 3 and all(line.alarm or line.stands_since is not None for line in slow_lines)
    assert "stands" in watch_text(slow_lines[-1]) and "as usual" not in watch_text(slow_lines[-1])
    over = next(line for line in lines if "is over" in line.remark)
    later = [line for line in lines if line.step >= over.step]
    assert 61 <= over.step <= 70 and not any(line.alarm or line.stands_since for line in later)
    assert lines[-1].verdict == "as usual"


def test_a_mild_fault_is_named_as_the_models_error_cancels_and_live_reading_says_the_same() -> None:
    usual, rng = usual_s(), np.random.default_rng(4)
    slow = usual | {name: 1.3 * usual[name] for name in ("old_log_prob", "update_actor")}
    slow["step"] += slow["update_actor"] + slow["old_log_prob"] - usual["update_actor"] - usual["old_log_prob"]
    steps = [(n, usual if n <= 20 else slow) for n in range(1, 41)]
    text = [console(range(n, n + 1), {k: v * np.exp(0.03 * rng.standard_normal()) for k, v in s.items()})
            for n, s in steps]  # fmt: skip
    live, lines = Watcher(load_scenario("quickstart", SMALL), check), list[WatchLine]()
    for n in range(1, len(text) + 1):
        lines += live.lines(read_text_log("".join(text[:n]), "run"))
    for found in (lines, lines_of("".join(text))):
        alarm = next(line for line in found if line.alarm)
        assert alarm.suspects[0].name == "slow_rank" and 20 <= alarm.moved[0].since <= 22


@pytest.mark.parametrize(("leak", "longer"), [(0.006, 0.0), (0.0, 0.006), (0.006, 0.006)])
def test_growth_is_split_into_what_lengths_account_for_and_a_leak(leak: float, longer: float) -> None:
    usual, twice, text = usual_s(), usual_s("workload.response_tokens.mean_tokens=1600"), ""
    for n in range(1, 81):
        share = np.exp(longer * n) - 1
        seconds = {name: (1 - share) * usual[name] + share * twice[name] for name in usual}
        seconds["update_actor"] *= np.exp(leak * n)
        seconds["step"] = sum(seconds[name] for name in usual if name != "step")
        text += console(range(n, n + 1), seconds, 800 * np.exp(longer * n))
    log, scenario = read_text_log(text, "run"), load_scenario("quickstart", SMALL)
    found, blind = growth_of(log, scenario), growth_of(log, None)
    assert found is not None and blind is not None and found.begun is None and found.by_work is not None
    assert found.leaks == bool(leak) and (found.by_work > 1.2) == bool(longer)
    assert found.by_work == pytest.approx(found.ratio, rel=0.05) or leak
    assert "leak, " in found.text and "most of it in train" in found.text if leak else "leak" not in found.text
    assert blind.by_work == (None if longer else 1.0)
    watcher, told = Watcher(scenario, check), list[WatchLine]()
    for n in range(20, 81):
        told += watcher.lines(read_text_log("".join(text.splitlines(keepends=True)[:n]), "run"))
    grown = [line.alarm for line in told if "steps grow" in line.remark]
    assert grown and any(grown) == any(line.alarm for line in told) == bool(leak)
    assert found.text in answer_run(log, scenario).remarks
    silent = growth_of(read_text_log(text.replace("response_length", "other"), "run"), scenario)
    assert silent is not None and silent.by_work is None and "does not say" in silent.text


def test_growth_by_one_jump_has_its_step_and_phase_and_what_stalls_or_is_not_told_is_none() -> None:
    rng = np.random.default_rng(6)
    log = run_of(rng, 60, 31, step=1.7, generation=2.4)
    log.values["step"][50] *= 30
    log = replace(log, values={**log.values, "logprob": np.full(60, np.nan), "data": np.zeros(60)})
    found = growth_of(log, None)
    assert found is not None and found.begun in (30, 31, 32) and found.leaks
    assert f"step {found.begun}" in found.text and "most of it in generation" in found.text
    assert not any(growth_of(run_of(rng, 100), None) for _ in range(200))


def test_a_watch_that_goes_on_gives_what_is_new_and_begins_anew_with_a_run() -> None:
    usual = usual_s()
    slow = usual | {"step": 2 * usual["step"]}
    early = read_text_log(console(range(1, 26), usual), "run")
    late = read_text_log(console(range(1, 31), usual) + console(range(31, 61), slow), "run")
    through = Watcher(None, check)
    first, rest = through.lines(early), through.lines(late)
    last = first[-1].step
    resumed = Watcher(None, check, written=last).lines(late)
    assert last == 25 and resumed == rest and resumed[0].moved
    assert Watcher(None, check, written=last).lines(early) == []
    anew = read_text_log(console(range(1, 21), usual), "run")
    assert Watcher(None, check, written=last).lines(anew) == Watcher(None, check).lines(anew) != []


def test_lines_fit_a_terminal_and_the_page_shows_no_markup_of_the_log() -> None:
    line = WatchLine(step=7, verdict="cannot tell", step_s=3.5, own_s=3.0, remark="<script>x</script> " * 20)
    assert all(len(one) <= 80 for one in watch_text(line, Style(width=80)).splitlines())
    assert "<script>" not in watch_page("a <b>", [line]) and "a &lt;b&gt;" in watch_page("a <b>", [line])


def test_a_source_that_vanishes_is_half_written_or_rotated_gives_what_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    source = Source(str(file))
    assert source.read() is None and "no such file" in source.trouble
    text = console(range(1, 6), {"gen": 30.0, "step": 50.5})
    file.write_text(text + "step:6 - timing_s/gen:30.0 - timing_s/step:5")
    begin = time.process_time()
    log = source.read()
    # Of the time of a read alone, 150 times as much is left between two.
    assert 0 < source.pause_s <= 150 * (time.process_time() - begin)
    assert log is not None and source.trouble == ""
    assert [float(value) for value in log.values["step"] if value == value] == [50.5] * 5
    assert source.read() is None  # nothing new
    file.unlink()
    assert source.read() is None and source.trouble
    file.write_text(console(range(6, 8), {"step": 40.0}))
    log = source.read()
    assert log is not None and log.steps == (6, 7)


def test_a_page_of_an_exporter_is_read_step_by_step_and_only_of_this_machine() -> None:
    with pytest.raises(InputError, match="on this machine alone"):
        Source("http://example.org/metrics")
    steps = iter([40.5, 40.5, 41.5])

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"# TYPE x gauge\ntiming_s_step {next(steps)}\n".encode())

        def log_message(self, *words: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    source = Source(f"http://127.0.0.1:{server.server_port}/metrics")
    first, second, third = source.read(), source.read(), source.read()
    server.shutdown()
    server.server_close()
    assert first is not None and second is None and third is not None
    assert third.values["step"].tolist() == [40.5, 41.5]


def test_the_command_reads_once_and_writes_a_page(run: Command, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(console(range(1, 31), {"gen": 30.0, "step": 50.5}))
    code, out, err = run("watch", tmp_path / "run.log", "--once", "--json", "--out", tmp_path / "page")
    assert (code, err) == (0, "") and out.count('"schema":"rlsim.watch/1"') == 2
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"watch.jsonl", "watch.html"}
    code, out, err = run("watch", tmp_path / "nothing.log", "--once")
    assert (code, out) == (2, "") and err.count("\n") == 1
