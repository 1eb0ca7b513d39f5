"""What rows of measured tables become before anything is simulated: hundreds drawn a kind, and every odd cell alone.

A row is a published one with up to four of its cells as other rows have them or as people write them; what is held of
it is a digest of the scenario, load or transfer that it describes, or of the keys that the reason names;
``python -m tests.golden.edges KIND NUMBER`` prints a row and what it becomes, here or in an earlier checkout.
"""

import hashlib
import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from golden_tables import published
from measured_tables import PHASES, ROW

from rlsim.errors import RlsimError
from rlsim.evidence import Kind
from rlsim.evidence.acceptance import speculating_engines
from rlsim.evidence.compare import COMPARISONS
from rlsim.evidence.engines import engine_setup, load_of
from rlsim.evidence.memory.rows import probability
from rlsim.evidence.memory.scenarios import engine_row, is_engine, trainer_row
from rlsim.evidence.phases import known_phases, phase_scenario, step_cells
from rlsim.evidence.rollouts import run_of
from rlsim.evidence.shown import benchmark
from rlsim.evidence.steps import scenario_of
from rlsim.evidence.tables import Row, SkippedRow, Table
from rlsim.evidence.training import _cuts
from rlsim.evidence.training import trainer_row as trained_row
from rlsim.evidence.transfers import transfer_job
from rlsim.evidence.wild import phases_of
from rlsim.parameters.sets import shipped
from rlsim.schema.scenario import Scenario
from tests.golden.plain import plain

NAMED = r"\b[a-z]+(?:[._][a-z_]+)+|'[^' /]+'|\b\d[\d.,]*"
"""Of a message what is held: keys, quoted words and numbers; its wording is free."""
DRAWN = 120
"""Rows of each kind."""
APART = {"model", "hardware", "stack", "name", "parameters"}
CELLS = Path(__file__).with_name("edges.txt")


def lines_of(kind: str) -> list[str]:
    """Lines of a kind in the file of cells."""
    return CELLS.read_text(encoding="utf-8").partition(f"[{kind}]\n")[2].partition("\n[")[0].splitlines()


def cells_of(kind: str) -> dict[str, list[str]]:
    """Cells of a kind by column."""
    found = dict[str, list[str]]()
    for line in lines_of(kind):
        columns, _, values = line.partition(":")
        if not line.startswith("+"):
            found |= {column: [value.strip() for value in values.split("|")] for column in columns.split()}
    return found


def together(kind: str) -> Iterator[dict[str, str]]:
    """Cells that stand together in a row of a kind."""
    for line in lines_of(kind):
        if line.startswith("+"):
            pairs = (one.partition("=") for one in line[1:].split(";"))
            yield {column.strip(): value.strip() for column, _, value in pairs}


def rows(kind: str, bases: Sequence[Row], cells: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Row]]:
    """Drawn rows, then the first base and the last with every odd cell alone, and with cells that stand together."""
    for number in range(DRAWN):
        rnd = random.Random(f"{kind} {number}")
        row = dict(rnd.choice(bases))
        for column in rnd.sample(sorted(cells), rnd.randrange(1, 5)):
            row[column] = rnd.choice(cells[column])
        yield f"{number}", row
    alone = [{column: value} for column, values in cells.items() for value in values]
    for base in (bases[0], bases[-1]):
        for more in (*alone, *together(kind)):
            yield str(more), {**base, **more}


def scenario(of: Scenario) -> Any:
    """What a row said of its scenario."""
    stack = of.stack.model_dump(mode="json", include={"name", "release"}) if of.stack else {}
    card, device = of.model, of.hardware
    told = of.model_dump(mode="json", exclude=APART, exclude_defaults=True)
    return [card.name, card.num_layers, card.mtp_layers, device.name, device.memory_bytes.value, stack, told]


def described(kind: Kind, cells: Row) -> Any:
    """The measured rows of a record."""
    return [{name: getattr(one, name) for name in ("id", "group", "unit", "measured", "details")}
            for one in COMPARISONS[kind].describe("a", cells)]  # fmt: skip


def _step(cells: Row) -> Any:
    return scenario(scenario_of(cells))


def _phased(cells: Row) -> Any:
    return scenario(phase_scenario(cells))


def predicted(kind: Kind, cells: Row) -> Any:
    """Predictions of the measured rows of a record."""
    of = COMPARISONS[kind]
    found = [of.predictor(Table("t", ()), shipped())(row) for row in of.describe("a", cells)]
    return [[asdict(one), one.cuts] for one in found]


def _served(cells: Row) -> Any:
    load = load_of(cells)
    return [asdict(load), load.context_tokens, scenario(engine_setup(cells, load))]


def _rollout(cells: Row) -> Any:
    run = run_of(cells)
    return [run.requests, run.engines, run.gpus, asdict(run.load), scenario(run.setup)]


def _trained(cells: Row) -> Any:
    found = trained_row(cells)
    return [scenario(found.scenario), found.framework, found.release]


def _moved(cells: Row) -> Any:
    job, weights = transfer_job(cells)
    return [plain(job), asdict(weights)]


def _held(cells: Row) -> Any:
    if cells.get("kind") == "fits":
        return probability(cells)
    found = engine_row(cells, 777) if is_engine(cells) else trainer_row(cells)
    return [found.model.model_dump(mode="json"), scenario(found)]


def _asked(cells: Row) -> Any:
    return [benchmark.question_of(cells), benchmark.by_hand(cells)]


def _sped_up(cells: Row) -> Any:
    return [scenario(one) for one in speculating_engines(cells)]


Looks = Sequence[Callable[[Row], Any]]
KINDS: dict[str, tuple[Sequence[Row], Looks]] = {
    "steps": ([ROW, *published("rl_steps")], (_step, partial(described, Kind.STEPS))),
    "phases": ([PHASES, *published("wild/steps")[::6]],
               (step_cells, _phased, known_phases, partial(described, Kind.PHASES))),
    "iterations": (published("iterations"), (_served, partial(described, Kind.ITERATIONS))),
    "rollouts": (published("rollouts"), (_rollout, partial(described, Kind.ROLLOUTS))),
    "speculation": (published("speculation"), (_sped_up, partial(described, Kind.SPECULATION))),
    "training": ([*published("training_steps"), *published("training_users")],
                 (_trained, partial(described, Kind.TRAINING), _cuts)),
    "transfers": ([*published("refit_more"), *published("refit"), *published("refit_colocated")],
                  (_moved, partial(described, Kind.TRANSFERS), partial(predicted, Kind.TRANSFERS))),
    "memory": (published("memory/rows"), (_held, partial(described, Kind.MEMORY), partial(predicted, Kind.MEMORY))),
    "questions": (published("rl_steps"), (_asked,)),
    "wild": (published("wild/steps"), (phases_of, partial(described, Kind.WILD))),
}  # fmt: skip
"""Rows that are changed, and what is looked at of them."""


def held(kind: str) -> Iterator[tuple[str, Row, str]]:
    """Every row of a kind with its name, and what is looked at of it as text."""
    bases, looks = KINDS[kind]
    for name, row in rows(kind, bases, cells_of(kind)):
        told = []
        for look in looks:
            try:
                told.append(json.dumps(rounded(plain(look(row))), sort_keys=True))
            except (SkippedRow, RlsimError) as reason:
                told.append(f"refused: {' '.join(re.findall(NAMED, str(reason)))}")
        yield name, row, "\n".join(told)


def rounded(value: Any) -> Any:
    """Plain data whose numbers have six digits, for those of numerical libraries differ."""
    if isinstance(value, dict):
        return {str(key): rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return f"{value:.6g}" if isinstance(value, float) else value


def digest(value: Any) -> str:
    """A digest of plain data."""
    return hashlib.sha256(json.dumps(rounded(plain(value)), sort_keys=True).encode()).hexdigest()[:6]


def edges(kind: str) -> list[str]:
    """A digest for every row of a kind."""
    return [digest(told) for _, _, told in held(kind)]


if __name__ == "__main__":
    for number, (name, row, told) in enumerate(held(sys.argv[1])):
        if number == int(sys.argv[2]):
            print(name, row, told, sep="\n----\n")
