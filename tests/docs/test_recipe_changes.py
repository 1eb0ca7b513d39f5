"""The table of a pull request: what a change of recipes does to their steps."""

from pathlib import Path

import pytest
import yaml

from rlsim.cli import fits

RECIPE = """
model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct
per_device_train_batch_size: 8
num_generations: 8
max_completion_length: 1024
bf16: true
use_vllm: true
"""


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    before, after = tmp_path / "before", tmp_path / "after"
    cases = {
        "same.yaml": (RECIPE, RECIPE + "# a comment\n"),
        "longer.yaml": (RECIPE, RECIPE.replace("1024", "4096")),
        "large.yaml": (RECIPE, RECIPE.replace("batch_size: 8", "batch_size: 512").replace("1024", "32768")),
        "gone.yaml": (RECIPE, ""),
        "new.yaml": ("", RECIPE),
        "notes.md": ("text", "other text"),
        "other.yaml": ("a: 1\n", "a: 2\n"),
    }
    for name, texts in cases.items():
        for folder, text in zip((before, after), texts, strict=True):
            folder.mkdir(exist_ok=True)
            if text:
                (folder / name).write_text(text)
    return before, after


def test_every_changed_recipe_has_its_line_and_nothing_else_has(script, folders, capsys) -> None:
    names = sorted({path.name for folder in folders for path in folder.iterdir()})
    words = ["--hardware", "h100_sxm", "--", "trl", *map(str, folders), *names]
    code = script("scripts/recipe_changes").main(words)
    lines = {line.split("|")[1].strip(): line for line in capsys.readouterr().out.splitlines()[2:]}
    assert set(lines) == {"same.yaml", "longer.yaml", "large.yaml", "gone.yaml", "new.yaml"}
    assert "no change" in lines["same.yaml"] and "1.00x [1.00, 1.00]" in lines["same.yaml"]
    assert "slower, in generation most" in lines["longer.yaml"]
    assert "does not fit" in lines["large.yaml"] and "removed" in lines["gone.yaml"] and "new" in lines["new.yaml"]
    assert code == 3  # a recipe that fitted does not now


def test_nothing_to_say_is_said(script, folders, capsys) -> None:
    assert script("scripts/recipe_changes").main(["trl", *map(str, folders), "notes.md"]) == 0
    assert "No recipe changed" in capsys.readouterr().out


def test_the_hook_refuses_recipes_that_cannot_run_and_no_others(folders, monkeypatch, capsys) -> None:
    monkeypatch.chdir(folders[1])
    (hook,) = yaml.safe_load((Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text())
    assert hook["entry"] == f"python -m {fits.__name__}"
    assert fits.main(["trl", "--hardware", "h100_sxm", "large.yaml", "same.yaml", "gone.yaml", "other.yaml"]) == 3
    refused, *rest = capsys.readouterr().out.split("gone.yaml: left out: absent\n")
    assert refused.startswith("large.yaml: infeasible: ") and "same.yaml" not in refused
    assert rest[0].startswith("other.yaml: left out: ")
    assert fits.main(["trl", "same.yaml", "--hardware", "h100_sxm"]) == 0
    with pytest.raises(SystemExit, match="2"):
        fits.main(["nobody", "same.yaml"])
