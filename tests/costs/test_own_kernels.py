"""Kernels of an engine's own: experts within a node, sparse latent blocks, and those of a release of before."""

from pathlib import Path
from typing import Any

import builders
import numpy as np
import pytest
from test_coefficients_tables import H100, MOE, QKV, RACK, ROWS, near, products

from rlsim.costs.operators import device, work
from rlsim.costs.operators.latent import SparseBlock
from rlsim.costs.operators.operators import Operators
from rlsim.loading.models import load_card
from rlsim.schema.engine import Engine
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
    builders.layers(given).components(ROWS, graph=True)
    assert asked == [own]


def test_an_older_release_takes_the_kernels_of_its_time(tmp_path: Path) -> None:
    newer, other = builders.faked(tmp_path / "sglang", products(1e-5, "fp8_block")), tmp_path / "sglang" / "0.9"
    newer.metadata["engine_version"] = "1.2"
    builders.faked(other, products(3e-5, "fp8_block"))
    (other / files.METADATA).write_text("engine_version: '0.9'\n")
    faster = builders.faked(tmp_path / "vllm", products(5e-6, "fp8_block"))
    own = device.Device(RACK, newer, RACK, None, (faster,))

    def product_s(precision: str = "fp8_block", **keys: Any) -> tuple[Any, float]:
        found = own.operators_of(Engine.model_validate({"name": "sglang", "tensor_parallel": 1, **keys}))
        timed = found.gemm(ROWS, QKV, precision)
        return near(timed.seconds[0]), timed.measured[0]

    for version in ("0.8", "0.9", "1.1.post1"):
        assert product_s(version=version) == (3e-5, 1.0)
    for keys in ({}, {"version": "1.2"}, {"version": "1.3"}, {"version": "1.0", "fp8_products": "flashinfer"}):
        assert product_s(**keys) == (5e-6, 0.0)
    plain = product_s(precision="bf16", version="0.9")
    assert plain == product_s(precision="bf16")


def test_sparse_blocks_are_the_engines_own_and_those_of_an_older_release_grow_as_its_newer_ones(tmp_path: Path) -> None:
    def sparse(folder: Path, base_s: float) -> OperatorTables:
        keys = (7168, 1, "bf16", "bf16", 8)
        rows = [(*keys[:4], 8, b, c, base_s + 1e-9 * b * c) for b in (1, 64) for c in (2, 1024)]
        return builders.faked(folder, (files.SPARSE_DECODE, rows))

    own, other = sparse(tmp_path / "own", 1e-4), sparse(tmp_path / "other", 5e-5)
    older = sparse(tmp_path / "older", 3e-4)

    def block_s(before: OperatorTables | None) -> tuple[Any, Any]:
        operators = Operators(H100, own, siblings=(other,), older=before)
        block = SparseBlock(operators, load_card("deepseek-v3.2"), 16, "bf16", "bf16")
        batch = np.array([64.0])
        return near(block.projections(batch).seconds[0]), block.attention(batch, np.array([1024.0])).seconds[0]

    (base, attention), (before, alike) = block_s(None), block_s(older)
    assert (base, before, alike) == (1e-4 + 1.28e-7, 3e-4 + 1.28e-7, attention)
    assert attention == pytest.approx(64 * 1022e-9, rel=0.01)
