"""What a text means to a framework's importer, and what comes back of a change to it: asked of rules one by one."""

from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from rlsim.loading.scenario import vary
from rlsim.readers.frameworks.exporting import export_scenario
from rlsim.readers.frameworks.importing import Imported, import_config, read_config

ENDINGS = {"easyr1": "yaml", "prime-rl": "toml", "roll": "yaml", "areal": "yaml"}


def written(folder: Path, framework: str, text: str) -> Path:
    path = folder / f"run.{ENDINGS.get(framework, 'sh')}"
    path.write_text(text)
    return path


def imported(folder: Path, framework: str, text: str) -> Imported:
    return import_config(framework, written(folder, framework, text))


def expect_meaning(folder: Path, framework: str, text: str, expected: Mapping[str, Any]) -> None:
    found = imported(folder, framework, text)
    assert {key: attrgetter(key)(found.scenario) for key in expected} == expected
    assert not found.accounting.of("not_understood")


def expect_return(folder: Path, framework: str, text: str, changes: Mapping[str, Any]) -> None:
    wanted = vary(imported(folder, framework, text).scenario, changes)
    answer = export_scenario(wanted, framework, read_config(framework, written(folder, framework, text)))
    assert not [line for line in answer.left if not line.endswith(": leave it out of your command")]
    (folder / "patched.yaml").write_text(answer.config)
    again = import_config(framework, folder / "patched.yaml").scenario
    assert {key: attrgetter(key)(again) for key in changes} == changes
