"""The sections of docs/ACCURACY.md on training steps, weight transfers and phases, and the pictures beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlsim.errors import shortened
from rlsim.parameters.sets import (
    DEFAULT_TRAINING,
    DEFAULT_TRANSFERS,
    load_training_parameters,
    load_transfer_parameters,
)
from rlsim.report.format import number, percent
from rlsim.schema.training_parameters import TrainingFit
from rlsim.schema.transfer_parameters import TransferFit
from rlsim.validation.kind import Kind
from rlsim.validation.markdown import SCORE_HEAD, code, left_out, plain, score_cells, signed, table
from rlsim.validation.measured import FLAGGED, MeasuredRow, MeasuredTable
from rlsim.validation.scores import Score

WORST_ROWS = 12
"""Rows with the largest errors that a section lists."""
HALVES = (Kind.TRAINING, Kind.TRANSFERS, Kind.PHASES)
"""Kinds of tables that these sections are about, in their order."""


@dataclass(frozen=True)
class _Section:
    """What the section of one kind says besides figures. groups: heading of its groups. picture: its file."""

    title: str
    how: str
    groups: str
    picture: str
    caption: str


_SECTIONS = {
    Kind.TRAINING: _Section(
        "Training steps",
        "Forward, backward and optimizer of one global batch, with the features of the newest stack of the row's "
        "framework that is not newer than its release. No term belongs to a model. `step_time_s` where it was "
        "measured, else the time that the published throughput implies.",
        "By framework and release, family, device and precision",
        "training_by_release.png",
        "Predicted over measured by release, dense models above and MoE models below; the bar is the median of a "
        "release, the shade reaches from 0.88 to 1.12, and what lies beyond an axis stands at its end.",
    ),
    Kind.TRANSFERS: _Section(
        "Weight transfers by method",
        "The time from the trainer's last update to weights that the engine can use, as its source timed it. "
        "A measurement of which several rows tell counts once.",
        "By framework and method",
        "transfers_by_method.png",
        "Predicted over measured by framework and method; the bar is the median, the shade reaches from 0.75 to 1.25, "
        "and what lies beyond an axis stands at its end.",
    ),
    Kind.PHASES: _Section(
        "Phases of RL steps",
        "Each phase that a step publishes beside that of the simulated step, with the stack of the row's framework "
        "and release. The whole step is compared only where a phase is published too.",
        "By phase",
        "phases.png",
        "Predicted over measured by phase; the bar is the median, the shade reaches from 0.75 to 1.25.",
    ),
}


def halves_sections(found: Mapping[Kind, MeasuredTable], explained: Mapping[str, str]) -> str:
    """Markdown: a section for training, transfers and phases each, or that its table was left out.

    explained: why rows are off, by id, where that is known.
    """
    return "\n\n".join(_section(kind, found.get(kind), explained) for kind in HALVES)


def write_half_pictures(found: Mapping[Kind, MeasuredTable], folder: Path) -> None:
    """Write the pictures that the sections name into the existing ``folder``, where there is anything to show."""
    for kind, measured in found.items():
        if measured.scored:
            draw_half(measured, folder / _SECTIONS[kind].picture)


def draw_half(found: MeasuredTable, path: Path) -> None:
    """Draw predicted over measured of training steps by release, of transfers and phases by group."""
    from rlsim.validation.ratio_plots import by_group, by_release

    if found.kind == Kind.TRAINING:
        by_release(found, path)
    elif found.kind == Kind.TRANSFERS:
        by_group(found, path, "Predicted over measured weight transfer, by framework and method", "gpu")
    else:
        by_group(found, path, "Predicted over measured phase of an RL step", "framework")


def joined(tables: Sequence[MeasuredTable]) -> MeasuredTable:
    """Several tables of one kind as one, in order; a transfer that several rows tell of is scored once."""
    rows = [row for one in tables for row in one.rows]
    return MeasuredTable(
        tables[0].kind,
        ", ".join(one.table for one in tables),
        ", ".join(one.digest for one in tables),
        tuple(_each_once(rows) if tables[0].kind == Kind.TRANSFERS else rows),
        tuple(dict.fromkeys(remark for one in tables for remark in one.remarks)),
        notes=tuple(dict.fromkeys(note for one in tables for note in one.notes)),
    )


def _each_once(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """Rows of which those are skipped whose measurement an earlier row tells, or any row objects to by its flag."""
    objected = {_measurement(row) for row in rows if (row.skipped or "").startswith(FLAGGED)}
    known: set[tuple[object, ...]] = set()
    out = []
    for row in rows:
        key = _measurement(row)
        left = replace(row, predicted=None, low=None, high=None, cuts=())
        if row.predicted is None:
            out.append(row)
        elif key in objected:
            out.append(left.skip("the flag of another row of the same measurement"))
        else:
            out.append(left.skip("the same measurement as an earlier row") if key in known else row)
        known.add(key)
    return out


def _measurement(row: MeasuredRow) -> tuple[object, ...]:
    """What rows of one measurement agree in: framework and method, model, engine GPUs, seconds within about 1 %."""
    model = str(row.details.get("model", "")).split("/")[-1].lower()
    return row.group, model, row.details.get("gen_gpus"), f"{math.log(row.measured or 1.0):.2f}"


def _section(kind: Kind, found: MeasuredTable | None, explained: Mapping[str, str]) -> str:
    about = _SECTIONS[kind]
    fit = _fit(kind, found)
    if found is None:
        without = (
            f"No table of {kind} was given when this document was written (`--{kind} TABLE.csv`), so it tells no "
            "errors of these."
        )
        return "\n\n".join(part for part in (f"## {about.title}", without, fit) if part)
    parts = [f"## {about.title}", _compared(kind, found), about.how]
    if found.scored:
        parts += [
            table(("what", *SCORE_HEAD), [["all rows", *score_cells(found.score)], *_scores(found.cuts)]),
            f"### {about.groups}",
            table(("group", *SCORE_HEAD), _scores(found.groups)),
            f"![{about.title}: predicted over measured]({about.picture})",
            about.caption,
        ]
    parts += ["\n".join(f"- {plain(line)}" for line in (*found.notes, *found.remarks)), fit]
    parts += [_worst(about, found, explained), left_out(f"### {about.title} not scored", found.rows)]
    return "\n\n".join(part for part in parts if part)


def _compared(kind: Kind, found: MeasuredTable) -> str:
    names = [shortened(name, 100) for name in found.table.split(", ")]
    given = " ".join(f"--{kind} {name}" for name in names)
    return (
        f"{len(found.scored):,} of the {len(found.rows):,} rows of {', '.join(map(code, names))} (digest "
        f"{found.digest}), measured by others. Made by\n\n"
        f"    rlsim validate --published {given} --write-accuracy docs/ACCURACY.md"
    )


def _scores(scores: Mapping[str, Score]) -> list[list[str]]:
    return [[name, *score_cells(scores[name])] for name in sorted(scores)]


def _fit(kind: Kind, found: MeasuredTable | None) -> str:
    """What the terms of a kind were fitted to, and how well they do on what was left out of the fit."""
    if kind is Kind.TRAINING:
        fit, file = load_training_parameters().fit, f"calibration/training/{DEFAULT_TRAINING}.yaml"
        held = {f"one {name}": error for name, error in fit.held_out_median_error.items()}
        return _told_fit("### The fit of training", file, fit, held, found)
    if kind is Kind.TRANSFERS:
        moved, file = load_transfer_parameters().fit, f"calibration/transfers/{DEFAULT_TRANSFERS}.yaml"
        held = {"one framework": moved.held_out_median_error}
        return _told_fit("### The fit of transfers", file, moved, held, found)
    return ""


def _told_fit(
    title: str, file: str, fit: TrainingFit | TransferFit, held_out: Mapping[str, float], found: MeasuredTable | None
) -> str:
    if not fit.rows:
        return f"{title}\n\n`{file}`: starting values, before any fit."
    same = found is None or set(found.digest.split(", ")) == set(fit.data_digest.split())
    told = (
        f"`{file}`: {fit.rows:,} rows (digest {fit.data_digest}{'' if same else ', tables other than those above'}), "
        f"by {code(fit.command)}: median error {percent(fit.median_error, 1)}, p90 {percent(fit.p90_error, 1)}."
    )
    rows = [[name, percent(error, 1)] for name, error in held_out.items()]
    return "\n\n".join([title, told, table(("left out of the fit", "median error on its rows"), rows)]).strip()


def _worst(about: _Section, found: MeasuredTable, explained: Mapping[str, str]) -> str:
    worst = sorted(found.scored, key=lambda row: (-abs(row.error or 0.0), row.id))[:WORST_ROWS]
    rows = [
        [
            row.id,
            row.group,
            f"{number(row.measured or 0.0)} {row.unit}",
            f"{number(row.predicted or 0.0)} {row.unit}",
            signed(100 * (row.error or 0.0)),
            explained.get(row.id, "not known"),
        ]
        for row in worst
    ]
    told = table(("row", "group", "measured", "predicted", "error", "why"), rows)
    return f"### {about.title}: largest errors\n\n{told}" if told else ""
