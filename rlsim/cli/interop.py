"""``rlsim import`` and ``rlsim export``: configurations of RL frameworks."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rlsim.cli import options as o
from rlsim.cli.output import given_scenario, print_answer


class FrameworkName(StrEnum):
    """Frameworks whose configurations are known."""

    nemo_rl = "nemo-rl"
    verl = "verl"
    skyrl = "skyrl"
    slime = "slime"
    vime = "vime"
    miles = "miles"
    areal = "areal"
    prime_rl = "prime-rl"
    openrlhf = "openrlhf"
    roll = "roll"
    trl = "trl"


NAMES = ", ".join(FrameworkName)
FrameworkArgument = Annotated[FrameworkName, typer.Argument(metavar="FRAMEWORK", help=f"One of {NAMES}.")]
ConfigArgument = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        help="Its configuration, its launch script (.sh), Hydra's .hydra/overrides.yaml, or behind -- the whole "
        "command line that starts it.",
    ),
]
WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[WORD]...",
        help="Overrides as its command line takes them: k=v, +k=v, ~k, --option value; of a script also "
        "VARIABLE=value.",
    ),
]
ScenarioFileOption = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write the scenario here; default print it.")
]
HardwareOption = Annotated[str | None, typer.Option("--hardware", metavar="NAME", help="Hardware profile.")]
ModelOption = Annotated[str | None, typer.Option("--model", metavar="CARD", help="Model card or config.json.")]
DraftOption = Annotated[str | None, typer.Option("--draft-model", metavar="CARD", help="Card of a draft model.")]
PromptOption = Annotated[
    int | None, typer.Option("--mean-prompt-tokens", metavar="N", min=1, help="Mean prompt, in tokens.")
]
ResponseOption = Annotated[
    float | None, typer.Option("--mean-response-tokens", metavar="N", min=1, help="Mean response, in tokens.")
]
SigmaOption = Annotated[
    float | None, typer.Option("--response-log-sigma", metavar="X", min=0, max=5, help="Spread of log length.")
]
AcceptanceOption = Annotated[
    float | None, typer.Option("--acceptance-length", metavar="X", min=1, help="Tokens of a verification.")
]
UsableOption = Annotated[
    float | None,
    typer.Option("--usable-group-share", metavar="X", min=0.001, max=1, help="Usable groups (dynamic sampling)."),
]
TurnsOption = Annotated[float | None, typer.Option("--mean-turns", metavar="X", min=1, help="Turns of an agent.")]
ObservationOption = Annotated[
    int | None, typer.Option("--observation-tokens", metavar="N", min=1, help="Tokens of an agent's observation.")
]
EnvironmentOption = Annotated[
    float | None, typer.Option("--environment-s", metavar="X", min=0, help="Seconds of an agent's environment.")
]
RootOption = Annotated[
    Path | None,
    typer.Option("--root", metavar="DIR", help="Folder that inherited files must lie in; default the repository."),
]
StartOption = Annotated[
    str | None, typer.Option("--config-name", metavar="NAME", help="Base configuration where the file names none.")
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="A key that is not understood is an error, and so is a card from memory.")
]
LenientOption = Annotated[
    bool, typer.Option("--lenient", help="Leave out keys of batch, layout, precision... that are not understood.")
]
ToOption = Annotated[FrameworkName, typer.Option("--to", metavar="FRAMEWORK", help=f"One of {NAMES}.")]
BaseOption = Annotated[
    Path | None, typer.Option("--config", metavar="CONFIG", help="Your configuration, to be patched.")
]
FolderOption = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="DIR", help="Also write overrides.txt and config.yaml there.")
]


def import_config(
    framework: FrameworkArgument,
    config: ConfigArgument,
    words: WordsArgument = None,
    hardware: HardwareOption = None,
    model: ModelOption = None,
    draft_model: DraftOption = None,
    mean_prompt_tokens: PromptOption = None,
    mean_response_tokens: ResponseOption = None,
    response_log_sigma: SigmaOption = None,
    acceptance_length: AcceptanceOption = None,
    usable_group_share: UsableOption = None,
    mean_turns: TurnsOption = None,
    observation_tokens: ObservationOption = None,
    environment_s: EnvironmentOption = None,
    root: RootOption = None,
    config_name: StartOption = None,
    strict: StrictOption = False,
    lenient: LenientOption = False,
    as_json: o.JsonOption = False,
    out: ScenarioFileOption = None,
) -> None:
    """Turn a configuration or a launch script of an RL framework into a scenario.

    Inheritance, interpolations, overrides and the words of scripts are resolved as the framework and the shell do,
    without either; nothing is executed. Every key is used, or told to be irrelevant to time, not simulated or not
    understood; one that holds a batch, a layout, a precision and the like must be understood. A summary goes to stderr,
    --json prints all of it. What no configuration says (GPU, lengths, acceptance) is an option; without it a default is
    assumed and marked as such.
    """
    from rlsim.readers.frameworks.asked import Asked
    from rlsim.readers.frameworks.importing import import_config as run
    from rlsim.report.files import write_files

    asked = Asked(
        hardware, model, draft_model, mean_prompt_tokens, mean_response_tokens, response_log_sigma, acceptance_length,
        usable_group_share, mean_turns, observation_tokens, environment_s,
    )  # fmt: skip
    found = run(framework.value, config, words or (), asked, root, config_name, strict, lenient)
    if out is not None:
        write_files({out.name: found.text}, out.absolute().parent)
    if as_json:
        print_answer(json.dumps(found.as_dict()))
        return
    print(found.accounting.summary(), file=sys.stderr)
    print_answer(found.text if out is None else f"written: {out}; next: rlsim project {out}")


def export(
    scenario: o.ScenarioArgument,
    to: ToOption,
    words: o.WordsArgument = None,
    overrides: o.SetOption = None,
    config: BaseOption = None,
    root: RootOption = None,
    as_json: o.JsonOption = False,
    out: FolderOption = None,
) -> None:
    """Write a scenario, such as the best.yaml of a plan, as overrides of a framework's configuration.

    Prints one override a line to paste, and on stderr what of the scenario no key says. --config: only keys of that
    configuration whose meaning differs are overridden. --out DIR writes overrides.txt and config.yaml, patched.
    """
    from rlsim.readers.frameworks.exporting import export_scenario
    from rlsim.readers.frameworks.importing import read_config
    from rlsim.report.files import write_files

    given = given_scenario(scenario, words, overrides)
    base = None if config is None else read_config(to.value, config, root=root)
    found = export_scenario(given, to.value, base)
    lines = "\n".join(found.overrides)
    if out is not None:
        write_files({"overrides.txt": f"{lines}\n", "config.yaml": found.config}, out)
    for line in found.left:
        print(f"not said: {line}", file=sys.stderr)
    answer = {"framework": found.framework, "overrides": list(found.overrides), "left": list(found.left)}
    print_answer(json.dumps(answer) if as_json else lines)
