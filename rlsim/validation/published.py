"""All published tables at once: steps, the study, fixed-batch speedups, refits, and what is given by path."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlsim.errors import InputError
from rlsim.files.reading import shown_path
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import table
from rlsim.validation.accuracy_halves import HALVES, joined
from rlsim.validation.cross import CrossValidation, validate_cross
from rlsim.validation.cross_text import cross_text
from rlsim.validation.iteration_sweeps import IterationSweep, iteration_sweep
from rlsim.validation.kind import Kind
from rlsim.validation.kinds import validate_table
from rlsim.validation.measured import MeasuredTable
from rlsim.validation.measured_text import render_measured
from rlsim.validation.refits import published_refits
from rlsim.validation.speculation import measured_speculation
from rlsim.validation.study import PublishedFigure, published_table, study
from rlsim.validation.text import render
from rlsim.validation.validate import Validation, quantile_abs, validate

STUDY_SIMULATIONS = 17
"""Projections behind the study's cells, for the progress counter."""


@dataclass(frozen=True)
class Published:
    """Everything published beside our predictions.

    digest: first 16 hex digits of the SHA-256 of the published tables. refits_left_out: (id, reason). sweeps,
    iterations, halves (training, transfers, phases): of tables that are not part of rlsim, where given. cross: of
    left-out groups, where asked for.
    """

    digest: str
    steps: Validation
    study: tuple[PublishedFigure, ...]
    speculation: tuple[PublishedFigure, ...]
    refits: tuple[PublishedFigure, ...]
    refits_left_out: tuple[tuple[str, str], ...]
    sweeps: tuple[IterationSweep, ...]
    iterations: MeasuredTable | None = None
    halves: Mapping[Kind, MeasuredTable] = field(default_factory=dict)
    cross: CrossValidation | None = None

    def compared(self) -> tuple[PublishedFigure, ...]:
        """All figures beside the steps."""
        return (*self.study, *self.speculation, *self.refits)

    def to_json(self) -> str:
        """The steps by contract, with the other tables beside them."""
        document = {
            **self.steps.as_dict(),
            "digest": self.digest,
            "compared": [cell.as_dict() for cell in self.compared()],
            "sweeps": [sweep.as_dict() for sweep in self.sweeps],
            "iterations": None if self.iterations is None else self.iterations.as_dict(),
            **{str(kind): self.halves[kind].as_dict() if kind in self.halves else None for kind in HALVES},
            "cross": None if self.cross is None else self.cross.as_dict(),
            "refits_left_out": dict(self.refits_left_out),
        }
        return json.dumps(document, indent=2, allow_nan=False) + "\n"

    def text(self, style: Style = DEFAULT_STYLE) -> str:
        """For a terminal."""
        parts = [render(self.steps, style), group_table(self.compared(), style)]
        if self.iterations is not None:
            parts.append(render_measured(self.iterations, style))
        parts += [render_measured(found, style) for found in self.halves.values()]
        parts += [] if self.cross is None else [cross_text(self.cross, style)]
        return "\n\n".join([*parts, *(sweep.text(style) for sweep in self.sweeps)])


def group_errors(cells: Sequence[PublishedFigure]) -> list[tuple[str, int, float, float]]:
    """(group, number of figures, median absolute error, largest absolute error) in per cent."""
    out = []
    for group in dict.fromkeys(cell.group for cell in cells):
        errors = [cell.error_pct for cell in cells if cell.group == group]
        out.append((group, len(errors), quantile_abs(errors, 0.5) or 0.0, max(abs(e) for e in errors)))
    return out


def group_table(cells: Sequence[PublishedFigure], style: Style) -> str:
    """One line per group of figures."""
    body = [[group, str(n), f"{median:.1f} %", f"{worst:.1f} %"] for group, n, median, worst in group_errors(cells)]
    title = style.bold("Other published figures")
    return "\n".join([title, *table(["", "figures", "median error", "largest"], body, style)])


def run_published(
    seed: int = 0,
    replications: int = 4,
    progress: Callable[[int, int], None] | None = None,
    sweeps: Sequence[Path] = (),
    iterations: Path | None = None,
    halves: Mapping[Kind, Sequence[Path]] | None = None,
    cross: bool = False,
) -> Published:
    """Predict every published table that comes with rlsim, the sweeps at ``sweeps`` and the table at ``iterations``.

    halves: tables of training steps, transfers and phases by kind; those of one kind are scored together. cross: leave
    groups out of the joint fit as well. Raises InputError where one of these is no such table.
    """
    # First what a user gave: a mistake in it shows before the published tables take their minutes.
    swept = tuple(iteration_sweep(path) for path in sweeps)
    served = None if iterations is None else _measured(Kind.ITERATIONS, iterations, progress, seed)
    given = {kind: _joined(kind, (halves or {}).get(kind, ()), progress, seed) for kind in HALVES}
    done = [0, STUDY_SIMULATIONS]

    def rows(now: int, total: int) -> None:
        done[:] = [now, total + STUDY_SIMULATIONS]
        if progress is not None:
            progress(now, done[1])

    def tick() -> None:
        done[0] = min(done[0] + 1, done[1] - 1)
        if progress is not None:
            progress(*done)

    steps = validate(published_table("rl_steps.csv"), rows, seed, replications)
    cells = study(seed, replications, tick)
    refits, left_out = published_refits()
    found = Published(
        published_digest(),
        steps,
        cells,
        measured_speculation(),
        refits,
        left_out,
        swept,
        served,
        {kind: found for kind, found in given.items() if found is not None},
        validate_cross() if cross else None,
    )
    if progress is not None:
        progress(done[1], done[1])
    return found


def _joined(
    kind: Kind, paths: Sequence[Path], progress: Callable[[int, int], None] | None, seed: int
) -> MeasuredTable | None:
    """The tables at ``paths`` as one, None without any. Raises InputError where one is given twice."""
    for path in paths:
        if [one.resolve() for one in paths].count(path.resolve()) > 1:
            raise InputError(f"--{kind}: {shown_path(path)} is given more than once")
    return joined([_measured(kind, path, progress, seed) for path in paths]) if paths else None


def _measured(kind: Kind, path: Path, progress: Callable[[int, int], None] | None, seed: int) -> MeasuredTable:
    found = validate_table(path, kind, progress, seed)
    if not isinstance(found, MeasuredTable):
        raise TypeError(f"{path.name} was read as a table of steps")
    return found


def published_digest() -> str:
    """First 16 hex digits of the SHA-256 of the published tables, names included."""
    digest = hashlib.sha256()
    for path in sorted(published_table("").glob("*.csv")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:16]
