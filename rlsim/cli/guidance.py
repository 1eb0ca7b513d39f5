"""``rlsim explain``, ``new``, ``size`` and ``support``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from rlsim.cli.output import print_answer, print_result, terminal_style
from rlsim.errors import InputError


def explain(
    key: str,
    scenario: str | None = None,
    words: list[str] | None = None,
    overrides: list[str] | None = None,
    as_json: bool = False,
) -> None:
    """Explain a scenario key.

    Says what it means, its type, default and bounds, where the default comes from, and which commands use it; with a
    scenario also its value there, and what set it. A key that does not exist is answered with the nearest.
    """
    from rlsim.loading.explain import explain as run
    from rlsim.loading.explain import render_explanation

    answer = run(key, scenario, [*(words or ()), *(overrides or ())])
    print_answer(json.dumps(answer.as_dict(), indent=2) if as_json else render_explanation(answer, terminal_style()))


def new(
    target: Path,
    model: str | None = None,
    hardware: str | None = None,
    gpus: str | None = None,
    batch: str | None = None,
    response_tokens: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write a first scenario from five answers.

    Asks for model, GPUs, their number, batch and response length where no option gives them, on a terminal. The file is
    commented, states what it assumes, and has the layout that plan finds shortest; project it and change it.
    """
    from rlsim.planning.new import QUESTIONS, Answers, write_new

    options = {
        "model": model, "hardware": hardware, "gpus": gpus, "batch": batch, "response-tokens": response_tokens
    }  # fmt: skip
    missing = [f"--{option}" for option in QUESTIONS if options[option] is None]
    if missing and not sys.stdin.isatty():
        raise InputError(f"new asks on a terminal only; here it needs {', '.join(missing)}")
    given = {name: _asked(name) if value is None else value for name, value in options.items()}
    scenario = write_new(Answers.parse(given), target, overwrite)
    print_answer(f"written: {target} ({scenario.question})\nnext: rlsim project {target}")


def support(
    model: str,
    device: str,
    engine: str = "vllm",
    gpus: int | None = None,
    as_json: bool = False,
) -> None:
    """Say what backs a model on a device with an engine: measured, modelled, refused.

    Operator tables that are there, releases with fitted host times, measured runs that share something with it and the
    nearest of them, what a plain step of it rests on, and which precisions and drafts are refused.
    """
    from rlsim.planning.support import SHAPE, coverage
    from rlsim.report.text.support import render_coverage

    answer = coverage(model, device, engine, gpus)
    print_answer(answer.to_json() if as_json else render_coverage(answer, SHAPE, terminal_style()))


def size(
    model: str,
    device: str,
    batch: str = "64x16",
    response_tokens: str = "2000",
    deadline: float | None = None,
    budget: float | None = None,
    lora: int | None = None,
    engine: str = "vllm",
    as_json: bool = False,
    full: bool = False,
    out: Path | None = None,
) -> None:
    """Size a cluster for a model: the fewest GPUs that fit, how far more of them pay, and which to take.

    For each device the least cluster and doublings of it, each in the layout that plan finds fastest, the knee of the
    step, the cheapest within a deadline or the fastest within a budget, and the largest safe memory share of the
    engine. rlsim new writes the scenario of the one you take. --out DIR writes size.json and size.png.
    """
    from rlsim.files.progress import ProgressLine
    from rlsim.planning.new import CHECKS, Answers
    from rlsim.planning.size import Wanted
    from rlsim.planning.size import size as run
    from rlsim.report.folder import write_out

    devices = [name.strip() for name in device.split(",") if name.strip()]
    if not devices:
        raise InputError("--device: name at least one, such as h100_sxm,h200_sxm")
    given = {"model": model, "hardware": devices[0], "batch": batch, "response-tokens": response_tokens}
    answers = Answers.parse({**given, "gpus": "8"})
    for name in devices:
        CHECKS["hardware"](name)
    wanted = Wanted(answers, engine, lora, deadline, budget)
    with ProgressLine("clusters planned") as progress:
        answer = run(wanted, devices, progress.advance)
    write_out(answer, out)
    print_result(answer, as_json, full)


def _asked(option: str) -> str:
    """An answer from the terminal, asked again until it can be used."""
    from rlsim.planning.new import CHECKS, QUESTIONS

    question = QUESTIONS[option]
    while True:
        answer = str(typer.prompt(question["text"], default=question["example"], err=True))
        try:
            CHECKS[option](answer)
        except InputError as error:
            typer.echo(str(error), err=True)
        else:
            return answer
