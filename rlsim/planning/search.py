"""The search: layouts simulated in the order of their bounds, then the best of them again over common draws.

All finalists are drawn together (``uncertainty.predictive``): what two of them share moves both alike, so that
their order is much surer than their times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.memory import fit_probability
from rlsim.files.progress import ProgressLine
from rlsim.loading.variation import Overrides
from rlsim.planning.bounds import Candidate
from rlsim.planning.evaluate import Cell, Seen, carried, evaluate_means, evaluate_overrides, see
from rlsim.planning.execution import Runner, in_order
from rlsim.planning.objective import Objective, Seconds, p90, probability, quantile
from rlsim.planning.space import InfeasiblePart, Layout, SearchLimits
from rlsim.projection.moves import varied
from rlsim.projection.precision import Anchor, anchor, answered
from rlsim.projection.summary import Timed
from rlsim.projection.variant import SEARCH_REPLICATIONS, compared, searched, so_many
from rlsim.results.sweep import Against, PlanRow, StepNumbers
from rlsim.schema.scenario import Scenario
from rlsim.units import FloatArray

NEAR = 0.03
"""Plans within this share of the best count as equally good."""
MOST_EQUAL = 8
"""Plans within NEAR of the best that are simulated again in one round."""
MOST_ROUNDS = 4
"""Rounds of finalists once one keeps the constraints."""
FINAL_REPLICATIONS = 8
"""Most drawn workloads behind a shown plan; the search compares all plans on one."""
CURRENT = "the scenario as it is"

Task = tuple[Scenario, Overrides]
Look = tuple[Scenario, Overrides, float]
"""A plan that a search looks at, and the longest step that it is interested in."""


class Simulated(Struct, frozen=True, eq=False):
    """A layout with the numbers that the search or the final draws found; the scenario as it is has no candidate.

    timed: mean times with the draws around them, None where the search alone has seen it.
    """

    numbers: StepNumbers | Seen
    timed: Timed | None
    candidate: Candidate | None = None

    @property
    def found(self) -> Candidate:
        """Its candidate; the scenario as it is has none."""
        assert self.candidate is not None
        return self.candidate

    @property
    def full(self) -> StepNumbers:
        """Its numbers, where more than what a search needs was asked for."""
        assert isinstance(self.numbers, StepNumbers)
        return self.numbers

    @property
    def given_up(self) -> bool:
        """Whether it was not simulated to its end."""
        return isinstance(self.numbers, Seen) and self.numbers.given_up

    @property
    def layout(self) -> Layout:
        """Its layout."""
        return self.found.layout

    @property
    def name(self) -> str:
        """The plan in a line."""
        return CURRENT if self.candidate is None else str(self.layout)

    @property
    def mean_s(self) -> float:
        """Mean step in seconds."""
        return self.numbers.step_s.mean

    @property
    def drawn_s(self) -> FloatArray:
        """Seconds of the step in every common draw."""
        assert self.timed is not None
        return self.timed.step.draws


class Contest(Struct, frozen=True, eq=False):
    """What decides between plans of ``scenario``. current: the scenario as it is, None where it cannot run. rest:
    whether plans that the search alone has seen are shown too."""

    scenario: Scenario
    objective: Objective
    limits: SearchLimits
    current: Simulated | None = None
    rest: bool = True

    def score(self, plan: Simulated) -> tuple[float, float]:
        """Smaller is better, by the mean where no draws are known; the second entry decides between equals."""
        gpus = plan.numbers.num_gpus
        sure = plan.timed is not None and self.objective.statistic == "p90"
        value = self.objective.effort(self.scenario, gpus, p90(plan.drawn_s) if sure else plan.mean_s)
        return (float(gpus), value) if self.objective.measure == "gpus" else (value, float(gpus))

    def breach(self, plan: Simulated, step_s: float | None = None) -> float:
        """Step time, default the mean, over the longest one allowed, the worst over constraints: up to 1 all are met, 0
        without any."""
        took_s = plan.mean_s if step_s is None else step_s
        return max((took_s / longest_s for longest_s in self.allowed(plan).values()), default=0.0)

    def allowed(self, plan: Simulated) -> dict[str, float]:
        """Longest steps of a plan in seconds by its constraints."""
        return self.objective.allowed_steps(self.scenario, plan.numbers.num_gpus)

    def keeps(self, plan: Simulated) -> bool:
        """Whether the plan keeps each constraint in the share of draws that is asked for."""
        sure = (probability(plan.drawn_s, longest_s) for longest_s in self.allowed(plan).values())
        return all(share >= self.objective.confidence for share in sure)

    def miss(self, plan: Simulated) -> float:
        """Step time kept with the probability asked for, over the longest one allowed; above 1 the plan misses."""
        return self.breach(plan, quantile(plan.drawn_s, self.objective.confidence))

    def ranked(self, plans: Iterable[Simulated]) -> list[Simulated]:
        """Best first."""
        # Names decide between equals, so that the order does not depend on which process was first.
        return sorted(plans, key=lambda plan: (self.score(plan), plan.name))

    def near(self, ranked: Sequence[Simulated]) -> list[Simulated]:
        """Plans within NEAR of the best; for the smallest cluster those of the same size."""
        # The smallest cluster is scored by its size first; plans of that size are compared by their step.
        place = 1 if self.objective.measure == "gpus" else 0
        best = self.score(ranked[0])
        most = best[place] * (1 + NEAR)
        return [plan for plan in ranked if self.score(plan)[place] <= most and self.score(plan)[:place] == best[:place]]

    def chosen(self, plans: Sequence[Simulated]) -> list[Simulated]:
        """Plans worth final numbers: those near the best, and the best of each cluster size and lag."""
        ranked = self.ranked(plans)
        groups = {plan.layout.split.group: plan for plan in reversed(ranked)}
        return list(dict.fromkeys([*self.near(ranked)[:MOST_EQUAL], *(groups[group] for group in sorted(groups))]))

    def against(self, plan: Simulated, rival: Simulated) -> Against:
        """A plan against another one, or against the scenario as it is."""
        assert plan.timed is not None and rival.timed is not None
        ratio, scale = rival.timed.step.over(plan.timed.step), self._effort(rival, 1.0) / self._effort(plan, 1.0)
        return Against(rival=rival.name, wins=ratio.above(1.0 / scale), ratio=ratio.interval.times(scale))

    def row(self, plan: Simulated) -> PlanRow:
        """A plan as it is shown."""
        final, current = plan.timed is not None, self.current
        return PlanRow(
            name=plan.name,
            overrides=plan.layout.overrides(),
            bound_s=plan.found.bound_s,
            replications=final_replications(self.scenario) if final else SEARCH_REPLICATIONS,
            numbers=plan.full,
            step_p90_s=p90(plan.drawn_s) if final else None,
            beats_current=self.against(plan, current).wins if final and current is not None else None,
            trainers=plan.found.trainers,
            fits=fit_probability(varied(self.scenario, plan.layout.overrides())) if final else None,
        )

    def _effort(self, plan: Simulated, step_s: Seconds) -> Seconds:
        return self.objective.effort(self.scenario, plan.numbers.num_gpus, step_s)


def search(
    contest: Contest, candidates: Sequence[Candidate], run: Runner, once: Callable[[Look], Cell]
) -> dict[int, Simulated | InfeasiblePart]:
    """Simulate candidates in the order of their bounds until every other one is excluded from NEAR of the best of its
    group that fits.

    once: :func:`simulate_once`, or :func:`see_once` where nobody asks for more. Results by number; which of them remain
    does not depend on how many are simulated at once.
    """
    results, best, taken = dict[int, Simulated | InfeasiblePart](), dict[tuple[int, int], float](), list[int]()

    def group_best_s(index: int) -> float:
        return best.get(candidates[index].layout.split.group, math.inf)

    def may_win(index: int) -> bool:
        """Whether the candidate's bound lies within NEAR of the best step of its group."""
        # A group without a result has an infinite best: its first candidate always runs.
        return candidates[index].bound_s / group_best_s(index) <= 1 + NEAR

    def promising() -> Iterator[Look]:
        # Asked anew before each start: results that came in since may exclude a candidate.
        for index, candidate in enumerate(candidates):
            if may_win(index):
                taken.append(index)
                yield contest.scenario, candidate.layout.overrides(), (1 + NEAR) * group_best_s(index)

    with ProgressLine("plans", len(candidates)) as progress:
        for done, (position, cell) in enumerate(run(once, promising()), start=1):
            found = results[taken[position]] = checked(candidates[taken[position]], cell)
            if isinstance(found, Simulated):
                group = found.layout.split.group
                best[group] = min(best.get(group, math.inf), found.mean_s)
            if progress.visible:
                excluded = sum(1 for i in range(len(candidates)) if i not in results and not may_win(i))
                progress.remark = f"{excluded:,} layouts excluded by their bounds"
                progress.reach(done, len(candidates) - excluded)

    def counts(index: int, plan: Simulated | InfeasiblePart) -> bool:
        """A plan that is the best stays, even were its bound none."""
        return may_win(index) or (isinstance(plan, Simulated) and plan.mean_s <= group_best_s(index))

    return {i: plan for i, plan in sorted(results.items()) if counts(i, plan)}


def simulate_once(task: Look) -> Cell:
    """The means of one plan on one drawn workload, without its baseline."""
    scenario, overrides, _ = task
    return evaluate_means(searched(scenario), overrides, offered=True)


def see_once(task: Look) -> Cell:
    """GPUs, mean step and memory of one plan on one drawn workload, given up once it is too slow to matter."""
    scenario, overrides, within_s = task
    return see(searched(scenario), overrides, within_s)


class Finals(Struct, frozen=True):
    """feasible: plans that keep all constraints on their final numbers, best first; missed: those that do not.

    rest: plans that the search left behind these, on its one drawn workload, best first. rejected: parts that do not
    fit, plans that drawn workloads show to overflow too. considered, configurations, simulated: as in the answer.
    """

    feasible: tuple[Simulated, ...] = ()
    missed: tuple[Simulated, ...] = ()
    rest: tuple[Simulated, ...] = ()
    rejected: tuple[InfeasiblePart, ...] = ()
    considered: int = 0
    configurations: int = 0
    simulated: int = 0

    def __add__(self, larger: Finals) -> Finals:
        """Results of some cluster sizes, none of whose plans keeps the constraints, with those of larger ones."""
        added = ("missed", "rejected", "considered", "configurations", "simulated")
        return replace(larger, **{name: getattr(self, name) + getattr(larger, name) for name in added})


def finals(contest: Contest, plans: Sequence[Simulated], run: Runner) -> Finals:
    """Give the best of ``plans`` their final numbers and keep those that still satisfy the constraints.

    Where none of them keeps them, or where one that is left looks better and may keep them, the next ones follow. Plans
    that the search has given up are simulated to their end where they might be among these.
    """
    cut = [plan for plan in plans if plan.given_up]
    found, rounds = _rounds(contest, [plan for plan in plans if not plan.given_up], run)
    if not cut or (rounds == 1 and _none_counts(contest, plans, found.feasible)):
        return found
    cells = dict(run(see_once, [(contest.scenario, plan.layout.overrides(), math.inf) for plan in cut]))
    # To their end now, though without their other numbers: _final gives those to the ones that are chosen.
    again = {plan.layout: checked(plan.found, cells[place]) for place, plan in enumerate(cut)}
    every = [again.get(plan.layout, plan) for plan in plans]
    found, _ = _rounds(contest, [plan for plan in every if isinstance(plan, Simulated)], run)
    rejected = (*(plan for plan in every if isinstance(plan, InfeasiblePart)), *found.rejected)
    return replace(found, rejected=rejected)


def _none_counts(contest: Contest, plans: Sequence[Simulated], feasible: Sequence[Simulated]) -> bool:
    """Whether none of the plans that were given up would have been looked at again: each is beyond NEAR of the best of
    its group, and no better than the best that keeps the constraints, by what the search has seen of both."""
    whole = {plan.layout: plan for plan in plans if not plan.given_up}
    best: dict[tuple[int, int], float] = {}
    for plan in whole.values():
        best[plan.layout.split.group] = min(best.get(plan.layout.split.group, math.inf), plan.mean_s)
    won = min((contest.score(whole[plan.layout]) for plan in feasible), default=(math.inf, math.inf))
    return all(
        plan.mean_s >= (1 + NEAR) * best.get(plan.layout.split.group, math.inf) and contest.score(plan) >= won
        for plan in plans
        if plan.given_up
    )


def _rounds(contest: Contest, plans: Sequence[Simulated], run: Runner) -> tuple[Finals, int]:
    """:func:`finals` of plans that were all simulated to their end, and the rounds that it took."""
    # Asked for less than an even chance, a plan may miss the limit in the mean and still keep it often enough.
    slack = 1 + NEAR if contest.objective.confidence >= 0.5 else math.inf
    # Where none keeps to it the nearest is drawn all the same: the message says how far it is off.
    left = [plan for plan in plans if contest.breach(plan) <= slack] or sorted(plans, key=contest.breach)[:1]
    feasible, missed, rejected, rounds = list[Simulated](), list[Simulated](), list[InfeasiblePart](), 0
    searched, hopeful = {plan.layout: plan for plan in plans}, left

    def settled() -> bool:
        """Whether no plan that is left looks better than the best feasible one: both by what the search has seen."""
        best = min((contest.score(searched[plan.layout]) for plan in feasible), default=(math.inf, math.inf))
        return best <= min(contest.score(plan) for plan in hopeful)

    while hopeful and not (feasible and (rounds >= MOST_ROUNDS or settled())):
        chosen = contest.chosen(hopeful)
        left = [plan for plan in left if plan not in chosen]
        for plan in _final(contest, chosen, run):
            if isinstance(plan, InfeasiblePart):
                rejected.append(plan)
            else:
                (feasible if contest.keeps(plan) else missed).append(plan)
        # Those left that keep the constraints if their draws are as favourable as the best ones so far.
        shares = (quantile(plan.drawn_s, contest.objective.confidence) / plan.mean_s for plan in [*feasible, *missed])
        least = min(shares, default=1.0)
        hopeful = [plan for plan in left if contest.breach(plan) * least <= 1 + NEAR]
        rounds += 1
    rest = contest.ranked(plan for plan in left if contest.breach(plan) <= 1)
    return Finals(tuple(contest.ranked(feasible)), tuple(missed), tuple(rest), tuple(rejected)), rounds


def _final(contest: Contest, chosen: Sequence[Simulated], run: Runner) -> list[Simulated | InfeasiblePart]:
    """The plans again on more drawn workloads, which may show some to overflow."""
    tasks = [(contest.scenario, plan.layout.overrides()) for plan in chosen]
    with ProgressLine("best plans over common draws", len(tasks)) as progress:
        cells = in_order(run, simulate_finally, tasks, progress)
    return [checked(plan.found, cell) for plan, cell in zip(chosen, cells, strict=True)]


def checked(candidate: Candidate, cell: Cell) -> Simulated | InfeasiblePart:
    """The simulated plan, or why it is none: drawn work may not be what bounds take it for."""
    overrides, numbers = candidate.layout.overrides(), cell.numbers or cell.seen
    if numbers is None:
        assert cell.error is not None
        return InfeasiblePart.by(overrides, cell.error)
    return Simulated(numbers, cell.timed, candidate)


def final_task(scenario: Scenario, overrides: Overrides) -> Task:
    """A varied scenario on all drawn workloads of an answer."""
    one = compared(scenario)
    return one, {**overrides, **so_many(one, final_replications(scenario))}


def simulate_finally(task: Task) -> Cell:
    """A varied scenario on all drawn workloads of an answer, with the draws around its times, carried over to the step
    that ``project`` answers of the scenario."""
    return carried(evaluate_overrides(*final_task(*task), with_baseline=False), anchor(task[0]))


def as_answered(contest: Contest, found: Finals) -> tuple[Finals, Anchor | None]:
    """Finals carried over to the step that ``project`` answers, and by what: of a scenario that cannot run itself, to
    that of their best plan."""
    best, scenario = found.feasible[0], contest.scenario
    if contest.current is not None or scenario.simulation.replications is not None or best.timed is None:
        return found, anchor(scenario)
    by = Anchor(answered(varied(scenario, best.layout.overrides())), best.timed.step)

    def over(plan: Simulated) -> Simulated:
        assert plan.timed is not None
        cell = carried(Cell(plan.full, plan.timed, step=plan.timed.step), by)
        assert cell.numbers is not None
        return replace(plan, numbers=cell.numbers, timed=cell.timed)

    plans = contest.ranked(map(over, found.feasible))
    return replace(found, feasible=tuple([plan for plan in plans if contest.keeps(plan)] or plans)), by


def final_means(task: Task) -> Cell:
    """The means of :func:`simulate_finally`."""
    return carried(evaluate_means(*final_task(*task)), anchor(task[0]))


def final_replications(scenario: Scenario) -> int:
    """Drawn workloads behind the numbers of a shown plan."""
    return min(FINAL_REPLICATIONS, compared(scenario).replications)


def pareto_front(plans: Sequence[Simulated]) -> list[Simulated]:
    """Plans that no other one beats in mean step time and cost at once, cheapest first."""
    front: list[Simulated] = []
    for plan in sorted(plans, key=lambda one: (one.full.cost_per_step_usd, one.mean_s)):
        # In order of cost, a plan is on the front only if it is faster than the last cheaper one.
        if not front or plan.mean_s < front[-1].mean_s:
            front.append(plan)
    return front


def nearest_miss(rejected: Sequence[InfeasiblePart]) -> InfeasiblePart | None:
    """The part that came closest to fitting; among parts that are no amount, the first."""
    return min(rejected, key=lambda item: item.excess, default=None)
