"""What backs a model on a device, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rlsim.report import format as fmt
from rlsim.report.style import Style
from rlsim.report.table import table
from rlsim.report.text.bottlenecks import provenance_lines
from rlsim.report.text.support import support_lines
from rlsim.results.coverage import Coverage, StepPart

SHARES = ("model, device and software", "model and device", "model", "device", "software", "any")
LABELS = {
    "iteration": "engine iterations", "training": "training steps", "transfer": "weight transfers", "step": "RL steps"
}  # fmt: skip
LEAST_SHARE = 0.01
"""Parts below this share of the step are left out of the list."""


def render_coverage(answer: Coverage, shape: str, style: Style) -> str:
    """Tables, releases, measured runs, what a plain step rests on, what is refused. shape: of that step, in words."""
    total = sum(part.seconds for part in answer.parts)
    lines = [style.bold(f"{answer.model} on {answer.device} with {answer.engine}"), ""]
    lines += [*_tables(answer, style), "", *_measured(answer, style), ""]
    where = f"  synchronous GRPO on {answer.num_gpus:,} GPUs, laid out by plan"
    lines += [style.bold("A plain step") + style.dim(where)]
    lines += style.wrapped(shape, "  ")
    for label in ("measured", "modelled", "assumed"):
        parts = [part for part in answer.parts if part.root == label]
        if parts:
            lines += style.wrapped(_listed(parts, total), f"  {label}: ", 4)
    lines += ["", *provenance_lines(answer.provenance, style), "", *support_lines(answer.support, style), ""]
    return "\n".join([*lines, *_tried(answer, style)])


def _tables(answer: Coverage, style: Style) -> list[str]:
    title = style.bold("Operator tables")
    if answer.tables is None:
        text = f"none of {answer.device}: its operators are modelled, at the share of the roofline that others reach"
        return [title, *style.wrapped(text, "  ")]
    found = answer.tables
    text = f"{found.system}/{found.engine}, measured with {found.origin}: {', '.join(found.operators)}"
    own = "" if found.engine == answer.engine else f"; none of {answer.engine} on this device"
    return [title, *style.wrapped(text.replace("_", " ") + own, "  ")]


def _measured(answer: Coverage, style: Style) -> list[str]:
    """Fitted releases, and measured times that share something with what was asked."""
    releases = ", ".join(f"{version} ({rows})" for version, rows in answer.releases.items()) or "none"
    rows = [(LABELS[kind], *(f"{counts[share]:,}" for share in SHARES)) for kind, counts in answer.counts.items()]
    heads = ("", "all three", "model, device", "model", "device", "software", "of")
    return [
        style.bold("Measured times") + style.dim("  that share model, device, software with it"),
        *table(heads, rows, style),
        *style.wrapped(f"releases of {answer.engine} with fitted host time (iterations): {releases}", "  ", 4),
    ]


def _listed(parts: Iterable[StepPart], total: float) -> str:
    """Parts by name with their share of the step, those of one name together."""
    shares: dict[str, float] = {}
    for part in parts:
        shares[part.part] = shares.get(part.part, 0.0) + part.seconds / total
    shown = sorted(((name, share) for name, share in shares.items() if share >= LEAST_SHARE), key=lambda one: -one[1])
    rest = sum(share for share in shares.values() if share < LEAST_SHARE)
    more = [f"smaller parts {fmt.percent(rest)}"] if rest > 0 else []
    return ", ".join([*(f"{name} {fmt.percent(share)}" for name, share in shown), *more])


def _tried(answer: Coverage, style: Style) -> list[str]:
    lines = [style.bold("On top of it")]
    for one in answer.tried:
        runs = "" if one.measured is None else f"projects; {fmt.percent(one.measured)} of its step measured"
        lines += style.wrapped(runs or f"refused: {one.reason}", f"  {one.name}: ", 4)
    return lines
