"""``rlsim watch``: a running job beside what it should take."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlsim.cli.logged import run_scenario
from rlsim.cli.options import Out, Overrides, Words
from rlsim.cli.output import print_answer, terminal_style
from rlsim.errors import InputError
from rlsim.files.journal import opened_journal
from rlsim.files.reading import installed_version

if TYPE_CHECKING:
    from rlsim.results.watch import WatchLine

POLL_S = 2.0


def watch(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="What the job writes: a file, a folder, or an exporter's URL on this machine."
        ),
    ],
    scenario: Annotated[
        str | None, typer.Argument(metavar="[SCENARIO]", help="What it should be; without it, its own level alone.")
    ] = None,
    words: Words = None,
    overrides: Overrides = None,
    every: Annotated[int, typer.Option(metavar="N", min=1, help="Steps between two lines.")] = 10,
    once: Annotated[bool, typer.Option("--once", help="Read what is there, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
    out: Out = None,
) -> None:
    """Stand beside a running job: what a step should take, what it takes, and when and why that changed.

    The job's own level is learnt from its first ten steady steps and judged as rlsim check does. From then on a line
    comes every N steps, and another where lengths grow, acceptance falls or a phase slows, with the step at which that
    began; an alarm where a fault is likely. Ctrl-C ends it. --out DIR also writes watch.jsonl and watch.html, a page
    that loads itself again; one that was killed goes on after its lines."""
    from rlsim.attribution.check import check
    from rlsim.loading.scenario import scenario_digest
    from rlsim.readers.logs.source import Source
    from rlsim.readers.logs.watching import Watcher
    from rlsim.results.watch import WatchLine

    given = None if scenario is None else run_scenario(scenario, words, overrides)[0]
    reader = Source(source)
    same = json.dumps([installed_version(), source, every, None if given is None else scenario_digest(given)])
    with opened_journal(out, same, "watch") as journal:
        rows = {} if journal is None else journal.rows
        lines = [WatchLine.model_validate(rows[number]) for number in sorted(rows)]
        _show(lines, lines, as_json, reader.where, out)
        watcher = Watcher(given, check, every, max((line.step for line in lines), default=-1))
        with suppress(KeyboardInterrupt):
            while True:
                log = reader.read()
                found = watcher.lines(log) if log is not None else []
                if journal is not None:
                    journal.add(enumerate((line.model_dump(mode="json", by_alias=True) for line in found), len(lines)))
                lines += found
                _show(found, lines, as_json, reader.where, out)
                if once:
                    break
                time.sleep(max(POLL_S, reader.pause_s))
        if once and not lines:
            raise InputError(reader.trouble or f"{source}: no step yet")


def _show(found: Sequence[WatchLine], lines: Sequence[WatchLine], as_json: bool, where: str, out: Path | None) -> None:
    """Print what is new, and write all lines."""
    from rlsim.report.folder import write_files
    from rlsim.report.text.watch import watch_page, watch_text

    for line in found:
        print_answer(line.model_dump_json(by_alias=True) if as_json else watch_text(line, terminal_style()))
    if found and out is not None:
        records = "".join(f"{line.model_dump_json(by_alias=True)}\n" for line in lines)
        write_files({"watch.jsonl": records, "watch.html": watch_page(f"watch of {where}", lines)}, out)
