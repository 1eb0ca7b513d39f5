"""run(): a run of a number of steps, chapter by chapter, and the same without speculation on the same drawn work."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path

from rlsim.errors import InputError
from rlsim.files.journal import Journal, opened_journal
from rlsim.loading.scenario import scenario_digest
from rlsim.projection.project import about, baseline_of
from rlsim.projection.uncertainty.predictive import around
from rlsim.report.files import write_out
from rlsim.results.run import Run
from rlsim.runs.assumptions import run_assumptions
from rlsim.runs.chapters import Chapter, ChapterRecord, chapters_of, simulate_chapter
from rlsim.runs.sides import Summed, summed
from rlsim.schema.base import changed
from rlsim.schema.scenario import Scenario

COMMAND = "run"
JOURNAL_FORMAT = 2
MOST_STEPS = 100_000
"""Steps of a run; all its replications together, too."""
Progress = Callable[[int, int], object]


def run(
    scenario: Scenario,
    steps: int | None = None,
    samples: int | None = None,
    *,
    replications: int = 1,
    baseline: bool = True,
    out: Path | str | None = None,
    progress: Progress | None = None,
    chapter_steps: int | None = None,
) -> Run:
    """Simulate a run of ``steps`` training steps, or of as many as consume ``samples``; one of both is needed.

    replications: independent runs whose mean is given. baseline: also without speculation, where there is any. out:
    folder for run.json, steps.csv, run.png and scenario.yaml; an interrupted run into the same folder goes on where it
    stopped and ends with the same bytes. progress: called with (done, total) steps of all sides. chapter_steps: steps
    simulated together, in place of what memory allows. The scenario's ``run`` section counts; ``simulation.steps``,
    ``warmup_steps`` and ``replications`` do not. Raises InputError and Infeasible.
    """
    count = _steps(scenario, steps, samples)
    if replications < 1:
        raise InputError(f"--replications must be at least 1, got {replications}")
    if not 1 <= count * replications <= MOST_STEPS:
        raise InputError(
            f"a run needs 1 to {MOST_STEPS:,} steps in all replications together; got {count:,} x {replications:,}"
        )
    if chapter_steps is not None and chapter_steps < 1:
        raise InputError(f"chapter_steps must be at least 1, got {chapter_steps}")
    # How much of it a projection simulates is nothing that a run asks for.
    amounts = {"replications": replications, "steps": 1, "warmup_steps": 0}
    given = changed(scenario, simulation=changed(scenario.simulation, **amounts))
    sides = [given]
    if baseline and given.speculation.active:
        sides.insert(0, baseline_of(given))
    chapters = chapters_of(given, count, chapter_steps)
    folder = Path(out) if out is not None else None
    with opened_journal(folder, _identity(given, sides, chapters), COMMAND) as journal:
        records = _simulated(sides, chapters, journal, progress)
        answer = _answer(given, count, sides, records)
        write_out(answer, folder)
    return answer


def _steps(scenario: Scenario, steps: int | None, samples: int | None) -> int:
    if (steps is None) == (samples is None):
        raise InputError("a run needs either --steps N or --samples M")
    if samples is not None:
        if samples < 1:
            raise InputError(f"--samples must be at least 1, got {samples}")
        return math.ceil(samples / scenario.workload.samples_per_step)
    assert steps is not None
    return steps


def _identity(given: Scenario, sides: list[Scenario], chapters: tuple[Chapter, ...]) -> str:
    """What must agree for an interrupted run to be continued."""
    edges = [[one.first, one.stop, one.forgotten] for one in chapters]
    content = [JOURNAL_FORMAT, scenario_digest(given), len(sides), edges]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _simulated(
    sides: list[Scenario], chapters: tuple[Chapter, ...], journal: Journal | None, progress: Progress | None
) -> list[list[ChapterRecord]]:
    """The records of every side, those of the journal taken over."""
    total, done = len(sides) * chapters[-1].stop, 0
    out: list[list[ChapterRecord]] = []
    for side in sides:
        records: list[ChapterRecord] = []
        for chapter in chapters:
            number = len(out) * len(chapters) + len(records)
            if journal is not None and number in journal.rows:
                record = ChapterRecord.from_row(journal.rows[number])
            else:
                record = simulate_chapter(side, chapter)
                if journal is not None:
                    journal.add([(number, record.as_row())])
            records.append(record)
            done += chapter.steps
            if progress is not None:
                progress(done, total)
        out.append(records)
    return out


def _answer(given: Scenario, count: int, sides: list[Scenario], records: list[list[ChapterRecord]]) -> Run:
    found: list[Summed] = [summed(side, each) for side, each in zip(sides, records, strict=True)]
    candidate, base = found[-1], found[0] if len(found) > 1 else None
    speedup = None
    if base is not None:
        ratio = base.side.seconds.mean / candidate.side.seconds.mean
        speedup = around(ratio, base.draws / candidate.draws / ratio)
    of_model, warnings = records[-1][0].assumptions, records[-1][-1].warnings
    return Run(
        **about(given),
        replications=given.simulation.replications,
        num_steps=count,
        baseline=base.side if base is not None else None,
        candidate=candidate.side,
        speedup=speedup,
        assumptions=(*of_model, *run_assumptions(given)),
        warnings=tuple(warnings),
    )
