"""What bounds each phase, what the seconds rest on and support an answer, what backs a model on a device; and MFU, HFU,
tokens and memory bandwidth by phase, beside what measured runs reached."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING

from rlsim.report import format as fmt
from rlsim.report.style import Style
from rlsim.report.table import Row, Table, table
from rlsim.report.text import findings
from rlsim.results import PHASES, PhasePart, Projection, Provenance
from rlsim.results.efficiency import MeasuredEfficiency, PhaseEfficiency
from rlsim.results.projection import NearestRuns, Support, VarianceSource

if TYPE_CHECKING:
    from rlsim.results.planning import Coverage

MOST_PARTS, LEAST_PART_SHARE = 4, 0.08
"""Largest parts shown of a phase, none below this share of it but the first; the others are added up."""
LEAST_PHASE_SHARE = 0.05
"""Phases below this share of all listed time are left out of the table."""
ROOTS = {"measured": "█", "modelled": "▓", "assumed": "░"}
BAR_CELLS = 40
LABELS: dict[str, str] = fmt.NAMES["nearest"]
LEAST_RUNS_SHARE = 0.05
"""Kinds of runs that measure less than this share of the step are left out."""
MOST_SOURCES, LEAST_SOURCE, LEAST_ASSUMED = 3, 0.10, 0.05
"""Sources shown: the largest, none below the first share; those that nothing was measured of down to the second."""
NAMED_DIFFERENCES, MOST_DIFFERENCES = 3, 2
"""Differences named in the sentence, and in a line of the table."""
LONGEST_ID = 24


def bottleneck_lines(projection: Projection, style: Style) -> list[str]:
    """Largest parts of every phase of the candidate, with the same parts' seconds in the baseline."""
    arms = projection.variants
    groups = {name: findings.parts_by_phase(arm) for name, arm in arms.items()}
    *_, shown = groups.values()
    total = sum(_seconds(parts) for parts in shown.values())
    decimals = fmt.decimals_for(max(arm.step_s.mean for arm in arms.values()))
    rows = []
    for phase, parts in shown.items():
        if _seconds(parts) >= LEAST_PHASE_SHARE * total:
            columns = [group.get(phase, []) for group in groups.values()]
            rows += _phase(fmt.phase_label(phase, projection.asynchronous), columns, decimals)
    heads = ("", "bound by", "source", *(arms if len(arms) == 2 else ["mean"]), "share")
    bounds = Table("What bounds each phase", "seconds per step; share of the phase", heads, rows, "<<<>")
    return [*bounds.lines(style), *style.wrapped(findings.look_here_first(projection), "  ")]


def _phase(label: str, columns: Sequence[Sequence[PhasePart]], decimals: int) -> list[Row]:
    """Rows of one phase: its sum, its largest parts, the sum of the others. columns: its parts in each side shown."""
    parts = columns[-1]
    total = _seconds(parts)
    count = sum(part.seconds >= LEAST_PART_SHARE * total for part in parts[:MOST_PARTS])
    # "1 smaller parts" would take the line that the part itself takes.
    count = len(parts) if len(parts) == count + 1 else max(1, count)

    def numbers(names: Container[str]) -> list[str]:
        sums = [_seconds([part for part in column if part.name in names]) for column in columns]
        return [fmt.fixed(value, decimals) if value else "-" for value in sums]

    every = {part.name for column in columns for part in column}
    rows = [Row((label, "", "", *numbers(every), ""), strong=True)]
    for part in parts[:count]:
        cells = (*numbers((part.name,)), fmt.percent(part.seconds / total))
        rows.append(Row((f"  {part.name}", part.bound, part.label, *cells)))
    if rest := parts[count:]:
        cells = (*numbers(every - {part.name for part in parts[:count]}), fmt.percent(_seconds(rest) / total))
        rows.append(Row((f"  {len(rest)} smaller parts", "", "", *cells)))
    return rows


def _seconds(parts: Sequence[PhasePart]) -> float:
    return sum(part.seconds for part in parts)


def provenance_lines(provenance: Provenance, style: Style) -> list[str]:
    """One bar: share of the candidate's time resting on measured, modelled and assumed values."""
    shares = [getattr(provenance, name) for name in ROOTS]
    counts = _apportion(shares, BAR_CELLS)
    bar = "".join(glyph * count for glyph, count in zip(ROOTS.values(), counts, strict=True))
    named = zip(ROOTS.items(), shares, strict=True)
    key = "   ".join(f"{glyph} {name} {fmt.percent(share)}" for (name, glyph), share in named)
    texts = [f"{bar}   {key}"] if len(bar) + len(key) + 5 <= style.width else [bar, key]
    title = style.bold("Provenance") + style.dim("  what the candidate's seconds rest on, all phases")
    return [title, *(style.readable(f"  {text}") for text in texts)]


def _apportion(shares: Sequence[float], cells: int) -> list[int]:
    """Whole cells by share, adding up to at most ``cells``; whatever is above zero is seen."""
    # Rounded sums, not rounded parts: these would not add up to the bar.
    edges = [0, *(round(cells * sum(shares[: i + 1])) for i in range(len(shares)))]
    counts = [after - before for before, after in itertools.pairwise(edges)]
    for i, share in enumerate(shares):
        if share > 0 and counts[i] == 0:
            # Taken from the longest, where a cell less shows least.
            counts[counts.index(max(counts))] -= 1
            counts[i] += 1
    return counts


def support_lines(support: Support | None, style: Style) -> list[str]:
    """A sentence with the interval and the nearest measured step, the nearest run of each kind, and the sources."""
    if support is None:
        return []
    shown = [runs for runs in support.nearest if runs.kind == "step" or runs.share >= LEAST_RUNS_SHARE]
    rows = [_nearest_row(runs) for runs in sorted(shown, key=lambda runs: -runs.share)]
    nearest = table(("", "share", "nearest measured", "which has"), rows, style, "<><<")
    title = style.bold("Nearest measurements")
    return [title, *style.wrapped(nearest_step(support), "  "), *nearest, *_sources(support, style)]


def nearest_step(support: Support) -> str:
    """How far to trust the step, in a sentence: its interval, and the nearest measured step with its differences."""
    within = f"The step lies within {fmt.percent(support.half_width)} either way (90 %)"
    runs = next((one.runs for one in support.nearest if one.kind == "step"), ())
    if not runs:
        return f"{within}; no whole step was measured."
    features = [one.feature for one in runs[0].differences]
    if not features:
        return f"{within}; the measured step {runs[0].id} ran the same."
    return f"{within}; the nearest measured step, {runs[0].id}, differs in {_some(features, NAMED_DIFFERENCES)}."


def _some(entries: Sequence[str], most: int) -> str:
    """The first of them, and the number of the others."""
    more = [f"{len(entries) - most} more"] if len(entries) > most else []
    return ", ".join([*entries[:most], *more])


def shown_sources(support: Support) -> list[VarianceSource]:
    """Sources of the variance that are shown: the largest, and assumed ones from a smaller share on."""
    largest = [one for one in support.sources if one.share >= LEAST_SOURCE][:MOST_SOURCES]
    assumed = [one for one in support.sources if one.assumed and one.share >= LEAST_ASSUMED]
    return [*largest, *(one for one in assumed if one not in largest)]


def _nearest_row(nearest: NearestRuns) -> tuple[str, ...]:
    """The nearest run of a kind: what it has where it differs."""
    share = "" if nearest.kind == "step" else fmt.percent(nearest.share)
    label = LABELS.get(nearest.kind, nearest.kind)
    if not nearest.runs:
        return label, share, "nothing", ""
    run = nearest.runs[0]
    name = run.id if len(run.id) <= LONGEST_ID else f"{run.id[: LONGEST_ID - 3]}..."
    has = _some([f"{one.feature} {one.measured}" for one in run.differences], MOST_DIFFERENCES)
    return label, share, name, has or "the same"


def _sources(support: Support, style: Style) -> list[str]:
    """Lines with the largest sources of the variance, and the measurements that settle them."""
    sources = shown_sources(support)
    if not sources:
        return []
    named = (f"{fmt.percent(one.share)} {one.source}{' (assumed)' if one.assumed else ''}" for one in sources)
    ways = dict.fromkeys((one.settle, one.command) for one in sources if one.assumed or one is sources[0])
    settled = " ".join(f"To settle it: {settle} ({command})." for settle, command in ways)
    return style.wrapped(f"Its variance leans on {'; '.join(named)}. {settled}", "  ")


SHARES = ("model, device and software", "model and device", "model", "device", "software", "any")
LEAST_SHARE = 0.01
"""Parts below this share of the step are left out of the list."""


def render_coverage(answer: Coverage, shape: str, style: Style) -> str:
    """Tables, releases, measured runs, what a plain step rests on, what is refused. shape: of that step, in words."""
    lines = [style.bold(f"{answer.model} on {answer.device} with {answer.engine}"), "", style.bold("Operator tables")]
    lines += [*style.wrapped(_tables(answer), "  "), "", *_measured(answer, style), ""]
    where = f"  synchronous GRPO on {answer.num_gpus:,} GPUs, laid out by plan"
    lines += [style.bold("A plain step") + style.dim(where), *style.wrapped(shape, "  ")]
    for label in ROOTS:
        if any(part.root == label for part in answer.parts):
            lines += style.wrapped(_listed(answer, label), f"  {label}: ", 4)
    lines += ["", *provenance_lines(answer.provenance, style), "", *support_lines(answer.support, style), ""]
    lines.append(style.bold("On top of it"))
    for one in answer.tried:
        runs = "" if one.measured is None else f"projects; {fmt.percent(one.measured)} of its step measured"
        lines += style.wrapped(runs or f"refused: {one.reason}", f"  {one.name}: ", 4)
    return "\n".join(lines)


def _tables(answer: Coverage) -> str:
    found = answer.tables
    if found is None:
        return f"none of {answer.device}: its operators are modelled, at the share of the roofline that others reach"
    text = f"{found.system}/{found.engine}, measured with {found.origin}: {', '.join(found.operators)}"
    return text.replace("_", " ") + (
        "" if found.engine == answer.engine else f"; none of {answer.engine} on this device"
    )


def _measured(answer: Coverage, style: Style) -> list[str]:
    """Fitted releases, and measured times that share something with what was asked."""
    releases = ", ".join(f"{version} ({rows})" for version, rows in answer.releases.items()) or "none"
    rows = [
        (fmt.NAMES["times"][kind], *(f"{counts[share]:,}" for share in SHARES))
        for kind, counts in answer.counts.items()
    ]
    heads = ("", "all three", "model, device", "model", "device", "software", "of")
    return [
        *Table("Measured times", "that share model, device, software with it", heads, rows).lines(style),
        *style.wrapped(f"releases of {answer.engine} in the fit (measured iterations): {releases}", "  ", 4),
    ]


def _listed(answer: Coverage, label: str) -> str:
    """Parts that rest on ``label`` by name with their share of the step, those of one name together."""
    total = sum(part.seconds for part in answer.parts)
    shares: dict[str, float] = defaultdict(float)
    for part in answer.parts:
        if part.root == label:
            shares[part.part] += part.seconds / total
    rest = sum(share for share in shares.values() if share < LEAST_SHARE)
    ranked = sorted(shares.items(), key=lambda one: -one[1])
    shown = [f"{name} {fmt.percent(share)}" for name, share in ranked if share >= LEAST_SHARE]
    return ", ".join([*shown, *([f"smaller parts {fmt.percent(rest)}"] if rest > 0 else [])])


TERA = 1e12
MOST_MEASURED = 2
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
            # Speculation changes only how efficient generation is.
            if one.phase != "generation_s" and arm is not projection.candidate:
                continue
            side = f", {name}" if one.phase == "generation_s" and len(projection.variants) > 1 else ""
            label = fmt.phase_label(one.phase, projection.asynchronous) if one.phase in PHASES else one.phase
            rows.append(efficiency_row(f"{label}{side}", one))
    return Table("Efficiency", "shares of a GPU's peak by phase", EFFICIENCY_HEADS, rows)


def efficiency_row(label: str, one: PhaseEfficiency) -> tuple[str, ...]:
    """A phase in cells."""
    bandwidth = "" if one.bandwidth_use is None else fmt.percent(one.bandwidth_use)
    return label, fmt.number(one.tokens_per_s_per_gpu), fmt.percent(one.mfu, 1), fmt.percent(one.hfu, 1), bandwidth


def peak_words(phases: Iterable[PhaseEfficiency]) -> str:
    """Text of the peak rates that the shares refer to."""
    peaks = dict.fromkeys(f"{one.peak_flops / TERA:,.0f} TFLOP/s in {one.precision}" for one in phases)
    return f"of {' and '.join(peaks)}, dense; HBM: of the memory bandwidth"


def measured_words(found: Sequence[MeasuredEfficiency]) -> list[str]:
    """A line with shares of the peak that measured runs reached, of each phase the MOST_MEASURED with most runs."""
    texts = []
    for phase, what in (("train", "train MFU"), ("decode", "HBM in decoding")):
        mine = sorted((one for one in found if one.phase == phase), key=lambda one: -one.runs)[:MOST_MEASURED]
        texts += [
            f"{what} {fmt.percent(one.median)}, at best {fmt.percent(one.best)} "
            f"({'other models' if one.model == 'any' else one.model}, {one.precision}, {one.runs})"
            for one in mine
        ]
    return [f"measured on {found[0].device}, medians (model, precision, runs): {'; '.join(texts)}"] if texts else []
