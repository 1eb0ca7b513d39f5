"""``rlsim explain``, ``new``, ``size`` and ``support``; ``check`` and ``improve``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from rlsim.cli.logged import logged_run, run_scenario
from rlsim.cli.options import AsJson, Full, LogSteps, ModelName, Out, Overrides, Risk, ScenarioName, Words, at_risk
from rlsim.cli.output import given_scenario, print_answer, print_result, terminal_style, with_remedies
from rlsim.errors import InputError, shortened
from rlsim.files.progress import ProgressLine

if TYPE_CHECKING:
    from rlsim.planning.size import Wanted
    from rlsim.results.answer import Answer

ON_STANDARD_OUTPUT = "; what each device came to is on standard output"
"""Where the table is that a refusal of ``rlsim size`` goes with."""


def explain(
    key: Annotated[str, typer.Argument(metavar="KEY", help="A dotted key, such as speculation.draft_length.")],
    scenario: Annotated[
        str | None, typer.Argument(metavar="SCENARIO", help="Also its value in this scenario (a file or a name).")
    ] = None,
    words: Words = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Explain a scenario key.

    Says what it means, its type, default and bounds, where the default comes from, and which commands use it; with a
    scenario also its value there, and what set it. A key that does not exist is answered with the nearest.
    """
    from dataclasses import asdict

    from rlsim.loading.explain import explain as run
    from rlsim.loading.explain import render_explanation

    answer = run(key, scenario, [*(words or ()), *(overrides or ())])
    print_answer(json.dumps(asdict(answer), indent=2) if as_json else render_explanation(answer, terminal_style()))


def new(
    target: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The scenario to write.")],
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="A card, a Hugging Face name, a path to a config.json.")
    ] = None,
    hardware: Annotated[str | None, typer.Option(metavar="NAME", help="A hardware profile.")] = None,
    gpus: Annotated[str | None, typer.Option(metavar="N", help="GPUs of the cluster.")] = None,
    batch: Annotated[
        str | None, typer.Option(metavar="PROMPTSxSAMPLES", help="Prompts of a step and samples of each.")
    ] = None,
    response_tokens: Annotated[str | None, typer.Option(metavar="N", help="Mean length of a response.")] = None,
    mean_turns: Annotated[float | None, typer.Option(metavar="X", min=1, max=1000, help="Turns of an agent.")] = None,
    observation_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=1_000_000, help="What its environment answers to a turn.")
    ] = None,
    environment_s: Annotated[
        float | None, typer.Option(metavar="X", min=0.001, max=100_000, help="Seconds that it takes for that.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE.yaml where it exists.")] = False,
) -> None:
    """Write a first scenario from five answers, with --mean-turns of an agent.

    Asks for model, GPUs, their number, batch and response length where no option gives them, on a terminal. The file is
    commented, states what it assumes, and has the layout that plan finds shortest; project it and change it.
    """
    from rlsim.planning.new import QUESTIONS, Answers, Turns, write_new

    options = {
        "model": model, "hardware": hardware, "gpus": gpus, "batch": batch, "response-tokens": response_tokens
    }  # fmt: skip
    missing = [f"--{option}" for option in QUESTIONS if options[option] is None]
    # In a script a question would wait for ever.
    if missing and not sys.stdin.isatty():
        raise InputError(f"new asks on a terminal only; here it needs {', '.join(missing)}")
    given = {name: _asked(name) if value is None else value for name, value in options.items()}
    turns = None
    if mean_turns is not None and observation_tokens is not None and environment_s is not None:
        turns = Turns(mean_turns, observation_tokens, environment_s)
    elif (mean_turns, observation_tokens, environment_s) != (None, None, None):
        raise InputError("an agent needs all of --mean-turns, --observation-tokens and --environment-s")
    scenario = write_new(structs.replace(Answers.parse(given), turns=turns), target, overwrite)
    print_answer(f"written: {target} ({scenario.question})\nnext: rlsim project {target}")


def support(
    model: ModelName,
    device: Annotated[str, typer.Argument(metavar="DEVICE", help="A hardware profile, such as h100_sxm.")],
    engine: Annotated[str, typer.Argument(metavar="ENGINE", help="vllm, sglang or trtllm.")] = "vllm",
    gpus: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="GPUs; default the fewest of 8, 16, 32... that fit.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what backs a model on a device with an engine: measured, modelled, refused.

    Operator tables that are there, releases with fitted host times, measured runs that share something with it and the
    nearest of them, what a plain step of it rests on, and which precisions and drafts are refused.
    """
    from rlsim.planning.support import SHAPE, coverage
    from rlsim.report.text.support import render_coverage

    answer = coverage(model, device, engine, gpus)
    print_answer(answer.to_json() if as_json else render_coverage(answer, SHAPE, terminal_style()))


Subject = Annotated[str, typer.Argument(metavar="SCENARIO|MODEL", help="A scenario, or a model card's name or file.")]
LoraRank = Annotated[
    int | None, typer.Option(metavar="RANK", min=1, max=4096, help="Train adapters, not all weights.")
]  # fmt: skip
Staleness = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="Largest policy lag; default as plan's of a scenario, 0 of a model."),
]
Devices = Annotated[
    str | None, typer.Option(metavar="D1,D2", help="Hardware profiles, with commas; default the scenario's.")
]
Batch = Annotated[
    str | None, typer.Option(metavar="PROMPTSxSAMPLES", help="Of a model: prompts, samples; default 64x16.")
]
Responses = Annotated[
    str | None, typer.Option(metavar="N", help="Of a model: mean length of a response; default 2000.")
]
Free = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY", help="Of a scenario as it is: the key's largest value that fits; all: the usual."),
]

Places = Annotated[
    list[str] | None,
    typer.Option("--enough", metavar="KEY", help="Of agents: the fewest places of a limit that cost no time; or all."),
]
Around = Annotated[
    str | None,
    typer.Option("--cliffs", metavar="KEY", help="Of a scenario as it is: the nearest values where something ends."),
]


def size(
    subject: Subject,
    words: Words = None,
    overrides: Overrides = None,
    device: Devices = None,
    batch: Batch = None,
    response_tokens: Responses = None,
    deadline: Annotated[float | None, typer.Option(metavar="S", help="Longest step, kept with 90 %.")] = None,
    budget: Annotated[float | None, typer.Option(metavar="USD", help="Highest price of a step.")] = None,
    lora: LoraRank = None,
    engine: Annotated[str | None, typer.Option(metavar="NAME", help="Of a model: vllm, sglang or trtllm.")] = None,
    max_staleness: Staleness = None,
    precision: Annotated[str | None, typer.Option(metavar="NAME", help="Of the weights that generate.")] = None,
    drafts: Annotated[bool, typer.Option("--drafts/--no-drafts", help="Let the scenario's drafter draft.")] = True,
    free: Free = None,
    enough: Places = None,
    around: Around = None,
    risk: Risk = None,
    as_json: AsJson = False,
    full: Full = False,
    out: Out = None,
) -> None:
    """Size a cluster: the fewest GPUs that fit, how far more of them pay, and which to take.

    It is plan with the number of GPUs free, of a scenario or of a plain one of a model. For each device the least
    cluster and doublings of it, each in the layout that plan finds fastest, the knee of the step, the cheapest within a
    deadline or the fastest within a budget, and the largest safe memory share of the engine. --out DIR writes size.json
    and size.png. Of the cluster as it is, --free KEY finds the largest token budget, micro-batch or cap that fits,
    --enough KEY the fewest sandboxes, nodes or places with which nobody waits, --cliffs KEY where something ends.
    """
    if around or enough or free:
        changes = [*(words or ()), *(overrides or ()), *at_risk(risk)]
        return _print_limits(subject, changes, free or (), enough or (), around, as_json)
    from rlsim.planning.new import CHECKS
    from rlsim.planning.size import size as run
    from rlsim.report.text.run import unanswered

    for name in (devices := [name.strip() for name in (device or "").split(",") if name.strip()]):
        CHECKS["hardware"](name)
    task = {"batch": batch, "response-tokens": response_tokens, "engine": engine}
    stated = {name: text for name, text in task.items() if text is not None}
    limits = {"lora_rank": lora, "deadline_s": deadline, "budget_usd": budget, "max_staleness": max_staleness}
    wanted = _wanted(subject, [*(words or ()), *(overrides or ())], devices, stated)
    limits["fit_probability"] = None if risk is None else round(1 - risk, 6)
    wanted = structs.replace(wanted, **limits, precision=precision, drafts=drafts)
    with ProgressLine("clusters planned") as progress:
        answer = run(wanted, devices, progress.advance)
    print_result(answer, as_json, full, out)
    if answer.best is None:
        raise InputError(f"infeasible: {unanswered(answer)}{ON_STANDARD_OUTPUT}")


def _print_limits(
    subject: str, changes: Sequence[str], free: Sequence[str], enough: Sequence[str], around: str | None, as_json: bool
) -> None:
    """What the scenario as it is leaves room for, or where something of it ends: the first that is asked for."""
    from rlsim.planning.cliffs import cliffs
    from rlsim.planning.fitting import enough_places, largest_that_fit

    scenario = run_scenario(subject, changes, None)[0]
    named = enough or free
    keys = () if list(named) == ["all"] else named
    answer: Answer
    with with_remedies(scenario), ProgressLine("simulations") as progress:
        if around:
            answer = cliffs(scenario, around, progress.advance)
        elif enough:
            answer = enough_places(scenario, keys, progress.advance)
        else:
            answer = largest_that_fit(scenario, keys)
    print_result(answer, as_json)


def _wanted(subject: str, changes: Sequence[str], devices: Sequence[str], stated: Mapping[str, str]) -> Wanted:
    """What to size: the scenario ``subject`` with ``changes``, or a plain one of the model. stated: of its task."""
    from rlsim.planning.new import Answers
    from rlsim.planning.size import PLAIN_TASK, Wanted, is_scenario

    if is_scenario(subject):
        if stated:
            raise InputError(f"--{next(iter(stated))}: {subject} is a scenario, which states it; set its key instead")
        return Wanted(base=given_scenario(subject, None, None, *changes))
    if not devices:
        raise InputError("--device: name at least one, such as h100_sxm,h200_sxm")
    if changes:
        raise InputError(f"{changes[0]}: {subject} is a model; keys belong to a scenario")
    task = {name: text for name, text in stated.items() if name != "engine"}
    answers = Answers.parse({**PLAIN_TASK, **task, "model": subject, "hardware": devices[0]})
    return Wanted(answers, stated.get("engine", "vllm"))


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


RunName = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO",
        help="A scenario, a bundled one's name, or a framework's configuration or launch script.",
    ),
]
Generation = Annotated[
    float | None, typer.Option(metavar="S", help="Of these, generation; asynchronous: waiting for samples.")
]
WeightUpdate = Annotated[float | None, typer.Option(metavar="S", help="Weights to the engine, with all around it.")]
Figure = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="What else you know, such as response_tokens=1200. Repeatable."),
]
Log = Annotated[Path | None, typer.Option(metavar="LOG", help="Times from a log or a TensorBoard folder (rlsim log).")]
Noise = Annotated[
    float | None, typer.Option(metavar="X", min=0.005, max=1, help="Error of pasted times; default 0.05.")
]


def check(
    scenario: RunName,
    words: Words = None,
    overrides: Overrides = None,
    step: Annotated[float | None, typer.Option(metavar="S", help="Seconds of a step.")] = None,
    generation: Generation = None,
    train: Annotated[float | None, typer.Option(metavar="S", help="The update.")] = None,
    logprob: Annotated[float | None, typer.Option(metavar="S", help="Log-probs, all passes.")] = None,
    weight_update: WeightUpdate = None,
    data: Annotated[float | None, typer.Option(metavar="S", help="Rewards and the driver's own work.")] = None,
    figure: Figure = None,
    log: Log = None,
    steps: LogSteps = None,
    noise: Noise = None,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Is my run healthy? Its times beside what is expected, and what explains the difference.

    Paste seconds or name a log. Known faults (an eager engine, idle replicas, padding, a serial reward...) are
    simulated on your scenario and ranked by how well each explains the phases, with the key that cures it and what
    that saves. --out DIR writes check.json and check.png.
    """
    from rlsim.attribution.check import check as run

    if words and "-" in words:
        words, log = [word for word in words if word != "-"], Path("-")
    given, source = run_scenario(scenario, words, overrides)
    waited = "generation" if given.loop.mode == "sync" else "exposed_generation"
    pasted = {
        "step": step, waited: generation, "train": train, "logprob": logprob, "refit": weight_update, "data": data
    }  # fmt: skip
    given, logged, noises, remarks = logged_run(given, log, steps)
    measured = {**logged, **{name: value for name, value in pasted.items() if value is not None}, **_figures(figure)}
    with ProgressLine("known faults") as progress:
        answer = run(given, measured, noises if noise is None else noise, progress=progress.reach)
    answer = answer.model_copy(update={"source": source, "remarks": (*remarks, *answer.remarks)})
    print_result(answer, as_json, out=out)


class Part(StrEnum):
    """Parts of an improvement."""

    TECHNIQUES = "techniques"
    IDLE = "idle"
    HEADROOM = "headroom"
    INPUTS = "inputs"


def improve(
    scenario: ScenarioName,
    words: Words = None,
    overrides: Overrides = None,
    only: Annotated[Part | None, typer.Option(help="One part alone.")] = None,
    uncertain: Annotated[
        list[str] | None, typer.Option(metavar="KEY=LOW:HIGH", help="Range of a stated key. Repeatable.")
    ] = None,
    as_json: AsJson = False,
    full: Full = False,
    out: Out = None,
) -> None:
    """Say what would shorten a step: moves ranked with what they ask, idle time, the ideal, what is worth measuring.

    Moves are techniques and settings, each simulated on the same drawn work; those of the loop in the split and layout
    that suit them (as rlsim plan), the best pair of them. Idle time has the step without each cause; the ideal is a
    ladder up to the roofline; what is worth measuring is ranked by the regret that it saves, over the interval of
    project and ranges of what the scenario states (--uncertain). --out DIR writes improvement.json and
    improvement.png.
    """
    from rlsim.planning.improve import improve as run

    given = given_scenario(scenario, words, overrides)
    answer = run(given, None if only is None else only.value, uncertain=uncertain or ())
    print_result(answer, as_json, full, out)


def _figures(given: Sequence[str] | None) -> dict[str, float]:
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise InputError(f"--figure {shortened(text)}: expected NAME=VALUE, such as response_tokens=1200")
    return found
