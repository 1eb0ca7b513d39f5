"""Folders that are wrong, or mean harm: one message, or a page that is harmless."""

import json
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from html_checks import checked
from html_folders import COMMANDS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlsim.errors import RlsimError
from rlsim.report.folder import KINDS
from rlsim.report.page.report import report, write_report
from rlsim.report.timeline import read_timeline, window_of

Results = Callable[[str], Path]
Run = Callable[..., tuple[int, str, str]]
NASTY = ("<script>alert(1)</script>", "</title></style><img src=x onerror=alert(1)>", "\" onload='alert(1)' x=\"",
         "javascript:alert(1)", "&lt;b&gt; &amp; ]]> <!-- --><svg/onload=alert(1)>", "\u202eevil\u0000\x1b[31m\r\n",
         "../../../../etc/passwd", "{{7*7}}${7*7}%s%n{0}", "x" * 1000)  # fmt: skip

PAGES = ("async", "plan", "validation", "check", "improvement", "size", "k")


def _texts_replaced(value: Any, text: str) -> Any:
    """Every text of a document but those that choose among known words, replaced."""
    kept = ("schema", "method", "kind", "objective", "statistic", "mode", "verdict", "phase")
    if isinstance(value, dict):
        return {key: each if key in kept else _texts_replaced(each, text) for key, each in value.items()}
    if isinstance(value, list):
        return [_texts_replaced(each, text) for each in value]
    return text if isinstance(value, str) else value


@pytest.mark.parametrize(("name", "text"), [
    *(("run", text) for text in NASTY), *((name, NASTY[1]) for name in PAGES),
    *(pytest.param(name, text, marks=pytest.mark.nightly) for name in PAGES for text in NASTY),
])  # fmt: skip
def test_nothing_in_a_file_becomes_an_element(name: str, text: str, copied: Results) -> None:
    folder = copied(name)
    for path in folder.glob("*.json"):
        path.write_text(json.dumps(_texts_replaced(json.loads(path.read_text()), text)))
    page = checked(report(folder))
    before = {element for element, _ in page.elements}
    assert "script" not in before and "img" not in before


def test_nothing_in_a_table_becomes_an_element(copied: Results) -> None:
    folder = copied("sweep")
    path = folder / "results.csv"
    lines = path.read_text().replace("eagle3", "<script>1</script>").replace("speculation.draft", "<b onclick=1>draft")
    path.write_text(lines)
    checked(report(folder))


SPOILS: dict[str, Callable[[Path], object]] = {
    "no JSON": lambda path: path.write_text("{"), "empty": lambda path: path.write_text(""),
    "other JSON": lambda path: path.write_text("[1, 2]"),
    "a pickle": lambda path: path.write_bytes(pickle.dumps({"schema": "rlsim.projection/1"})),
    "deep": lambda path: path.write_text("[" * 200_000),
    "long number": lambda path: path.write_text('{"schema": ' + "9" * 100_000 + "}"),
    "a long line": lambda path: path.write_text('"' + "x" * 110_000_000 + '"'),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILS)
@pytest.mark.parametrize(
    "name", ["projection", "run", "plan", "sweep", "validation", "check", "improvement", "size", "k"]
)
def test_a_file_that_cannot_be_used_is_one_message(name: str, how: str, copied: Results, run: Run) -> None:
    folder = copied(name)
    file = KINDS[name][0]
    SPOILS[how](folder / file)
    started = time.process_time()
    code, out, err = run("report", folder)
    assert (code, out) == (2, "") and err.count("\n") == 1 and len(err) < 600
    assert file in err
    assert not (folder / "report.html").exists()
    assert time.process_time() - started < 5


def _numbers(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [found for key, each in value.items() for found in _numbers(each, (*path, key))]
    if isinstance(value, list):
        return [found for i, each in enumerate(value[:3]) for found in _numbers(each, (*path, i))]
    return [path]


ODD = st.one_of(
    st.none(), st.floats(allow_nan=True, allow_infinity=True), st.integers(),
    st.sampled_from([0, -1, 1e18, -1e18, 1e-300, 10**400, 1e17]), st.text(max_size=40), st.booleans(),
    st.lists(st.none(), max_size=2), st.dictionaries(st.text(max_size=3), st.none(), max_size=2),
)  # fmt: skip
DOCUMENTS = ("projection", "async", "run", "plan", "validation", "check", "improvement", "size", "k")


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("name", DOCUMENTS)
def test_any_value_anywhere_gives_a_page_or_one_message(name: str, data: st.DataObject, copied: Results) -> None:
    """Values are replaced or removed wherever a document has any."""
    folder = _once(copied, name)
    file = KINDS["projection" if name == "async" else name][0]
    original = (folder / f"{file}.bak") if (folder / f"{file}.bak").exists() else (folder / file)
    document = json.loads(original.read_text())
    (folder / f"{file}.bak").write_text(original.read_text())
    for path in data.draw(st.lists(st.sampled_from(_numbers(document)), min_size=1, max_size=4)):
        *way, last = path
        place = document
        for key in way:
            place = place[key]
        if isinstance(place, dict) and data.draw(st.booleans()):
            place.pop(last, None)
        else:
            place[last] = data.draw(ODD)
    (folder / file).write_text(json.dumps(document))
    try:
        checked(report(folder))
    except RlsimError as error:
        assert file in str(error)


def _once(copied: Results, name: str) -> Path:
    """The copy of the first example for all further ones."""
    try:
        return copied(name)
    except FileExistsError as error:
        return Path(error.filename)


WRONG_TIMELINES = ("x", '{"traceEvents": 3}', '{"traceEvents": [[]]}',
                   '{"traceEvents": [{"ph": "X", "pid": 1, "tid": 1, "ts": NaN, "dur": 1}]}')  # fmt: skip


@pytest.mark.parametrize("content", WRONG_TIMELINES)
def test_a_wrong_timeline_is_left_out_and_told(content: str, copied: Results) -> None:
    folder = copied("async")
    (folder / "timeline.json").write_text(content)
    said = checked(report(folder)).said()
    assert "Left out" in said and "timeline.json" in said


def test_a_timeline_of_many_spans_stays_small_and_an_endless_one_is_left_out(copied: Results) -> None:
    folder = copied("async")
    document = json.loads((folder / "timeline.json").read_text())
    trainer = [event for event in document["traceEvents"] if event["ph"] == "X" and event["tid"] == 1]
    document["traceEvents"] += [{**trainer[-1], "dur": 1 + i % 7, "tid": 2 + i % 9} for i in range(50_000)]
    (folder / "timeline.json").write_text(json.dumps(document))
    assert len(report(folder)) < 1_500_000
    (folder / "timeline.json").write_text("[" + "1," * 60_000_000)
    assert "larger than 64 MiB" in checked(report(folder)).said()


def test_a_link_out_of_the_folder_is_not_followed(copied: Results, tmp_path: Path, run: Run) -> None:
    folder = copied("sweep")
    secret = tmp_path / "secret.csv"
    secret.write_text((folder / "results.csv").read_text())
    (folder / "results.csv").unlink()
    (folder / "results.csv").symlink_to(secret)
    code, _, err = run("report", folder)
    assert code == 2 and "leads out of the folder" in err


@pytest.mark.parametrize(("words", "naming"), [
    (("empty",), "projection.json (rlsim project --out)"),
    (("missing",), "no such folder"),
    (("file.txt",), "is a file"),
])  # fmt: skip
def test_a_folder_without_results_is_one_message(words: tuple[str, ...], naming: str, tmp_path: Path, run: Run) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("x")
    code, out, err = run("report", tmp_path / words[0])
    assert (code, out) == (2, "") and naming in err and err.count("\n") == 1


def test_a_page_never_replaces_results_and_another_format_is_told(copied: Results, run: Run) -> None:
    folder = copied("check")
    before = (folder / "check.json").read_bytes()
    assert run("report", folder, "-o", folder / "check.json")[0] == 2
    assert run("report", folder, "-o", folder)[0] == 2
    assert (folder / "check.json").read_bytes() == before
    assert run("report", folder, "-o", folder / "deep" / "page.html")[0] == 0
    assert sorted(path.name for path in (folder / "deep").iterdir()) == ["page.html"]
    path = folder / "check.json"
    path.write_text(path.read_text().replace("rlsim.check/1", "rlsim.check/9"))
    code, _, err = run("report", folder)
    assert code == 2 and "rlsim.check/9" in err and "rlsim.check/1" in err


@pytest.mark.parametrize(("written", "said"), [
    ('"\\ud800"', "is no JSON"),
    ("NaN", "'baseline.step_s.mean'"),
    ("true", "'baseline.step_s.mean': input should be a valid number, got true"),
    ("1e19", "less than or equal to 1000000000000000000"),
])  # fmt: skip
def test_a_projection_with_a_wrong_number_is_one_message(written: str, said: str, copied: Results) -> None:
    path = copied("projection") / "projection.json"
    document = json.loads(path.read_text())
    document["baseline"]["step_s"]["mean"] = "HERE"
    path.write_text(json.dumps(document).replace('"HERE"', written))
    with pytest.raises(RlsimError) as error:
        report(path.parent)
    assert said in str(error.value) and "projection.json" in str(error.value) and "\n" not in str(error.value)


SAID = {
    "projection": ("Where a step's time goes", "The nearest measured runs", "trained on", "Sequences being generated"),
    "async": ("asynchronous", "exposed generation", "Age of the samples trained on", "Sequences that run",
              "What runs when"),
    "plain": ("No speculative decoding is configured", "autoregressive"),
    "run": ("12 steps take", "How the steps evolve", "validation", "of the consumed samples"),
    "sweep": ("Rollout, speed-up by speculation", "Cells that cannot run", "draft_length"),
    "line": ("Step time of the cells", "prompts_per_step 4"),
    "plan": ("Take ", "the risk that it gains nothing", "USD per GPU and hour", " on 8 h100_sxm, ",
             "Step time against cost", "How it keeps the constraints", "USD/step"),
    "validation": ("Validation: steps", "2 of 3 measured values", "Rows left out"),
    "check": ("Measured beside expected", "slow in", "probability", "known faults simulated"),
    "improvement": ("shortens the step of", "What would shorten a step", "asks for", "Idle GPU time", "Headroom",
                    "share of the variance"),
    "k": ("k = ", "Speed-ups and shares over the draft length", "pays up to", "outside graphs"),
    "size": ("Take ", "Step and price over the number of GPUs", "gpu_memory_utilization", "fits from"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_every_kind_has_a_page_that_says_what_matters(name: str, results: Results) -> None:
    page = checked(report(results(name)))
    for words in SAID[name]:
        assert words in page.said()


def test_the_page_says_what_the_terminal_says(
    results: Results, run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    folder = results("projection")
    _, told, _ = run("project", folder / "scenario.yaml", "--brief")
    said = " ".join(checked(report(folder)).said().split())
    headline = " ".join(told.split()).split(". A step takes")[0]
    assert headline in said
    assumptions = json.loads((folder / "projection.json").read_text())["assumptions"]
    assert assumptions and all(each in said for each in assumptions)
    folder = results("async")
    arm = json.loads((folder / "projection.json").read_text())["candidate"]
    said = checked(report(folder)).said()
    assert f"{arm['tokens']['generated']:,.0f}" in said
    for age, share in arm["staleness"].items():
        assert age in said and f"{100 * share:,.1f} %" in said
    first, second = (write_report(results("async"), tmp_path / name).read_bytes() for name in ("a.html", "b.html"))
    assert first == second
    arms = read_timeline(results("async") / "timeline.json")
    assert set(arms) == {"baseline", "candidate"}
    for arm in arms.values():
        start, end = window_of(span for span in arm["spans"] if span.actor == "trainer")
        assert all(span.start_s < end and span.end_s > start for span in arm["spans"])
        assert {curve.name for curve in arm["curves"]} == {"running sequences"}


def test_several_results_make_one_page_and_one_without_companions_too(copied: Results, results: Results) -> None:
    folder = copied("async")
    (folder / "check.json").write_bytes((results("check") / "check.json").read_bytes())
    page = checked(report(folder))
    assert "Where a step's time goes" in page.said() and "What would explain it" in page.said()
    (folder / "timeline.json").unlink()
    (folder / "scenario.yaml").unlink()
    said = checked(report(folder)).said()
    assert "asynchronous" in said and "Sequences that run" not in said


def test_the_page_of_a_large_projection_is_small(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    assert run("project", "qwen235b_2048", "--out", tmp_path)[0] == 0
    code, told, _ = run("report", tmp_path)
    assert (code, told.strip()) == (0, str(tmp_path / "report.html"))
    assert (tmp_path / "report.html").stat().st_size < 300_000
