"""rlsim support."""

import json
from collections.abc import Callable

import pytest

from rlsim.errors import InputError
from rlsim.loading.scenario import scenario_of_text
from rlsim.planning.support import SHAPE, coverage
from rlsim.projection.project import project
from rlsim.projection.uncertainty.evidence import load_evidence
from rlsim.report.style import DEFAULT_STYLE
from rlsim.report.text.support import render_coverage

Run = Callable[..., tuple[int, str, str]]


def test_tables_releases_counts_and_what_is_refused() -> None:
    found = coverage("Qwen/Qwen3-30B-A3B", "h100_sxm", "vllm", 16)
    assert found.tables is not None and {"gemm", "moe"} <= set(found.tables.operators)
    rows = [row.about for row in load_evidence().rows if row.kind == "iteration"]
    counts = found.counts["iteration"]
    assert counts["any"] == len(rows)
    assert counts["model"] == sum(row["model"] == "Qwen3-30B-A3B" for row in rows)
    assert counts["model, device and software"] <= counts["model and device"] <= counts["model"]
    reasons = {one.name: one.reason for one in found.tried}
    assert (
        "not supported by h100_sxm" in reasons["NVFP4 weights"] and "MTP head" in reasons["the model's own MTP drafts"]
    )
    assert reasons["FP8 weights"] == "" and next(one for one in found.tried if not one.reason).measured
    again = project(scenario_of_text(found.scenario, "again"))
    assert again.provenance == found.provenance
    text = render_coverage(found, SHAPE, DEFAULT_STYLE)
    for words in ("Qwen3-30B-A3B on h100_sxm with vllm", "moe", "refused: engine.weight_precision nvfp4", "experts"):
        assert words in text


def test_a_device_without_tables_is_said_to_be_modelled(run: Run) -> None:
    code, out, err = run("support", "qwen3-8b", "a100_sxm", "sglang", "--gpus", "8", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["tables"] is None and answer["provenance"]["measured"] < 0.5


@pytest.mark.parametrize(
    "words", [("qwen3-9b", "h100_sxm", "vllm"), ("qwen3-8b", "h10", "vllm"), ("qwen3-8b", "h100_sxm", "tgi")]
)
def test_unknown_names_are_refused(words: tuple[str, str, str]) -> None:
    with pytest.raises(InputError, match="unknown"):
        coverage(*words)
