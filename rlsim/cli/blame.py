"""``rlsim blame``."""

from __future__ import annotations

import json

from rlsim.cli import options as o
from rlsim.cli.output import given_overrides, print_answer, terminal_style
from rlsim.files.progress import ProgressLine


def blame(
    scenario: o.ScenarioArgument,
    words: o.WordsArgument = None,
    overrides: o.SetOption = None,
    as_json: o.JsonOption = False,
    out: o.OutOption = None,
) -> None:
    """Say why the GPUs of a scenario are idle, and what removing each cause would gain.

    Each cause (straggler tail, refit, environment, staleness limit, queue cap, polling, pipeline bubble) is taken away
    on the same drawn work, alone and after those before it; policies against the tail are tried as what-ifs. --out DIR
    writes blame.json and waterfall.png.
    """
    from rlsim.attribution.blame import blame as run
    from rlsim.loading.scenario import load_scenario
    from rlsim.report.files import write_out
    from rlsim.report.text.blame import render_blame

    given = load_scenario(scenario, given_overrides(words, overrides))
    with ProgressLine("simulations") as progress:
        answer = run(given, progress.reach)
    write_out(answer, out)
    print_answer(json.dumps(answer.as_dict()) if as_json else render_blame(answer, terminal_style()))
