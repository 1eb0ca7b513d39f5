"""Collectives: limits of the link model, domains, measured groups, published rates."""

import builders
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsim.costs.operators.collectives import LINK_EFFICIENCY
from rlsim.tables.profile import load_profile

H100, GB200 = load_profile("h100_sxm"), load_profile("gb200_nvl72")
OPS = ("all_gather", "reduce_scatter", "alltoall")
GIANT = 2.0**34


def test_nothing_to_send_and_nobody_to_send_to_take_no_time() -> None:
    fabric = builders.fabric(H100)
    for op in OPS:
        assert float(fabric.collective(op, 8, 0.0).seconds) == 0
        assert float(fabric.collective(op, 64, 0.0).seconds) == 0
        assert float(fabric.collective(op, 1, 1e9).seconds) == 0
    assert fabric.all_reduce(16, np.array([0.0, 1e6])).seconds.tolist()[0] == 0


def test_measured_all_gather_on_h100_agrees_with_nccl_reports() -> None:
    """nccl-tests on eight H100 SXM: all-gather bus bandwidth 330 to 370 GB/s at large sizes."""
    seconds = float(builders.fabric(H100).collective("all_gather", 8, 2.0**30).seconds)
    assert 280e9 < 7 / 8 * 2**30 / seconds < 400e9


def test_measured_small_all_reduce_on_h100_takes_microseconds() -> None:
    """vLLM's custom all-reduce in a graph: 4 to 12 us for messages up to 64 KiB on eight H100."""
    seconds = builders.fabric(H100).all_reduce(8, np.array([8192.0, 65536.0])).seconds
    assert ((seconds > 3e-6) & (seconds < 15e-6)).all()


def test_a_group_spread_over_nodes_leaves_nvlink() -> None:
    """Eight data-parallel ranks eight GPUs apart sit on eight nodes: all traffic crosses the network."""
    fabric = builders.fabric(H100)
    assert float(fabric.collective("reduce_scatter", 8, GIANT, stride=8).seconds) == pytest.approx(
        7 / 8 * GIANT / (50e9 * LINK_EFFICIENCY), rel=1e-3
    )
    near = builders.fabric(GB200).collective("reduce_scatter", 8, GIANT, stride=8)
    assert float(near.seconds) < 7 / 8 * GIANT / 50e9


def test_eager_all_reduce_is_device_time_without_the_launch() -> None:
    """The tables' eager rows hold 39 us of host time on GB200; the iteration counts launches itself."""
    fabric, sizes = builders.fabric(GB200), np.array([1e4, 1e6, 1e8])
    graph, eager = fabric.all_reduce(4, sizes), fabric.all_reduce(4, sizes, graph=False)
    assert (eager.seconds >= graph.seconds).all()
    assert eager.seconds[0] < graph.seconds[0] + 5e-6


@settings(max_examples=60)
@given(
    st.sampled_from(["nvlink_bandwidth_bytes_per_s", "network_bandwidth_bytes_per_s"]),
    st.floats(0.1, 1.0),
    st.sampled_from([2, 3, 4, 8, 16, 72, 128]),
    st.sampled_from([1, 2, 8]),
    st.floats(0, 1e10),
    st.sampled_from(["h100_sxm", "gb200_nvl72", "a100_sxm"]),
)
def test_a_slower_link_never_speeds_a_collective_up(
    key: str, factor: float, gpus: int, stride: int, size: float, name: str
) -> None:
    profile = load_profile(name)
    fast, slow = builders.fabric(profile), builders.fabric(builders.scaled(profile, key, factor))
    for op in OPS:
        before, after = (f.collective(op, gpus, size, stride).seconds for f in (fast, slow))
        assert float(after) >= float(before) * (1 - 1e-12)
    for graph in (True, False):
        before, after = (f.all_reduce(gpus, size, graph).seconds for f in (fast, slow))
        assert float(after) >= float(before) * (1 - 1e-12)
