"""Lines of a watch for a terminal: one for each record, and under an alarm what is behind it."""

import html
from collections.abc import Sequence

from rlsim.report.format import percent
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.results.watch import WatchLine

UNITS = {"response_tokens": "", "prompt_tokens": "", "acceptance_length": "", "turns": ""}
REFRESH_S = 10
UNBROKEN = 10_000
"""Columns of lines that a browser breaks itself: those of a phone are few."""


def watch_text(line: WatchLine, style: Style = DEFAULT_STYLE) -> str:
    """A record as it is printed, within the terminal's width."""
    expected = line.expected_s
    parts = [f"{line.step_s:.1f} s" if line.step_s is not None else "no time of a step"]
    if expected is not None:
        parts.append(f"{expected.mean:.1f} [{expected.low:.1f}, {expected.high:.1f}] expected")
    if not line.moved and line.own_s is not None and line.step_s is not None and line.own_s > 0:
        parts.append(f"{percent(line.step_s / line.own_s - 1)} from its level")
    verdict = style.bold("ALARM") if line.alarm else line.verdict
    if line.stands_since is not None:
        # Its new level is usual for the run, and still what the alarm was about.
        verdict = f"{style.bold('ALARM')} of step {line.stands_since:,} stands" + f", {verdict}" * bool(line.moved)
    out = style.wrapped(f"step {line.step:,}: {', '.join(parts)}: {verdict}", indent=2)
    for one in line.moved:
        unit = UNITS.get(one.quantity, " s")
        name = one.quantity.replace("_", " ")
        text = f"{name} {one.ratio:.2f}x since step {one.since:,} ({one.before:.4g} -> {one.after:.4g}{unit})"
        out += style.wrapped(text, "  ", indent=4)
    for suspect in line.suspects:
        text = f"{percent(suspect.probability)}  {suspect.title}; {suspect.gain_s:.0f} s of a step"
        out += style.wrapped(text, "  ", indent=8)
    if line.experiment:
        out += style.wrapped(f"-> {line.experiment}", "  ", indent=5)
    if line.remark:
        out += style.wrapped(line.remark, "  ", indent=4)
    return "\n".join(out)


def watch_page(title: str, lines: Sequence[WatchLine]) -> str:
    """An HTML page of the lines, newest first, which asks the browser to load it again."""
    rows = [
        f"<pre{' class=alarm' if line.alarm or line.stands_since is not None else ''}>"
        f"{html.escape(watch_text(line, Style(width=UNBROKEN)))}</pre>"
        for line in reversed(lines)
    ]
    head = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="{REFRESH_S}">'
        f'<meta name="viewport" content="width=device-width"><title>{html.escape(title)}</title><style>'
        ":root{color-scheme:light dark}body{font:15px system-ui;margin:1rem auto;max-width:60rem;padding:0 .8rem}"
        "pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.3rem 0}"
        ".alarm{border-left:4px solid #b00020;padding-left:.6rem}</style>"
    )
    return f"{head}<h1>{html.escape(title)}</h1>{''.join(rows)}\n"
