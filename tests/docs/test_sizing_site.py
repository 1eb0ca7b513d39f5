"""The site of sizes and accuracy: its cells are what their commands answer, its pages lead nowhere else."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rlsim import InputError
from rlsim.planning.grid import Grid, sizing_grid
from rlsim.report.page.site import accuracy_sections, site_files
from rlsim.results.site import PastScore
from rlsim.results.validation import ComparedRow, Validation

GRID = ("--models", "qwen3-8b,deepseek-v3", "--devices", "h100_sxm", "--gpus", "8", "--frameworks", "nemo_rl-0.7,verl")


class Tags(HTMLParser):
    """All tags with their attributes, and the texts of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in self.texts and data.strip():
            self.texts[self.tags[-1][0]].append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from rlsim.cli import main

    out = tmp_path_factory.mktemp("site")
    with pytest.raises(SystemExit) as stop:
        main(["site", "--out", str(out), *GRID, "--steps-only", "--jobs", "1"])
    assert not stop.value.code
    return out


def test_every_cell_is_what_its_command_answers(site: Path, run) -> None:
    data = json.loads((site / "site.json").read_text())
    shown = [cell for cell in data["cells"] if "step_s" in cell]
    assert {(cell["mode"], cell["framework"]) for cell in shown} == {
        (mode, name) for mode in ("sync", "async") for name in ("nemo_rl-0.7", "verl")
    }
    for cell in shown:
        command = f"{data['reproduce']} {cell['words']}".split()
        code, out, _ = run(*command[1:], "--json")
        answer = json.loads(out)["candidate"]
        assert code == 0
        assert cell["step_s"] == [pytest.approx(answer["step_s"][end], rel=1e-3) for end in ("mean", "low", "high")]
        assert cell["tokens_per_s_per_gpu"] == pytest.approx(answer["tokens_per_s_per_gpu"]["mean"], rel=1e-3)
        used = max(use["total_bytes"] / use["available_bytes"] for use in answer["memory"].values())
        assert cell["memory_share"] == pytest.approx(used, rel=1e-3)
    none = [cell for cell in data["cells"] if "step_s" not in cell]
    assert {cell["model"] for cell in none} == {"deepseek-v3"} and all(cell["reason"] for cell in none)


def test_pages_reach_nothing_but_each_other(site: Path) -> None:
    assert sum(path.stat().st_size for path in site.iterdir()) < 5e6
    anchors = {page.name: set(re.findall(r'id="([^"]+)"', page.read_text())) for page in site.glob("*.html")}
    for page in site.glob("*.html"):
        text = page.read_text()
        assert "http://" not in text and "https://" not in text
        tags = Tags(text)
        assert not [tag for tag, given in tags.tags if tag in ("link", "img", "iframe") or "src" in given]
        script = "".join(tags.texts["script"][1:])
        links = [given["href"] or "" for tag, given in tags.tags if tag == "a"]
        links += re.findall(r'href: "([^"]+)"', script)
        assert "index.html" in links and "accuracy.html" in links
        for link in links:
            name, _, part = link.partition("#")
            assert (site / (name or page.name)).is_file(), link
            # Of a page with sections alone: the fragments of the matrix are read by its script.
            assert not part or part in anchors[name or page.name], link


def test_only_the_scripts_and_styles_of_a_page_may_run_in_it(site: Path) -> None:
    for name in ("index.html", "accuracy.html"):
        tags = Tags((site / name).read_text())
        (policy,) = [given["content"] for tag, given in tags.tags if given.get("http-equiv")]
        run = [*tags.texts["style"], *tags.texts["script"][1:]]
        assert policy is not None and policy.startswith("default-src 'none'") and len(run) >= 2
        for text in run:
            assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    # The page holds the data, since a page from a folder may read no file.
    data = Tags((site / "index.html").read_text()).texts["script"][0]
    assert json.loads(data) == json.loads((site / "site.json").read_text())


def test_every_measured_step_is_shown_and_a_trend_compares_equal_rows_alone() -> None:
    rows = [ComparedRow(id=f"row {i}", measured=10.0, predicted=11.0, low=9.0, high=12.0) for i in range(3)]
    tables = {"steps": Validation.of("steps", rows, table="t.csv", digest="")}
    past = {"release": "0.1", "date": "2026-01-01", "kind": "steps", "median_error_pct": 4.0, "p90_error_pct": 5.0}
    moved = []
    for count in (3, 2):
        sections = accuracy_sections(tables, [PastScore.model_validate({**past, "rows": count, "inside_pct": 90})])
        moved.append(sections["By release of rlsim"][0].rows[-1][-1])
    assert moved == ["+6.0", ""]
    page = site_files("sizing", "", [], [], tables, [], "1", False)["accuracy.html"]
    assert all(row.id in page for row in rows)


def test_names_that_are_none_are_refused_before_anything_is_simulated() -> None:
    for wrong in ({"models": ("qwen3-9b",)}, {"devices": ("h1000",)}, {"frameworks": ("nemo",)}):
        with pytest.raises(InputError, match=r"nearest|unknown"):
            sizing_grid(Grid(**wrong))
