"""``rlsim sweep``, ``plan``, ``sensitivity`` and ``compare``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlsim.cli import options as o
from rlsim.cli.output import given_overrides, print_answer, terminal_style
from rlsim.files.writing import staged_folder

if TYPE_CHECKING:
    from rlsim.planning.objective import Objective
    from rlsim.planning.results import Plan
    from rlsim.planning.space import SearchLimits
    from rlsim.schema.scenario import Scenario


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, allow_nan=False)


def sweep(
    scenario: o.ScenarioArgument,
    words: o.WordsArgument = None,
    vary: o.VaryOption = None,
    overrides: o.SetOption = None,
    replications: o.CellReplicationsOption = None,
    run_steps: o.RunStepsOption = None,
    jobs: o.JobsOption = None,
    dask: o.DaskOption = None,
    as_json: o.JsonOption = False,
    out: o.OutOption = None,
    overwrite: o.OverwriteOption = False,
) -> None:
    """Project a grid of scenarios, each against its baseline, all on equal work.

    Any scenario key can be an axis; keys joined by commas take the same value. Further keys: k (drafted tokens
    under the scenario's acceptance process, 0 for none), lag (0 synchronous, else asynchronous), generation_share
    (split). --out DIR writes results.csv, results.parquet and pictures; an interrupted sweep into the same folder
    goes on where it stopped.
    """
    from rlsim.loading.scenario import load_scenario
    from rlsim.planning.sweep import sweep as run
    from rlsim.planning.text import render_sweep

    base = load_scenario(scenario, given_overrides(words, overrides))
    result = run(
        base,
        vary or (),
        replications=replications,
        run_steps=run_steps,
        jobs=jobs,
        dask=dask,
        out=out,
        overwrite=overwrite,
    )
    print_answer(_json(result.as_dict()) if as_json else render_sweep(result, terminal_style()))


def plan(
    scenario: o.ScenarioArgument,
    words: o.WordsArgument = None,
    overrides: o.SetOption = None,
    objective: o.ObjectiveOption = "step_time,p90",
    gpus: o.GpusOption = None,
    max_staleness: o.StalenessOption = None,
    steps: o.StepsOption = None,
    deadline_hours: o.DeadlineOption = None,
    budget_usd: o.BudgetOption = None,
    target_step_s: o.TargetOption = None,
    confidence: o.ConfidenceOption = o.DEFAULT_CONFIDENCE,
    near_evidence: o.NearEvidenceOption = False,
    memory_headroom: o.HeadroomOption = o.DEFAULT_HEADROOM,
    any_domain: o.DomainOption = False,
    drafter: o.DrafterOption = None,
    jobs: o.JobsOption = None,
    dask: o.DaskOption = None,
    as_json: o.JsonOption = False,
    out: o.OutOption = None,
) -> None:
    """Find the best configuration under constraints.

    Searches engine and trainer layouts, split, policy lag and speculation jointly; says what is about as good,
    what limits each plan, cost against time, and with what probability the best one beats the others, over draws of
    the model's error that are common to all; and what is best near the evidence. --out DIR writes ranked.csv,
    pareto.png, plan.json and best.yaml, a scenario to project again.
    """
    from rlsim.loading.scenario import load_scenario
    from rlsim.planning.plan import changes
    from rlsim.planning.plan import plan as run
    from rlsim.planning.text import render_plan

    base = load_scenario(scenario, given_overrides(words, overrides))
    wanted = _objective(objective, steps, deadline_hours, budget_usd, target_step_s, confidence)
    limits = _limits(base, wanted, gpus, max_staleness, memory_headroom, not any_domain, drafter or [], near_evidence)
    answer = run(base, objective=wanted, limits=limits, jobs=jobs, dask=dask)
    if out is not None:
        _write_plan(answer, out)
    keys = changes(base, answer.best)
    print_answer(_json(answer.as_dict()) if as_json else render_plan(answer, keys, terminal_style()))


def _objective(
    objective: str,
    steps: int | None,
    deadline_hours: float | None,
    budget_usd: float | None,
    target_s: float | None,
    confidence: float,
) -> Objective:
    from rlsim.planning.objective import Objective, parse_objective
    from rlsim.projection.expenses import SECONDS_PER_HOUR

    measure, statistic = parse_objective(objective)
    deadline_s = None if deadline_hours is None else deadline_hours * SECONDS_PER_HOUR
    wanted = Objective(measure, statistic, steps, deadline_s, budget_usd, target_s, confidence)
    wanted.check()
    return wanted


def _limits(
    scenario: Scenario,
    objective: Objective,
    gpus: str | None,
    max_staleness: int | None,
    memory_headroom: float,
    same_domain: bool,
    drafters: list[str],
    near_evidence: bool,
) -> SearchLimits:
    from dataclasses import replace

    from rlsim.planning.grammar import parse_sizes
    from rlsim.planning.layouts import Drafter
    from rlsim.planning.plan import default_limits

    limits = default_limits(scenario, objective)
    return replace(
        limits,
        sizes=parse_sizes(gpus) if gpus is not None else limits.sizes,
        lags=tuple(range(max_staleness + 1)) if max_staleness is not None else limits.lags,
        memory_headroom=memory_headroom,
        same_domain=same_domain,
        drafters=tuple(Drafter.parse(text) for text in drafters),
        near_evidence=near_evidence,
    )


def _write_plan(answer: Plan, out: Path) -> None:
    from rlsim.planning.plan_files import write_plan

    with staged_folder(out) as folder:
        write_plan(answer, folder)


def sensitivity(
    scenario: o.ScenarioArgument,
    words: o.WordsArgument = None,
    overrides: o.SetOption = None,
    uncertain: o.UncertainOption = None,
    jobs: o.JobsOption = None,
    dask: o.DaskOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Rank what could be measured by the regret and the interval that it would save.

    The interval is that of project. Says what each of its sources is worth for the choice among a few cheap
    alternatives, and the command that measures it. --uncertain replaces or adds a range of what the scenario states.
    """
    from rlsim.loading.scenario import load_scenario
    from rlsim.planning.sensitivity import sensitivity as run
    from rlsim.planning.sensitivity_text import render_sensitivity

    base = load_scenario(scenario, given_overrides(words, overrides))
    answer = run(base, uncertain=uncertain or (), jobs=jobs, dask=dask)
    print_answer(_json(answer.as_dict()) if as_json else render_sensitivity(answer, terminal_style()))


def compare(
    first: o.FirstArgument,
    second: o.SecondArgument,
    words: o.WordsArgument = None,
    overrides: o.SetOption = None,
    first_overrides: o.SetFirstOption = None,
    second_overrides: o.SetSecondOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Compare two scenarios: what differs in them, in their steps, and which phase explains it.

    KEY=VALUE and --set change both, --set-a and --set-b one of them afterwards: A and B may be the same file.
    """
    from rlsim.loading.scenario import load_scenario
    from rlsim.planning.compare import compare as run
    from rlsim.planning.text import render_comparison

    both = given_overrides(words, overrides)
    answer = run(
        load_scenario(first, [*both, *(first_overrides or ())]),
        load_scenario(second, [*both, *(second_overrides or ())]),
    )
    print_answer(_json(answer.as_dict()) if as_json else render_comparison(answer, terminal_style()))
