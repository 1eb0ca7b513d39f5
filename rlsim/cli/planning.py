"""``rlsim sweep``, ``plan``, ``k`` and ``compare``."""

from typing import Annotated

import typer

from rlsim.cli.options import AsJson, Full, Jobs, Out, Overrides, Risk, ScenarioName, Words, at_risk
from rlsim.cli.output import given_scenario, print_result, say
from rlsim.files.writing import staged_folder


def sweep(
    scenario: ScenarioName,
    words: Words = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUES", help="Axis: a,b,c or 1:8 or 1:16:2 or 64..1024x2. Repeatable."),
    ] = None,
    overrides: Overrides = None,
    replications: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Replications per cell; default 3, or the scenario's if less."),
    ] = None,
    run_steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Also time, cost and energy of a run of N steps.")
    ] = None,
    jobs: Jobs = None,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on this Dask scheduler, such as tcp://host:8786.")
    ] = None,
    as_json: AsJson = False,
    out: Out = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the results of another sweep in --out.")
    ] = False,
    full: Full = False,
) -> None:
    """Project a grid of scenarios, each against its baseline, all on equal work.

    Any scenario key can be an axis; keys joined by commas take the same value. Further keys: k (drafted tokens
    under the scenario's acceptance process, 0 for none), lag (0 synchronous, else asynchronous), generation_share
    (split). --out DIR writes results.csv, results.parquet and pictures; an interrupted sweep into the same folder
    goes on where it stopped.
    """
    from rlsim.planning.sweep import sweep as run

    base = given_scenario(scenario, words, overrides)
    amounts = {"replications": replications, "run_steps": run_steps}
    result = run(base, vary or (), **amounts, jobs=jobs if dask is None else dask, out=out, overwrite=overwrite)
    print_result(result, as_json, full)


Objective = Annotated[
    str,
    typer.Option(
        metavar="MEASURE,STATISTIC",
        help="step_time, tokens_per_s, steps_per_day, time_to_n_steps, cost_per_step, energy_per_step or "
        "gpus=SECONDS, the smallest cluster that reaches that step; by its mean or p90. One of them or both.",
    ),
]
Gpus = Annotated[
    str | None, typer.Option(metavar="VALUES", help="Cluster sizes, as in --vary; default the scenario's.")
]
MaxStaleness = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Largest policy lag; default the scenario's, at least 1.")
]


def plan(
    scenario: ScenarioName,
    words: Words = None,
    overrides: Overrides = None,
    objective: Objective = "step_time,p90",
    gpus: Gpus = None,
    max_staleness: MaxStaleness = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="Steps of the run.")] = None,
    deadline_hours: Annotated[float | None, typer.Option(metavar="H", help="Longest run of --steps steps.")] = None,
    budget_usd: Annotated[float | None, typer.Option(metavar="USD", help="Price of a run of --steps.")] = None,
    risk: Risk = None,
    jobs: Jobs = None,
    as_json: AsJson = False,
    out: Out = None,
    full: Full = False,
) -> None:
    """Find the best configuration under constraints.

    Searches engine and trainer layouts, split, policy lag and speculation jointly; says what is about as good,
    what limits each plan, cost against time, and with what probability the best one beats the others, over draws of
    the model's error that are common to all. --out DIR writes ranked.csv, pareto.png, plan.json and best.yaml, a
    scenario to project again.
    """
    from msgspec.structs import replace

    from rlsim.planning.grammar import parse_sizes
    from rlsim.planning.objective import Objective, parse_objective
    from rlsim.planning.plan import default_limits, write_plan
    from rlsim.planning.plan import plan as run
    from rlsim.units import SECONDS_PER_HOUR

    base = given_scenario(scenario, words, overrides, *at_risk(risk))
    measure, statistic, target_s = parse_objective(objective)
    deadline_s = None if deadline_hours is None else deadline_hours * SECONDS_PER_HOUR
    wanted = Objective(measure, statistic, steps, deadline_s, budget_usd, target_s)
    # Before the limits: a deadline without steps is a mistake, whatever would be searched.
    wanted.check()
    limits = default_limits(base, wanted)
    if gpus is not None:
        limits = replace(limits, sizes=parse_sizes(gpus))
    if max_staleness is not None:
        limits = replace(limits, lags=tuple(range(max_staleness + 1)))
    # Plans behind the finalists stand in ranked.csv alone.
    answer = run(base, objective=wanted, limits=limits, jobs=jobs, rest=out is not None)
    if out is not None:
        with staged_folder(out) as folder:
            write_plan(answer, folder, scenario, out)
    print_result(answer, as_json, full)


def draft_lengths(
    scenario: ScenarioName,
    words: Words = None,
    overrides: Overrides = None,
    longest: Annotated[int, typer.Option(metavar="K", min=1, max=32, help="Longest draft that is tried.")] = 8,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Say how many tokens to draft: speed-ups of rollout and step for k = 0 to 8, with intervals, on the same work.

    Each under the scenario's acceptance process, or an assumed one where it names no drafter, with the live batches at
    which it gains and the CUDA graphs that it needs. --out DIR writes k.json and k.png.
    """
    from rlsim.planning.draft_lengths import draft_lengths as run

    print_result(run(given_scenario(scenario, words, overrides), longest), as_json, True, out)


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A scenario file or a bundled one's name.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    words: Words = None,
    overrides: Overrides = None,
    first_overrides: Annotated[
        list[str] | None, typer.Option("--set-a", metavar="KEY=VALUE", help="Override a key of A only. Repeatable.")
    ] = None,
    second_overrides: Annotated[
        list[str] | None, typer.Option("--set-b", metavar="KEY=VALUE", help="Override a key of B only. Repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two scenarios: what differs in them, in their steps, and which phase explains it.

    KEY=VALUE and --set change both, --set-a and --set-b one of them afterwards: A and B may be the same file.
    """
    from rlsim.planning.compare import compare as run

    named = ((first, first_overrides), (second, second_overrides))
    one, other = (given_scenario(name, words, overrides, *(own or ()), warn=False) for name, own in named)
    for text in dict.fromkeys((*one.missing_parts, *other.missing_parts)):  # once what both lack
        say(text)
    print_result(run(one, other), as_json)
