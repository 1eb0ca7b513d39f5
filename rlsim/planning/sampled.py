"""The search for spaces too large to bound every cell: Optuna's TPE over pool and engine, trainers by their price."""

from __future__ import annotations

from typing import Any

from rlsim.errors import InputError
from rlsim.planning.execution import Runner
from rlsim.planning.search import Cell, Found, fastest_trainers, simulate_cell
from rlsim.planning.space import Space
from rlsim.progress import ProgressLine
from rlsim.schema.scenario import Scenario

TRIALS = 300
BATCH = 8
"""Trials asked at once; the same for any number of processes, so that the answer is too."""


def sampled_search(scenario: Scenario, space: Space, run: Runner, trials: int = TRIALS) -> Found:
    """Sample cells and simulate them; nothing proves that no better one exists. Needs the extra ``plan``."""
    optuna = _optuna()
    usable = [i for i in range(len(space.pools)) if space.engines[i] and space.trainers[i]]
    found = Found([], exhaustive=False)
    if not usable:
        return found
    trainers = fastest_trainers(scenario, space, usable, run)
    keys = sorted({key for number in usable for engine in space.engines[number] for key in engine})
    values = {
        key: sorted({engine.get(key, "") for number in usable for engine in space.engines[number]}) for key in keys
    }
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=scenario.simulation.seed, constant_liar=True))
    seen: dict[str, int] = {}
    with ProgressLine("plans sampled", trials) as progress:
        for start in range(0, trials, BATCH):
            asked = [study.ask() for _ in range(min(BATCH, trials - start))]
            cells = [_suggested(trial, space, usable, trainers, values) for trial in asked]
            _simulate_new(scenario, cells, found, seen, run)
            for trial, cell in zip(asked, cells, strict=True):
                index = seen.get(repr(cell.assignment)) if cell else None
                outcome = found.outcomes.get(index) if index is not None else None
                good = outcome is not None and outcome.status == "ok"
                study.tell(trial, outcome.step_s[0] if outcome is not None and good else 1e9)
            progress.advance(len(asked))
    return found


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise InputError("--search optuna needs the extra 'plan': pip install 'rlsim[plan]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _suggested(
    trial: Any, space: Space, usable: list[int], trainers: dict[int, Any], values: dict[str, list[str]]
) -> Cell | None:
    """The cell that a trial's choices name; None where no valid engine of the pool has them."""
    number = trial.suggest_categorical("pool", usable)
    wanted = {key: trial.suggest_categorical(key, options) for key, options in values.items()}
    match = next((e for e in space.engines[number] if all(e.get(k, "") == v for k, v in wanted.items())), None)
    if match is None:
        return None
    trainer, trainer_s = trainers[number]
    return Cell(space.pools[number], match, trainer, len(space.trainers[number]), trainer_s)


def _simulate_new(
    scenario: Scenario, cells: list[Cell | None], found: Found, seen: dict[str, int], run: Runner
) -> None:
    fresh: list[int] = []
    for cell in cells:
        if cell is not None and repr(cell.assignment) not in seen:
            seen[repr(cell.assignment)] = len(found.cells)
            fresh.append(len(found.cells))
            found.cells.append(cell)
    tasks = [(scenario, found.cells[index].assignment) for index in fresh]
    for position, outcome in run(simulate_cell, tasks):
        found.note(fresh[position], outcome)
