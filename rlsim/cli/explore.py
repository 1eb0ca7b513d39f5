"""``rlsim explore``: a local page with sliders, a room of its own on the command line since it serves until it ends."""

from __future__ import annotations

import gc
import webbrowser
from typing import Annotated

import typer

from rlsim.cli import options as o
from rlsim.cli.output import given_scenario, print_answer

PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on the loopback; 0: a free one.")]
BrowserOption = Annotated[bool, typer.Option("--no-browser", help="Print the address and open nothing.")]
IdleOption = Annotated[
    float, typer.Option("--idle-minutes", min=0.01, max=1440, help="End after this long without an open page.")
]


def explore(
    scenario: o.ScenarioArgument,
    words: o.WordsArgument = None,
    port: PortOption = 0,
    no_browser: BrowserOption = False,
    idle_minutes: IdleOption = 15.0,
) -> None:
    """Move a scenario by sliders on a local page.

    Draft length, acceptance, GPUs, split, lag and lengths; the picture follows at once and settles on the answer of
    rlsim project, whose command line stands below it. Nothing but this machine can reach the page; it ends by itself.
    """
    from rlsim.explore.live import Live
    from rlsim.explore.server import Explorer

    gc.set_threshold(700, 10, 10)  # a process that stays has to look for cycles, other than a command that ends
    given = given_scenario(scenario, words, None)
    server = Explorer(Live(given, scenario), port, 60.0 * idle_minutes)
    print_answer(f"{server.url}\nends after {idle_minutes:g} minutes without an open page, or with Ctrl-C")
    if not no_browser:
        webbrowser.open(server.url)
    try:
        server.serve()
    except KeyboardInterrupt:
        server.server_close()
