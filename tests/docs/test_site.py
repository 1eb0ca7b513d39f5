"""The reference is that of the sources, the site's navigation is whole, the benchmark's script scores."""

import csv
import re
from pathlib import Path

import pytest
import yaml

from rlsim.schema.keys import all_keys

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_reference_is_that_of_the_schema_and_the_command_line(script) -> None:
    reference = script("scripts/reference")
    assert (DOCS / "reference" / "keys.md").read_text() == reference.keys_page(), "run scripts/reference"
    assert (DOCS / "reference" / "commands.md").read_text() == reference.commands_page(), "run scripts/reference"
    assert all(f"`{key.dotted.rpartition('.')[2]}`" in reference.keys_page() for key in all_keys())


def test_every_page_is_in_the_navigation() -> None:
    def pages(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        values = entry if isinstance(entry, list) else list(entry.values())  # type: ignore[attr-defined]
        return [page for value in values for page in pages(value)]

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_links_that_leave_the_documentation_become_names(script) -> None:
    class Page:
        class file:  # noqa: N801 - as MkDocs calls it
            src_uri = "howto/memory.md"

    text = "[readme](../../README.md), [model](../model.md), [gone](../../GONE.md)"
    told = script("scripts/site_links.py").on_page_markdown(text, page=Page, config={"docs_dir": str(DOCS)})
    assert told == "readme (`README.md`), [model](../model.md), [gone](../../GONE.md)"


def test_the_benchmark_scores_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = re.search(r"```python\n(.*?)```", (DOCS / "benchmark.md").read_text(), re.S)
    published = tmp_path / "calibration" / "published"
    published.mkdir(parents=True)
    source = ROOT / "calibration" / "published" / "rl_steps.csv"
    (published / source.name).write_bytes(source.read_bytes())
    with source.open() as file:
        rows = [row for row in csv.DictReader(file) if row["total_step_time_s"]][:10]
    lines = ["id,predicted_s,low_s,high_s"]
    for number, row in enumerate(rows):
        time = float(row["total_step_time_s"])
        lines.append(f"{row['id']},{time * (1 + number / 100)},{time * (0.9 if number else 2)},{time * 3}")
    (tmp_path / "predictions.csv").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    exec(compile(found[1], "benchmark.md", "exec"), {})
    assert "10 of 68 steps: median 4.5%, p90 8.0% coverage 90%" in capsys.readouterr().out
