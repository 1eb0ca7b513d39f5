"""What commands that look at a run share: its scenario, also imported, and its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlsim.cli.output import given_scenario, step_range
from rlsim.errors import InputError
from rlsim.files.progress import ProgressLine
from rlsim.files.reading import shown_path

if TYPE_CHECKING:
    from rlsim.schema.scenario import Scenario

# Names without one of these suffixes are scenarios; their files are not opened to find out.
CONFIGURATIONS = (".yaml", ".yml", ".toml", ".sh")


def run_scenario(name: str, words: Sequence[str] | None, overrides: Sequence[str] | None) -> tuple[Scenario, str]:
    """The scenario, or that of a framework's configuration, and where it is from."""
    from rlsim.loading.scenario import vary
    from rlsim.readers.frameworks.importing import import_config
    from rlsim.readers.frameworks.launch import framework_of_file

    path = Path(name)
    framework = framework_of_file(path) if path.suffix in CONFIGURATIONS and path.is_file() else None
    if framework is None:
        return given_scenario(name, words, overrides), ""
    found = import_config(framework, path)
    source = f"imported from {framework}'s {shown_path(path)}, lengths and GPU assumed where it names none"
    changes = [*(words or ()), *(overrides or ())]
    return (vary(found.scenario, *changes) if changes else found.scenario), source


def logged_run(
    scenario: Scenario, path: Path | None, steps: str | None
) -> tuple[Scenario, dict[str, float], Mapping[str, float], tuple[str, ...]]:
    """The scenario with what the log tells in place of guesses, medians of the log's steady steps by name, deviations
    of their logarithms, and what is remarked on them."""
    if path is None:
        if steps is not None:
            raise InputError("--steps takes steps of a log: it needs --log")
        # Without a log all times are pasted, with the default noise.
        return scenario, {}, {}, ()
    from rlsim.readers.logs.reading import read_log
    from rlsim.readers.logs.steady import measured_of, steady_of, with_facts

    with ProgressLine("records") as progress:
        found = read_log(path, progress.reach).of_loop(scenario.loop.mode)
    steady = steady_of(found, None if steps is None else step_range(steps))
    scenario, facts = with_facts(scenario, steady, stated=False)
    remarks = [*steady.remarks, *(f"from the log: {one.text}" for one in facts), *found.contradictions(scenario)]
    return scenario, *measured_of(steady), tuple(remarks)
