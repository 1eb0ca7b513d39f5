"""plan(): the best configuration under constraints, the finalists, what limits each, and how sure the order is."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from rlsim.costs.memory import fit_probability, surely
from rlsim.errors import Infeasible, InputError
from rlsim.files.lookup import catalogue
from rlsim.files.yaml import dump_document
from rlsim.loading.differences import changes, differences
from rlsim.loading.extends import EXTENDS
from rlsim.loading.models import load_card
from rlsim.loading.scenario import as_scenario, dump_scenario, find_scenario, load_scenario, scenario_of_text, vary
from rlsim.loading.variation import Overrides, check_trained
from rlsim.planning.bounds import bounded_candidates
from rlsim.planning.evaluate import Cell, beside_baseline
from rlsim.planning.execution import Runner, executor
from rlsim.planning.objective import Objective, p90, probability, quantile
from rlsim.planning.search import (
    Contest,
    Finals,
    Simulated,
    as_answered,
    final_means,
    final_task,
    finals,
    nearest_miss,
    pareto_front,
    search,
    see_once,
    simulate_finally,
    simulate_once,
)
from rlsim.planning.space import OWN_LAG, InfeasiblePart, SearchLimits, Space, build_space, own_lag
from rlsim.projection.precision import Anchor
from rlsim.projection.summary import price_usd
from rlsim.projection.variant import searched
from rlsim.projection.verdict import unmeasured_winner
from rlsim.report.format import percent
from rlsim.results.sweep import Change, ConstraintMet, Plan, Unsure
from rlsim.schema.base import replaced
from rlsim.schema.scenario import Scenario
from rlsim.tables.profile import load_profile
from rlsim.workload.draw import draw

CATALOGUED = {"model": load_card, "hardware": load_profile, "training_hardware": load_profile}
"""Sections that a name stands for, where what it means is equal."""


def plan(
    scenario: Scenario | Path | str,
    *,
    objective: Objective | None = None,
    limits: SearchLimits | None = None,
    jobs: int | None = 1,
    rest: bool = True,
) -> Plan:
    """Search engine layout, trainer layout, split, lag and draft length jointly.

    objective: what is made best, and constraints, default the shortest step. limits: cluster sizes, lags and layouts to
    look at, default those of :func:`default_limits`, as on the command line. jobs: processes (None: all cores).
    rest: with the plans that the search alone has seen, whose numbers take a sixth of the time.
    Raises InputError for contradictions and Infeasible, with the nearest miss and the binding constraint, where nothing
    can run or nothing keeps to the constraints.
    """
    scenario, objective = as_scenario(scenario), objective or Objective()
    objective.check()
    limits = limits or default_limits(scenario, objective)
    _check_rules(scenario, limits)
    with executor(jobs) as run:
        contest = Contest(scenario, objective, limits, _current(scenario), rest)
        found = _search_sizes(contest, run)
        if not found.feasible:
            raise _nothing(contest, found)
        return _answer(contest, found, run)


def best_overrides(scenario: Scenario, limits: SearchLimits) -> Overrides:
    """What turns ``scenario`` into its fastest plan: that of :func:`plan`, without what a plan says besides. Raises as
    it does."""
    _check_rules(scenario, limits)
    with executor(1) as run:
        contest = Contest(scenario, Objective(), limits, None, False)
        found = _search_sizes(contest, run)
    if not found.feasible:
        raise _nothing(contest, found)
    return found.feasible[0].layout.overrides()


def leading_overrides(scenario: Scenario, limits: SearchLimits, most: int) -> list[Overrides]:
    """What turns ``scenario`` into each of its fastest plans, as far as a search's one drawn workload tells them: at
    most so many within NEAR of the best. Raises as :func:`plan` does."""
    _check_rules(scenario, limits)
    with executor(1) as run:
        contest = Contest(scenario, Objective(), limits, None, False)
        space, plans = _looked_at(contest, limits, run)
    whole = [plan for plan in plans if isinstance(plan, Simulated) and not plan.given_up]
    if not whole:
        raise _nothing(contest, Finals(rejected=_rejected(space, plans)))
    return [plan.layout.overrides() for plan in contest.near(contest.ranked(whole))[:most]]


def _current(scenario: Scenario) -> Simulated | None:
    """The scenario as it is; None where it cannot run."""
    cell = simulate_finally((scenario, {}))
    return None if cell.numbers is None else Simulated(cell.numbers, cell.timed)


def _check_rules(scenario: Scenario, limits: SearchLimits) -> None:
    """InputError for two kinds of GPUs, for streaming, and where races or repeated rollouts would meet a lag;
    Infeasible where these find too few groups in any plan."""
    check_trained(scenario, "a plan")
    if scenario.training_hardware is not None:
        raise InputError(
            "a plan divides GPUs of one kind: leave training_hardware out, or vary generation_share (sweep)"
        )
    if scenario.loop.streaming:
        raise InputError("loop.streaming needs split pools and no lag, which a plan varies: plan with it false")
    if scenario.workload.tail_batching is not None and any(limits.lags):
        raise InputError(
            "workload.tail_batching ends rollouts early, which asynchronous loops do not do: look at lag 0 only "
            "(--max-staleness 0)"
        )
    if scenario.workload.usable_group_share == 1:
        return
    if any(limits.lags):
        raise InputError(
            "workload.usable_group_share below 1 repeats rollouts within a step, which asynchronous loops do not do: "
            "look at lag 0 only (--max-staleness 0) or give workload.generated_batch_factor instead"
        )
    # Too few usable groups are too few in every layout: better refused before any is priced.
    for replication in range(scenario.replications):
        draw(scenario, replication)


def default_limits(scenario: Scenario, objective: Objective | None = None) -> SearchLimits:
    """The scenario's cluster size (around it where the smallest cluster is asked for) and lags 0 to its own, or 1, with
    the rule of a loop that states none.

    Under dynamic sampling and tail batching lag 0 only, since they repeat rollouts within a step or end them early.
    """
    gpus = scenario.cluster.num_gpus
    sizes = (gpus,)
    if objective is not None and objective.measure == "gpus":
        # From a sixteenth of the scenario's size to eight times as many.
        sizes = tuple(sorted({max(1, gpus * 2**i // 16) for i in range(8)}))
    workload = scenario.workload
    lagging = workload.usable_group_share == 1 and workload.tail_batching is None
    most = max(1, scenario.loop.lag) if lagging else 0
    own = (OWN_LAG,) if lagging and own_lag(scenario) == OWN_LAG else ()
    return SearchLimits(sizes, (*own, *range(most + 1)))


def _search_sizes(contest: Contest, run: Runner) -> Finals:
    """Search all sizes at once; for the smallest cluster size by size until one reaches the target."""
    if contest.objective.measure != "gpus":
        return _searched(contest, contest.limits, run)
    total = Finals()
    for gpus in sorted(contest.limits.sizes):
        total = total + _searched(contest, replace(contest.limits, sizes=(gpus,)), run)
        # Sizes rise: the first that reaches the target is the smallest.
        if total.feasible:
            break
    return total


def _searched(contest: Contest, limits: SearchLimits, run: Runner) -> Finals:
    space, plans = _looked_at(contest, limits, run)
    last = finals(contest, [plan for plan in plans if isinstance(plan, Simulated)], run)
    rejected = (*_rejected(space, plans), *last.rejected)
    considered, configurations = space.considered, space.configurations
    return replace(last, rejected=rejected, considered=considered, configurations=configurations, simulated=len(plans))


def _looked_at(
    contest: Contest, limits: SearchLimits, run: Runner
) -> tuple[Space, Sequence[Simulated | InfeasiblePart]]:
    """The space within ``limits``, and what the search has simulated of it."""
    space = build_space(contest.scenario, limits)
    candidates = bounded_candidates(searched(contest.scenario), space, run)
    return space, list(search(contest, candidates, run, simulate_once if contest.rest else see_once).values())


def _rejected(space: Space, plans: Sequence[Simulated | InfeasiblePart]) -> tuple[InfeasiblePart, ...]:
    """Parts that do not fit, and plans that drawn work shows to overflow."""
    return (*space.rejected, *(plan for plan in plans if isinstance(plan, InfeasiblePart)))


def _nothing(contest: Contest, found: Finals) -> Infeasible | InputError:
    """The nearest miss and what binds it."""
    # Plans that run and are too slow say more than those that do not fit.
    if found.missed:
        return _missed(contest, min(found.missed, key=contest.miss))
    nearest = nearest_miss(found.rejected)
    if nearest is None:
        return InputError("the limits leave no plan to look at; widen --gpus, --max-staleness or the layouts")
    what = ", ".join(f"{key}={value}" for key, value in nearest.overrides.items())
    return Infeasible(
        f"no plan fits; the nearest miss is {what}: {nearest.text}", nearest.needed, nearest.available, nearest.unit
    )


def _missed(contest: Contest, plan: Simulated) -> Infeasible:
    binding, longest_s = min(contest.allowed(plan).items(), key=lambda one: one[1])
    wanted = contest.objective.confidence
    return Infeasible(
        f"no plan keeps to the {binding} with a probability of {percent(wanted)}; the nearest is {plan.name}, which "
        f"keeps to it with {percent(probability(plan.drawn_s, longest_s))}",
        quantile(plan.drawn_s, wanted),
        longest_s,
        f"s per step with {percent(wanted)}",
    )


def _answer(contest: Contest, found: Finals, run: Runner) -> Plan:
    scenario, objective, current = contest.scenario, contest.objective, contest.current
    found, by = as_answered(contest, found)
    best = _beside_baseline(scenario, found.feasible[0], by)
    numbers, step_s = best.full, p90(best.drawn_s) if objective.statistic == "p90" else best.mean_s
    finalists = (best, *found.feasible[1:])
    # A scenario that asks its own question.
    question = f"What does the plan for {objective.measure.replace('_', ' ')} of '{scenario.name}' take? {best.name}."
    chosen = vary(scenario, best.layout.overrides())
    rivals = [*([] if current is None else [current]), *finalists[1:]]
    return Plan(
        scenario=scenario.name,
        objective=objective.measure,
        statistic=objective.statistic,
        objective_value=objective.value(scenario, numbers.num_gpus, step_s, numbers.tokens_per_s * best.mean_s),
        least_probability=objective.confidence,
        best=contest.row(best),
        finalists=tuple(map(contest.row, finalists)),
        pareto=tuple(map(contest.row, pareto_front(finalists))),
        current=None if current is None else current.full,
        waterfall=_waterfall(contest, best, run),
        against=tuple(contest.against(best, rival) for rival in rivals),
        constraints=_constraints(contest, best),
        fit_probability=surely(scenario).simulation.least_fit,
        current_fits=None if current is None else fit_probability(scenario),
        unsure=_unsure(found),
        considered=found.considered,
        configurations=found.configurations,
        simulated=found.simulated,
        rest=tuple(map(contest.row, found.rest if contest.rest else ())),
        steps=objective.steps,
        # Names end at 200 characters (schema/scenario.py), the added word included.
        best_scenario=dump_scenario(vary(chosen, {"question": question, "name": f"{scenario.name[:190]}-best"})),
        changes=changes(scenario, chosen),
        model=scenario.model.name,
        hardware=" and ".join(dict.fromkeys((scenario.hardware.name, scenario.training_device.name))),
        price_per_gpu_hour_usd=price_usd(scenario),
        assumptions=tuple(assumption.text for assumption in chosen.assumptions),
        verdict=(*_doubtful(contest), *unmeasured_winner(scenario.hardware)),
    )


def _doubtful(contest: Contest) -> tuple[str, ...]:
    """That the scenario as it is, with which the plan is compared, may not fit as surely as a plan must."""
    fits = 1.0 if contest.current is None else fit_probability(contest.scenario)
    if fits >= surely(contest.scenario).simulation.least_fit:
        return ()
    return (f"The scenario as it is has enough memory with a probability of {percent(fits)} only.",)


def _constraints(contest: Contest, best: Simulated) -> tuple[ConstraintMet, ...]:
    """How the best plan keeps to what was asked: by its draws, by construction, or as far as the model says."""
    n, limits = best.full, contest.limits
    used = max(n.generation_memory_bytes, n.training_memory_bytes) / contest.scenario.hardware.memory_bytes.value
    fits = fit_probability(vary(contest.scenario, best.layout.overrides()))
    met: list[tuple[str, float, float, str, float | None]] = [
        (constraint, longest_s, best.mean_s, "s per step", probability(best.drawn_s, longest_s))
        for constraint, longest_s in contest.allowed(best).items()
    ]
    met.append(("policy lag", float(max(limits.lags)), float(n.policy_lag), "steps", 1.0))
    met.append(("memory", 1.0, used, "share of a GPU", fits))
    names = ("constraint", "limit", "value", "unit", "probability")
    return tuple(ConstraintMet.model_validate(dict(zip(names, each, strict=True))) for each in met)


def _unsure(found: Finals) -> tuple[Unsure, ...]:
    """Layouts of engine or trainer that are not offered though they fit more likely than not, the likeliest first."""
    best: dict[str, float] = {}
    for part in found.rejected:
        if part.fits >= 0.5:
            plain, *_ = (f"{key}={value}" for key, value in part.overrides.items())
            named = " ".join(f"{key}={value}" for key, value in part.overrides.items() if value not in (0, 1))
            name = f"{named or plain} on {part.gpus} GPU{'s' if part.gpus > 1 else ''}"
            best[name] = max(part.fits, best.get(name, 0.0))
    return tuple(Unsure(layout=name, fits=fits) for name, fits in sorted(best.items(), key=lambda pair: -pair[1]))


def _beside_baseline(scenario: Scenario, best: Simulated, by: Anchor | None) -> Simulated:
    """The plan with its speed-ups over the autoregressive baseline, where that can run; by: as of it."""
    found = Cell(best.full, best.timed)  # carried over already
    try:
        cell = beside_baseline(vary(*final_task(scenario, best.layout.overrides())), found, by)
    except (Infeasible, InputError):
        return best
    assert cell.numbers is not None
    return replace(best, numbers=cell.numbers)


def _waterfall(contest: Contest, best: Simulated, run: Runner) -> tuple[Change, ...]:
    """Mean step after each stage from the scenario as it is to the best plan; a stage that cannot run is left out."""
    if contest.current is None:
        return ()
    engine = best.layout.engine
    drafting: Overrides = {"k": engine.draft_length}
    layouts = {**engine.overrides(), **best.layout.trainer.overrides()}
    ways = {engine.drafting: drafting, "layouts": layouts}
    stages = dict(run(final_means, [(contest.scenario, overrides) for overrides in ways.values()]))
    steps = [(what, stages[place].numbers) for place, what in enumerate(ways)]
    done = [Change(what=what, step_s=numbers.step_s.mean) for what, numbers in steps if numbers is not None]
    as_is = Change(what="as it is", step_s=contest.current.mean_s)
    return (as_is, *done, Change(what="GPUs, split and lag", step_s=best.mean_s))


def extending(scenario: Scenario, base: str | Path, folder: Path, beside: Path | None = None) -> str:
    """YAML of ``scenario`` as a file in ``folder``: ``extends: base`` and what differs, else all keys.

    base: name of a bundled scenario, which stays a name, or a file, as a path from ``folder``. beside: a folder that
    exists at the same depth, from which paths are tried where ``folder`` is not there yet.
    """
    in_full = dump_scenario(scenario)
    try:
        found = find_scenario(base)
        bundled = catalogue("scenarios").get(found.stem)
        here = bundled is not None and found.resolve() == bundled.resolve()
        reference = found.stem if here else os.path.relpath(found.resolve(), folder.resolve())
        document = _short(scenario, load_scenario(found), reference)
        text = dump_document(document)
        # Read back before it is written: a reference may mean something else in that folder.
        again = scenario_of_text(text, "best.yaml", folder if folder.is_dir() else beside)
    except (InputError, OSError, ValueError):
        return in_full
    return text if _answers_alike(again, scenario) else in_full


def _answers_alike(first: Scenario, second: Scenario) -> bool:
    """Whether both give the same answer: equal but for assumptions that are sentences alone and widen no interval.

    A plan that sets a key to the value that it had drops what was assumed of it; the short file keeps it.
    """
    guesses = [[one for one in each.assumptions if one.log_spread is not None] for each in (first, second)]
    bare = [replaced(each, {"assumptions": (), "missing": ()}) for each in (first, second)]
    return guesses[0] == guesses[1] and bare[0] == bare[1]


def _short(scenario: Scenario, base: Scenario, reference: str) -> dict[str, Any]:
    """Name and question, the file extended, then the keys that differ, nested as in any scenario."""
    changed = {key: value for key, (_, value) in differences(base, scenario).items()}
    for section, load in CATALOGUED.items():
        record = getattr(scenario, section)
        if record is not None and any(key.startswith(f"{section}.") for key in changed) and _same(record, load):
            changed = {key: value for key, value in changed.items() if not key.startswith(f"{section}.")}
            changed[section] = record.name
    # Model and hardware first, as files are written by hand; sorted() leaves the rest in the schema's order.
    changed = dict(sorted(changed.items(), key=lambda pair: pair[0] not in CATALOGUED))
    document: dict[str, Any] = {EXTENDS: reference, "name": scenario.name, "question": scenario.question}
    for key, value in changed.items():
        *sections, leaf = key.split(".")
        holder = document
        for section in sections:
            holder = holder.setdefault(section, {})
        if key not in ("name", "question"):
            holder[leaf] = value
    return document


def _same(record: object, load: Any) -> bool:
    try:
        return bool(load(record.name) == record)  # type: ignore[attr-defined]
    except InputError:
        return False


def write_plan(answer: Plan, folder: Path, base: str | Path | None = None, out: Path | None = None) -> None:
    """Write ranked.csv, pareto.png, best.yaml and plan.json into the existing ``folder``.

    best.yaml is a scenario that ``rlsim project`` takes: that of the plan, as what changes in ``base`` (a name or a
    file) where one is given. out: where the folder's files will lie, if not there.
    """
    # Imported here: the picture needs matplotlib, which the search does not.
    from rlsim.report.figures.grids import plan_figure
    from rlsim.report.figures.style import save_picture
    from rlsim.results.sweep import write_csv

    best = answer.best_scenario
    if base is not None:
        scenario = scenario_of_text(best, "best.yaml", folder)
        best = extending(scenario, base, out or folder, folder)
    write_csv(answer.to_frame(), folder / "ranked.csv")
    # Equal bytes on every system, line ends included.
    (folder / "best.yaml").write_text(best, encoding="utf-8", newline="\n")
    (folder / "plan.json").write_text(answer.to_json(), encoding="utf-8", newline="\n")
    save_picture(plan_figure(answer), folder / "pareto.png")
