"""The search for spaces too large to bound every cell: Optuna's TPE over split and engine, trainers by their price."""

from __future__ import annotations

from typing import Any

from rlsim.errors import InputError
from rlsim.loading import vary
from rlsim.planning.cells import Cell, ChosenTrainers, chosen_trainers
from rlsim.planning.execution import Runner
from rlsim.planning.layouts import Engine, Layout
from rlsim.planning.search import Found, simulate_cell
from rlsim.planning.space import Space
from rlsim.progress import ProgressLine
from rlsim.schema.scenario import Scenario
from rlsim.uncertainty.nearest import near_evidence

TRIALS = 300
BATCH = 8
"""Trials asked at once; the same for any number of processes, so that the answer is too."""
NO_STEP_S = 1e9
"""What the sampler is told of a cell that cannot run."""

Choices = dict[str, Any]


def sampled_search(
    scenario: Scenario, space: Space, run: Runner, trials: int = TRIALS, only_near: bool = False
) -> Found:
    """Sample cells and simulate them; nothing proves that no better one exists. Needs the extra ``plan``.

    only_near: none but those that measured runs lie near.
    """
    optuna = _optuna()
    found = Found([], exhaustive=False)
    if not space.usable:
        return found
    trainers = chosen_trainers(scenario, space, run)
    engines = {engine: _choices(engine) for number in space.usable for engine in space.engines[number]}
    options = {name: sorted({choices[name] for choices in engines.values()}) for name in next(iter(engines.values()))}
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=scenario.simulation.seed, constant_liar=True))
    seen: dict[Layout, int] = {}
    with ProgressLine("plans sampled", trials) as progress:
        for start in range(0, trials, BATCH):
            asked = [study.ask() for _ in range(min(BATCH, trials - start))]
            cells = [_suggested(scenario, trial, space, trainers, engines, options, only_near) for trial in asked]
            _simulate_new(scenario, cells, found, seen, run)
            for trial, cell in zip(asked, cells, strict=True):
                result = found.results.get(seen[cell.layout]) if cell is not None else None
                numbers = result.numbers if result is not None else None
                study.tell(trial, numbers.step_s.mean if numbers is not None else NO_STEP_S)
            progress.advance(len(asked))
    return found


def _choices(engine: Engine) -> Choices:
    """An engine by the names and values that are sampled."""
    return {**{name: str(size) for name, size in vars(engine.layout).items()}, "drafting": str(engine.drafting)}


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise InputError("--search optuna needs the extra 'plan': pip install 'rlsim[plan]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _suggested(
    scenario: Scenario,
    trial: Any,
    space: Space,
    trainers: ChosenTrainers,
    engines: dict[Engine, Choices],
    options: dict[str, list[str]],
    only_near: bool,
) -> Cell | None:
    """The cell that a trial's choices name, with the fastest trainer (only_near: that measured runs lie near); None
    where there is none."""
    number = trial.suggest_categorical("pool", space.usable)
    wanted = {name: trial.suggest_categorical(name, values) for name, values in options.items()}
    match = next((engine for engine in space.engines[number] if engines[engine] == wanted), None)
    if match is None:
        return None
    cells = []
    for trainer, passes_s in trainers[number]:
        layout = Layout(space.splits[number], match, trainer)
        near = near_evidence(vary(scenario, layout.overrides()))
        cells.append(Cell(layout, len(space.trainers[number]), passes_s, near))
    return next((cell for cell in cells if cell.near_evidence), None) if only_near else cells[0]


def _simulate_new(
    scenario: Scenario, cells: list[Cell | None], found: Found, seen: dict[Layout, int], run: Runner
) -> None:
    fresh: list[int] = []
    for cell in cells:
        if cell is not None and cell.layout not in seen:
            seen[cell.layout] = len(found.cells)
            fresh.append(len(found.cells))
            found.cells.append(cell)
    tasks = [(scenario, found.cells[index].layout.overrides()) for index in fresh]
    for position, result in run(simulate_cell, tasks):
        found.note(fresh[position], result)
