"""The files of --out."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import sample

from rlsim.report.files import write

NAMES = ["projection.json", "phases.png", "timeline.json", "scenario.yaml"]


def test_writes_the_four_files_of_the_contract(tmp_path):
    made = sample.sync_sample()
    paths = write(made, tmp_path)
    assert paths == [tmp_path / name for name in NAMES]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(NAMES)
    assert (tmp_path / "projection.json").read_text() == made.to_json()
    assert (tmp_path / "scenario.yaml").read_text() == made.resolved_scenario
    assert json.loads((tmp_path / "timeline.json").read_text())["otherData"]["digest"] == made.digest
    assert (tmp_path / "phases.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_same_projection_same_files(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        write(sample.async_sample(), folder)
    assert all((folders[0] / name).read_bytes() == (folders[1] / name).read_bytes() for name in NAMES)


def test_a_missing_folder_is_the_callers_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write(sample.sync_sample(), tmp_path / "absent")


def test_text_and_file_reports_import_without_matplotlib():
    code = "import sys, rlsim.report.text, rlsim.report.files; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
