"""Command-line options that the planning commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ScenarioArgument = Annotated[str, typer.Argument(metavar="SCENARIO", help="A scenario file, or a bundled one's name.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a scenario key. Repeatable.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Also write the results into this folder.")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace the results of another sweep in --out.")]
JobsOption = Annotated[int | None, typer.Option("--jobs", metavar="N", help="Local processes; default all cores.")]
DaskOption = Annotated[
    str | None, typer.Option("--dask", metavar="ADDRESS", help="Run on this Dask scheduler, such as tcp://host:8786.")
]
VaryOption = Annotated[
    list[str] | None,
    typer.Option("--vary", metavar="KEY=VALUES", help="Axis: a,b,c or 1:8 or 1:16:2 or 64..1024x2. Repeatable."),
]
CellReplicationsOption = Annotated[
    int | None,
    typer.Option(
        "--replications", metavar="N", min=1, help="Replications per cell; default 3, or the scenario's if less."
    ),
]
RunStepsOption = Annotated[
    int | None,
    typer.Option("--run-steps", metavar="N", min=1, help="Also time, cost and energy of a run of N steps."),
]
UncertainOption = Annotated[
    list[str] | None,
    typer.Option("--uncertain", metavar="KEY=LOW:HIGH", help="Range of an uncertain key. Repeatable."),
]
SamplesOption = Annotated[int, typer.Option("--samples", metavar="N", help="Simulated points.")]

ObjectiveOption = Annotated[
    str,
    typer.Option(
        "--objective",
        metavar="NAME",
        help="step_time, tokens_per_s, steps_per_day, time_to_n_steps, cost_per_step, energy_per_step or gpus.",
    ),
]
GpusOption = Annotated[
    str | None, typer.Option("--gpus", metavar="VALUES", help="Cluster sizes, as in --vary; default the scenario's.")
]
StalenessOption = Annotated[
    int | None,
    typer.Option("--max-staleness", metavar="N", min=0, help="Largest policy lag; default the scenario's, at least 1."),
]
StepsOption = Annotated[int | None, typer.Option("--steps", metavar="N", help="Steps of the run.")]
DeadlineOption = Annotated[
    float | None, typer.Option("--deadline-hours", metavar="H", help="Longest run of --steps steps.")
]
BudgetOption = Annotated[float | None, typer.Option("--budget-usd", metavar="USD", help="Price of a run of --steps.")]
TargetOption = Annotated[
    float | None, typer.Option("--target-step-s", metavar="S", help="With --objective gpus: step time to reach.")
]
DEFAULT_HEADROOM = 0.1
"""Share of memory that a plan leaves free for fragmentation and what the memory model leaves out. Assumption."""
HeadroomOption = Annotated[
    float,
    typer.Option("--memory-headroom", metavar="SHARE", min=0.0, max=0.99, help="Share of memory that must stay free."),
]
DomainOption = Annotated[
    bool, typer.Option("--any-domain", help="Let tensor and expert parallelism leave the NVLink domain.")
]
DrafterOption = Annotated[
    list[str] | None,
    typer.Option("--drafter", metavar="METHOD:FIRST[:DECAY]", help="A further drafter by its acceptance. Repeatable."),
]
SearchOption = Annotated[str, typer.Option("--search", metavar="HOW", help="auto, exhaustive or optuna.")]
DrawsOption = Annotated[
    int | None, typer.Option("--draws", metavar="N", min=0, help="Draws behind the ranking confidence; 0 for none.")
]
