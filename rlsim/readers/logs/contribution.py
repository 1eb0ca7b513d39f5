"""A measured run that its owner gives away: one row, a scenario without words of theirs, and what rlsim says of it."""

import csv
import hashlib
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel

from rlsim.errors import InputError
from rlsim.files.lookup import catalogue, find_entry
from rlsim.loading.models import list_cards, load_card
from rlsim.loading.scenario import scenario_of_text
from rlsim.parameters.sets import load_stack
from rlsim.projection.efficiency import efficiency_of
from rlsim.projection.precision import precise
from rlsim.projection.variant import simulate_variant
from rlsim.readers.logs.answer import median_of
from rlsim.readers.logs.naming import PHASES, Quantity
from rlsim.readers.logs.steady import Steady
from rlsim.report.format import seconds
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.model import ModelCard
from rlsim.schema.scenario import Scenario
from rlsim.schema.trainer import Stack
from rlsim.tables.profile import list_profiles, load_profile

COLUMNS: Mapping[Quantity, str] = {
    "generation": "generation_s", "exposed_generation": "exposed_generation_s", "logprob": "logprob_total_s",
    "train": "train_s", "refit": "weight_sync_s", "step": "total_step_s",
}  # fmt: skip
"""Column of the table of users' runs (rlsim validate table --kind wild) of each phase."""
UNNAMED = "contributed"
"""In place of a text that is nobody's business."""
TEXTS = frozenset({"question", "assumptions", "missing", "description", "source", "sources", "simulation", "run"})
"""Keys that are left out wherever they are not needed: words of people, and what is none of the run's."""
VERSION = re.compile(r"\d{1,4}(\.\d{1,3}){1,2}")
"""Releases of software; four numbers may be an address."""
SHIPPED: Mapping[type[BaseModel], tuple[tuple[str, ...], Callable[[str], BaseModel]]] = {
    HardwareProfile: (("hardware_profiles",), load_profile),
    ModelCard: (("scenarios", "models"), load_card),
    Stack: (("calibration", "stacks"), load_stack),
}
"""Records that come with rlsim by kind: the folder that they lie in, and what reads one."""
SUM_SLACK = 1.02
"""Times the step up to which its parts may add up: clocks of phases overlap a little."""
FAR = 10.0
"""Times by which a measured phase may differ from its prediction; beyond it one of both is of something else."""


TEXT = """# A measured run: {model} on {num_gpus} {gpu}, {framework}

Medians of {steps} steady steps, read from a log by `rlsim contribute`: `steps.csv` (one row), `scenarios/{id}.yaml`.

## Measured beside predicted

{told}

## Left out of the scenario

{removed}. No path, host, name or text of the log is in these files.

The row may be published under the licence of the repository.
"""


@dataclass(frozen=True)
class Contribution:
    """What is given away. row: cells of the table by column; scenario_yaml: the run; removed: keys that were left out;
    objections: why it cannot be true, empty where it can; lines: measured beside predicted, in words."""

    row: Mapping[str, str]
    scenario_yaml: str
    removed: tuple[str, ...]
    objections: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def name(self) -> str:
        """Id of the row: a digest of what it holds."""
        return self.row["id"]

    @property
    def table(self) -> str:
        """The row as a CSV file with its header."""
        out = io.StringIO()
        writer = csv.DictWriter(out, list(self.row), lineterminator="\n")
        writer.writeheader()
        writer.writerow(self.row)
        return out.getvalue()

    @property
    def text(self) -> str:
        """The text of a pull request."""
        removed = ", ".join(f"`{key}`" for key in self.removed) or "nothing"
        told = "\n".join(f"- {line}" for line in self.lines)
        return TEXT.format(**self.row, removed=removed, told=told)


def contribution_of(scenario: Scenario, steady: Steady, framework: str, source: str = UNNAMED) -> Contribution:
    """A run to give away. framework: as the log names its metrics; source: how its owner wants to be named.

    Raises InputError where what is left is no scenario, and Infeasible where it cannot run.
    """
    document, removed = anonymous(scenario)
    measured = {name: steady.found[name].median for name in PHASES if name in steady.found and name in COLUMNS}
    about = {
        "source": source, "framework": framework, "model": _known_name(scenario.model.name, list_cards()),
        "gpu": _known_name(scenario.hardware.name, list_profiles()), "num_gpus": str(scenario.cluster.num_gpus),
        "steps": str(max(steady.found[name].count for name in measured)),
    }  # fmt: skip
    cells = {column: f"{measured[name]:.6g}" if name in measured else "" for name, column in COLUMNS.items()}
    digest = hashlib.sha256(repr((document, cells)).encode()).hexdigest()[:12]
    name = f"c_{digest}"
    text = yaml.safe_dump({"name": name, **document}, sort_keys=False)
    left = scenario_of_text(text, "the scenario that is left")
    objections, lines = _compared(left, measured, steady.span)
    # What the run has beside the scenario is told in words, which may be anybody's: that there is something stays.
    flag = "incomplete: the run has parts that the scenario lacks" if scenario.missing else ""
    return Contribution({"id": name, **about, **cells, "flag": flag, "notes": ""}, text, removed, objections, lines)


def _compared(
    scenario: Scenario, measured: Mapping[Quantity, float], span: int = 1
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Why measured seconds cannot be true, and each beside its prediction."""
    run = precise(simulate_variant(scenario))
    objections, lines = list[str](), list[str]()
    parts_s = sum(value for name, value in measured.items() if name != "step")
    if "step" in measured and parts_s > SUM_SLACK * measured["step"] and scenario.loop.mode == "sync":
        objections.append(f"phases of {seconds(parts_s)} do not fit into a step of {seconds(measured['step'])}")
    use = {one.phase.removesuffix("_s"): one for one in efficiency_of(run)}
    for name, value in measured.items():
        expected = median_of(run, name, span)
        if expected is None or not expected.mean:
            lines.append(f"{name}: {seconds(value)} measured, none in the scenario")
            continue
        within = "inside" if expected.low <= value <= expected.high else "outside"
        range_s = f"{seconds(expected.mean)} [{seconds(expected.low)}, {seconds(expected.high)}]"
        lines.append(f"{name}: {seconds(value)} measured, {range_s} predicted, {within} the 90 % interval")
        if name in use and (mfu := use[name].mfu * expected.mean / value) > 1.0:
            objections.append(f"{name} in {seconds(value)} would take {mfu:.0%} of the GPUs' peak")
        elif not 1.0 / FAR < value / expected.mean < FAR:
            objections.append(
                f"{name} of {seconds(value)} is not of this scenario: {seconds(expected.mean)} are expected"
            )
    return tuple(objections), tuple(lines)


def anonymous(scenario: Scenario) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The scenario as a document in which every text is one of rlsim's own words, and the keys that were left out.

    Numbers stay, names of shipped models, devices and stacks, versions, and words that the schema lists. A model or a
    device of one's own keeps its numbers under another name.
    """
    removed: list[str] = []
    document = _record(scenario, "", removed)
    document.pop("name", None)
    # Whole iterations and passes as a toy or a device without tables showed them: without these nothing prices its run.
    if (own := scenario.simulation.measured_stack) is not None:
        kept, model = _record(own, "simulation.measured_stack.", removed), document["model"]
        kept["model"] = model if isinstance(model, str) else model["name"]  # as the scenario calls it now
        document["simulation"] = {"measured_stack": kept}
        if (hosts := scenario.simulation.engine_parameters) is not None:  # of an engine that rlsim knows nothing of
            document["simulation"]["engine_parameters"] = _record(hosts, "simulation.engine_parameters.", removed)
    return document, tuple(dict.fromkeys(removed))


def _record(record: BaseModel, path: str, removed: list[str]) -> dict[str, Any]:
    """The content of a record without what is as by default, and without texts of people."""
    out: dict[str, Any] = {}
    for name, field in type(record).model_fields.items():
        value, key = getattr(record, name), f"{path}{name}"
        told_apart_by = get_origin(field.annotation) is Literal  # the kind of a distribution
        if not field.is_required() and not told_apart_by and value == field.get_default(call_default_factory=True):
            continue
        if name in TEXTS and not field.is_required():
            removed.append(key)
            continue
        kept = _value(value, key, frozenset(_words(field.annotation)), removed)
        if kept is not None:
            out[name] = kept
        elif field.is_required():
            out[name] = UNNAMED
    return out


def _value(value: Any, key: str, words: frozenset[str], removed: list[str]) -> Any:
    """What is kept of a value; None where nothing is. words: texts that its field may hold."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        if value in words or VERSION.fullmatch(value):
            return value
        removed.append(key)
        return None
    if isinstance(value, HardwareProfile | ModelCard | Stack) and (name := _shipped(value)):
        return name
    if isinstance(value, BaseModel):
        return _record(value, f"{key}.", removed)
    if isinstance(value, Mapping):
        # A key of a mapping may be a word of somebody as well.
        kept = {each: _value(entry, f"{key}.*", words, removed) for each, entry in value.items() if _plain(each, words)}
        return kept if len(kept) == len(value) else None
    if isinstance(value, list | tuple):
        return [_value(entry, f"{key}[]", words, removed) for entry in value]
    removed.append(key)
    return None


def _plain(key: object, words: frozenset[str]) -> bool:
    return isinstance(key, int | float) or key in words


def _words(annotation: Any) -> Iterator[str]:
    """The texts that a type lists."""
    for one in get_args(annotation):
        if isinstance(one, str):
            yield one
        else:
            yield from _words(one)


def _shipped(record: HardwareProfile | ModelCard | Stack) -> str:
    """The name of a shipped record of the same content; empty where there is none. No file of that name is read."""
    folder, load = SHIPPED[type(record)]
    try:
        found = load(find_entry(record.name, catalogue(*folder), "record").stem)
    except InputError:
        return ""
    return record.name if found == record else ""


def _known_name(name: str, known: list[str]) -> str:
    """A name that rlsim itself has, else none of anybody's."""
    return name if name.casefold() in {one.casefold() for one in known} else UNNAMED
