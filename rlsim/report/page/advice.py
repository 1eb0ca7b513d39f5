"""What the page says of a checked run, of clusters for a model, and of what is possible."""

from __future__ import annotations

from collections.abc import Iterable

from rlsim.report import format as fmt
from rlsim.report.figures.bars import ladder_figure, techniques_figure
from rlsim.report.figures.grids import size_figure
from rlsim.report.figures.measured import checked_figure
from rlsim.report.page.parts import Block, Entries, KeyFigure, Part, Sections, Text, assumed, picture, ranged, table
from rlsim.report.text import check as checked
from rlsim.report.text import size as sized
from rlsim.report.text import techniques as tried
from rlsim.report.text.headroom import headroom_words, ladder_table, rung_words
from rlsim.results.check import Check
from rlsim.results.headroom import Headroom
from rlsim.results.planning import Techniques
from rlsim.results.size import DeviceSize, Sizing


def check_part(found: Check) -> Part:
    """The check of a run."""
    step = found.step
    figures = [] if step.measured_s is None else [("Your step", fmt.seconds(step.measured_s), "")]
    figures += [
        ranged("Expected", step.expected_s, fmt.seconds),
        ("Healthy", fmt.percent(found.healthy), "probability"),
        ("A cause on no list", fmt.percent(found.unlisted), "probability"),
    ]
    rows = [
        (one.title, fmt.percent(one.probability), f"{one.gain_s:.1f}", ", ".join(one.changes), checked.cure_words(one))
        for group in found.groups
        for one in group.members
    ]
    sections: Sections = {
        "check-times": [picture("check-phases", checked_figure(found), checked.phases_table(found))],
        "check-faults": [table("check-causes", rows)] if rows else [Text("No known fault explains it.")],
        "check-tests": _listed(map(checked.test_words, found.tests)),
        "check-stated": _listed(map(checked.stated_words, found.stated)),
        "check-remarks": _listed(found.remarks),
    }
    about = [f"{found.model} on {found.num_gpus:,} {found.hardware}, {found.mode}", found.source]
    about.append(f"{found.tried} known faults simulated on this scenario.")
    headline = checked.verdict_words(found)
    return Part("check", found.scenario, headline, figures, sections, [line for line in about if line])


def _listed(entries: Iterable[str]) -> list[Block]:
    return [Entries(shown)] if (shown := list(entries)) else []


def size_part(found: Sizing) -> Part:
    """Clusters for a model."""
    figures: list[KeyFigure] = []
    best = next((one for one in found.devices if one.device == found.best), None)
    chosen = None if best is None else best.at(best.chosen)
    if best is not None and chosen is not None:
        figures = [
            ("Take", f"{chosen.gpus:,} {best.device}", chosen.layout),
            ranged("A step takes", chosen.step_s, fmt.seconds),
            ("It costs", f"{chosen.usd_per_step:.2f} USD", f"at {best.usd_per_gpu_hour:.2f} per GPU and hour"),
        ]
    able = any(one.sizes for one in found.devices)
    sections: Sections = {
        "size-steps": [picture("size-curve", size_figure(found))] if able else [],
        "size-clusters": [block for one in found.devices for block in _device(one)],
        "size-assumptions": assumed(sized.assumed_words(found), ()),
    }
    return Part("size", found.model, sized.recommendation(found), figures, sections, [sized.task_words(found)])


def _device(one: DeviceSize) -> list[Block]:
    clusters: list[Block] = [sized.clusters_table(one)] if one.sizes else []
    told = [one.reason if one.sizes else f"{one.device}: {one.reason}", sized.share_words(one)]
    return [*clusters, *(Text(words) for words in told if words)]


def headroom_part(found: Headroom) -> Part:
    """The ladder."""
    last = found.rungs[-1]
    figures = [
        ("A step takes", fmt.seconds(found.step_s), ""),
        ("At the roofline", fmt.seconds(last.step_s), f"{found.ratio(last):.1f}x faster"),
    ]
    sections: Sections = {
        "headroom-steps": [picture("headroom-ladder", ladder_figure(found), ladder_table(found))],
        "headroom-rungs": [Entries([f"{rung_words(one)}. {one.who.capitalize()}." for one in found.rungs[1:]])],
    }
    about = [f"{found.model} on {found.num_gpus:,} {found.hardware}, {found.mode}", f"digest {found.digest}"]
    return Part("headroom", found.scenario, headroom_words(found), figures, sections, about)


def techniques_part(found: Techniques) -> Part:
    """What published techniques would bring."""
    figures = [ranged("A step takes", found.step_s, fmt.seconds)]
    figures += [ranged("With the best", one.step_s, fmt.seconds) for one in tried.faster(found)[:1]]
    asked = [f"{tried.technique_words(one)} {' '.join(one.changes)}" for one in tried.faster(found)]
    sections: Sections = {
        "techniques-ranking": [picture("techniques-speedups", techniques_figure(found), tried.techniques_table(found))],
        "techniques-asked": _listed(asked),
        "techniques-left-out": _listed(f"{one.title}: {one.reason}" for one in found.left_out),
    }
    return Part(
        "techniques", found.scenario, tried.best_technique(found), figures, sections, [f"digest {found.digest}"]
    )
