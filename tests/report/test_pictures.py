"""Pictures of sweeps, sizes and draft lengths: what they leave out, how many lines and labels stay told apart."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

import rlsim
from rlsim.errors import InputError
from rlsim.readers.traces.reading import Reading, read_trace
from rlsim.readers.traces.requests import Requests
from rlsim.readers.traces.workload import workload_of
from rlsim.report.figures.grids import MOST_BANDS, draft_figure, run_figure, sweep_figures
from rlsim.report.figures.style import LINE_COLORS
from rlsim.report.folder import replot, write_out
from rlsim.results import Interval
from rlsim.results.planning import DraftCurve, DraftLength
from rlsim.results.sweep import SweepResult, interval_columns


def swept(axes: dict[str, tuple[Any, ...]], drafted: bool = True) -> SweepResult:
    """A sweep whose step takes 100 s divided by the place of each value."""
    (first, firsts), (second, seconds) = axes.items()
    cells = [(one, other, 1.0 + i + j) for i, one in enumerate(firsts) for j, other in enumerate(seconds)]
    speedups = ("rollout_speedup", "end_to_end_speedup")
    rows = tuple(
        {first: one, second: other, "status": "ok"}
        | dict.fromkeys(interval_columns("step_s"), 100.0 / gain)
        | {column: gain if drafted else 1.0 for name in speedups for column in interval_columns(name)}
        for one, other, gain in cells
    )
    written = {name: tuple(map(str, values)) for name, values in axes.items()}
    return SweepResult(scenario="swept", axes=written, replications=1, rows=rows)


def lines_of(axes: Axes) -> set[tuple[Any, Any]]:
    return {(line.get_color(), line.get_linestyle()) for line in axes.lines if len(line.get_xdata()) > 2}  # type: ignore[arg-type]


def test_without_drafts_nothing_is_said_of_their_speedup() -> None:
    axes = {"workload.prompts_per_step": (32, 64, 128), "engine.name": ("vllm", "sglang")}
    assert len(sweep_figures(swept(axes))["lines"].axes) == 2
    assert len(sweep_figures(swept(axes, drafted=False))["lines"].axes) == 1


def test_many_lines_are_told_apart_and_named_by_the_whole_key() -> None:
    axes = {"workload.prompts_per_step": (32, 64, 128), "trainer.micro_batch_tokens": tuple(range(1, 10))}
    left = sweep_figures(swept(axes))["lines"].axes[0]
    assert len(lines_of(left)) == 9 > len(LINE_COLORS)
    legend = left.get_legend()
    assert legend is not None and legend.get_title().get_text() == "trainer.micro_batch_tokens"
    assert [text.get_text() for text in legend.get_texts()] == [str(value) for value in range(1, 10)]
    assert not left.collections and left.get_title("left").endswith("means alone")


def test_few_lines_keep_their_bands() -> None:
    axes = {"workload.prompts_per_step": (32, 64, 128), "trainer.micro_batch_tokens": tuple(range(MOST_BANDS))}
    assert len(sweep_figures(swept(axes))["lines"].axes[0].collections) == MOST_BANDS


def test_labels_under_an_axis_do_not_touch() -> None:
    many = {"workload.response_tokens.mean_tokens": tuple(range(200, 2600, 200)), "engine.name": ("vllm", "sglang")}
    figure = sweep_figures(swept(many))["lines"]
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].get_xticklabels() if text.get_text()]
    assert len(boxes) > 2 and all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))


def test_the_legend_of_shares_lies_above_them_and_no_drafts_have_none() -> None:
    same = Interval(1.0, 1.0, 1.0)
    lengths = tuple(
        DraftLength.model_construct(
            draft_length=k, rollout_speedup=same, step_speedup=same, pays_share=float(k > 0), eager_share=0.0
        )
        for k in range(4)
    )
    found = DraftCurve.model_construct(scenario="one", method="eagle3", lengths=lengths, best=1)
    shares = draft_figure(found).axes[1]
    assert all(0 not in list(line.get_xdata()) for line in shares.lines)
    shares.figure.canvas.draw()
    legend = shares.get_legend()
    assert legend is not None
    assert legend.get_window_extent().y0 > shares.transData.transform((0, 1.0))[1]


def test_single_steps_of_a_short_run_are_seen_and_undisturbed_ones_have_no_line_of_their_own() -> None:
    axes = run_figure(rlsim.run("quickstart", 4)).axes[0]
    assert all(line.get_markersize() > 4 for line in axes.lines if line.get_marker() == ".")
    assert axes.get_ylabel() == "step (s)"
    stalled = rlsim.load_scenario("quickstart", {"run.stalls": {"probability": 0.9, "seconds": 30}})
    assert "undisturbed" in run_figure(rlsim.run(stalled, 4)).axes[0].get_ylabel()


def test_what_holds_nothing_to_draw_is_said(tmp_path: Path) -> None:
    write_out(rlsim.improve("quickstart", only="inputs"), tmp_path)
    with pytest.raises(InputError, match=r"improvement\.json holds nothing to draw"):
        replot(tmp_path)


def test_lengths_have_ticks_of_whole_numbers(tmp_path: Path) -> None:
    rows = [f"{50 + i % 150},{int(300 * 1.01 ** (i % 200))}" for i in range(400)]
    (tmp_path / "some.csv").write_text("\n".join(["prompt_tokens,output_tokens", *rows]))
    found = read_trace(tmp_path / "some.csv", Reading())
    assert isinstance(found, Requests)
    figure = workload_of(found).picture()
    figure.canvas.draw()
    for axes in figure.axes:
        texts = [one.get_text() for which in ("major", "minor") for one in axes.get_xticklabels(which=which)]
        shown = [text for text in texts if text]
        assert len(shown) > 1 and all(text.replace(",", "").isdigit() for text in shown)
