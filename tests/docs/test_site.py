"""The reference is that of the sources, the site's navigation is whole, what pages show runs."""

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from rlsim import load_scenario, project
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


def test_paths_that_pages_name_exist() -> None:
    """Of the checkout; names in capitals stand for any, and what is written beside results is no part of it."""
    rooms = "rlsim|scripts|research|benchmarks|bench|calibration|tests|scenarios|hardware_profiles"
    pages = (ROOT / "README.md", *DOCS.rglob("*.md"))
    named = {path for page in pages for path in re.findall(rf"`((?:{rooms})/[\w./-]+)`", page.read_text())}
    assert len(named) > 30
    assert sorted(path for path in named if not re.search("[A-Z]{3}", path) and not (ROOT / path).exists()) == []


@pytest.mark.parametrize("place", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(1, 5))])
def test_pages_and_picture_hold_what_the_commands_print_now(script, place: int) -> None:
    """Excerpts line by line, the README's with every change; the numbers of the picture stand in its text and file."""
    readme = script("scripts/readme")
    words, path = readme.caption(project(load_scenario(readme.SCENARIO))), readme.PAGES[place]
    assert readme.page(path.read_text(), words) == path.read_text(), f"{path.name}: run scripts/readme"
    assert words.encode() in readme.PICTURE.read_bytes(), "run scripts/readme"
    assert len(readme.PAGES) == 5 and readme.PAGES[0].read_text().count("<!-- printed: ") == 3


def test_links_that_leave_the_documentation_become_names(script) -> None:
    class Page:
        class file:  # noqa: N801 - as MkDocs calls it
            src_uri = "howto/memory.md"

    text = "[readme](../../README.md), [model](../model.md), [gone](../../GONE.md)"
    told = script("scripts/site_links.py").on_page_markdown(text, page=Page, config={"docs_dir": str(DOCS)})
    assert told == "readme (`README.md`), [model](../model.md), [gone](../../GONE.md)"


Run = Callable[..., tuple[int, str, str]]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"(?:^<!-- (?P<mark>.+?) -->\n)?^```(?P<language>\w*)\n(?P<body>.*?)^```", re.M | re.S)
TAKES_WORDS = ("project", "plan", "compare", "improve")
MOST_STEPS, FEW_ROWS = "20", "400"


@dataclass(frozen=True)
class Block:
    """A fenced block. mark: the comment before it; commands: its lines that begin with rlsim, or $ rlsim."""

    mark: str
    language: str
    body: str

    @property
    def commands(self) -> list[str]:
        joined = self.body.replace("\\\n", " ")
        found = [re.sub(r"^\$ ", "", line) for line in joined.splitlines()]
        return [line.removeprefix("rlsim ") for line in found if line.startswith("rlsim ")]

    @property
    def exit_code(self) -> int:
        found = re.match(r"exits (\d)", self.mark)
        return int(found[1]) if found else 0


def blocks(page: Path) -> Iterator[Block]:
    for found in FENCE.finditer(page.read_text()):
        yield Block(found["mark"] or "", found["language"], found["body"])


def left_out(block: Block) -> str:
    if block.mark.startswith("not run"):
        return block.mark.partition(": ")[2]
    return ""


def small(command: str) -> list[str]:
    words = shlex.split(command, comments=True)
    if words[0] in TAKES_WORDS:
        words.append("simulation.replications=1")
    if words[0] == "sweep":
        words += ["--replications", "1", "--jobs", "1"]
    if words[0] == "plan":
        words += ["--jobs", "1"]
    if words[0] == "run":
        option, few = ("--steps", MOST_STEPS) if "--steps" in words else ("--rows", FEW_ROWS)
        words[words.index(option) + 1] = few
    return words


WITH_COMMANDS = [page for page in PAGES if any(block.commands for block in blocks(page))]
SLOW = ("README", "memory", "report", "runs", "techniques", "cost", "lag", "layout", "slow")
"""Pages whose commands take a quarter of a minute or more; those of the README are run for its excerpts too."""


@pytest.mark.parametrize("page", [
    pytest.param(page, marks=pytest.mark.nightly if page.stem in SLOW else (), id=str(page.relative_to(ROOT)))
    for page in WITH_COMMANDS
])  # fmt: skip
def test_the_commands_of_a_page_run(page: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(page):
        name = re.match(r"# (\S+\.yaml)\n", block.body)
        if block.language == "yaml" and name:
            Path(name[1]).write_text(block.body)
        for command in block.commands:
            if not left_out(block):
                code, out, err = run(*small(command))
                assert code == block.exit_code, f"{command}: {err}"
                assert "do not differ" not in out, command


def test_what_is_not_run_has_a_known_reason() -> None:
    with_commands = [block for page in WITH_COMMANDS for block in blocks(page) if block.commands]
    assert {left_out(block) for block in with_commands} == {
        *("", "needs your configuration", "needs your trace", "needs your log"),
        *("needs your table", "takes minutes", "takes minutes and needs tables of others"),
        *("needs a GPU", "needs a GPU and PyTorch", "needs what a GPU measured"),
        *("needs PyTorch, takes minutes", "needs the folder of the step before", "it serves until it ends"),
        "measures the machine",
    }
    assert all(any(block.commands for block in blocks(page)) for page in (ROOT / "docs" / "howto").glob("*.md"))


@pytest.mark.nightly
def test_commands_within_the_lines_of_the_readme_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    readme = ROOT / "README.md"
    lines = [line for block in blocks(readme) for line in block.body.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", FENCE.sub("", readme.read_text()))
    given = {found[1] for line in lines if (found := re.search(r"(?:^|[ /])rlsim ([a-z].*)", line))}
    assert len(given) >= 10
    for command in sorted(given):
        whole = " " in command and not re.search(r"\b[A-Z]{3,}\b", command)
        code, _, err = run(*(small(command) if whole else [command.split()[0], "--help"]))
        assert code == 0, f"{command}: {err}"


def test_the_python_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (body,) = [block.body for block in blocks(ROOT / "README.md") if block.language == "python"]
    exec(compile(body, "README.md", "exec"), {})
    assert capsys.readouterr().out
