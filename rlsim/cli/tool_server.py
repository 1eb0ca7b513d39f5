"""``rlsim mcp``: answers as tools of the Model Context Protocol, for assistants and agents that plan runs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError

from rlsim.cli.guidance import ON_STANDARD_OUTPUT
from rlsim.cli.readers import FrameworkName
from rlsim.errors import InputError, shortened
from rlsim.files.lookup import catalogue
from rlsim.files.reading import DOCUMENT_BYTES
from rlsim.results.record import what_is_wrong

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer
    from mcp_types import CallToolResult, InputRequiredResult

MOST_FILES = 32
"""Files that an import is passed: a configuration, what it inherits, and the script that starts it."""
MOST_ANSWER_BYTES = 4 * 2**20
"""Longest answer; those of the shipped scenarios have 0.2 MiB."""
MESSAGE_CHARACTERS = 2000
INSTRUCTIONS = """Predicts RL post-training steps of large language models (GRPO, DAPO, PPO): seconds, memory, price,
with 90 % intervals. A scenario is a name that comes with rlsim (quickstart) or the text of a YAML file; words vary it
(trainer.tensor_parallel=4, k=5, lag=1). Make one from a framework's configuration with import_config. Say the first
line of missing and warnings beside every number."""

Text = Annotated[str, Field(max_length=DOCUMENT_BYTES)]
Scenario = Annotated[
    str,
    Field(max_length=DOCUMENT_BYTES, description="Name of a shipped scenario, or the text of a scenario's YAML file."),
]
SizedScenario = Annotated[
    str,
    Field(
        max_length=DOCUMENT_BYTES,
        description="Name of a shipped scenario, the text of a scenario's YAML file, or with devices a model's name.",
    ),
]
Devices = Annotated[
    list[str] | None,
    Field(max_length=32, description="Hardware profiles to size on, such as h100_sxm; default the scenario's own."),
]
Words = Annotated[
    list[str] | None,
    Field(max_length=64, description="Overrides, such as cluster.num_gpus=64, k=5 or lag=1."),
]
Phases = Annotated[
    dict[Literal["step", "generation", "train", "logprob", "weight-update", "data"], float],
    Field(min_length=1, description="Measured seconds of a step and of its phases."),
]


class Tools:
    """The tools of a server. Each call is a process of its own, in an empty folder that holds what was passed.

    seconds: after which a call is ended. Methods return the JSON contracts of the commands (docs/contracts.md) as text
    and raise InputError with the command's own message.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def project(self, scenario: Scenario, words: Words = None) -> str:
        """How long one RL step takes, against the same without speculative decoding: phases, memory, price, what
        bounds it, intervals, warnings, what to try first (rlsim.projection)."""
        return self._answer("project", scenario, words, ["--json"])

    def plan(self, scenario: Scenario, words: Words = None, max_staleness: int | None = None) -> str:
        """The best layouts of engine and trainer, split of GPUs, policy lag and draft length on the scenario's GPUs."""
        lag = [] if max_staleness is None else ["--max-staleness", str(max_staleness)]
        return self._answer("plan", scenario, words, ["--json", "--jobs", "1", *lag])

    def size(
        self,
        scenario: SizedScenario,
        words: Words = None,
        deadline_s: float | None = None,
        budget_usd: float | None = None,
        devices: Devices = None,
    ) -> str:
        """How many GPUs: the fewest that hold the model, how far more of them pay, the cheapest within a deadline for
        a step or a price of it."""
        asked = {"--deadline": deadline_s, "--budget": budget_usd}
        options = [word for name, value in asked.items() if value is not None for word in (name, f"{value:.12g}")]
        if devices:
            options += ["--device", ",".join(devices)]
        elif "\n" not in scenario and _is_card(scenario):
            raise InputError(f"devices: name at least one for the model {scenario}, such as h100_sxm")
        return self._answer("size", scenario, words, ["--json", *options])

    def check(self, scenario: Scenario, measured_s: Phases, words: Words = None) -> str:
        """Whether measured seconds are as expected, and which fault or setting explains them where they are not."""
        measured = [word for name, value in measured_s.items() for word in (f"--{name}", f"{value:.12g}")]
        return self._answer("check", scenario, words, ["--json", *measured])

    def improve(
        self,
        scenario: Scenario,
        words: Words = None,
        only: Literal["techniques", "idle", "headroom", "inputs"] | None = None,
    ) -> str:
        """What would shorten the step: moves ranked with what they ask, idle time, distance to the ideal."""
        return self._answer("improve", scenario, words, ["--json", *([] if only is None else ["--only", only])])

    def import_config(
        self,
        framework: FrameworkName,
        files: Annotated[dict[str, Text], Field(min_length=1, max_length=MOST_FILES)],
        config: str,
        hardware: str | None = None,
        mean_response_tokens: float | None = None,
        mean_turns: float | None = None,
    ) -> str:
        """A framework's configuration or launch script as the YAML of a scenario.

        files: name to text, of the configuration, what it inherits and the script; config: which of them to import.
        What no file says (GPU, lengths, turns) is an option; without it an assumption, which the scenario states.
        """
        given = {
            "--hardware": hardware, "--mean-response-tokens": mean_response_tokens, "--mean-turns": mean_turns,
        }  # fmt: skip
        options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
        _check_names(files)
        if config not in files:
            raise InputError(f"config: '{shortened(config)}' is none of files ({', '.join(map(shortened, files))})")
        return self._run(["import", *options, framework.value, config], files)

    def _answer(self, command: str, scenario: str, words: Sequence[str] | None, options: Sequence[str]) -> str:
        # A mapping of YAML has a colon at least, which no shipped name has.
        named = "\n" not in scenario and ":" not in scenario
        if not scenario.strip():
            raise InputError("scenario: is empty; expected the name of a shipped scenario or the text of a YAML file")
        files = {} if named else {"scenario.yaml": scenario}
        # Behind -- a text that begins with a dash is no option.
        return self._run([command, *options, "--", scenario if named else "scenario.yaml", *(words or ())], files)

    def _run(self, words: Sequence[str], files: Mapping[str, str]) -> str:
        """What rlsim prints for ``words`` where ``files`` lie."""
        with tempfile.TemporaryDirectory(prefix="rlsim-") as folder:
            _write(Path(folder), files)
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "rlsim.cli.confined", *words],
                    # The server's own standard input carries the protocol: no command may read from it.
                    cwd=folder, timeout=self._seconds, stdin=subprocess.DEVNULL, capture_output=True, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise InputError(f"no answer within {self._seconds:g} s (rlsim mcp --seconds); ask for less") from None
            except (OSError, ValueError) as error:  # words too long for a process, or with NUL bytes
                raise InputError(f"cannot be run: {shortened(str(error), MESSAGE_CHARACTERS)}") from None
        if done.returncode:
            raise InputError(_refusal(done))
        if len(done.stdout) > MOST_ANSWER_BYTES:
            raise InputError(f"the answer has more than {MOST_ANSWER_BYTES / 2**20:g} MiB; ask for less")
        return done.stdout.decode()


def _is_card(name: str) -> bool:
    """Whether ``name`` is a model card's and no scenario's."""
    return name in catalogue("scenarios", "models") and name not in catalogue("scenarios")


def _refusal(done: subprocess.CompletedProcess[bytes]) -> str:
    """Why a command did not answer."""
    told = done.stderr.decode(errors="replace").strip()
    if done.returncode == 1:
        # A traceback helps nobody here, its last line whoever reports it.
        return f"rlsim ended with an error of its own, please report it: {told.splitlines()[-1:]}"[:MESSAGE_CHARACTERS]
    # What is said of a scenario, and progress, come before the message.
    *_, message = f"\n{told}".rpartition("\nrlsim: ")
    return message.strip().removesuffix(ON_STANDARD_OUTPUT)[-MESSAGE_CHARACTERS:]


def _check_names(files: Mapping[str, str]) -> None:
    """Raise InputError for a name that leads out of a folder."""
    for name in files:
        if Path(name).is_absolute() or ".." in Path(name).parts or not Path(name).name:
            raise InputError(f"files: '{shortened(name)}' must be a relative path without '..'")


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """The passed files below ``folder``. Raises InputError for a name that leads out of it."""
    _check_names(files)
    for name, text in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InputError(f"files: '{shortened(name)}': {shortened(str(error))}") from None


def server_of(seconds: float) -> MCPServer:
    """The server with all tools. Raises InputError where the protocol's SDK is not installed."""
    try:
        from mcp.server.mcpserver import Context, MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError as error:
        raise InputError("rlsim mcp needs the SDK of the protocol: pip install 'rlsim[mcp]'") from error
    from rlsim import __version__

    def told(tool: Callable[..., str]) -> Callable[..., str]:
        """The tool, whose refusals the client reads as such."""

        @wraps(tool)
        def answer(*args: object, **given: object) -> str:
            try:
                return tool(*args, **given)
            except InputError as error:
                raise ToolError(str(error)) from None

        return answer

    class Strict(MCPServer):
        """A server that drops no argument: the SDK leaves out those that a tool does not have."""

        async def call_tool(
            self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
        ) -> CallToolResult | InputRequiredResult:
            known = next((one.input_schema["properties"] for one in await self.list_tools() if one.name == name), None)
            unknown = [key for key in arguments if known is not None and key not in known]
            if unknown:
                asked = ", ".join(known or ())
                raise ToolError(f"unknown argument '{shortened(unknown[0])}' of {name}, which takes {asked}")
            try:
                return await super().call_tool(name, arguments, context)
            except ToolError as error:
                if isinstance(error.__cause__, ValidationError):
                    raise ToolError(f"{name}: {what_is_wrong(error.__cause__)}") from None
                raise

    server = Strict("rlsim", instructions=INSTRUCTIONS, version=__version__, log_level="ERROR")
    tools = Tools(seconds)
    for tool in (tools.project, tools.plan, tools.size, tools.check, tools.improve, tools.import_config):
        server.tool(structured_output=False)(told(tool))
    return server
