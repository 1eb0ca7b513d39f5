"""What the page says of a blame: idle time by cause, what removals gain, tail policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlsim.files.reading import DOCUMENT_BYTES
from rlsim.report import format as fmt
from rlsim.report.page.charts import Bar, Row, Scale, Segment, Words, bar_chart
from rlsim.report.page.folder import needed_file
from rlsim.report.page.markup import Markup, tag
from rlsim.report.page.page import KeyFigure, Part, Section, table
from rlsim.report.page.reading import Node, read_json

SCHEMA = "rlsim.blame/1"
LEAST_SHARE = 0.005
"""Removals below this share of the step are left out of the waterfall."""


@dataclass(frozen=True)
class _Removal:
    cause: str
    how: str
    step_s: float
    saved_s: float
    chain_s: float


def blame_part(folder: Path, notes: list[str]) -> Part:
    """The blame in ``folder``."""
    root = read_json(needed_file(folder, "blame.json"), DOCUMENT_BYTES)
    root.check_schema(SCHEMA)
    step_s, left_s, work = (root.at(key).number() for key in ("step_s", "left_s", "work_share"))
    scenario, num_gpus = root.at("scenario").text(), root.at("num_gpus").integer()
    removals = [_removal(each) for each in root.at("removals").elements()]
    headline = f"A step takes {fmt.seconds(step_s)}; its {num_gpus:,} GPUs are idle {fmt.percent(1 - work)} of it."
    figures = [
        KeyFigure("A step takes", fmt.seconds(step_s)),
        KeyFigure("Without any idle cause", fmt.seconds(left_s)),
        KeyFigure("GPUs are idle", fmt.percent(1 - work), "of all GPU time"),
    ]
    if removals:
        largest = max(removals, key=lambda one: one.saved_s)
        figures.append(KeyFigure("Largest gain alone", fmt.seconds(largest.saved_s), largest.cause))
    sections = [
        Section("blame-idle", "Idle GPU time", _idle(root.at("idle").elements())),
        Section("blame-removals", "Without its causes", _removals(removals, step_s, left_s)),
        Section("blame-policies", "Policies against the tail", _what_ifs(root.at("what_ifs").elements(), step_s)),
    ]
    return Part("blame", scenario, headline, figures, sections, [f"digest {root.at('digest').text()}"])


def _removal(node: Node) -> _Removal:
    numbers = (node.at(key).number() for key in ("step_s", "saved_s", "chain_s"))
    return _Removal(node.at("cause").text(), node.at("how").text(), *numbers)


def _idle(entries: Sequence[Node]) -> Markup:
    found = [(one.at("pool").text(), one.at("cause").text(), one.at("share").number()) for one in entries]
    if not found:
        return tag("p", "No GPU is idle.", class_="dim")
    gpu_s = [one.at("gpu_s").number() for one in entries]
    rows = [
        Row(f"{pool}: {cause}", fmt.percent(share, 1), [Bar([Segment(0, 100 * share, _tone(pool), cause)])])
        for pool, cause, share in found
    ]
    words = Words(
        "blame-idle-causes",
        "What GPUs wait for",
        "; ".join(f"{row.label} {row.value}" for row in rows),
        "Share of all GPU time of a step.",
    )
    numbers = table(
        ("pool", "waits for", "GPU-seconds", "share"),
        [
            (pool, cause, f"{s:,.0f}", fmt.percent(share, 1))
            for (pool, cause, share), s in zip(found, gpu_s, strict=True)
        ],
        "Idle GPU-seconds per step.",
        2,
    )
    keys = {_tone(pool): pool for pool, _, _ in found}
    scale = Scale(0, max(100 * share for _, _, share in found))
    return bar_chart(words, rows, scale, numbers, keys=keys, unit="%")


def _tone(pool: str) -> str:
    return {"generation": "generation", "training": "train"}.get(pool, "other")


def _removals(removals: Sequence[_Removal], step_s: float, left_s: float) -> Markup:
    rows = [Row("step as it is", fmt.seconds(step_s), [Bar([Segment(0, step_s, "candidate", "step as it is")])])]
    at_s = highest = step_s
    for one in removals:
        if abs(one.chain_s) >= LEAST_SHARE * step_s:
            tone = "measured" if one.chain_s > 0 else "series1"
            bar = Bar([Segment(at_s - one.chain_s, at_s, tone, f"{-one.chain_s:+.2f} s")])
            rows.append(Row(f"without {one.cause}", f"{-one.chain_s:+.1f} s", [bar], one.how))
            at_s -= one.chain_s
            highest = max(highest, at_s)
    rest = f"{at_s - left_s:+.1f} s of smaller causes" if abs(at_s - left_s) >= 0.05 else ""
    rows.append(Row("work", fmt.seconds(left_s), [Bar([Segment(0, left_s, "baseline", "work")])], rest))
    words = Words(
        "blame-waterfall",
        "From the step as it is to one of work alone",
        "; ".join(f"{row.label} {row.value}" for row in rows),
        "Seconds per step; each cause is taken away after those above it, on the same drawn work.",
    )
    cells = [
        (one.cause, one.how, f"{one.step_s:.2f}", f"{one.saved_s:+.2f}", f"{one.chain_s:+.2f}") for one in removals
    ]
    heads = ("cause", "how", "step (s)", "saves alone (s)", "saves in turn (s)")
    return bar_chart(words, rows, Scale(0, highest), table(heads, cells, "Removals.", 2), unit="s")


def _what_ifs(entries: Sequence[Node], step_s: float) -> Markup:
    rows = []
    for one in entries:
        took = one.number_at("step_s")
        step = "-" if took is None else f"{took:.2f}"
        saves = "-" if took is None else f"{step_s - took:+.2f}"
        rows.append(
            (one.at("name").text(), one.at("how").text() if took is not None else one.text_at("reason"), step, saves)
        )
    if not rows:
        return tag("p", "None was tried.", class_="dim")
    return table(("policy", "how", "step (s)", "saves (s)"), rows, "Tried on the same drawn work.", 2)
