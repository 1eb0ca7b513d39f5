"""Picture of a self-check; needs matplotlib and is drawn off the measured machine."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from rlsim.calibration.selfcheck import SelfCheck
from rlsim.report.format import percent
from rlsim.report.style import GREY, INK, picture_style, save_picture
from rlsim.units import MILLISECOND

_MARKERS = {"graph": "o", "eager": "^"}
_BANDS = ((0.2, 0.12), (0.1, 0.2))


@picture_style()
def draw_check(check: SelfCheck, path: Path) -> None:
    """Picture of predicted over measured milliseconds with the 10 and 20 % bands."""
    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    axes = figure.add_subplot()
    ends = [
        min(p.measured_s for p in check.points) / MILLISECOND / 1.5,
        max(p.measured_s for p in check.points) / MILLISECOND * 1.5,
    ]
    for band, shade in _BANDS:
        axes.fill_between(
            ends, [e * (1 - band) for e in ends], [e * (1 + band) for e in ends], color=GREY, alpha=shade, lw=0
        )
    axes.plot(ends, ends, color=INK, lw=0.8)
    for mode, marker in _MARKERS.items():
        for k in sorted({p.case.number("draft_length") for p in check.of_mode(mode).points}):
            chosen = [p for p in check.of_mode(mode).points if p.case.number("draft_length") == k]
            axes.scatter(
                [p.measured_s / MILLISECOND for p in chosen],
                [p.predicted_s / MILLISECOND for p in chosen],
                s=18,
                marker=marker,
                label=f"{mode}, k = {k}",
                alpha=0.8,
            )
    counted = check.as_engines_run
    median, p90 = (percent(error, 1) for error in (counted.median_abs_error, counted.p90_abs_error))
    axes.set(
        xscale="log",
        yscale="log",
        xlim=ends,
        xlabel="measured [ms]",
        ylabel="predicted [ms]",
        title=f"{check.device}\nmedian error {median}, p90 {p90}",
    )
    axes.legend(fontsize=8)
    save_picture(figure, path)
