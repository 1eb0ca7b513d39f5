"""What the site shows of the evidence: published tables beside their predictions, and what releases were worth."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rlsim.errors import InputError
from rlsim.evidence import Kind
from rlsim.evidence.compare import validate_table
from rlsim.evidence.published import published_table
from rlsim.files.reading import data_folder
from rlsim.loading.models import load_card
from rlsim.results.site import Anchor, PastScore
from rlsim.results.validation import ComparedRow, Validation
from rlsim.tables.profile import list_profiles

TABLES: Mapping[Kind, str] = {
    Kind.STEPS: "rl_steps.csv",
    Kind.WILD: "wild/steps.csv",
    Kind.TRAINING: "training_steps.csv",
    Kind.TRANSFERS: "refit_more.csv",
    Kind.ITERATIONS: "iterations.csv",
    Kind.ROLLOUTS: "rollouts.csv",
}
"""The published table of each kind; that of iterations is the sample that comes with rlsim."""
REPLICATIONS = 4
"""Of every simulated step, as ``rlsim validate published`` takes."""
OF_STEP = ":step"
"""End of the names of rows that hold whole steps of users' runs."""


Runner = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[tuple[int, Any]]]
"""run(function, tasks): pairs of number and result, in any order (planning/execution.py)."""


def shown_tables(kinds: Mapping[Kind, str], run: Runner, advance: Callable[[int], object]) -> dict[str, Validation]:
    """The published tables beside their predictions, by kind; ``advance`` is called with 1 after each."""
    found = dict[int, Validation]()
    for index, table in run(_shown, list(kinds.items())):
        found[index] = table
        advance(1)
    return {str(kind): found[index] for index, kind in enumerate(kinds)}


def _shown(table: tuple[Kind, str]) -> Validation:
    kind, name = table
    return validate_table(published_table(name), kind, replications=REPLICATIONS)


def anchors(tables: Mapping[str, Validation]) -> list[Anchor]:
    """Measured steps with the names that models and devices have here; of a device of which several forms are known
    (h100) the first of them that is on SXM or in a rack."""
    scored = {kind: tables[kind].scored for kind in (Kind.STEPS, Kind.WILD) if kind in tables}
    return [
        _anchor(row) for kind, rows in scored.items() for row in rows
        if kind == Kind.STEPS or row.id.endswith(OF_STEP)
    ]  # fmt: skip


def _anchor(row: ComparedRow) -> Anchor:
    about = row.details
    device = str(about.get("device") or about.get("gpu")).lower()
    known = [name for name in list_profiles() if name.partition("_")[0] == device.partition("-")[0].partition(" ")[0]]
    forms = [name for name in known if name.endswith(("_sxm", "_nvl72"))]
    return Anchor(
        id=row.id, model=_model(str(about["model"])), device=next(iter([*forms, *known]), device),
        mode="async" if str(about.get("mode", "")).startswith("async") else "sync",
        release=str(about.get("release") or about.get("framework") or ""), measured_s=row.measured or 0.0,
        predicted_s=row.predicted or 0.0, low_s=row.low, high_s=row.high,
    )  # fmt: skip


def _model(name: str) -> str:
    """The card of that name, however it is called there."""
    try:
        return load_card(name).name.lower().removesuffix("-instruct")
    except InputError:
        return name.rpartition("/")[2].lower()


def past_scores() -> list[PastScore]:
    """What the accuracy pages of former releases said (calibration/releases.csv)."""
    with (data_folder("calibration") / "releases.csv").open(newline="", encoding="utf-8") as file:
        return [PastScore.model_validate(row) for row in csv.DictReader(file)]
