"""The sections of docs/ACCURACY.md on engine iterations, training steps, weight transfers and phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from research.markdown import SCORE_HEAD, code, left_out, plain, score_cells, signed, table
from rlsim.errors import shortened
from rlsim.evidence.published import published_table
from rlsim.evidence.tables import Kind
from rlsim.files.yaml import read_yaml
from rlsim.parameters.sets import (
    DEFAULT_ENGINES,
    DEFAULT_TRAINING,
    DEFAULT_TRANSFERS,
    load_engine_parameters,
    load_training_parameters,
    load_transfer_parameters,
)
from rlsim.report.format import number, percent
from rlsim.report.text.validation import notes
from rlsim.results.validation import ComparedRow, Published, Score, Validation
from rlsim.schema.engine_parameters import IterationFit, TransferFit
from rlsim.schema.parameters import TrainingFit

PICTURES = {
    "iterations": ("iterations_by_group.png", "model"),
    "training": ("training_by_release.png", "gpu"),
    "transfers": ("transfers_by_method.png", "gpu"),
    "phases": ("phases.png", "framework"),
}
"""Picture of predicted over measured of each kind of table, and the detail that its colours tell."""

WORST_ROWS = 12
"""Rows with the largest errors that a section lists."""


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
        "Predicted over measured by release, family, device and precision; the bar is the median, the shade reaches "
        "from 0.8 to 1.2, and what lies beyond an axis stands at its end.",
    ),
    Kind.TRANSFERS: _Section(
        "Weight transfers by method",
        "The time from the trainer's last update to weights that the engine can use, as its source timed it. "
        "A measurement of which several rows tell counts once.",
        "By framework and method",
        "transfers_by_method.png",
        "Predicted over measured by framework and method; the bar is the median, the shade reaches from 0.8 to 1.2, "
        "and what lies beyond an axis stands at its end.",
    ),
    Kind.PHASES: _Section(
        "Phases of RL steps",
        "Each phase that a step publishes beside that of the simulated step, with the stack of the row's framework "
        "and release. The whole step is compared only where a phase is published too.",
        "By phase",
        "phases.png",
        "Predicted over measured by phase; the bar is the median, the shade reaches from 0.8 to 1.2.",
    ),
}
WORST_GROUPS, LEAST_ROWS = 8, 20
"""Groups text as the worst, and rows that a group needs to be among them."""
_SIZES = ("up to 8", "9 to 63", "from 64 on")
_HOW = """A decode step alone (`decode_step_ms_est`, and the time per output token of decode workers that never prefill)
is one iteration of the running batch at its mean context. Aggregate serving is a closed loop at constant concurrency on
the replica of the simulation, with prompts prefilled between decode steps, averaged as its source averaged. The running
batch is the one that the table gives, else the one of Little's law; a plain row does not speculate. Columns and
definitions: [contracts](contracts.md). Bias is the median of predicted / measured - 1."""
_WITHOUT = """No table of measured iterations was given when this document was written, so the errors of the engine half
are left out here. The table is not part of rlsim; with it

    python -m research.accuracy --iterations TABLE.csv

writes them, the picture included ([contracts](contracts.md) lists the columns)."""


def iterations_section(found: Validation | None) -> str:
    """Markdown: measured iterations beside their predictions, or that they were left out; then the fit behind them."""
    fit = _fit(load_engine_parameters().fit, found)
    if found is None:
        return "\n\n".join(["## Engine iterations", _WITHOUT, fit])
    parts = ["## Engine iterations", _compared(found), _HOW]
    if found.scored:
        parts += [
            table(("what", *SCORE_HEAD), [["all rows", *score_cells(found.score)], *_sets(found.cuts)]),
            "### By engine and device",
            "Rows without speculation.",
            table(("engine and device", *SCORE_HEAD), [[n, *score_cells(s)] for n, s in _pairs(found.scored).items()]),
            f"![Predicted over measured iteration by group]({PICTURES['iterations'][0]})",
            "Predicted over measured by model, device and engine, the largest groups first; colour tells the model, "
            "the bar is the median of a group, the shaded band reaches from 0.8 to 1.2.",
        ]
    if notes(found):
        parts.append("\n".join(f"- {plain(note)}" for note in notes(found)))
    parts += ["### What was assumed", _assumed(found), fit, _worst(found)]
    parts.append(left_out("### Iterations not simulated", found.rows))
    return "\n\n".join(part for part in parts if part)


def group_explanations() -> Mapping[str, str]:
    """What is known of groups that are far off, by group (calibration/published/iteration_groups.yaml)."""
    return {str(key): str(text) for key, text in read_yaml(published_table("iteration_groups.yaml")).items()}


def _compared(found: Validation) -> str:
    name = shortened(found.table, 100)
    return (
        f"{len(found.scored):,} of the {len(found.rows):,} rows of {code(name)} (digest {found.digest}), measured by "
        f"others with vLLM, SGLang and TensorRT-LLM; the table is not part of rlsim. Made by\n\n"
        f"    python -m research.accuracy --iterations {name}"
    )


def _sets(cuts: Mapping[str, Score]) -> list[list[str]]:
    """Sets of rows with batches in the order of their size."""

    def place(name: str) -> tuple[bool, str, int]:
        size = next((i for i, text in enumerate(_SIZES) if name.endswith(text)), -1)
        return not name.startswith("plain"), name.removesuffix(_SIZES[size]) if size >= 0 else name, size

    return [[name, *score_cells(cuts[name])] for name in sorted(cuts, key=place)]


def _pairs(rows: Sequence[ComparedRow]) -> dict[str, Score]:
    """Scores of rows without speculation by engine and device."""
    found: dict[str, list[ComparedRow]] = {}
    for row in rows:
        if not row.details["speculative"]:
            found.setdefault(f"{row.details['engine']} on {row.details['gpu']}", []).append(row)
    return {name: Score.of(found[name]) for name in sorted(found)}


def _assumed(found: Validation) -> str:
    return "\n".join(f"- {plain(remark)}" for remark in found.remarks) or "Nothing."


def _fit(fit: IterationFit, found: Validation | None) -> str:
    """What the host and graph terms of engines were fitted to, and how well."""
    file = f"### The fit\n\n`calibration/engines/{DEFAULT_ENGINES}.yaml`: "
    if not fit.rows:
        return file + "starting values, before any fit."
    same = "" if found is None or found.digest == fit.data_digest else ", a table other than the one above"
    return (
        f"{file}{fit.rows:,} rows (digest {fit.data_digest}{same}), by {code(fit.command)}: median "
        f"error {percent(fit.median_error, 1)}, p90 {percent(fit.p90_error, 1)}. With the rows of one engine on one "
        f"device left out of it at a time, the median error on those rows is {percent(fit.held_out_median_error, 1)}."
    )


def _worst(found: Validation) -> str:
    known = group_explanations()
    large = [(name, score) for name, score in found.groups.items() if score.n >= LEAST_ROWS]
    large.sort(key=lambda item: -(item[1].median_abs_error or 0.0))
    rows = [[name, *score_cells(score), known.get(name, "not known")] for name, score in large[:WORST_GROUPS]]
    title = f"### Worst groups of at least {LEAST_ROWS} rows"
    return f"{title}\n\n{table(('group', *SCORE_HEAD, 'why'), rows) or 'No group has as many.'}"


def table_sections(found: Published, explained: Mapping[str, str]) -> str:
    """Markdown: a section for training, transfers and phases each, or that its table was left out.

    explained: why rows are off, by id, where that is known.
    """
    return "\n\n".join(_section(kind, getattr(found, kind), explained) for kind in _SECTIONS)


def _section(kind: Kind, found: Validation | None, explained: Mapping[str, str]) -> str:
    about = _SECTIONS[kind]
    fit = _fit_of(kind, found)
    if found is None:
        without = (
            f"No table of {kind} was given when this document was written (`--{kind} TABLE.csv`), so it tells no "
            "errors of these."
        )
        return "\n\n".join(part for part in (f"## {about.title}", without, fit) if part)
    parts = [f"## {about.title}", _compared_tables(kind, found), about.how]
    if found.scored:
        parts += [
            table(("what", *SCORE_HEAD), [["all rows", *score_cells(found.score)], *_scores(found.cuts)]),
            f"### {about.groups}",
            table(("group", *SCORE_HEAD), _scores(found.groups)),
            f"![{about.title}: predicted over measured]({about.picture})",
            about.caption,
        ]
    parts += ["\n".join(f"- {plain(line)}" for line in (*notes(found), *found.remarks)), fit]
    parts += [_worst_rows(about, found, explained), left_out(f"### {about.title} not scored", found.rows)]
    return "\n\n".join(part for part in parts if part)


def _compared_tables(kind: Kind, found: Validation) -> str:
    names = [shortened(name, 100) for name in found.table.split(", ")]
    given = " ".join(f"--{kind} {name}" for name in names)
    return (
        f"{len(found.scored):,} of the {len(found.rows):,} rows of {', '.join(map(code, names))} (digest "
        f"{found.digest}), measured by others. Made by\n\n"
        f"    python -m research.accuracy {given}"
    )


def _scores(scores: Mapping[str, Score]) -> list[list[str]]:
    return [[name, *score_cells(scores[name])] for name in sorted(scores)]


def _fit_of(kind: Kind, found: Validation | None) -> str:
    """What the terms of a kind were fitted to, and how well they do on what was left out of the fit."""
    if kind is Kind.TRAINING:
        fit, file = load_training_parameters().fit, f"calibration/training/{DEFAULT_TRAINING}.yaml"
        return "\n\n".join([_fit_text("### The fit of training", file, fit, {}, found), _terms_alone(fit)])
    if kind is Kind.TRANSFERS:
        moved, file = load_transfer_parameters().fit, f"calibration/transfers/{DEFAULT_TRANSFERS}.yaml"
        held = {"one framework": moved.held_out_median_error}
        return _fit_text("### The fit of transfers", file, moved, held, found)
    return ""


def _fit_text(
    title: str, file: str, fit: TrainingFit | TransferFit, held_out: Mapping[str, float], found: Validation | None
) -> str:
    if not fit.rows:
        return f"{title}\n\n`{file}`: starting values, before any fit."
    same = found is None or set(found.digest.split(", ")) == set(fit.data_digest.split())
    text = (
        f"`{file}`: {fit.rows:,} rows (digest {fit.data_digest}{'' if same else ', tables other than those above'}), "
        f"by {code(fit.command)}: median error {percent(fit.median_error, 1)}, p90 {percent(fit.p90_error, 1)}."
    )
    rows = [[name, percent(error, 1)] for name, error in held_out.items()]
    return "\n\n".join([title, text, table(("left out of the fit", "median error on its rows"), rows)]).strip()


def _terms_alone(fit: TrainingFit) -> str:
    """Errors of the terms without deviations of groups, by family: in the fit, and with groups left out of it."""
    ways = list(dict.fromkeys(way for errors in fit.families.values() for way in errors))
    rows = [
        [family, *(f"{percent(errors[way].median, 1)} / {percent(errors[way].p90, 1)}" for way in ways)]
        for family, errors in fit.families.items()
    ]
    head = "Terms alone, no deviation of any group; median error / 90th percentile, as fitted and with groups left out:"
    heads = [way if way == ways[0] else f"{way} left out" for way in ways]
    return f"{head}\n\n{table(('rows', *heads), rows)}" if rows else ""


def _worst_rows(about: _Section, found: Validation, explained: Mapping[str, str]) -> str:
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
    text = table(("row", "group", "measured", "predicted", "error", "why"), rows)
    return f"### {about.title}: largest errors\n\n{text}" if text else ""
