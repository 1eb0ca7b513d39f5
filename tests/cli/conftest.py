"""A small scenario file on disk."""

from pathlib import Path

import pytest
from command_line import SMALL


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return str(path)
