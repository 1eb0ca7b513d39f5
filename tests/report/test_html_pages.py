"""The page of every kind of folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from html_checks import checked
from html_folders import COMMANDS

from rlsim.report.page.report import report, write_report
from rlsim.report.timeline import read_timeline, window_of

Results = Callable[[str], Path]
SAID = {
    "projection": ("Where a step's time goes", "The nearest measured runs", "trained on", "Sequences being generated"),
    "async": (
        "asynchronous",
        "exposed generation",
        "Age of the samples trained on",
        "Sequences that run",
        "What runs when",
    ),
    "plain": ("No speculative decoding is configured", "autoregressive"),
    "run": ("12 steps take", "How the steps evolve", "validation", "of the consumed samples"),
    "sweep": ("Rollout, speed-up by speculation", "Cells that cannot run", "draft_length"),
    "line": ("Step time of the cells", "prompts_per_step 4"),
    "plan": (
        "Take ",
        "the risk that it gains nothing",
        "USD per GPU and hour",
        " on 8 h100_sxm, ",
        "Step time against cost",
        "How it keeps the constraints",
        "USD/step",
    ),
    "validation": ("Validation: steps", "2 of 3 measured values", "Rows left out"),
    "check": ("Measured beside expected", "slow in", "probability", "known faults simulated"),
    "size": ("Take ", "Step and price over the number of GPUs", "gpu_memory_utilization", "fits from"),
    "headroom": ("above the roofline", "What each rung leaves of a step", "Nobody can."),
    "techniques": ("the step of small most", "Step now over step with it", "arXiv", "the scenario drafts already"),
    "blame": ("idle", "straggler tail", "Policies against the tail"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_kind_has_a_page_that_says_what_matters(name: str, results: Results) -> None:
    page = checked(report(results(name)))
    for words in SAID[name]:
        assert words in page.said()


def test_the_page_says_what_the_terminal_says(results: Results, run: Callable[..., tuple[int, str, str]]) -> None:
    folder = results("projection")
    _, told, _ = run("project", folder / "scenario.yaml", "--brief")
    said = " ".join(checked(report(folder)).said().split())
    headline = " ".join(told.split()).split(". A step takes")[0]
    assert headline in said
    assumptions = json.loads((folder / "projection.json").read_text())["assumptions"]
    assert assumptions and all(each in said for each in assumptions)


def test_numbers_stand_in_the_tables_beside_the_charts(results: Results) -> None:
    folder = results("async")
    arm = json.loads((folder / "projection.json").read_text())["candidate"]
    said = checked(report(folder)).said()
    assert f"{arm['tokens']['generated']:,.0f}" in said
    for age, share in arm["staleness"].items():
        assert age in said and f"{100 * share:,.1f} %" in said


def test_several_results_in_one_folder_make_one_page(copied: Results, results: Results) -> None:
    folder = copied("async")
    (folder / "blame.json").write_bytes((results("blame") / "blame.json").read_bytes())
    page = checked(report(folder))
    assert "Where a step's time goes" in page.said() and "What GPUs wait for" in page.said()


def test_same_folder_same_bytes(results: Results, tmp_path: Path) -> None:
    first, second = (write_report(results("async"), tmp_path / name).read_bytes() for name in ("a.html", "b.html"))
    assert first == second


def test_a_projection_without_its_companions_still_has_a_page(copied: Results) -> None:
    folder = copied("async")
    (folder / "timeline.json").unlink()
    (folder / "scenario.yaml").unlink()
    said = checked(report(folder)).said()
    assert "asynchronous" in said and "Sequences that run" not in said


def test_a_timeline_comes_back_from_its_file_in_the_last_steps_of_the_trainer(results: Results) -> None:
    arms = read_timeline(results("async") / "timeline.json")
    assert set(arms) == {"baseline", "candidate"}
    for arm in arms.values():
        start, end = window_of(span for span in arm["spans"] if span.actor == "trainer")
        assert all(span.start_s < end and span.end_s > start for span in arm["spans"])
        assert {curve.name for curve in arm["curves"]} == {"running sequences"}


def test_the_page_of_a_large_projection_is_small(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    assert run("project", "qwen235b_2048", "--out", tmp_path)[0] == 0
    code, told, _ = run("report", tmp_path)
    assert (code, told.strip()) == (0, str(tmp_path / "report.html"))
    assert (tmp_path / "report.html").stat().st_size < 300_000
