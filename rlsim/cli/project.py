"""One scenario: ``rlsim project``, ``run`` and ``explore``; ``schema``; folders of results: ``report`` and ``plot``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlsim.cli.options import AsJson, Full, Out, Overrides, ScenarioName, Seed, Words
from rlsim.cli.output import given_scenario, print_answer, print_result, terminal_style, with_remedies
from rlsim.files.progress import ProgressLine

if TYPE_CHECKING:
    from rlsim.results import Projection


def project(
    scenario: ScenarioName,
    words: Words = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    out: Out = None,
    seed: Seed = None,
    replications: Annotated[
        int | None, typer.Option(metavar="N", help="Repetitions behind the intervals (simulation.replications).")
    ] = None,
    exact: Annotated[
        bool | None, typer.Option("--exact", help="Simulate all engines, however many (simulation.exact).")
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Print the verdict alone, in five lines.")] = False,
    full: Full = False,
) -> None:
    """Project one RL step of a scenario.

    The autoregressive baseline stands beside the candidate, both on the same drawn work. Prints the verdict, the phases
    of both with 90 % intervals, what bounds them, memory, price and warnings; --full all there is to say. --out DIR
    writes projection.json, phases.png, timeline.json (opens in Perfetto) and scenario.yaml (resolved).
    """
    from rlsim.projection.project import project as run

    simulated = _simulation(seed=seed, replications=replications, exact=exact)
    given = given_scenario(scenario, words, overrides, *simulated, warn=False)
    with with_remedies(given), ProgressLine("replications") as progress:
        # Spans and curves take time and memory and stand in files alone.
        answer = run(given, progress.reach, timeline=out is not None)
    if out is not None:
        from rlsim.report.folder import write_out

        write_out(answer, out)
    print_answer(answer.to_json() if as_json else _written(answer, brief, full))


def _written(answer: Projection, brief: bool, full: bool) -> str:
    """The answer as text, whose modules ``--json`` does without."""
    style = terminal_style()
    if brief or full:
        from rlsim.report.text.projection import render, render_brief

        return render(answer, style) if full else render_brief(answer, style)
    from rlsim.report.text.projection import render_answer

    return render_answer(answer, style)


def _simulation(**given: int | None) -> list[str]:
    """Overrides of section simulation by the options that are given."""
    return [f"simulation.{key}={value}" for key, value in given.items() if value is not None]


def run(
    scenario: ScenarioName,
    words: Words = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="Training steps of the run.")] = None,
    samples: Annotated[int | None, typer.Option(metavar="M", help="Or: as many steps as consume M samples.")] = None,
    rows: Annotated[int | None, typer.Option(metavar="N", help="Or: as many as use up N prompts of data.")] = None,
    epochs: Annotated[float, typer.Option(metavar="E", help="With --rows: times that the data set is used.")] = 1.0,
    overrides: Overrides = None,
    seed: Seed = None,
    replications: Annotated[int, typer.Option(metavar="N", min=1, help="Independent runs; their mean is printed.")] = 1,
    no_baseline: Annotated[bool, typer.Option("--no-baseline", help="Leave the run without speculation out.")] = False,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Simulate a whole run: N training steps, or as many as consume M samples or a data set.

    The same run without speculation stands beside it, on the same drawn work. Prints time, cost, energy and tokens,
    how the steps evolve, and what the run loses to validation, checkpoints and failures (section run of the scenario).
    --out DIR writes run.json, steps.csv, run.png and scenario.yaml; an interrupted run into the same folder goes on
    where it stopped.
    """
    from rlsim.runs.run import run as simulate

    given = given_scenario(scenario, words, overrides, *_simulation(seed=seed))
    with with_remedies(given), ProgressLine("steps") as progress:
        seen = progress.reach
        answer = simulate(
            given, steps, samples, rows=rows, epochs=epochs, replications=replications, baseline=not no_baseline,
            out=out, progress=seen,
        )  # fmt: skip
    print_result(answer, as_json)


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of results.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="The page; default report.html in DIR.")
    ] = None,
) -> None:
    """Write one HTML page of the results in a folder.

    DIR is what --out of project, run, plan, sweep, validate, check, improve, size or k wrote; several of them in one
    folder make one page. Charts are drawn in it: it needs no network, runs no script, and prints.
    """
    from rlsim.report.page.report import write_report

    print_answer(str(write_report(folder, out)))


def plot(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that --out of another command filled.")],
    out: Out = None,
) -> None:
    """Draw the pictures of finished results again, without simulating anything.

    Takes the folders of run, sweep, plan, check, improve, size and k; --out DIR writes elsewhere. The pictures of
    project and validate need more than their files hold; the message then says which command draws them.
    """
    from rlsim.report.folder import replot

    print_answer("\n".join(f"written: {path}" for path in replot(folder, out)))


def schema() -> None:
    """Print the JSON Schema of scenarios.

    Editors use it to complete and check scenario files.
    """
    from rlsim.loading.scenario import scenario_json_schema

    print_answer(json.dumps(scenario_json_schema(), indent=2))


def explore(
    scenario: ScenarioName,
    words: Words = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on the loopback; 0: a free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address and open nothing.")] = False,
    idle_minutes: Annotated[
        float, typer.Option(min=0.01, max=1440, help="End after this long without an open page.")
    ] = 15.0,
) -> None:
    """Move a scenario by sliders on a local page.

    Draft length, acceptance, GPUs, split, lag and lengths; the picture follows at once and settles on the answer of
    rlsim project, whose command line stands below it. Nothing but this machine can reach the page; it ends by itself.
    """
    from rlsim.explore.live import Live
    from rlsim.explore.server import Explorer

    given = given_scenario(scenario, words, None)
    server = Explorer(Live(given, scenario, words or ()), port, 60.0 * idle_minutes)
    print_answer(f"{server.url}\nends after {idle_minutes:g} minutes without an open page, or with Ctrl-C")
    if not no_browser:
        import webbrowser

        webbrowser.open(server.url)
    try:
        server.serve()
    except KeyboardInterrupt:
        # Ctrl-C is how the message says to end it: no error.
        server.server_close()
