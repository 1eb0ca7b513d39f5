"""``rlsim site``: the site of sizes and accuracy."""

from pathlib import Path
from typing import Annotated

import typer

from rlsim.cli.options import Jobs, folder_at
from rlsim.cli.output import print_answer
from rlsim.files.progress import ProgressLine

Names = Annotated[str | None, typer.Option(metavar="A,B", help="Names; default those of published recipes.")]


def site(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", callback=folder_at, help="Folder for the pages.")] = Path(
        "build/pages"
    ),
    models: Names = None,
    devices: Names = None,
    gpus: Annotated[str | None, typer.Option(metavar="N,M", help="Numbers of GPUs.")] = None,
    frameworks: Annotated[str | None, typer.Option(metavar="A,B", help="Stacks, such as nemo_rl-0.7.")] = None,
    steps_only: Annotated[bool, typer.Option("--steps-only", help="Of the evidence RL steps alone.")] = False,
    jobs: Jobs = None,
) -> None:
    """Build the site of sizes and accuracy: static pages that work from a folder, without a server or the network.

    A matrix of models, devices and GPUs (step, tokens, price, memory) with what was measured beside it and the command
    that repeats each cell; accuracy by kind and release; every measured step with its prediction. About three minutes
    on two cores. Where DIR/docs holds the documentation, the pages link to it.
    """
    from msgspec.structs import replace

    from rlsim import __version__
    from rlsim.evidence import Kind
    from rlsim.evidence.shown.site import TABLES, anchors, past_scores, shown_tables
    from rlsim.loading.scenario import load_scenario
    from rlsim.planning.execution import executor
    from rlsim.planning.grammar import parse_sizes
    from rlsim.planning.grid import TASK, Grid, sizing_grid
    from rlsim.report.folder import write_files
    from rlsim.report.page.site import site_files
    from rlsim.tables.profile import load_profile

    lists = {"models": models, "devices": devices, "frameworks": frameworks}
    chosen: dict[str, tuple[object, ...]] = {
        name: tuple(filter(None, given.split(","))) for name, given in lists.items() if given is not None
    }
    if gpus is not None:
        chosen["gpus"] = parse_sizes(gpus)
    grid = replace(Grid(), **chosen)
    cells = sizing_grid(grid, jobs)
    wanted = {Kind.STEPS: TABLES[Kind.STEPS]} if steps_only else TABLES
    with ProgressLine("tables", len(wanted)) as progress, executor(jobs, len(wanted)) as run:
        tables = shown_tables(wanted, run, progress.advance)
    documented = (out / "docs" / "index.html").is_file()
    question = load_scenario(TASK).question
    bare = [name for name in grid.devices if load_profile(name).operator_tables is None]
    files = site_files(TASK, question, cells, anchors(tables), tables, past_scores(), __version__, documented, bare)
    write_files(files, out)
    print_answer(f"{len(cells):,} cells and {sum(len(one.scored) for one in tables.values()):,} measured values: {out}")
