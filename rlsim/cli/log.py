"""``rlsim log``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rlsim.cli import options as o
from rlsim.cli.output import given_scenario, print_answer, step_range, terminal_style
from rlsim.files.progress import ProgressLine

if TYPE_CHECKING:
    from rlsim.report.files import Content


def log(
    file: o.LogArgument,
    scenario: o.ScenarioArgument,
    words: o.WordsArgument = None,
    overrides: o.SetOption = None,
    steps: o.LogStepsOption = None,
    as_stated: o.AsStatedOption = False,
    what_if: o.WhatIfOption = None,
    as_json: o.JsonOption = False,
    out: o.OutOption = None,
) -> None:
    """Compare the log of a real run with its scenario, take it in, and predict what else the run could be.

    LOG is an event file of TensorBoard or a folder of them, a CSV or JSON export of wandb, JSON lines, MLPerf's
    :::MLLOG lines, or verl's console. Times are timing/train/* of NeMo-RL, timing_s/* of verl, or MLPerf's. The median
    of the steps after the warm-up stands beside the predicted one, the posterior takes it in (docs/uncertainty.md), and
    what that changed is named. --out DIR writes log.json, posterior.npz, scenario.yaml (which uses it) and phases.png.
    """
    from rlsim.readers.logs.answer import POSTERIOR_NAME, answer_run
    from rlsim.readers.logs.reading import read_log
    from rlsim.readers.logs.text import render_run, run_picture
    from rlsim.report.files import write_files

    chosen = None if steps is None else step_range(steps)
    given = given_scenario(scenario, words, overrides)
    with ProgressLine("records") as progress:
        found = read_log(file, progress.reach)
    with ProgressLine("simulations") as progress:
        answer = answer_run(found, given, chosen, what_if or (), as_stated, progress.reach)
    told = render_run(answer, terminal_style())
    if out is not None:
        files: dict[str, Content] = {
            "log.json": json.dumps(answer.as_dict(), indent=1) + "\n",
            "scenario.yaml": answer.scenario_yaml(),
            POSTERIOR_NAME: answer.posterior.to_bytes(),
            "phases.png": run_picture(answer),
        }
        write_files(files, out)
        told += f"\nwritten: {out}; predict with what is known now: rlsim project {out / 'scenario.yaml'}"
    print_answer(json.dumps(answer.as_dict()) if as_json else told)
