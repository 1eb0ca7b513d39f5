"""What backs a model on a device, for a terminal."""

from __future__ import annotations

from collections import defaultdict

from rlsim.report import format as fmt
from rlsim.report.style import Style
from rlsim.report.table import Table
from rlsim.report.text.support import provenance_lines, support_lines
from rlsim.report.text.validation import TIME_TITLES
from rlsim.results.coverage import Coverage

SHARES = ("model, device and software", "model and device", "model", "device", "software", "any")
LEAST_SHARE = 0.01
"""Parts below this share of the step are left out of the list."""


def render_coverage(answer: Coverage, shape: str, style: Style) -> str:
    """Tables, releases, measured runs, what a plain step rests on, what is refused. shape: of that step, in words."""
    lines = [style.bold(f"{answer.model} on {answer.device} with {answer.engine}"), "", style.bold("Operator tables")]
    lines += [*style.wrapped(_tables(answer), "  "), "", *_measured(answer, style), ""]
    where = f"  synchronous GRPO on {answer.num_gpus:,} GPUs, laid out by plan"
    lines += [style.bold("A plain step") + style.dim(where), *style.wrapped(shape, "  ")]
    for label in ("measured", "modelled", "assumed"):
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
    rows = [(TIME_TITLES[kind], *(f"{counts[share]:,}" for share in SHARES)) for kind, counts in answer.counts.items()]
    heads = ("", "all three", "model, device", "model", "device", "software", "of")
    return [
        *Table("Measured times", "that share model, device, software with it", heads, rows).lines(style),
        *style.wrapped(f"releases of {answer.engine} with fitted host time (iterations): {releases}", "  ", 4),
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
