"""The real loop beside its predictions in words: one table and the scores. Its picture is in figures/loop_check.py."""

from __future__ import annotations

from rlsim.report.format import percent, signed_percent
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import table
from rlsim.results.loop_check import LoopCheck, LoopRow

HEADS = (
    "configuration", "step s", "alone", "pace", "predicted", "interval", "error", "generation", "exposed", "speed-up",
)  # fmt: skip


def loop_check_text(found: LoopCheck, style: Style = DEFAULT_STYLE) -> str:
    """Steps, generation, exposed generation and speed-ups, measured / predicted; what missed and why; the scores."""
    lines = [f"the real loop on {found.device}, every step predicted before it ran at the pace of that moment"]
    lines += table(HEADS, [_cells(row) for row in found.rows], style, "<>>>>>>>>>")
    lines += [f"  {row.name}: {row.why}" for row in found.rows if row.why]
    scores = found.scores
    told = [f"median error {percent(scores.median_abs_error, 1)}, p90 {percent(scores.p90_abs_error, 1)}"]
    told.append(f"{percent(scores.undisturbed_median_abs_error, 1)} without what other processes took")
    told.append(f"{percent(scores.coverage)} of {scores.n} inside their intervals")
    if scores.speedup_median_abs_error is not None:
        told.append(f"speed-up by k within {percent(scores.speedup_median_abs_error, 1)} in the median")
    if scores.exposed_median_abs_error is not None:
        told.append(f"exposed generation within {percent(scores.exposed_median_abs_error, 1)}")
    lines.append("; ".join(told))
    for drafter, (measured, predicted, loss) in scores.best.items():
        lines.append(f"best k of {drafter}: {measured}, predicted {predicted} ({percent(loss, 1)} slower)")
    return "\n".join(lines)


def _cells(row: LoopRow) -> tuple[str, ...]:
    generation, exposed = row.phases["generation_s"], row.phases["exposed_generation_s"]
    return (
        row.name, f"{row.measured_s:.3f}", f"{row.undisturbed_s:.3f}", f"{row.pace:.2f}", f"{row.predicted_s:.3f}",
        f"{row.interval[0]:.2f}-{row.interval[1]:.2f}",
        signed_percent(row.error, 1), f"{generation.measured_s:.2f} / {generation.predicted_s:.2f}",
        f"{exposed.measured_s:.2f} / {exposed.predicted_s:.2f}" if row.settings["placement"] == "split" else "",
        f"{row.speedup.measured:.2f} / {row.speedup.predicted:.2f}" if row.speedup else "",
    )  # fmt: skip
