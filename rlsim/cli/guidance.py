"""``rlsim explain``, ``new`` and ``support``."""

from __future__ import annotations

import json
import sys

from rlsim.cli import guidance_options as g
from rlsim.cli import options as o
from rlsim.cli.output import given_overrides, print_answer, terminal_style
from rlsim.errors import InputError


def explain(
    key: g.KeyArgument,
    scenario: g.ExplainedArgument = None,
    words: o.WordsArgument = None,
    overrides: o.SetOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Explain a scenario key.

    Says what it means, its type, default and bounds, where the default comes from, and which commands use it; with a
    scenario also its value there, and what set it. A key that does not exist is answered with the nearest.
    """
    from rlsim.guidance.explain import explain as run
    from rlsim.guidance.explain import render_explanation

    answer = run(key, scenario, given_overrides(words, overrides))
    print_answer(json.dumps(answer.as_dict(), indent=2) if as_json else render_explanation(answer, terminal_style()))


def new(
    target: g.NewFileArgument,
    model: g.ModelOption = None,
    hardware: g.HardwareOption = None,
    gpus: g.GpuCountOption = None,
    batch: g.BatchOption = None,
    response_tokens: g.ResponseOption = None,
    overwrite: g.ReplaceOption = False,
) -> None:
    """Write a first scenario from five answers.

    Asks for model, GPUs, their number, batch and response length where no option gives them, on a terminal. The file is
    commented, states what it assumes, and has the layout that plan finds shortest; project it and change it.
    """
    from rlsim.guidance.new import QUESTIONS, Answers, write_new

    options = {
        "model": model, "hardware": hardware, "gpus": gpus, "batch": batch, "response-tokens": response_tokens
    }  # fmt: skip
    missing = [f"--{question.option}" for question in QUESTIONS if options[question.option] is None]
    if missing and not sys.stdin.isatty():
        raise InputError(f"new asks on a terminal only; here it needs {', '.join(missing)}")
    given = {name: _asked(name) if value is None else value for name, value in options.items()}
    scenario = write_new(Answers.parse(given), target, overwrite)
    print_answer(f"written: {target} ({scenario.question})\nnext: rlsim project {target}")


def support(
    model: g.ModelArgument,
    device: g.DeviceArgument,
    engine: g.EngineArgument = "vllm",
    gpus: g.ClusterOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Say what backs a model on a device with an engine: measured, modelled, refused.

    Operator tables that are there, releases with fitted host times, measured runs that share something with it and the
    nearest of them, what a plain step of it rests on, and which precisions and drafts are refused.
    """
    from rlsim.guidance.support import SHAPE, coverage
    from rlsim.report.text.coverage import render_coverage

    answer = coverage(model, device, engine, gpus)
    print_answer(answer.to_json() if as_json else render_coverage(answer, SHAPE, terminal_style()))


def _asked(option: str) -> str:
    """An answer from the terminal, asked again until it can be used."""
    import typer

    from rlsim.guidance.new import CHECKS, QUESTIONS

    question = next(one for one in QUESTIONS if one.option == option)
    while True:
        answer = str(typer.prompt(question.text, default=question.example, err=True))
        try:
            CHECKS[option](answer)
        except InputError as error:
            typer.echo(str(error), err=True)
        else:
            return answer
