"""Arguments and options of the commands that help to write scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
