"""From the plans that the search left to those that are shown: final numbers, constraints, order, the front."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rlsim.planning.evaluate import evaluate_overrides
from rlsim.planning.execution import Runner
from rlsim.planning.objective import Objective
from rlsim.planning.results import CellResult, PlanRow
from rlsim.planning.space import SearchLimits
from rlsim.planning.variation import Overrides
from rlsim.schema.scenario import Scenario

NEAR = 0.03
"""Plans within this share of the best count as equally good."""
MOST_FINALISTS = 12
FINAL_REPLICATIONS = 4
"""Most drawn workloads behind a shown plan; the search compares all plans on one."""


@dataclass(frozen=True)
class Contest:
    """What decides between plans of ``scenario``."""

    scenario: Scenario
    objective: Objective
    limits: SearchLimits

    def score(self, row: PlanRow) -> tuple[float, float]:
        """Smaller is better."""
        return self.objective.score(row.numbers.num_gpus, row.step_s)

    def breach(self, row: PlanRow) -> float:
        """Step time over the longest one allowed; up to 1 all constraints are kept."""
        return self.objective.breach(self.scenario, row.numbers.num_gpus, row.step_s)

    def ranked(self, rows: Iterable[PlanRow]) -> list[PlanRow]:
        """Best first."""
        return sorted(rows, key=lambda row: (self.score(row), row.name))

    def near(self, ranked: Sequence[PlanRow]) -> list[PlanRow]:
        """Plans within NEAR of the best; for the smallest cluster those of the same size."""
        best = self.score(ranked[0])
        if self.objective.measure == "gpus":
            return [r for r in ranked if self.score(r)[0] == best[0] and r.step_s <= best[1] * (1 + NEAR)]
        return [row for row in ranked if self.score(row)[0] <= best[0] * (1 + NEAR)]


@dataclass(frozen=True)
class Finals:
    """kept: plans that keep all constraints on their final numbers, best first; missed: those that do not on theirs.

    rest: plans that the search left behind these, on its one drawn workload, best first.
    """

    kept: tuple[PlanRow, ...] = ()
    missed: tuple[PlanRow, ...] = ()
    rest: tuple[PlanRow, ...] = ()


def finals(contest: Contest, rows: Sequence[PlanRow], run: Runner) -> Finals:
    """Give the best of ``rows`` their final numbers and keep those that still satisfy the constraints.

    Finalists are the plans near the best and the best of each cluster size and lag, among those that may keep the
    constraints, or else the nearest miss. Where none of them keeps them, the next ones follow until one does or none is
    left.
    """
    hopeful = [row for row in rows if contest.breach(row) <= 1 + NEAR] or sorted(rows, key=contest.breach)[:1]
    left, kept, missed = contest.ranked(hopeful), list[PlanRow](), list[PlanRow]()
    while left and not kept:
        chosen = list(dict.fromkeys([*contest.near(left)[:MOST_FINALISTS], *best_by_group(left)]))
        left = [row for row in left if row not in chosen]
        done = _final(contest, chosen, run)
        kept = contest.ranked(row for row in done if contest.breach(row) <= 1)
        missed += [row for row in done if contest.breach(row) > 1]
    return Finals(tuple(kept), tuple(missed), tuple(row for row in left if contest.breach(row) <= 1))


def _final(contest: Contest, chosen: Sequence[PlanRow], run: Runner) -> list[PlanRow]:
    """The plans again on more drawn workloads; those that these show to overflow fall out."""
    out = {}
    tasks = [(contest.scenario, row.layout.overrides(), False) for row in chosen]
    for index, result in run(final_result, tasks):
        numbers = result.numbers
        if numbers is None:
            continue
        used = max(numbers.generation_memory_bytes, numbers.training_memory_bytes)
        if contest.limits.headroom_miss(contest.scenario, used, tasks[index][1]) is None:
            count = final_replications(contest.scenario)
            out[index] = replace(chosen[index], numbers=numbers, replications=count)
    return [out[index] for index in sorted(out)]


def final_result(task: tuple[Scenario, Overrides, bool]) -> CellResult:
    """A varied scenario on all drawn workloads of an answer, with its baseline where the task asks for it."""
    scenario, overrides, with_baseline = task
    settings: Overrides = {**overrides, "simulation.replications": final_replications(scenario)}
    return evaluate_overrides(scenario, settings, with_baseline)


def final_replications(scenario: Scenario) -> int:
    """Drawn workloads behind the numbers of a shown plan."""
    return min(FINAL_REPLICATIONS, scenario.simulation.replications)


def best_by_group(ranked: Sequence[PlanRow]) -> list[PlanRow]:
    """Fastest plan of every cluster size and lag."""
    best: dict[tuple[int, int], PlanRow] = {}
    for row in sorted(ranked, key=lambda row: row.step_s):
        best.setdefault(row.layout.split.group, row)
    return [best[group] for group in sorted(best)]


def pareto_front(rows: Sequence[PlanRow]) -> list[PlanRow]:
    """Plans that no other one beats in step time and cost at once, cheapest first."""
    front: list[PlanRow] = []
    for row in sorted(rows, key=lambda item: (item.numbers.cost_per_step_usd, item.step_s)):
        if not front or row.step_s < front[-1].step_s:
            front.append(row)
    return front
