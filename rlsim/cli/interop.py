"""``rlsim import`` and ``rlsim export``: configurations of RL frameworks as scenarios, and back."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rlsim.cli import options as o
from rlsim.cli.output import print_answer
from rlsim.errors import readable
from rlsim.outputs import staged_folder


class Framework(StrEnum):
    """Frameworks whose configurations are known."""

    NEMO_RL = "nemo-rl"
    VERL = "verl"
    SKYRL = "skyrl"


FrameworkArgument = Annotated[Framework, typer.Argument(help="Whose configuration it is.")]
ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="The configuration.", show_default=False)]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[OVERRIDES]...", help="As the framework takes them: key=value, +key=value, ++key, ~key."),
]
FileOption = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the scenario there.")]
HardwareOption = Annotated[str | None, typer.Option(metavar="NAME", help="GPU: a hardware profile or its path.")]
ModelOption = Annotated[str | None, typer.Option(metavar="NAME", help="Model card, or the path of a config.json.")]
DraftOption = Annotated[str | None, typer.Option(metavar="NAME", help="The same of an external draft model.")]
PromptOption = Annotated[int | None, typer.Option(metavar="N", min=1, help="Mean prompt length.")]
ResponseOption = Annotated[
    float | None, typer.Option(metavar="N", min=1, help="Mean response (with turns: of each), after truncation.")
]
SigmaOption = Annotated[float | None, typer.Option(metavar="S", min=0, max=3, help="Spread of the log of lengths.")]
AcceptanceOption = Annotated[float | None, typer.Option(metavar="A", min=1, help="Tokens per verification.")]
UsableOption = Annotated[
    float | None, typer.Option(metavar="SHARE", min=0.001, max=1, help="Usable prompt groups in dynamic sampling.")
]
TurnsOption = Annotated[float | None, typer.Option(metavar="N", min=1, help="Mean turns of a trajectory.")]
ObservationOption = Annotated[int | None, typer.Option(metavar="N", min=1, help="Tokens of the environment per turn.")]
EnvironmentOption = Annotated[
    float | None, typer.Option(metavar="S", min=0, help="Seconds of the environment per turn.")
]
RootOption = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder that inherited files must lie in.")]
BaseNameOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="verl: base below CONFIG, such as ppo_megatron_trainer.")
]
StrictOption = Annotated[bool, typer.Option("--strict", help="Fail where a key is not understood.")]
BaseOption = Annotated[
    Path | None, typer.Option("--config", metavar="BASE.yaml", help="Your configuration: only what differs is set.")
]
ToOption = Annotated[Framework, typer.Option("--to", help="Whose configuration to write.")]
FolderOption = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="DIR", help="Also write overrides.txt and config.yaml there.")
]


def import_(
    framework: FrameworkArgument,
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    out: FileOption = None,
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
    config_root: RootOption = None,
    config_name: BaseNameOption = None,
    strict: StrictOption = False,
    as_json: o.JsonOption = False,
) -> None:
    """Turn a configuration of NeMo-RL, verl or SkyRL into a scenario.

    Inheritance, overrides and interpolation resolve as the framework does. Prints the scenario (--out FILE writes it)
    and, on stderr, what became of every key: used, irrelevant to time, not simulated, not understood. --json prints
    scenario and whole accounting. What the configuration cannot say is assumed where no option states it.
    """
    from rlsim.interop.asked import Asked
    from rlsim.interop.importing import import_config

    asked = Asked(
        hardware=hardware,
        model=model,
        draft_model=draft_model,
        mean_prompt_tokens=mean_prompt_tokens,
        mean_response_tokens=mean_response_tokens,
        response_log_sigma=response_log_sigma,
        acceptance_length=acceptance_length,
        usable_group_share=usable_group_share,
        mean_turns=mean_turns,
        observation_tokens=observation_tokens,
        environment_s=environment_s,
    )
    answer = import_config(framework.value, config, overrides or (), asked, config_root, config_name, strict)
    if out is not None:
        with staged_folder(out.parent) as folder:
            (folder / out.name).write_text(answer.text, encoding="utf-8", newline="\n")
    _tell(answer.accounting.summary())
    if as_json:
        print_answer(json.dumps(answer.as_dict()))
    elif out is None:
        print_answer(answer.text)


def export(
    scenario: o.ScenarioArgument,
    to: ToOption,
    config: BaseOption = None,
    config_root: RootOption = None,
    out: FolderOption = None,
    overrides: o.SetOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Say a scenario (such as best.yaml of a plan) in a framework's configuration.

    Prints the overrides to paste, one per line, and on stderr what no key of the framework says. With --config only
    keys whose meaning differs there are set. --out DIR writes overrides.txt and the patched config.yaml.
    """
    from rlsim.interop.exporting import export_scenario
    from rlsim.interop.importing import read_config
    from rlsim.loading import load_scenario

    base = None if config is None else read_config(to.value, config, root=config_root)
    answer = export_scenario(load_scenario(scenario, overrides or ()), to.value, base)
    lines = "".join(f"{override}\n" for override in answer.overrides)
    if out is not None:
        with staged_folder(out) as folder:
            (folder / "overrides.txt").write_text(lines, encoding="utf-8", newline="\n")
            (folder / "config.yaml").write_text(answer.config, encoding="utf-8", newline="\n")
    _tell("\n".join(answer.left))
    print_answer(json.dumps(answer.as_dict()) if as_json else lines)


def _tell(text: str) -> None:
    for line in text.splitlines():
        print(f"rlsim: {readable(line)}", file=sys.stderr)
