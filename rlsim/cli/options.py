"""Options that several commands share, as typer reads them from signatures."""

from pathlib import Path
from typing import Annotated

import typer

from rlsim.errors import InputError
from rlsim.files.reading import shown_path


def folder_at(out: Path | None) -> Path | None:
    """``out``, before minutes are spent on what it is to hold. Raises InputError where it is a file."""
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"{shown_path(out)}: is a file; --out needs a folder")
    return out


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
EntryName = Annotated[str, typer.Argument(metavar="NAME", help="A name from the list, or a path.")]
Full = Annotated[bool, typer.Option("--full", help="Print all there is to say, not a screen of it.")]
Jobs = Annotated[int | None, typer.Option(metavar="N", help="Local processes; default all cores.")]
LogSteps = Annotated[
    str | None, typer.Option(metavar="FIRST:LAST", help="Steps to take; default all after the warm-up.")
]
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="A card, a Hugging Face name, a config.json.")]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", callback=folder_at, help="Also write the results into this folder.")
]
OutFile = Annotated[Path | None, typer.Option(metavar="FILE.yaml", help="File to write.")]
OutFolder = Annotated[Path | None, typer.Option(metavar="DIR", callback=folder_at, help="Folder to write.")]
OutTables = Annotated[
    Path | None,
    typer.Option(metavar="DIR", callback=folder_at, help="Also write JSON, CSV and pictures into this folder."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a scenario key, such as cluster.num_gpus=64. Repeatable."
    ),
]
ProfileName = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the profile or posterior.")]
Quick = Annotated[bool, typer.Option("--quick", help="About a minute instead of ten.")]
Root = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder that inherited files must lie in; default the repository.")
]
ScenarioName = Annotated[str, typer.Argument(metavar="SCENARIO", help="A scenario file, or a bundled one's name.")]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Seed of every draw (simulation.seed).")]
RowReplications = Annotated[int | None, typer.Option(metavar="N", min=1, max=800, help="Replications of each step.")]
TableReplications = Annotated[int, typer.Option(metavar="N", min=1, max=800, help="Repetitions behind the intervals.")]
TableSeed = Annotated[int, typer.Option(metavar="N", min=0, max=4294967295, help="Seed of every draw.")]
Risk = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE", min=0.001, max=0.99,
        help="Largest probability that memory does not suffice; default 1 - simulation.fit_probability, else 0.05.",
    ),
]  # fmt: skip
Words = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Overrides, as by --set, which wins.")]


def at_risk(risk: float | None) -> list[str]:
    """The override that --risk stands for."""
    return [] if risk is None else [f"simulation.fit_probability={1 - risk:g}"]
