"""Simulating the cells of a space in the order of their bounds until the bounds exclude the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from rlsim.planning.cells import SEARCH_REPLICATIONS, Cell
from rlsim.planning.evaluate import evaluate_overrides
from rlsim.planning.execution import Runner
from rlsim.planning.results import CellResult
from rlsim.planning.variation import Overrides
from rlsim.progress import ProgressLine
from rlsim.schema.scenario import Scenario


@dataclass
class Found:
    """What the search has come to. results: simulated cells by their number."""

    cells: list[Cell]
    results: dict[int, CellResult] = field(default_factory=dict)
    exhaustive: bool = True
    best: dict[tuple[int, int], float] = field(default_factory=dict)

    def note(self, index: int, result: CellResult) -> None:
        """Take a simulated cell in."""
        self.results[index] = result
        if result.numbers is not None:
            group = self.cells[index].layout.split.group
            self.best[group] = min(self.best.get(group, math.inf), result.numbers.step_s.mean)

    def within(self, index: int, tolerance: float) -> bool:
        """Whether the cell may still lie within ``tolerance`` of the best of its group."""
        cell = self.cells[index]
        return cell.bound_s <= (1 + tolerance) * self.best.get(cell.layout.split.group, math.inf)


def simulate_cell(task: tuple[Scenario, Overrides]) -> CellResult:
    """One plan on one drawn workload, without its baseline."""
    scenario, overrides = task
    settings: Overrides = {**overrides, "simulation.replications": SEARCH_REPLICATIONS}
    return evaluate_overrides(scenario, settings, with_baseline=False)


def search(scenario: Scenario, cells: list[Cell], tolerance: float, run: Runner) -> Found:
    """Simulate cells in the order of their bounds until every other one is excluded from ``tolerance`` of its group's
    best. Which cells remain does not depend on how many are simulated at once."""
    found = Found(cells)
    taken: list[int] = []

    def promising() -> Iterator[tuple[Scenario, Overrides]]:
        for index in range(len(cells)):
            if found.within(index, tolerance):
                taken.append(index)
                yield scenario, cells[index].layout.overrides()

    with ProgressLine("plans, the rest excluded by bounds", len(cells)) as progress:
        for position, result in run(simulate_cell, promising()):
            found.note(taken[position], result)
            progress.advance(1)
    found.results = {i: result for i, result in found.results.items() if found.within(i, tolerance)}
    return found
