"""``rlsim run``."""

from __future__ import annotations

from rlsim.cli import options as o
from rlsim.cli.output import given_overrides, print_answer, terminal_style
from rlsim.files.progress import ProgressLine


def run(
    scenario: o.ScenarioArgument,
    words: o.WordsArgument = None,
    steps: o.RunLengthOption = None,
    samples: o.RunSamplesOption = None,
    overrides: o.SetOption = None,
    seed: o.SeedOption = None,
    replications: o.RunReplicationsOption = 1,
    no_baseline: o.AloneOption = False,
    as_json: o.JsonOption = False,
    out: o.OutOption = None,
) -> None:
    """Simulate a whole run: N training steps, or as many as consume M samples.

    The same run without speculation stands beside it, on the same drawn work. Prints time, cost, energy and tokens,
    how the steps evolve, and what the run loses to validation, checkpoints and failures (section run of the scenario).
    --out DIR writes run.json, steps.csv, run.png and scenario.yaml; an interrupted run into the same folder goes on
    where it stopped.
    """
    from rlsim.loading.scenario import load_scenario
    from rlsim.report.text.run import render
    from rlsim.runs.run import run as simulate

    seeds = [] if seed is None else [f"simulation.seed={seed}"]
    given = load_scenario(scenario, [*given_overrides(words, overrides), *seeds])
    with ProgressLine("steps") as progress:
        answer = simulate(
            given,
            steps,
            samples,
            replications=replications,
            baseline=not no_baseline,
            out=out,
            progress=progress.reach,
        )
    print_answer(answer.to_json() if as_json else render(answer, terminal_style()))
