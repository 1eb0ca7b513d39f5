"""Which measured table answers, and what is made of it, pinned on tables at round values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import builders
import numpy as np
import pytest
from builders import bare, exactly

from rlsim.costs.engine.layers import EngineLayers
from rlsim.costs.operators import device
from rlsim.costs.operators.collectives import Collectives
from rlsim.costs.operators.latent import LatentBlock
from rlsim.costs.operators.operators import Operators, TableSource
from rlsim.costs.operators.work import Matrix
from rlsim.loading.models import load_card
from rlsim.schema.architecture import LayerCounts
from rlsim.tables import files
from rlsim.tables.operators import ExpertShape, OperatorTables
from rlsim.tables.profile import load_profile

H100, RACK = load_profile("h100_sxm"), load_profile("gb200_nvl72")
LATENT, MOE = load_card("deepseek-v3"), load_card("qwen3-30b-a3b")
QKV, ROWS = Matrix("qkv", 4096, 1024), np.array([64.0])
Rows = list[tuple[Any, ...]]


def products(seconds: float, *precisions: str) -> tuple[files.TableLayout, Rows]:
    return files.GEMM, [
        (p, n, k, m, seconds) for p in precisions for n in (1024, 4096) for k in (1024,) for m in (1, 64)
    ]


def scales(seconds: float) -> tuple[files.TableLayout, Rows]:
    return files.QUANTIZE, [("dynamic_scale", k, m, seconds) for k in (1024, 4096) for m in (1, 64)]


def near(value: float) -> Any:
    """Tables hold seconds in a rounded mantissa."""
    return pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize(("precision", "scaling_s", "seconds"), [
    ("fp8", 6e-6, 1.4e-5), ("fp8", 1.9e-5, 2.5e-6), ("fp8_block", 6e-6, 2e-5), ("bf16", 6e-6, 2e-5),
    ("nvfp4", 6e-6, 2e-5),
])  # fmt: skip
def test_only_fp8_is_spared_the_search(tmp_path: Path, precision: str, scaling_s: float, seconds: float) -> None:
    tables = builders.faked(tmp_path, products(2e-5, "fp8", "fp8_block", "bf16", "nvfp4"), scales(scaling_s))
    found = Operators(RACK, tables).gemm(ROWS, QKV, precision)
    assert found.seconds[0] == near(seconds)
    assert found.measured[0] == 1.0


def test_products_are_measured_with_their_scales_and_the_engines_own_or_anothers(tmp_path: Path) -> None:
    tables = builders.faked(tmp_path, products(2e-5, "fp8"))
    assert Operators(H100, tables).gemm(ROWS, QKV, "fp8").seconds[0] == near(2e-5)
    tables = builders.faked(
        tmp_path / "scaled", products(2e-5, "fp8"), (files.QUANTIZE, [("dynamic_scale", 1024, 1, 1e-6)])
    )
    assert Operators(H100, tables).gemm(ROWS, QKV, "fp8").measured[0] == 0.0
    own, faster = (
        builders.faked(tmp_path / name, products(seconds, "bf16")) for name, seconds in (("own", 2e-5), ("other", 1e-5))
    )
    found = Operators(RACK, own, siblings=(faster,)).gemm(ROWS, QKV, "bf16")
    assert (found.seconds[0], found.measured[0]) == (near(2e-5), 1.0)
    other = builders.faked(tmp_path / "fp4", products(1e-5, "nvfp4"))
    found = Operators(RACK, own, siblings=(other,)).gemm(ROWS, QKV, "nvfp4")
    assert (found.seconds[0], found.measured[0]) == (near(1e-5), 0.0)
    assert Operators(RACK, None, siblings=(other,)).siblings == ()


@pytest.mark.parametrize("precision", ["fp8", "fp8_block", "nvfp4"])
def test_the_fastest_engine_multiplies_unmeasured_where_it_is_another(tmp_path: Path, precision: str) -> None:
    own, faster, slower = (builders.faked(tmp_path / name, products(seconds, precision))
                           for name, seconds in (("own", 2e-5), ("faster", 1e-5), ("slower", 3e-5)))  # fmt: skip

    def priced(*siblings: OperatorTables) -> tuple[Any, float]:
        found = Operators(RACK, own, siblings=siblings).gemm(ROWS, QKV, precision)
        return near(found.seconds[0]), found.measured[0]

    assert priced() == (2e-5, 1.0)
    assert priced(slower) == (2e-5, 1.0)
    assert priced(faster) == priced(slower, faster) == priced(faster, slower) == (1e-5, 0.0)


def test_experts_take_the_fastest_engine_and_tables_that_stand_in_count_as_unmeasured(tmp_path: Path) -> None:
    moe, own_s, other_s = MOE.moe, {"bf16": 4e-4, "fp8": 3e-4}, {"bf16": 2e-4, "fp8": 1e-4}
    shape = (MOE.hidden_size, moe.expert_intermediate_size, moe.top_k, moe.num_experts)

    def made(name: str, seconds: dict[str, float]) -> OperatorTables:
        return builders.faked(
            tmp_path / name,
            (files.MOE, [(p, *shape, 1, 1, "balanced", t, s) for p, s in seconds.items() for t in (1, 64)]),
        )

    both = Operators(H100, made("own", own_s), siblings=(made("other", other_s),))
    for precision, seconds, measured in (("bf16", 4e-4, 1.0), ("fp8", 1e-4, 0.0)):
        found = both.experts(ROWS, ExpertShape(precision, *shape, 1, 1), 3, "balanced")
        assert (found.seconds[0], found.measured[0]) == (near(seconds), measured)
    tables = builders.faked(tmp_path, products(2e-5, "bf16"), reductions(g4=9e-6))
    own, lent = (Operators(RACK, tables, stands_in=s).gemm(ROWS, QKV, "bf16") for s in (False, True))
    assert (own.seconds[0], own.measured[0], lent.measured[0]) == (lent.seconds[0], 1.0, 0.0)
    here, there = (Collectives(RACK, tables, stands_in=s).all_reduce(4, 4096.0) for s in (False, True))
    assert (float(here.seconds), float(here.measured), float(there.measured)) == (float(there.seconds), 1.0, 0.0)


def test_engines_are_siblings_and_block_scaled_experts_take_fp8() -> None:
    a100 = load_profile("a100_sxm")
    for engine, stand_in in (("vllm", None), ("sglang", "vllm"), ("trtllm", "vllm")):
        found = device.device_of(a100, engine)
        assert found.tables is not None and found.tables.folder.name == "vllm"
        assert found.stand_in == stand_in and found.siblings == ()
        assert found.operators.stands_in is found.fabric.stands_in is (stand_in is not None)
        assert device.device_of(H100, engine).stand_in is None
    for engine in ("vllm", "sglang", "trtllm"):
        found = device.device_of(H100, engine)
        assert found.tables is not None and found.tables.folder.name == engine
        assert {tables.folder.name for tables in found.siblings} == {"vllm", "sglang", "trtllm"} - {engine}
        assert found.operators.siblings == found.siblings
    assert device.device_of(builders.without_tables("h100_sxm"), "vllm").siblings == ()
    source = device.exchange_tables()
    assert source is not None and source.tables.folder.parent.name == source.device.name == "gb200_nvl72"
    tables = source.tables
    block, fp8 = (tables.expert_exchange_s(("two_sided", "dispatch"), p, 7168, 8, 64.0) for p in ("fp8_block", "fp8"))
    assert block.seconds == fp8.seconds and not block.measured
    own = device.device_of(RACK, "vllm").fabric.exchange
    assert own is not None and own.tables.folder == tables.folder


BATCH, CONTEXT = np.array([16.0]), np.array([8192.0])


def module(projections_s: float, attention_s: float) -> tuple[files.TableLayout, Rows]:
    """A module that takes the former at two tokens of context and both beyond 128."""
    points = [(2, projections_s), (128, projections_s + attention_s), (8192, projections_s + attention_s)]
    return files.MLA_DECODE, [("bf16", "bf16", h, c, b, s) for h in (16, 128) for c, s in points for b in (1, 128)]


def kernel(seconds: float) -> tuple[files.TableLayout, Rows]:
    return files.MLA_DECODE_KERNEL, [("bf16", h, c, b, seconds) for h in (16, 128) for c in (1, 8192) for b in (1, 128)]


def latent_s(own: OperatorTables, *siblings: OperatorTables) -> tuple[float, float, float]:
    """Seconds of projections and attention, and the measured share of the latter."""
    block = LatentBlock(Operators(H100, own, siblings=siblings), LATENT, 8, "bf16", "bf16")
    projections, attention = block.projections(BATCH), block.attention(BATCH, CONTEXT)
    return float(projections.seconds[0]), float(attention.seconds[0]), float(attention.measured[0])


def test_the_fastest_measured_variant_of_a_latent_block_counts(tmp_path: Path) -> None:
    slow, fast = builders.faked(tmp_path / "slow", module(2e-3, 2e-3)), builders.faked(tmp_path / "fast", kernel(1e-5))
    quick = builders.faked(tmp_path / "quick", module(1e-6, 1e-6))
    whole = latent_s(slow)
    assert whole == (near(2e-3), near(2e-3), 1.0)
    apart = latent_s(fast)
    assert apart[1:] == (near(1e-5), 1.0)
    assert latent_s(slow, fast) == (apart[0], apart[1], 0.0)
    assert latent_s(fast, slow) == apart
    assert latent_s(fast, quick) == (near(1e-6), near(1e-6), 0.0)
    both = builders.faked(tmp_path / "both", module(2e-3, 2e-3), kernel(1e-5))
    assert latent_s(both)[1:] == (near(1e-5), 1.0)
    block = LatentBlock(Operators(H100, both), LATENT, 8, "bf16", "bf16")
    assert block.variants() == [(both, True), (both, False)]
    assert block.reference_s((both, False)) < block.reference_s((both, True))


def test_variants_are_compared_from_1_to_128_sequences_of_1024_and_8192_tokens(tmp_path: Path) -> None:
    """A module of a nanosecond for each token of context of each sequence."""
    grid = [(h, c, b) for h in (16, 128) for c in (2, 4, 1024, 8192) for b in (1, 16, 128)]
    tables = builders.faked(
        tmp_path, (files.MLA_DECODE, [("bf16", "bf16", *point, 1e-9 * point[1] * point[2]) for point in grid])
    )
    block = LatentBlock(Operators(H100, tables), LATENT, 8, "bf16", "bf16")
    expected = sum(np.log(1e-9 * batch * context) for batch in (1, 16, 128) for context in (1024, 8192))
    assert block.reference_s((tables, True)) == pytest.approx(expected, rel=1e-4)


def test_a_latent_block_that_nobody_measured_is_its_roofline(tmp_path: Path) -> None:
    own = builders.faked(tmp_path, products(2e-5, "bf16"))
    bare, none = latent_s(own), LatentBlock(Operators(H100, None), LATENT, 8, "bf16", "bf16")
    assert bare[2] == 0.0 and bare[1] > 0
    assert none.variants() == []
    assert none.attention(BATCH, CONTEXT).measured[0] == 0.0


SIZES = (1024, 1_048_576)


def reductions(**by_gpus: float) -> tuple[files.TableLayout, Rows]:
    return files.ALL_REDUCE, [("graph", int(gpus[1:]), size, s) for gpus, s in by_gpus.items() for size in SIZES]


def nccl(op: str, **by_gpus: float) -> tuple[files.TableLayout, Rows]:
    return files.COLLECTIVES, [(op, int(gpus[1:]), size, s) for gpus, s in by_gpus.items() for size in SIZES]


def growth(gpus: int, measured: int) -> float:
    return ((gpus - 1) / gpus) / ((measured - 1) / measured)


@pytest.mark.parametrize(("gpus", "doublings"), [(8, 1), (16, 2), (64, 4)])
def test_larger_groups_add_what_the_last_measured_doubling_added(tmp_path: Path, gpus: int, doublings: int) -> None:
    steep = Collectives(RACK, builders.faked(tmp_path / "steep", reductions(g2=4e-6, g4=9e-6)))
    found = steep.all_reduce(gpus, 4096.0)
    assert float(found.seconds) == near(9e-6 + doublings * 5e-6)
    assert float(found.measured) == 0.0
    flat = Collectives(RACK, builders.faked(tmp_path / "flat", reductions(g2=1e-5, g4=9e-6)))
    assert float(flat.all_reduce(gpus, 4096.0).seconds) == near(9e-6 * growth(gpus, 4))
    gathered = Collectives(RACK, builders.faked(tmp_path / "nccl", nccl("all_gather", g2=4e-6, g4=9e-6)))
    assert float(gathered.collective("all_gather", gpus, 4096.0).seconds) == near(9e-6 + doublings * 5e-6)


def test_the_measured_group_stands_and_one_alone_adds_the_latency_of_the_link_for_each_doubling(tmp_path: Path) -> None:
    alone = Collectives(RACK, builders.faked(tmp_path / "one", reductions(g2=4e-6)))
    assert float(alone.all_reduce(8, 4096.0).seconds) == near(4e-6 + 2 * RACK.nvlink_latency_s.value)
    found = Collectives(RACK, builders.faked(tmp_path, reductions(g2=4e-6, g4=9e-6))).all_reduce(4, 4096.0)
    assert (float(found.seconds), float(found.measured)) == (near(9e-6), 1.0)


def test_an_engine_that_stays_on_its_node_takes_nccl_beyond_it(tmp_path: Path) -> None:
    tables = builders.faked(tmp_path, reductions(g4=9e-6), nccl("all_reduce", g4=3e-5, g8=4e-5))
    fabric = Collectives(RACK, tables)
    assert float(fabric.all_reduce(4, 4096.0, shared_domain=False).seconds) == near(9e-6)
    assert float(fabric.all_reduce(8, 4096.0, shared_domain=False).seconds) == near(4e-5)


@pytest.mark.parametrize(("engine", "over_trays_s"), [("vllm", 4e-5), ("sglang", 1.2e-5), ("trtllm", 1.2e-5)])
def test_sglang_and_trtllm_reduce_over_the_trays_of_a_domain(tmp_path: Path, engine: str, over_trays_s: float) -> None:
    tables = builders.faked(tmp_path, reductions(g4=9e-6, g8=1.2e-5), nccl("all_reduce", g8=4e-5))
    fabric = Collectives(RACK, tables)
    for gpus, seconds in ((4, 9e-6), (8, over_trays_s)):
        given = bare("qwen3-32b", RACK, cluster={"num_gpus": 64}, engine={"tensor_parallel": gpus, "name": engine})
        layers = EngineLayers(given.model, given.engine, Operators(RACK, None), fabric)
        reduced = layers.layer_components(np.array([1.0]), LayerCounts(1, 0, 0, 1, 0))["all-reduce"].seconds[0]
        assert reduced == near(2 * seconds)


ONE_SIDED = {"dispatch": 3e-6, "combine": 3.5e-6}


def exchange(**seconds: float) -> tuple[files.TableLayout, Rows]:
    """Phases on 8 and 16 GPUs in BF16 and NVFP4 (a tenth of it), 7168 wide; NVFP4 on 8 by the other transport too."""
    rows: Rows = []
    for phase, base in seconds.items():
        for precision, factor in (("bf16", 1.0), ("nvfp4", 0.1)):
            for gpus in (8, 16):
                shape = (phase, precision, 7168, 8, 256, gpus)
                rows += [("two_sided", *shape, tokens, base * factor * gpus / 8) for tokens in (1, 1024)]
    for phase, base in ONE_SIDED.items():
        rows += [("one_sided", phase, "nvfp4", 7168, 8, 256, 8, tokens, base) for tokens in (1, 1024)]
    return files.EXPERT_EXCHANGE, rows


@pytest.fixture
def exchanged(tmp_path: Path) -> Callable[..., tuple[float, float]]:
    tables = builders.faked(tmp_path, exchange(prepare=1e-5, dispatch=2e-5, combine=4e-5))

    def look(gpus: int, hidden: int, precision: str) -> tuple[float, float]:
        found = Collectives(RACK, None, exchange=TableSource(tables, RACK)).expert_exchange(
            gpus, [64.0], hidden, precision, 8
        )
        return float(found.seconds[0]), float(found.measured[0])

    return look


def test_the_exchange_adds_the_phases_of_the_faster_transport_of_the_nearest_size_and_precision(exchanged: Any) -> None:
    """One-sided 3 + 3.5 us on 8 GPUs, though its dispatch alone is slower than the 2 us of two-sided (1 + 2 + 4)."""
    assert exchanged(8, 7168, "bf16") == (near(7e-5), 1.0)
    assert exchanged(8, 7168, "nvfp4") == (near(6.5e-6), 1.0)
    assert exchanged(16, 7168, "bf16") == (near(1.4e-4), 1.0)
    assert exchanged(8, 2 * 7168, "bf16") == (near(1.4e-4), 0.0)
    assert exchanged(8, 4096, "bf16") == (near(7e-5), 0.0)
    for precision in ("fp8", "fp8_block"):  # One that moves no fewer bytes stands in.
        assert exchanged(8, 7168, precision) == (near(7e-5), 0.0)
    assert exchanged(64, 7168, "bf16") == (near(1.4e-4), 0.0)
    assert exchanged(4, 7168, "bf16") == (near(7e-5), 0.0)


def test_an_exchange_is_carried_over_by_what_links_take_and_modelled_where_a_phase_is_missing(tmp_path: Path) -> None:
    tables = builders.faked(tmp_path / "two", exchange(dispatch=2e-5, combine=4e-5))
    found = Collectives(RACK, None, exchange=TableSource(tables, RACK)).expert_exchange(8, [64.0], 7168, "bf16", 8)
    assert found.seconds[0] == exactly(Collectives(RACK, None).expert_exchange(8, [64.0], 7168, "bf16", 8).seconds[0])
    tables = builders.faked(tmp_path, exchange(prepare=1e-5, dispatch=2e-5, combine=4e-5))
    slow = RACK.nvlink_bandwidth_bytes_per_s.model_copy(update={"value": RACK.nvlink_bandwidth_bytes_per_s.value / 10})
    other = RACK.model_copy(update={"nvlink_bandwidth_bytes_per_s": slow})
    question = (8, [4096.0], 7168, "bf16", 8)
    there, here = (Collectives(one, None, exchange=TableSource(tables, RACK)) for one in (RACK, other))
    modelled = [float(Collectives(one, None).expert_exchange(*question).seconds[0]) for one in (RACK, other)]
    measured = float(there.expert_exchange(*question).seconds[0])
    found = here.expert_exchange(*question)
    assert found.seconds[0] == exactly(measured * modelled[1] / modelled[0]) and found.measured[0] == 0.0
    assert modelled[1] > 5 * modelled[0]
