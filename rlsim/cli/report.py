"""``rlsim report``."""

from __future__ import annotations

from rlsim.cli import options as o
from rlsim.cli.output import print_answer


def report(folder: o.ResultsArgument, out: o.PageOption = None) -> None:
    """Write one HTML page of the results in a folder.

    DIR is what --out of project, run, plan, sweep, validate or blame wrote; several of them in one folder make one
    page. Charts are drawn in it: it needs no network, runs no script, and prints.
    """
    from rlsim.report.page.report import write_report

    print_answer(str(write_report(folder, out)))
