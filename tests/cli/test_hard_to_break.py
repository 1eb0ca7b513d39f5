"""What came in from outside and broke something once: each kind ends in one message, nothing half-written."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from rlsim.errors import InputError, printable
from rlsim.files import progress
from rlsim.files.journal import Journal
from rlsim.files.reading import LOG_LINES, MOST_LINES
from rlsim.files.writing import staged_folder
from rlsim.readers.frameworks.reader import Reader
from rlsim.readers.frameworks.trees import ConfigTree
from rlsim.readers.logs import forms
from rlsim.readers.logs.reading import read_log, read_text_log
from rlsim.readers.logs.source import Source
from rlsim.readers.shell.script import commands_of
from rlsim.readers.traces.reading import Reading, read_trace

LAUNCH = "python3 train.py --rollout-batch-size 32"


def words_of(text: str, folder: Path) -> list[list[str]]:
    """Words of the programs of a script."""
    path = folder / "s.sh"
    path.write_text(text, encoding="utf-8")
    return [list(one) for one in commands_of(path)]


def rlsim(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "rlsim", *arguments], cwd=folder, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip


# -- what is printed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["\x1b[31mred", "\x1b]0;title\a", "\x9b2J", "\u202eright to left", "\r", "\x00"])
def test_nothing_that_steers_a_terminal_is_printed(text: str) -> None:
    shown = printable(f"\x1b[1mbold\x1b[0m {text}\nnext")
    assert shown.startswith("\x1b[1mbold\x1b[0m ") and shown.endswith("\nnext") and text not in shown
    assert all(part.isprintable() for line in shown.split("\n") for part in line.split("\x1b[1m")[-1].split("\x1b[0m"))


def test_names_of_a_scenario_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text('name: "\\e]0;pwn\\a"\nextends: quickstart\nquestion: "\\e[2J"\n')
    done = rlsim("project", "e.yaml", "--set", "simulation.replications=1", folder=tmp_path)
    assert done.returncode == 0 and "\x1b" not in done.stdout and "\\x1b]0;pwn\\x07" in done.stdout


def test_letters_that_a_font_lacks_are_no_warning(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    """Warnings are errors here: matplotlib's of glyphs would end the command."""
    few = ("simulation.replications=1", "workload.prompts_per_step=16")
    code, out, err = run("project", "quickstart", "name=日本語 🚀 $\\frac{", *few, "--out", tmp_path / "out")
    assert (code, err) == (0, "") and "日本語" in out and list((tmp_path / "out").glob("*.png"))


# -- loops over text of others -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["^(a+)+$", "(a|aa)*b", "a*a*a*a*b"])
def test_a_script_does_not_choose_how_long_matching_takes(pattern: str, tmp_path: Path) -> None:
    script = f"X=0\nif [[ {'a' * 60}! =~ {pattern} ]]; then X=1; fi\n{LAUNCH} --seed $X\n"
    with pytest.raises(InputError, match="does not follow"):
        words_of(script, tmp_path)


def test_plain_patterns_are_matched(tmp_path: Path) -> None:
    script = f"X=0\nif [[ 128 =~ ^[0-9]+$ ]]; then X=1; fi\n{LAUNCH} --seed $X\n"
    assert words_of(script, tmp_path)[-1][-1] == "1"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("X=" + "a" * 90_000 + "\nY=${X//" + "*a" * 20 + "b/c}\n", "a pattern with \\*"),
        ("X=" + "a" * 9_000 + "\nY=${X##" + "*a" * 20 + "b}\n", "a pattern with \\*"),
        ("Y=" + "${A:-" * 200 + "x" * 900_000 + "}" * 200 + "\n", "words hold more than"),
    ],
)
def test_expansions_are_bounded(script: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        words_of(f"{script}{LAUNCH} --x $Y\n", tmp_path)


def test_integers_of_a_script_wrap_around_as_in_a_shell(tmp_path: Path) -> None:
    huge = "*".join(["999999999999999"] * 400)
    for text, value in ((huge, None), ("900000000000000*20000", str(18 * 10**18 - 2**64)), ("9*9", "81")):
        got = words_of(f"X=$(({text}))\n{LAUNCH} --seed $X\n", tmp_path)[-1][-1]
        assert len(got) <= 20 and value in (None, got)


# -- interpolations ----------------------------------------------------------------------------------------------------


def test_texts_are_not_multiplied() -> None:
    reader = Reader(ConfigTree("c.yaml", {"a": "${mul:'aaaa', 50000000}", "b": "${mul:3, 4}"}))
    assert reader.value("b") == 12
    with pytest.raises(InputError, match=r"c\.yaml: a: cannot be resolved"):
        reader.value("a")


def test_the_environment_is_neither_read_nor_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2")
    reader = Reader(ConfigTree("c.yaml", {"a": "${oc.env:MY_SECRET}", "b": "${oc.env:MY_SECRET,7}"}))
    assert reader.value("b") == 7
    with pytest.raises(InputError, match="environment variable MY_SECRET is not read") as caught:
        reader.value("a")
    assert "hunter2" not in str(caught.value)


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_folder_in_the_way_leaves_everything_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "b.json").mkdir()
    (tmp_path / "a.png").write_text("old")
    with pytest.raises(InputError, match=r"b\.json: is a folder"), staged_folder(tmp_path) as stage:
        for name in ("a.png", "b.json", "c.csv"):
            (stage / name).write_text("new")
    assert (tmp_path / "a.png").read_text() == "old" and sorted(one.name for one in tmp_path.iterdir()) == [
        "a.png",
        "b.json",
    ]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    first = Journal(tmp_path, "same", "sweep")
    with pytest.raises(InputError, match="another rlsim writes there"):
        Journal(tmp_path, "same", "sweep")
    first.close()
    Journal(tmp_path, "same", "sweep").remove()


@pytest.mark.parametrize(
    "torn", ['{"cell": 1, "row": {"sta', '{"cell": 1, "row": {"step_s": 2.5}, "sum": 7}', "[]", '{"cell": "x"}', "\x00"]
)
def test_a_torn_line_costs_its_own_cell(torn: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path, "same", "sweep")
    journal.add([(0, {"status": "ok"}), (2, {"status": "ok"})])
    journal.close()
    head, first, last = journal.path.read_text().splitlines()
    journal.path.write_text("\n".join((head, first, torn, last)) + "\n")
    again = Journal(tmp_path, "same", "sweep")
    assert sorted(again.rows) == [0, 2]
    again.add([(1, {"status": "ok"})])
    again.close()
    assert json.loads(journal.path.read_text().splitlines()[-1])["cell"] == 1


def test_a_changed_figure_of_a_journal_is_computed_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "same", "sweep")
    journal.add([(0, {"step_s": 0.1 + 0.2, "text": "é", "none": None}), (1, {"step_s": 2.5})])
    journal.close()
    journal.path.write_text(journal.path.read_text().replace("2.5", "2.6"))
    again = Journal(tmp_path, "same", "sweep")
    again.close()
    assert again.rows == {0: {"step_s": 0.1 + 0.2, "text": "é", "none": None}}


# -- amounts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        ("quickstart", "workload.prompts_per_step=1000000"),
        ("quickstart", "workload.prompts_per_step=100000", "simulation.steps=200"),
        ("verl_dapo_7b", "workload.generations_per_prompt=16000"),
    ],
)
def test_work_is_refused_before_it_begins(keys: tuple[str, ...], tmp_path: Path) -> None:
    done = rlsim("project", *keys, folder=tmp_path)
    assert done.returncode == 2 and "samples" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("row", "bound", "read"),
    [
        ('{"step": 1, "timing_s/step": 2.0}\n', LOG_LINES, read_log),
        ("timing_s/step: 2.0\n", LOG_LINES, read_log),
        ("step,timing_s/step\n", LOG_LINES, read_log),
        ("12\n", MOST_LINES, lambda path: read_trace(path, Reading())),
    ],
)
def test_lines_are_counted_before_they_are_read(
    row: str, bound: int, read: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / "rows.txt"
    path.write_text(row * (bound + 1), encoding="utf-8")
    with pytest.raises(InputError, match=rf"rows.txt: {bound + 1:,} lines are more than {bound:,}"):
        read(path)


@pytest.mark.parametrize("text", ["[{}, {}, {}, {}]", "[[], [], [], []]", '{"a": {"b": {"c": {"d": {}}}}}'])
def test_objects_are_counted_before_they_are_made(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "MOST_BRACKETS", 3)
    with pytest.raises(InputError, match=r"5 objects and arrays are more than 3"):
        read_text_log(text, "rows.json")


def test_closed_streams_are_no_accident(tmp_path: Path) -> None:
    for closed, given, code in ((">&-", "quickstart", 0), ("2>&-", "nothing_of_that_name", 2)):
        command = f"{sys.executable} -m rlsim project {given} --set simulation.replications=1 {closed}"
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=120,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
        assert done.returncode == code and "Traceback" not in (done.stderr or "")


# -- exporters ---------------------------------------------------------------------------------------------------------


class _Elsewhere(BaseHTTPRequestHandler):
    """Sends its visitors to another machine."""

    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", "http://example.invalid/metrics")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_a_watch_follows_nobody_to_another_machine() -> None:
    with HTTPServer(("127.0.0.1", 0), _Elsewhere) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        reader = Source(f"http://127.0.0.1:{server.server_port}/metrics")
        assert reader.read() is None and "302" in reader.trouble
    for address in ("http://localhost:port/", "http://127.0.0.1:1/"):
        reader = Source(address)
        assert reader.read() is None and reader.trouble
    with pytest.raises(InputError, match="on this machine alone"):
        Source("http://localhost@example.invalid/")


def test_long_work_says_a_sentence_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.ProgressLine("rows", total=100) as line:
        for now[0] in (progress.SILENT_S / 2, 2 * progress.SILENT_S, 3 * progress.SILENT_S):
            line.advance(25)
    with progress.ProgressLine("clusters planned") as line:
        now[0] += 2 * progress.SILENT_S
        line.advance(3)
    assert capsys.readouterr().err == "50/100 rows  50%  0:00:20 left\n3 clusters planned\n"
