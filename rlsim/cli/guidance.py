"""``rlsim explain``, ``new``, ``size`` and ``support``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rlsim.cli import options as o
from rlsim.cli.output import print_answer, print_result, terminal_style
from rlsim.errors import InputError

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="A dotted key, such as speculation.draft_length.")]
ExplainedArgument = Annotated[
    str | None,
    typer.Argument(metavar="SCENARIO", help="Also its value in this scenario (a file or a name).", show_default=False),
]
NewFileArgument = Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The scenario to write.")]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="A card, a Hugging Face name, a path to a config.json.")
]
HardwareOption = Annotated[str | None, typer.Option("--hardware", metavar="NAME", help="A hardware profile.")]
GpuCountOption = Annotated[str | None, typer.Option("--gpus", metavar="N", help="GPUs of the cluster.")]
BatchOption = Annotated[
    str | None, typer.Option("--batch", metavar="PROMPTSxSAMPLES", help="Prompts of a step and samples of each.")
]
ResponseOption = Annotated[
    str | None, typer.Option("--response-tokens", metavar="N", help="Mean length of a response.")
]
ReplaceOption = Annotated[bool, typer.Option("--overwrite", help="Replace FILE.yaml where it exists.")]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="A card, a Hugging Face name, a config.json.")]
DeviceArgument = Annotated[str, typer.Argument(metavar="DEVICE", help="A hardware profile, such as h100_sxm.")]
EngineArgument = Annotated[str, typer.Argument(metavar="ENGINE", help="vllm, sglang or trtllm.")]
ClusterOption = Annotated[
    int | None, typer.Option("--gpus", metavar="N", min=1, help="GPUs; default the fewest of 8, 16, 32... that fit.")
]
DevicesOption = Annotated[str, typer.Option("--device", metavar="D1,D2", help="Hardware profiles, with commas.")]
SizeBatchOption = Annotated[
    str, typer.Option("--batch", metavar="PROMPTSxSAMPLES", help="Prompts of a step and samples of each.")
]
SizeResponseOption = Annotated[str, typer.Option("--response-tokens", metavar="N", help="Mean length of a response.")]
StepDeadlineOption = Annotated[
    float | None, typer.Option("--deadline", metavar="S", help="Longest step, kept with 90 %.")
]
StepBudgetOption = Annotated[float | None, typer.Option("--budget", metavar="USD", help="Highest price of a step.")]
LoraOption = Annotated[
    int | None, typer.Option("--lora", metavar="RANK", min=1, max=4096, help="Train adapters, not all weights.")
]
SizeEngineOption = Annotated[str, typer.Option("--engine", metavar="NAME", help="vllm, sglang or trtllm.")]


def explain(
    key: KeyArgument,
    scenario: ExplainedArgument = None,
    words: o.WordsArgument = None,
    overrides: o.SetOption = None,
    as_json: o.JsonOption = False,
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
    target: NewFileArgument,
    model: ModelOption = None,
    hardware: HardwareOption = None,
    gpus: GpuCountOption = None,
    batch: BatchOption = None,
    response_tokens: ResponseOption = None,
    overwrite: ReplaceOption = False,
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
    model: ModelArgument,
    device: DeviceArgument,
    engine: EngineArgument = "vllm",
    gpus: ClusterOption = None,
    as_json: o.JsonOption = False,
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
    model: ModelArgument,
    device: DevicesOption,
    batch: SizeBatchOption = "64x16",
    response_tokens: SizeResponseOption = "2000",
    deadline: StepDeadlineOption = None,
    budget: StepBudgetOption = None,
    lora: LoraOption = None,
    engine: SizeEngineOption = "vllm",
    as_json: o.JsonOption = False,
    full: o.FullOption = False,
    out: o.OutOption = None,
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
    from rlsim.report.files import write_out

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
