"""What bounds each phase, and what the numbers rest on."""

from __future__ import annotations

from dataclasses import dataclass

from rlsim.report import words
from rlsim.report.columns import Paint
from rlsim.report.words import fixed, percent
from rlsim.results import Arm, PhasePart, Projection

MOST_PARTS = 4
"""Largest parts shown of a phase; the others are added up."""
LEAST_PHASE_SHARE = 0.01
"""Phases below this share of all listed time are left out of the table."""
ORDER = ("generation", "logprob", "train", "prepare", "refit", "data")
ROOTS = (("measured", "█"), ("modelled", "▓"), ("assumed", "░"))
BAR_CELLS = 40


@dataclass(frozen=True)
class _Line:
    part: str
    bound: str
    root: str
    before: str
    after: str
    share: str


def bounds_lines(projection: Projection, width: int, paint: Paint) -> list[str]:
    """Largest parts of every phase of the candidate, with the same part's seconds in the baseline."""
    arm, compared = projection.candidate, words.speculates(projection.candidate)
    groups = _groups(arm)
    if not groups:
        return []
    before = {(words.phase_name(s.phase), s.name): s.seconds for s in projection.baseline.parts}
    for share in projection.baseline.parts:
        whole = (words.phase_name(share.phase), "")
        before[whole] = before.get(whole, 0.0) + share.seconds
    decimals = words.decimals_for(max(s.seconds for s in (*arm.parts, *projection.baseline.parts)))
    lines = [line for phase, members in groups.items() for line in _phase(phase, members, before, decimals)]
    title = paint.bold("What bounds each phase") + paint.dim("  seconds per step; share of the phase")
    return [title, *_layout(lines, compared, width, paint), *_bottleneck(arm, words.is_async(projection), width)]


def _groups(arm: Arm) -> dict[str, list[PhasePart]]:
    """Parts by phase, largest first; phases in the order of the step, negligible ones dropped."""
    found: dict[str, list[PhasePart]] = {}
    for share in arm.parts:
        if share.seconds > 0:
            found.setdefault(words.phase_name(share.phase), []).append(share)
    total = sum(s.seconds for members in found.values() for s in members)
    ranked = sorted(found, key=lambda phase: ORDER.index(phase) if phase in ORDER else len(ORDER))
    return {
        phase: sorted(found[phase], key=lambda s: (-s.seconds, s.name))
        for phase in ranked
        if sum(s.seconds for s in found[phase]) >= LEAST_PHASE_SHARE * total
    }


def _phase(phase: str, members: list[PhasePart], before: dict[tuple[str, str], float], decimals: int) -> list[_Line]:
    total = sum(s.seconds for s in members)
    shown, rest = (members, []) if len(members) <= MOST_PARTS + 1 else (members[:MOST_PARTS], members[MOST_PARTS:])
    if len(members) == 1:
        return [
            _line(
                f"{words.phase_label(phase)}: {members[0].name}", members[0], total, before.get((phase, "")), decimals
            )
        ]
    lines = [
        _Line(words.phase_label(phase), "", "", _old(before.get((phase, "")), decimals), fixed(total, decimals), "")
    ]
    lines += [_line(f"  {s.name}", s, total, before.get((phase, s.name)), decimals) for s in shown]
    if rest:
        later = sum(s.seconds for s in rest)
        earlier = [before[(phase, s.name)] for s in rest if (phase, s.name) in before]
        lines.append(
            _Line(
                f"  {len(rest)} smaller parts",
                "",
                "",
                _old(sum(earlier) if earlier else None, decimals),
                fixed(later, decimals),
                percent(later / total),
            )
        )
    return lines


def _line(part: str, share: PhasePart, total: float, before: float | None, decimals: int) -> _Line:
    after = fixed(share.seconds, decimals)
    return _Line(part, share.bound, share.label, _old(before, decimals), after, percent(share.seconds / total))


def _old(seconds: float | None, decimals: int) -> str:
    return "-" if seconds is None else fixed(seconds, decimals)


def _layout(lines: list[_Line], compared: bool, width: int, paint: Paint) -> list[str]:
    heads = _Line("", "bound by", "root", "baseline", "candidate", "share")
    rows = [heads, *lines]
    bound, root = max(len(r.bound) for r in rows), max(len(r.root) for r in rows)
    before = max(len(r.before) for r in rows) + 3 if compared else 0
    after = max(len(r.after) for r in rows)
    fixed_width = 2 + 3 + bound + 3 + root + before + 3 + after + 3 + max(len(r.share) for r in rows)
    part = max(12, min(max(len(r.part) for r in rows), width - fixed_width))
    texts = [
        f"  {_cut(r.part, part)}   {r.bound:<{bound}}   {r.root:<{root}}"
        f"{(r.before if compared else ''):>{before}}   {r.after:>{after}}   {r.share:>5}"
        for r in rows
    ]
    if not compared:
        texts[0] = texts[0].replace("candidate", "     mean")
    return [paint.dim(texts[0])] + [
        text if line.share else paint.bold(text) for text, line in zip(texts[1:], lines, strict=True)
    ]


def _cut(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else text[: width - 2] + ".."


def _bottleneck(arm: Arm, asynchronous: bool, width: int) -> list[str]:
    """The largest part on the path of the step; in an asynchronous step, of the side that sets the pace."""
    hidden = asynchronous and words.trainer_sets_pace(arm)
    path = [s for s in arm.parts if not asynchronous or (words.phase_name(s.phase) == "generation") is not hidden]
    if not path or not arm.step_s.mean:
        return []
    top = max(path, key=lambda s: s.seconds)
    size = percent(top.seconds / arm.step_s.mean) + " of the step" if not asynchronous else words.seconds(top.seconds)
    where = words.phase_label(top.phase)
    return words.hanging(f"Look here first: {top.name} ({where}), {size}, bound by {top.bound}, {top.label}.", 2, width)


def provenance_lines(projection: Projection, width: int, paint: Paint) -> list[str]:
    """One bar: share of the time resting on measured, modelled and assumed values."""
    known = [(name, glyph, getattr(projection.provenance, name)) for name, glyph in ROOTS]
    counts = _apportion([share for _, _, share in known], BAR_CELLS)
    bar = "".join(glyph * count for (_, glyph, _), count in zip(known, counts, strict=True))
    key = "   ".join(f"{glyph} {name} {percent(share)}" for name, glyph, share in known)
    apart = [f"  {bar}   {key}"] if len(bar) + len(key) + 5 <= width else [f"  {bar}", f"  {key}"]
    return [paint.bold("What the time rests on"), *apart]


def _apportion(shares: list[float], cells: int) -> list[int]:
    """Whole cells by share, adding up to at most ``cells``; whatever is above zero is seen."""
    edges = [round(cells * sum(shares[: i + 1])) for i in range(len(shares))]
    counts = [edge - (edges[i - 1] if i else 0) for i, edge in enumerate(edges)]
    for i, share in enumerate(shares):
        if share > 0 and counts[i] == 0:
            donor = counts.index(max(counts))
            counts[donor] -= 1
            counts[i] += 1
    return counts
