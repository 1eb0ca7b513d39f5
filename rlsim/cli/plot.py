"""``rlsim plot``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlsim.cli import options as o
from rlsim.cli.output import print_answer

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="A folder that --out of another command filled.")]


def plot(folder: FolderArgument, out: o.OutOption = None) -> None:
    """Draw the pictures of finished results again, without simulating anything.

    Takes the folders of run, sweep, plan and blame; --out DIR writes elsewhere. The pictures of project and validate
    need more than their files hold; the message then says which command draws them.
    """
    from rlsim.report.files import replot

    print_answer("\n".join(f"written: {path}" for path in replot(folder, out)))
