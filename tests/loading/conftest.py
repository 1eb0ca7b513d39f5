"""The small scenario as a file."""

from pathlib import Path

import pytest
from small_scenario import SMALL


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path
