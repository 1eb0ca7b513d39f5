"""``rlsim import`` and ``export``: configurations of RL frameworks; ``log`` and ``traces``: what runs measured."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlsim.cli.options import AsJson, LogSteps, Out, Overrides, Root, ScenarioName, Words
from rlsim.cli.output import given_scenario, print_answer, say, step_range, terminal_style
from rlsim.errors import InputError
from rlsim.files.progress import ProgressLine
from rlsim.files.reading import shown_path
from rlsim.readers.traces import Format

if TYPE_CHECKING:
    from rlsim.report.folder import Content

# Spelled out, so that the command line knows them without loading a reader.
FrameworkName = StrEnum(
    "FrameworkName",
    {"nemo_rl": "nemo-rl", "verl": "verl", "skyrl": "skyrl", "slime": "slime", "vime": "vime", "miles": "miles",
     "areal": "areal", "prime_rl": "prime-rl", "openrlhf": "openrlhf", "roll": "roll", "trl": "trl",
     "easyr1": "easyr1", "swift": "swift"},
)  # fmt: skip
"""Frameworks whose configurations are known."""


FRAMEWORKS = "nemo-rl, verl, skyrl, slime, vime, miles, areal, prime-rl, openrlhf, roll, trl, easyr1 or swift."
Framework = Annotated[FrameworkName, typer.Argument(metavar="FRAMEWORK", help=FRAMEWORKS)]
Config = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        help="Its configuration, its launch script (.sh), Hydra's .hydra/overrides.yaml, or behind -- the whole "
        "command line that starts it.",
    ),
]
ConfigWords = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[WORD]...",
        help="Overrides as its command line takes them: k=v, +k=v, ~k, behind -- also --option value; of a "
        "script VARIABLE=value too.",
    ),
]
MeanResponseTokens = Annotated[float | None, typer.Option(metavar="N", min=1, help="Mean response, in tokens.")]
ResponseLogSigma = Annotated[float | None, typer.Option(metavar="X", min=0, max=5, help="Spread of log length.")]
ResponseCutShare = Annotated[
    float | None, typer.Option(metavar="X", min=0.001, max=0.999, help="Responses that reach the cap (clip ratio).")
]
AcceptanceLength = Annotated[float | None, typer.Option(metavar="X", min=1, help="Tokens of a verification.")]
UsableGroupShare = Annotated[
    float | None, typer.Option(metavar="X", min=0.001, max=1, help="Usable groups (dynamic sampling).")
]
ObservationTokens = Annotated[int | None, typer.Option(metavar="N", min=1, help="Tokens of an agent's observation.")]
TeacherModel = Annotated[str | None, typer.Option(metavar="CARD", help="Card of a distillation's teacher.")]
TeacherGpus = Annotated[int | None, typer.Option(metavar="N", min=1, help="GPUs of a teacher's server.")]
EnvironmentS = Annotated[float | None, typer.Option(metavar="X", min=0, help="Seconds of an agent's environment.")]
ConfigName = Annotated[str | None, typer.Option(metavar="NAME", help="Base configuration where the file names none.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="A key that is not understood is an error, and so is a card from memory.")
]
Lenient = Annotated[
    bool, typer.Option("--lenient", help="Leave out keys of batch, layout, precision... that are not understood.")
]
ScenarioOut = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write the scenario here; default print it.")
]


def import_config(
    framework: Framework,
    config: Config,
    words: ConfigWords = None,
    hardware: Annotated[str | None, typer.Option(metavar="NAME", help="Hardware profile.")] = None,
    model: Annotated[str | None, typer.Option(metavar="CARD", help="Model card or config.json.")] = None,
    draft_model: Annotated[str | None, typer.Option(metavar="CARD", help="Card of a draft model.")] = None,
    mean_prompt_tokens: Annotated[int | None, typer.Option(metavar="N", min=1, help="Mean prompt, in tokens.")] = None,
    mean_response_tokens: MeanResponseTokens = None,
    response_log_sigma: ResponseLogSigma = None,
    response_cut_share: ResponseCutShare = None,
    acceptance_length: AcceptanceLength = None,
    usable_group_share: UsableGroupShare = None,
    mean_turns: Annotated[float | None, typer.Option(metavar="X", min=1, help="Turns of an agent.")] = None,
    observation_tokens: ObservationTokens = None,
    environment_s: EnvironmentS = None,
    teacher_model: TeacherModel = None,
    teacher_gpus: TeacherGpus = None,
    root: Root = None,
    config_name: ConfigName = None,
    strict: Strict = False,
    lenient: Lenient = False,
    as_json: AsJson = False,
    out: ScenarioOut = None,
) -> None:
    """Turn a configuration or a launch script of an RL framework into a scenario.

    Inheritance, interpolations, overrides and the words of scripts are resolved as the framework and the shell do,
    without either; nothing is executed. Every key is used, or told to be irrelevant to time, not simulated or not
    understood; one that holds a batch, a layout, a precision and the like must be understood. A summary goes to stderr,
    --json prints all of it. What no configuration says (GPU, lengths, acceptance) is an option, else assumed, and told.
    """
    from rlsim.readers.frameworks.asked import Asked
    from rlsim.readers.frameworks.importing import import_config as run
    from rlsim.report.folder import write_files

    asked = Asked(
        hardware, model, draft_model, mean_prompt_tokens, mean_response_tokens, response_log_sigma, response_cut_share,
        acceptance_length, usable_group_share, mean_turns, observation_tokens, environment_s, teacher_model,
        teacher_gpus, refuse_idle=True,
    )  # fmt: skip
    found = run(framework.value, config, words or (), asked, root, config_name, strict, lenient)
    if out is not None:
        write_files({out.name: found.text}, out.absolute().parent)
    if as_json:
        print_answer(json.dumps(found.as_dict()))
        return
    # Standard output holds the scenario alone, to be redirected into a file.
    say("\n".join((*found.scenario.missing_parts, found.accounting.summary())))
    print_answer(found.text if out is None else f"written: {out}; next: rlsim project {out}")


def export(
    scenario: ScenarioName,
    to: Annotated[FrameworkName, typer.Option(metavar="FRAMEWORK", help=FRAMEWORKS)],
    words: Words = None,
    overrides: Overrides = None,
    config: Annotated[Path | None, typer.Option(metavar="CONFIG", help="Your configuration, to be patched.")] = None,
    root: Root = None,
    as_json: AsJson = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="Also write overrides.txt and config.yaml there.")
    ] = None,
) -> None:
    """Write a scenario, such as the best.yaml of a plan, as overrides of a framework's configuration.

    Prints one override a line to paste, and on stderr what of the scenario no key says. --config: only keys of that
    configuration whose meaning differs are overridden. --out DIR writes overrides.txt and config.yaml, patched.
    """
    from rlsim.readers.frameworks.exporting import export_scenario
    from rlsim.readers.frameworks.importing import read_config
    from rlsim.report.folder import write_files

    given = given_scenario(scenario, words, overrides)
    base = None if config is None else read_config(to.value, config, root=root)
    found = export_scenario(given, to.value, base)
    lines = "\n".join(found.overrides)
    if out is not None:
        write_files({"overrides.txt": f"{lines}\n", "config.yaml": found.config}, out)
    # Standard output holds the overrides alone, to be pasted.
    for line in found.left:
        say(f"not said: {line}")
    answer = {"framework": found.framework, "overrides": list(found.overrides), "left": list(found.left)}
    print_answer(json.dumps(answer) if as_json else lines)


def log(
    file: Annotated[Path, typer.Argument(metavar="LOG", help="Log of a run: a file, a folder, or - (standard input).")],
    scenario: ScenarioName,
    words: Words = None,
    overrides: Overrides = None,
    steps: LogSteps = None,
    as_stated: Annotated[
        bool, typer.Option("--as-stated", help="Keep the scenario's lengths and acceptance whatever the log says.")
    ] = False,
    what_if: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE...", help="Also predict the run with these overrides, in quotes. Repeatable."),
    ] = None,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Compare the log of a real run with its scenario, take it in, and predict what else the run could be.

    LOG is what a framework prints or writes (docs/runlogs.md): its console, JSON lines, CSV, event files of
    TensorBoard, MLflow, an export of wandb, a folder of these, or - for standard input. The median of the steps after
    the warm-up stands beside the predicted one, the posterior takes it in (docs/uncertainty.md), and what that changed
    is named. --out DIR writes log.json, posterior.npz, scenario.yaml (which uses it) and phases.png.
    """
    from rlsim.readers.logs.answer import POSTERIOR_NAME, Asked, answer_run
    from rlsim.readers.logs.reading import read_log
    from rlsim.readers.logs.text import render_run, run_picture
    from rlsim.report.folder import write_files

    chosen = None if steps is None else step_range(steps)
    given = given_scenario(scenario, words, overrides)
    with ProgressLine("records") as progress:
        found = read_log(file, progress.reach)
    with ProgressLine("simulations") as progress:
        answer = answer_run(found, given, Asked(chosen, what_if or (), as_stated), progress.reach)
    text = render_run(answer, terminal_style())
    if out is not None:
        files: dict[str, Content] = {
            "log.json": json.dumps(answer.as_dict(), indent=1) + "\n",
            "scenario.yaml": answer.scenario_yaml(),
            POSTERIOR_NAME: answer.posterior.to_bytes(),
            "phases.png": run_picture(answer),
        }
        write_files(files, out)
        text += f"\nwritten: {out}; predict with what is known now: rlsim project {out / 'scenario.yaml'}"
    print_answer(json.dumps(answer.as_dict()) if as_json else text)


def contribute(
    file: Annotated[Path, typer.Argument(metavar="LOG", help="A log, as rlsim log takes it.")],
    scenario: ScenarioName,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the files to attach.")],
    words: Words = None,
    overrides: Overrides = None,
    steps: LogSteps = None,
    source: Annotated[
        str, typer.Option(metavar="TEXT", help="How you want to be named in the table; default not at all.")
    ] = "contributed",
) -> None:
    """Give a measured run away: one anonymous row for the public table, beside what rlsim predicts of it.

    SCENARIO may be a framework's configuration. What stays are medians of phases and the scenario's numbers and known
    names; every other text is left out, and its key printed. Written are steps.csv, scenarios/ID.yaml and the text of a
    pull request; rlsim validate table DIR/steps.csv --kind wild scores them. A run that cannot be is refused.
    """
    from rlsim.cli.logged import run_scenario
    from rlsim.readers.logs.contribution import contribution_of
    from rlsim.readers.logs.reading import read_log
    from rlsim.readers.logs.steady import steady_of, with_facts
    from rlsim.report.folder import write_files

    given, _ = run_scenario(scenario, words, overrides)
    with ProgressLine("records") as progress:
        found = read_log(file, progress.reach).of_loop(given.loop.mode)
    steady = steady_of(found, None if steps is None else step_range(steps))
    made = contribution_of(with_facts(given, steady, stated=False)[0], steady, found.framework, source)
    if made.objections:
        raise InputError(f"{shown_path(file)}: cannot be of this scenario: {'; '.join(made.objections)}")
    files: dict[str, Content] = {
        "steps.csv": made.table, "pull_request.md": made.text, f"scenarios/{made.name}.yaml": made.scenario_yaml,
    }  # fmt: skip
    write_files(files, out)
    left = f"left out: {', '.join(made.removed)}" if made.removed else "nothing was left out"
    print_answer("\n".join([*made.lines, left, f"written: {out}; look at each file before you give it away"]))


FRAGMENT_SUFFIXES = (".yaml", ".yml")
REPLAY = "trajectories.csv"


def traces(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Trace, folder of rollouts, or metrics of vLLM.")],
    form: Annotated[Format, typer.Option("--format", help="Format of FILE.")] = Format.AUTO,
    column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of response tokens; guessed for known formats.")
    ] = None,
    prompt_column: Annotated[str | None, typer.Option(metavar="NAME", help="Column of prompt tokens.")] = None,
    group_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column that names the prompt of a sample.")
    ] = None,
    group_size: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Each N samples in a row share a prompt.")
    ] = None,
    characters_per_token: Annotated[
        float, typer.Option(metavar="N", min=0.1, max=100, help="Of rollouts that hold text.")
    ] = 4.0,
    as_json: AsJson = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="PATH", help="FILE.yaml for the fragment, or a folder for all."),
    ] = None,
) -> None:
    """Turn measured requests into a workload, trajectories of agents into theirs, or vLLM's counters into acceptance.

    Reads CSV, JSONL, Parquet, Mooncake and Azure traces, rollouts of verl and train_data of NeMo-RL (a file, or a
    folder of several steps), trajectories (traces.jsonl of verifiers and prime-rl, NeMo-Gym, miles, message lists),
    Prometheus counters vllm:spec_decode_* and log lines "SpecDecoding metrics". Prints a
    fragment to paste into a scenario. --out FILE.yaml writes the fragment, --out DIR also the figures, a picture and,
    where all their times are known, trajectories as they are (trajectories.csv, for workload.agent.replay).
    """
    from rlsim.readers.traces.agents import AgentAnswer
    from rlsim.readers.traces.reading import MeasuredAcceptance, Reading, read_trace
    from rlsim.readers.traces.requests import Requests
    from rlsim.readers.traces.workload import workload_of
    from rlsim.report.folder import write_files

    names = (column, prompt_column, group_column)
    found = read_trace(file, Reading(form, *names, group_size, characters_per_token))
    answer = workload_of(found) if isinstance(found, Requests) else found
    if out is not None and out.suffix in FRAGMENT_SUFFIXES:
        write_files({out.name: answer.fragment()}, out.parent)
    elif out is not None:
        figures = json.dumps(answer.as_dict(), indent=1) + "\n"
        files: dict[str, Any] = {} if isinstance(answer, MeasuredAcceptance) else {"lengths.png": answer.picture()}
        files["fragment.yaml"] = answer.fragment()
        if isinstance(answer, AgentAnswer) and (whole := answer.as_they_are()):
            files |= {REPLAY: whole, "fragment.yaml": answer.fragment(str(out / REPLAY))}
        write_files({"trace.json": figures, **files}, out)
    written = "" if out is None else f"\nwritten: {out}"
    print_answer(json.dumps(answer.as_dict()) if as_json else answer.text(terminal_style()) + written)
