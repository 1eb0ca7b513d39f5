"""``rlsim mcp``, apart from its tools, whose annotations load what no other command's help needs."""

from typing import Annotated

import typer


def mcp(
    seconds: Annotated[float, typer.Option(metavar="S", min=1, max=3600, help="Longest call.")] = 120.0,
) -> None:
    """Serve rlsim to assistants: a Model Context Protocol server on standard input and output.

    Tools: project, plan, size, check, improve, import_config, with the JSON of the commands. A call reads no file but
    what it is passed and writes none. Needs pip install 'rlsim[mcp]'.
    """
    from rlsim.cli.tool_server import server_of

    server_of(seconds).run()
