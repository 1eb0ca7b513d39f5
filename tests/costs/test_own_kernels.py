"""Kernels of an engine's own: experts within a node and sparse latent blocks."""

from pathlib import Path
from typing import Any

import builders
import numpy as np
import pytest
from test_coefficients_tables import H100, MOE, ROWS, near, products

from rlsim.costs.operators import work
from rlsim.costs.operators.latent import SparseBlock
from rlsim.costs.operators.operators import Operators
from rlsim.loading.models import load_card
from rlsim.tables import files
from rlsim.tables.operators import ExpertShape, OperatorTables


def test_experts_of_an_engine_count_where_they_were_measured(tmp_path: Path) -> None:
    moe = MOE.moe
    shape = ExpertShape("fp8", MOE.hidden_size, moe.expert_intermediate_size, moe.top_k, moe.num_experts, 1, 1)
    tables = [
        builders.faked(tmp_path / name, (files.MOE, [(*shape, "balanced", t, s) for t in (1, 64)]))
        for name, s in (("own", 3e-4), ("other", 1e-4))
    ]
    both = Operators(H100, tables[0], siblings=(tables[1],))
    for balance in ("balanced", "power_law_1.2"):  # its own balanced rows, before any of another's
        own = both.experts(ROWS, shape, 3, balance, own=True)
        assert (own.seconds[0], own.measured[0]) == (near(3e-4), 1.0)
        assert both.experts(ROWS, shape, 3, balance).seconds[0] == near(1e-4)
    lacking = Operators(H100, builders.faked(tmp_path / "bare", products(2e-5, "fp8")), siblings=both.siblings[:1])
    assert lacking.experts(ROWS, shape, 3, "balanced", own=True).seconds[0] == near(1e-4)


@pytest.mark.parametrize(
    ("engine", "ep", "precision", "gpus", "own"),
    [("vllm", 1, "fp8_block", 8, True), ("sglang", 8, "nvfp4", 8, True), ("trtllm", 8, "fp8_block", 8, False),
     ("sglang", 1, "mxfp4", 8, False), ("sglang", 16, "fp8_block", 16, False)],
)  # fmt: skip
def test_experts_are_the_engines_own_within_a_node(
    engine: str, ep: int, precision: str, gpus: int, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = builders.scenario(
        "deepseek-v3", "b200_sxm", cluster={"num_gpus": 256}, trainer={"expert_parallel": 16, "pipeline_parallel": 16},
        engine={"name": engine, "tensor_parallel": gpus, "expert_parallel": ep, "weight_precision": precision},
    )  # fmt: skip
    asked = []

    def experts(self: Operators, *words: Any) -> Any:
        asked.append(words[-1])
        return self.roofline(work.gemm(ROWS, 1, 1, 1.0), "bf16")

    monkeypatch.setattr(Operators, "experts", experts)
    builders.layers(given).components(ROWS)
    assert asked == [own]


def test_sparse_blocks_are_the_engines_own(tmp_path: Path) -> None:
    def sparse(folder: Path, base_s: float) -> OperatorTables:
        rows = [(7168, 1, "bf16", "bf16", 8, b, c, base_s + 1e-9 * b * c) for b in (1, 64) for c in (2, 1024)]
        return builders.faked(folder, (files.SPARSE_DECODE, rows))

    own, other = sparse(tmp_path / "own", 1e-4), sparse(tmp_path / "other", 5e-5)
    block = SparseBlock(Operators(H100, own, siblings=(other,)), load_card("deepseek-v3.2"), 16, "bf16", "bf16")
    assert block.projections(np.array([64.0])).seconds[0] == near(1e-4 + 1.28e-7)
