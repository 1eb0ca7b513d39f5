"""MFU, HFU, tokens and memory bandwidth by phase, beside what measured runs reached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlsim.report import format as fmt
from rlsim.report.style import Style
from rlsim.report.table import Table
from rlsim.results import PHASES, Projection
from rlsim.results.efficiency import MeasuredEfficiency, PhaseEfficiency

TERA = 1e12
MOST_TOLD = 2
EFFICIENCY_HEADS = ("", "tokens/s/GPU", "MFU", "HFU", "HBM")


def efficiency_lines(projection: Projection, style: Style) -> list[str]:
    """The table of both sides, and what measured runs of the model and device reached; nothing in older files."""
    lines = efficiency_table(projection).lines(style)
    if lines:
        peaks = peak_words(projection.candidate.efficiency)
        lines += style.paragraphs([peaks, *measured_words(projection.measured_efficiency)])
    return lines


def efficiency_table(projection: Projection) -> Table:
    """A row for each phase, of the candidate and of its baseline where the phase differs."""
    rows = []
    for name, arm in projection.variants.items():
        for one in arm.efficiency:
            if one.phase != "generation_s" and arm is not projection.candidate:
                continue
            side = f", {name}" if one.phase == "generation_s" and len(projection.variants) > 1 else ""
            rows.append(efficiency_row(f"{_label(one.phase, projection)}{side}", one))
    return Table("Efficiency", "shares of a GPU's peak by phase", EFFICIENCY_HEADS, rows)


def _label(phase: str, projection: Projection) -> str:
    return fmt.phase_label(phase, projection.asynchronous) if phase in PHASES else phase


def efficiency_row(label: str, one: PhaseEfficiency) -> tuple[str, ...]:
    """A phase in cells."""
    bandwidth = "" if one.bandwidth_use is None else fmt.percent(one.bandwidth_use)
    return label, fmt.number(one.tokens_per_s_per_gpu), fmt.percent(one.mfu, 1), fmt.percent(one.hfu, 1), bandwidth


def peak_words(phases: Iterable[PhaseEfficiency]) -> str:
    """What the shares are of."""
    peaks = dict.fromkeys(f"{one.peak_flops / TERA:,.0f} TFLOP/s in {one.precision}" for one in phases)
    return f"of {' and '.join(peaks)}, dense; HBM: of the memory bandwidth"


def measured_words(found: Sequence[MeasuredEfficiency]) -> list[str]:
    """What measured runs reached, of each phase the MOST_TOLD with most runs."""
    told = []
    for phase, what in (("train", "train MFU"), ("decode", "HBM in decoding")):
        mine = sorted((one for one in found if one.phase == phase), key=lambda one: -one.runs)[:MOST_TOLD]
        told += [
            f"{what} {fmt.percent(one.median)}, at best {fmt.percent(one.best)} "
            f"({'other models' if one.model == 'any' else one.model}, {one.precision}, {one.runs})"
            for one in mine
        ]
    return [f"measured on {found[0].device}, medians (model, precision, runs): {'; '.join(told)}"] if told else []
