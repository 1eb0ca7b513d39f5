"""Every argument and option of the command line, once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlsim.readers.traces.form import Format

ScenarioArgument = Annotated[str, typer.Argument(metavar="SCENARIO", help="A scenario file, or a bundled one's name.")]
WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Overrides, as by --set, which wins.", show_default=False),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A name from the list, or a path.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a scenario key, such as cluster.num_gpus=64. Repeatable."
    ),
]
BriefOption = Annotated[bool, typer.Option("--brief", help="Print the verdict alone, in five lines.")]
FullOption = Annotated[bool, typer.Option("--full", help="Print all there is to say, not a screen of it.")]
ResultsArgument = Annotated[Path, typer.Argument(metavar="DIR", help="A folder of results.")]
FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="A folder that --out of another command filled.")]
PageOption = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="The page; default report.html in DIR.")
]
SetFirstOption = Annotated[
    list[str] | None, typer.Option("--set-a", metavar="KEY=VALUE", help="Override a key of A only. Repeatable.")
]
SetSecondOption = Annotated[
    list[str] | None, typer.Option("--set-b", metavar="KEY=VALUE", help="Override a key of B only. Repeatable.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Also write the results into this folder.")
]
SeedOption = Annotated[int | None, typer.Option("--seed", metavar="N", help="Seed of every draw (simulation.seed).")]
ReplicationsOption = Annotated[
    int | None,
    typer.Option("--replications", metavar="N", help="Repetitions behind the intervals (simulation.replications)."),
]
RunReplicationsOption = Annotated[
    int, typer.Option("--replications", metavar="N", min=1, help="Independent runs whose mean is told.")
]
RunLengthOption = Annotated[int | None, typer.Option("--steps", metavar="N", help="Training steps of the run.")]
RunSamplesOption = Annotated[
    int | None, typer.Option("--samples", metavar="M", help="Or: as many steps as consume M samples.")
]
AloneOption = Annotated[bool, typer.Option("--no-baseline", help="Leave the run without speculation out.")]

FirstArgument = Annotated[str, typer.Argument(metavar="A", help="A scenario file or a bundled one's name.")]
SecondArgument = Annotated[str, typer.Argument(metavar="B", help="Another one.")]
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
    int | None, typer.Option("--run-steps", metavar="N", min=1, help="Also time, cost and energy of a run of N steps.")
]
UncertainOption = Annotated[
    list[str] | None, typer.Option("--uncertain", metavar="KEY=LOW:HIGH", help="Range of a stated key. Repeatable.")
]

ObjectiveOption = Annotated[
    str,
    typer.Option(
        "--objective",
        metavar="MEASURE,STATISTIC",
        help="step_time, tokens_per_s, steps_per_day, time_to_n_steps, cost_per_step, energy_per_step or gpus=SECONDS, "
        "the smallest cluster that reaches that step; by its mean or p90. One of them or both.",
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
PLAN_HEADROOM = 0.1
"""Share of memory that a plan leaves free for fragmentation and what the memory model leaves out. Assumption."""
TraceArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="Trace, folder of rollouts, or metrics of vLLM.", show_default=False)
]
TraceFormatOption = Annotated[Format, typer.Option("--format", help="Format of FILE.")]
ColumnOption = Annotated[
    str | None, typer.Option("--column", metavar="NAME", help="Column of response tokens; guessed for known formats.")
]
PromptColumnOption = Annotated[
    str | None, typer.Option("--prompt-column", metavar="NAME", help="Column of prompt tokens.")
]
GroupColumnOption = Annotated[
    str | None, typer.Option("--group-column", metavar="NAME", help="Column that names the prompt of a sample.")
]
GroupSizeOption = Annotated[
    int | None, typer.Option("--group-size", metavar="N", min=1, help="Each N samples in a row share a prompt.")
]
CharactersOption = Annotated[
    float, typer.Option("--characters-per-token", metavar="N", min=0.1, max=100, help="Of rollouts that hold text.")
]
TraceOutOption = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="PATH", help="FILE.yaml for the fragment, or a folder for all.")
]

LogArgument = Annotated[
    Path, typer.Argument(metavar="LOG", help="Log of a run: a file, or a folder of event files.", show_default=False)
]
LogStepsOption = Annotated[
    str | None, typer.Option("--steps", metavar="FIRST:LAST", help="Steps to take; default all after the warm-up.")
]
AsStatedOption = Annotated[
    bool, typer.Option("--as-stated", help="Keep the scenario's lengths and acceptance whatever the log tells.")
]
WhatIfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if", metavar="KEY=VALUE...", help="Also predict the run with these overrides, in quotes. Repeatable."
    ),
]
