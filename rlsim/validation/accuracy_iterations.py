"""The section of docs/ACCURACY.md on engine iterations, and the picture beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlsim.errors import shortened
from rlsim.files.yaml import read_yaml
from rlsim.parameters.sets import DEFAULT_ENGINES, load_engine_parameters
from rlsim.report.format import percent
from rlsim.schema.engine_parameters import IterationFit
from rlsim.validation.markdown import SCORE_HEAD, code, left_out, plain, score_cells, table
from rlsim.validation.measured import MeasuredRow, MeasuredTable
from rlsim.validation.scores import Score
from rlsim.validation.study import published_table

PICTURE = "iterations_by_batch.png"
"""Stands beside the document."""
WORST_GROUPS, LEAST_ROWS = 8, 20
"""Groups told as the worst, and rows that a group needs to be among them."""
_SIZES = ("up to 8", "9 to 63", "from 64 on")
_HOW = """A decode step alone (`decode_step_ms_est`, and the time per output token of decode workers that never prefill)
is one iteration of the running batch at its mean context. Aggregate serving is a closed loop at constant concurrency on
the replica of the simulation, with prompts prefilled between decode steps, averaged as its source averaged. The running
batch is the one that the table gives, else the one of Little's law; a plain row does not speculate. Columns and
definitions: [contracts](contracts.md). Bias is the median of predicted / measured - 1."""
_WITHOUT = """No table of measured iterations was given when this document was written, so the errors of the engine half
are left out here. The table is not part of rlsim; with it

    rlsim validate --published --iterations TABLE.csv --write-accuracy docs/ACCURACY.md

writes them, the picture included ([contracts](contracts.md) lists the columns)."""


def iterations_section(found: MeasuredTable | None) -> str:
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
            f"![Predicted over measured iteration by running batch]({PICTURE})",
            "Predicted over measured by running batch, one panel for each engine and device; colour tells the model, "
            "an open mark speculates, the shaded band reaches from 0.8 to 1.25.",
        ]
    if found.notes:
        parts.append("\n".join(f"- {plain(note)}" for note in found.notes))
    parts += ["### What was assumed", _assumed(found), fit, _worst(found)]
    parts.append(left_out("### Iterations not simulated", found.rows))
    return "\n\n".join(part for part in parts if part)


def write_picture(found: MeasuredTable | None, folder: Path) -> None:
    """Write the picture that the section names into the existing ``folder``, where there is anything to show."""
    from rlsim.validation.measured_plots import by_batch

    if found is not None and found.scored:
        by_batch(found, folder / PICTURE)


def group_explanations() -> Mapping[str, str]:
    """What is known of groups that are far off, by group (calibration/published/iteration_groups.yaml)."""
    return {str(key): str(text) for key, text in read_yaml(published_table("iteration_groups.yaml")).items()}


def _compared(found: MeasuredTable) -> str:
    name = shortened(found.table, 100)
    return (
        f"{len(found.scored):,} of the {len(found.rows):,} rows of {code(name)} (digest {found.digest}), measured by "
        f"others with vLLM, SGLang and TensorRT-LLM; the table is not part of rlsim. Made by\n\n"
        f"    rlsim validate --published --iterations {name} --write-accuracy docs/ACCURACY.md"
    )


def _sets(cuts: Mapping[str, Score]) -> list[list[str]]:
    """Sets of rows with batches in the order of their size."""

    def place(name: str) -> tuple[bool, str, int]:
        size = next((i for i, text in enumerate(_SIZES) if name.endswith(text)), -1)
        return not name.startswith("plain"), name.removesuffix(_SIZES[size]) if size >= 0 else name, size

    return [[name, *score_cells(cuts[name])] for name in sorted(cuts, key=place)]


def _pairs(rows: Sequence[MeasuredRow]) -> dict[str, Score]:
    """Scores of rows without speculation by engine and device."""
    found: dict[str, list[MeasuredRow]] = {}
    for row in rows:
        if not row.details["speculative"]:
            found.setdefault(f"{row.details['engine']} on {row.details['gpu']}", []).append(row)
    return {name: Score.of(found[name]) for name in sorted(found)}


def _assumed(found: MeasuredTable) -> str:
    return "\n".join(f"- {plain(remark)}" for remark in found.remarks) or "Nothing."


def _fit(fit: IterationFit, found: MeasuredTable | None) -> str:
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


def _worst(found: MeasuredTable) -> str:
    known = group_explanations()
    large = [(name, score) for name, score in found.groups.items() if score.n >= LEAST_ROWS]
    large.sort(key=lambda item: -(item[1].median_abs_error or 0.0))
    rows = [[name, *score_cells(score), known.get(name, "not known")] for name, score in large[:WORST_GROUPS]]
    title = f"### Worst groups of at least {LEAST_ROWS} rows"
    return f"{title}\n\n{table(('group', *SCORE_HEAD, 'why'), rows) or 'No group has as many.'}"
