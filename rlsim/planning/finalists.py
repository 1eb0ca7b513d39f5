"""From the plans that the search left to those that are shown: final numbers over common draws, constraints, order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rlsim.files.progress import ProgressLine
from rlsim.loading.variation import Overrides
from rlsim.planning.evaluate import TimedCell, evaluate_means, evaluate_timed
from rlsim.planning.execution import Runner
from rlsim.planning.objective import AllowedStep, Objective
from rlsim.planning.outlook import (
    Against,
    Outlook,
    against,
    expected_regrets,
    p90,
    probability,
    quantile,
    wins,
)
from rlsim.planning.results import CellNumbers, CellResult, PlanRow
from rlsim.planning.search import WIDE
from rlsim.planning.space import InfeasiblePart, SearchLimits
from rlsim.projection.summary import Timed
from rlsim.schema.scenario import Scenario
from rlsim.units import FloatArray

NEAR = 0.03
"""Plans within this share of the best count as equally good."""
MOST_EQUAL = 8
MOST_KINDS = 6
"""Finalists of further kinds, within WIDE of the best."""
MOST_NEAR_EVIDENCE = 2
MOST_ROUNDS = 4
"""Rounds of finalists once one keeps the constraints."""
FINAL_REPLICATIONS = 8
"""Most drawn workloads behind a shown plan; the search compares all plans on one."""


@dataclass(frozen=True, eq=False)
class Finalist:
    """A plan, or the scenario as it is, on its final numbers, with the draws behind them.

    step_s: seconds of the step in every common draw.
    """

    numbers: CellNumbers
    timed: Timed
    row: PlanRow | None = None

    @property
    def plan(self) -> PlanRow:
        """The plan; the scenario as it is has none."""
        assert self.row is not None
        return self.row

    @property
    def step_s(self) -> FloatArray:
        """Seconds of the step in every common draw."""
        return self.timed.step_s * self.timed.prediction.step_factor


@dataclass(frozen=True, eq=False)
class Contest:
    """What decides between plans of ``scenario``. current: the scenario as it is, None where it cannot run."""

    scenario: Scenario
    objective: Objective
    limits: SearchLimits
    current: Finalist | None = None

    def effort(self, one: Finalist) -> tuple[float, FloatArray]:
        """What plans are compared by, smaller being better: the mean, and every draw."""
        gpus = one.numbers.num_gpus
        return self.objective.effort(gpus, one.timed.step_s), self.objective.effort(gpus, one.step_s)

    def score(self, row: PlanRow) -> tuple[float, float]:
        """Smaller is better, by the mean where no draws are known; the second entry decides between equals."""
        gpus, outlook, statistic = row.numbers.num_gpus, row.outlook, self.objective.statistic
        if outlook is not None and statistic == "regret":
            value = outlook.expected_regret
        elif outlook is not None and statistic == "p90":
            value = self.objective.effort(gpus, outlook.p90_s)
        else:
            value = self.objective.effort(gpus, row.step_s)
        return (float(gpus), value) if self.objective.measure == "gpus" else (value, float(gpus))

    def breach(self, row: PlanRow) -> float:
        """Mean step time over the longest one allowed; up to 1 the mean keeps all constraints."""
        return self.objective.breach(self.scenario, row.numbers.num_gpus, row.step_s)

    def allowed(self, one: Finalist) -> list[AllowedStep]:
        """Longest steps of a plan by its constraints."""
        return self.objective.allowed_steps(self.scenario, one.numbers.num_gpus)

    def keeps(self, one: Finalist) -> bool:
        """Whether the plan keeps each constraint in the share of draws that is asked for."""
        return all(probability(one.step_s, a.longest_s) >= self.objective.confidence for a in self.allowed(one))

    def miss(self, one: Finalist) -> float:
        """What the plan takes with the probability asked for, over the longest step allowed; above 1 it misses."""
        sure_s = quantile(one.step_s, self.objective.confidence)
        return self.objective.breach(self.scenario, one.numbers.num_gpus, sure_s)

    def ranked(self, rows: Iterable[PlanRow]) -> list[PlanRow]:
        """Best first."""
        return sorted(rows, key=lambda row: (self.score(row), row.name))

    def near(self, ranked: Sequence[PlanRow], share: float = NEAR) -> list[PlanRow]:
        """Plans within ``share`` of the best; for the smallest cluster those of the same size."""
        place = 1 if self.objective.measure == "gpus" else 0
        best = self.score(ranked[0])
        is_share = self.objective.statistic == "regret" and ranked[0].outlook is not None
        most = best[place] + share if is_share else best[place] * (1 + share)
        return [row for row in ranked if self.score(row)[place] <= most and self.score(row)[:place] == best[:place]]

    def chosen(self, rows: Sequence[PlanRow]) -> list[PlanRow]:
        """Plans worth final numbers: those near the best, the best of each cluster size and lag, of each further kind
        within WIDE of the best, and of those near the evidence."""
        ranked = self.ranked(rows)
        kinds: dict[object, PlanRow] = {}
        for row in self.near(ranked, WIDE):
            kinds.setdefault(row.layout.kind, row)
        near_evidence = [row for row in ranked if row.near_evidence][:MOST_NEAR_EVIDENCE]
        equal = self.near(ranked)[:MOST_EQUAL]
        further = [row for row in kinds.values() if row not in equal][:MOST_KINDS]
        return list(dict.fromkeys([*equal, *best_by_group(self, ranked), *near_evidence, *further]))

    def judged(self, kept: Sequence[Finalist]) -> list[Finalist]:
        """Finalists with their outlooks among each other and the scenario as it is, best first."""
        now = [] if self.current is None else [self.effort(self.current)[1]]
        efforts = [self.effort(one)[1] for one in kept]
        regrets = expected_regrets([*efforts, *now]) if efforts else []
        out = []
        for one, effort, regret in zip(kept, efforts, regrets, strict=False):
            outlook = Outlook(p90(one.step_s), regret, wins(effort, now[0]) if now else None)
            out.append(replace(one, row=replace(one.plan, outlook=outlook)))
        return sorted(out, key=lambda one: (self.score(one.plan), one.plan.name))

    def against(self, one: Finalist, rival: Finalist) -> Against:
        """A plan against another one, or against the scenario as it is."""
        name = "the scenario as it is" if rival.row is None else rival.row.name
        return against(name, self.effort(one), self.effort(rival))


@dataclass(frozen=True)
class Finals:
    """kept: plans that keep all constraints on their final numbers, best first; missed: those that do not on theirs.

    rest: plans that the search left behind these, on its one drawn workload, best first. rejected: those that further
    drawn workloads show to overflow.
    """

    kept: tuple[Finalist, ...] = ()
    missed: tuple[Finalist, ...] = ()
    rest: tuple[PlanRow, ...] = ()
    rejected: tuple[InfeasiblePart, ...] = ()


def finals(contest: Contest, rows: Sequence[PlanRow], run: Runner) -> Finals:
    """Give the best of ``rows`` their final numbers and keep those that still satisfy the constraints.

    Where none of them keeps them, or where one that is left looks better and may keep them, the next ones follow.
    """
    slack = 1 + NEAR if contest.objective.confidence >= 0.5 else math.inf
    left = [row for row in rows if contest.breach(row) <= slack] or sorted(rows, key=contest.breach)[:1]
    kept, missed, rejected, rounds = list[Finalist](), list[Finalist](), list[InfeasiblePart](), 0
    searched, hopeful = {row.layout: row for row in rows}, left

    def settled() -> bool:
        """Whether no plan that is left looks better than the best kept one: both by what the search has seen."""
        best = min((contest.score(searched[one.plan.layout]) for one in kept), default=(math.inf, math.inf))
        return best <= min(contest.score(row) for row in hopeful)

    while hopeful and not (kept and (rounds >= MOST_ROUNDS or settled())):
        chosen = contest.chosen(hopeful)
        left = [row for row in left if row not in chosen]
        for one in _final(contest, chosen, run):
            if isinstance(one, InfeasiblePart):
                rejected.append(one)
            else:
                (kept if contest.keeps(one) else missed).append(one)
        hopeful = _hopeful(contest, [*kept, *missed], left)
        rounds += 1
    rest = contest.ranked(row for row in left if contest.breach(row) <= 1)
    return Finals(tuple(contest.judged(kept)), tuple(missed), tuple(rest), tuple(rejected))


def _hopeful(contest: Contest, done: Sequence[Finalist], left: Sequence[PlanRow]) -> list[PlanRow]:
    """Plans of those left that keep the constraints if their draws are as favourable as the best ones so far."""
    least = min((quantile(o.step_s, contest.objective.confidence) / o.timed.step_s for o in done), default=1.0)
    return [row for row in left if contest.breach(row) * least <= 1 + NEAR]


def _final(contest: Contest, chosen: Sequence[PlanRow], run: Runner) -> list[Finalist | InfeasiblePart]:
    """The plans again on more drawn workloads, which may show some to overflow."""
    out: dict[int, Finalist | InfeasiblePart] = {}
    tasks = [(contest.scenario, row.layout.overrides()) for row in chosen]
    with ProgressLine("best plans over common draws", len(tasks)) as progress:
        for index, cell in run(final_cell, tasks):
            out[index] = _finalist(contest, chosen[index], cell)
            progress.advance(1)
    return [out[index] for index in sorted(out)]


def _finalist(contest: Contest, row: PlanRow, cell: TimedCell) -> Finalist | InfeasiblePart:
    overrides, numbers, error = row.layout.overrides(), cell.result.numbers, cell.result.infeasible
    if numbers is None or cell.timed is None:
        return InfeasiblePart.by(overrides, error) if error else InfeasiblePart(overrides, cell.result.reason)
    used = max(numbers.generation_memory_bytes, numbers.training_memory_bytes)
    miss = contest.limits.headroom_miss(contest.scenario, used, overrides)
    count = final_replications(contest.scenario)
    return miss or Finalist(numbers, cell.timed, replace(row, numbers=numbers, replications=count))


def final_cell(task: tuple[Scenario, Overrides]) -> TimedCell:
    """A varied scenario on all drawn workloads of an answer, with the draws around its times."""
    scenario, overrides = task
    return evaluate_timed(scenario, {**overrides, "simulation.replications": final_replications(scenario)})


def final_means(task: tuple[Scenario, Overrides]) -> CellResult:
    """The means of :func:`final_cell`."""
    scenario, overrides = task
    return evaluate_means(scenario, {**overrides, "simulation.replications": final_replications(scenario)})


def final_replications(scenario: Scenario) -> int:
    """Drawn workloads behind the numbers of a shown plan."""
    return min(FINAL_REPLICATIONS, scenario.simulation.replications)


def best_by_group(contest: Contest, rows: Iterable[PlanRow]) -> list[PlanRow]:
    """Best plan of every cluster size and lag."""
    best: dict[tuple[int, int], PlanRow] = {}
    for row in contest.ranked(rows):
        best.setdefault(row.layout.split.group, row)
    return [best[group] for group in sorted(best)]


def pareto_front(rows: Sequence[PlanRow]) -> list[PlanRow]:
    """Plans that no other one beats in mean step time and cost at once, cheapest first."""
    front: list[PlanRow] = []
    for row in sorted(rows, key=lambda item: (item.numbers.cost_per_step_usd, item.step_s)):
        if not front or row.step_s < front[-1].step_s:
            front.append(row)
    return front
