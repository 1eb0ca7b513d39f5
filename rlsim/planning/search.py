"""Simulating the cells of a space in the order of their bounds until the bounds exclude the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rlsim.files.progress import ProgressLine
from rlsim.loading.variation import Overrides
from rlsim.planning.cells import SEARCH_REPLICATIONS, Cell
from rlsim.planning.evaluate import evaluate_means
from rlsim.planning.execution import Runner
from rlsim.planning.results import CellResult
from rlsim.schema.scenario import Scenario

WIDE = 0.15
"""Plans of another kind stay in the contest up to this share behind the best: the 90th percentile of a step whose error
is the smaller one may still be less."""
MOST_WIDE = 24
"""Plans simulated for that reason alone."""


@dataclass
class Found:
    """What the search has come to. results: simulated cells by their number."""

    cells: list[Cell]
    results: dict[int, CellResult] = field(default_factory=dict)
    best: dict[tuple[int, int], float] = field(default_factory=dict)

    def note(self, index: int, result: CellResult) -> None:
        """Take a simulated cell in."""
        self.results[index] = result
        if result.numbers is not None:
            group = self.cells[index].layout.split.group
            self.best[group] = min(self.best.get(group, math.inf), result.numbers.step_s.mean)

    def behind(self, index: int) -> float:
        """The cell's bound over the best step of its group; 0 while that has none."""
        cell = self.cells[index]
        return cell.bound_s / self.best.get(cell.layout.split.group, math.inf)

    def within(self, index: int, tolerance: float) -> bool:
        """Whether the cell may still lie within ``tolerance`` of the best of its group."""
        return self.behind(index) <= 1 + tolerance


def simulate_cell(task: tuple[Scenario, Overrides]) -> CellResult:
    """The means of one plan on one drawn workload, without its baseline."""
    scenario, overrides = task
    return evaluate_means(scenario, {**overrides, "simulation.replications": SEARCH_REPLICATIONS})


def search(scenario: Scenario, cells: list[Cell], tolerance: float, run: Runner) -> Found:
    """Simulate cells in the order of their bounds until every other one is excluded from ``tolerance`` of its group's
    best, then those near the evidence until the others of these are, then the best bounds of further kinds.

    Which cells remain does not depend on how many are simulated at once.
    """
    found = Found(cells)
    _until_excluded(scenario, found, range(len(cells)), tolerance, run)
    near = Found(cells)
    for index in [index for index in found.results if cells[index].near_evidence]:
        near.note(index, found.results[index])
    _until_excluded(scenario, near, [i for i, cell in enumerate(cells) if cell.near_evidence], tolerance, run)
    for index, result in near.results.items():
        found.note(index, result)
    others = further_kinds(found)
    tasks = [(scenario, cells[index].layout.overrides()) for index in others]
    with ProgressLine("plans of further kinds", len(tasks)) as progress:
        for position, result in run(simulate_cell, tasks):
            found.note(others[position], result)
            progress.advance(1)
    return found


def _until_excluded(scenario: Scenario, found: Found, among: Sequence[int], tolerance: float, run: Runner) -> None:
    taken: list[int] = []

    def promising() -> Iterator[tuple[Scenario, Overrides]]:
        for index in among:
            if index not in found.results and found.within(index, tolerance):
                taken.append(index)
                yield scenario, found.cells[index].layout.overrides()

    with ProgressLine("plans", len(among)) as progress:
        for done, (position, result) in enumerate(run(simulate_cell, promising()), start=1):
            found.note(taken[position], result)
            excluded = sum(1 for i in among if i not in found.results and not found.within(i, tolerance))
            progress.remark = f"{excluded:,} layouts excluded by their bounds"
            progress.reach(done, len(among) - excluded)
    found.results = {i: result for i, result in sorted(found.results.items()) if found.within(i, tolerance)}


def further_kinds(found: Found) -> list[int]:
    """Cells of least bound of each kind that no simulated cell has, within WIDE of the best of their groups."""
    kinds = {found.cells[index].layout.kind for index in found.results}
    first: dict[object, int] = {}
    for index in sorted(range(len(found.cells)), key=found.behind):
        kind = found.cells[index].layout.kind
        if kind not in kinds and found.within(index, WIDE):
            first.setdefault(kind, index)
    return list(first.values())[:MOST_WIDE]
