"""Plugin of pytest (``-p tests.golden.chosen``) for scripts/sampled_mutants: of what is collected the tests alone whose
ids the file that CHOSEN names holds, one of JSON a line, in its order. As words of a command ids with ``::`` or line
ends in their parameters are not found, and pytest then ends as if a test had failed."""

import json
import os
from pathlib import Path

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the chosen tests, in the order of their file."""
    lines = Path(os.environ["CHOSEN"]).read_text(encoding="utf-8").splitlines()
    places = {json.loads(line): place for place, line in enumerate(lines)}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in places])
    items[:] = sorted((item for item in items if item.nodeid in places), key=lambda item: places[item.nodeid])
