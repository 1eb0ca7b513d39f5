"""A group that was never measured on a device keeps the order of the datasheets; what both were measured on may not."""

from dataclasses import replace
from math import inf, log

import numpy as np
import pytest

from rlsim.costs.operators.groups import engine_groups
from rlsim.loading.models import load_card
from rlsim.loading.scenario import load_scenario
from rlsim.parameters.posterior import DEFAULT, Posterior, load_posterior, order_of, ordered_mean, shipped_order
from rlsim.projection.project import project
from rlsim.tables.profile import load_profile

ORDER = {"best": {"good": 0.0, "old": 0.5}, "good": {"old": 0.5}}


def joint() -> Posterior:
    found = load_posterior(DEFAULT)
    return found


def test_a_device_is_better_than_what_it_exceeds_in_every_rate_on_the_same_host() -> None:
    order = shipped_order()
    assert order["h200_sxm"]["h100_sxm"] == 0.0  # the same chip with more memory bandwidth
    assert order["b200_sxm"]["h100_sxm"] == pytest.approx(log(2250 / 989), rel=0.01)
    assert "h100_sxm" not in order.get("gb200_nvl72", {})  # another host
    assert "h200_sxm" not in order.get("h100_sxm", {})
    assert "mi300x" not in order and all("h100_pcie" not in gains for gains in order.values())  # no kernels measured
    h100 = load_profile("h100_sxm")
    assert order_of([h100, h100]) == {}


@pytest.mark.parametrize(
    ("device", "measured", "expected"),
    [
        ("best", {}, 0.0),
        ("best", {"good": -0.1}, -0.1),  # not slower than a worse device
        ("best", {"good": 0.2}, 0.0),
        ("best", {"old": -0.6}, -0.1),  # what the datasheets leave between them counts
        ("old", {"best": 0.8}, 0.3),  # not faster than a better one
        ("good", {"best": 0.1, "old": -0.7}, (0.1 - 0.2) / 2),  # both cannot hold
        ("unknown", {"best": 0.4}, 0.0),
    ],
)
def test_what_was_never_measured_moves_as_little_as_the_order_asks(
    device: str, measured: dict[str, float], expected: float
) -> None:
    assert ordered_mean(device, measured, ORDER) == pytest.approx(expected)


def test_no_deviation_of_one_device_alone_turns_the_order_around() -> None:
    posterior, order = joint(), shipped_order()
    fitted = {*posterior.device_order, *(worse for gains in posterior.device_order.values() for worse in gains)}
    known = {
        name: {worse: gain for worse, gain in order[name].items() if worse in fitted} for name in fitted & {*order}
    }
    assert posterior.device_order == {name: gains for name, gains in known.items() if gains}
    by_stem: dict[str, dict[str, float]] = {}
    for name in posterior.columns[posterior.terms :]:
        stem, _, device = name.rpartition(" ")
        by_stem.setdefault(stem, {})[device] = posterior.mean_of(name)
    alone = 0
    for stem, means in by_stem.items():
        for better, gains in order.items():
            for worse, gain in gains.items():
                if worse in means and better not in means:
                    if better not in fitted:
                        continue
                    higher = [m - order[d][better] for d, m in means.items() if better in order.get(d, {})]
                    if max(higher, default=-inf) <= means[worse] + gain:
                        assert posterior.mean_of(f"{stem} {better}") <= means[worse] + gain + 1e-12
                        alone += 1
    assert alone > 5


def test_a_measured_deviation_is_taken_as_it_is() -> None:
    posterior = joint()
    name = next(name for name in posterior.columns[posterior.terms :] if name.endswith("h200_sxm"))
    place = posterior.columns.index(name)
    assert posterior.mean_of(name) == posterior.mean[place]
    without = replace(posterior, device_order={})
    assert without.mean_of("engine kernels on device: vllm, dense bf16, h200_sxm") == 0.0
    assert np.isfinite(posterior.mean_of("engine kernels on device: vllm, dense bf16, h200_sxm"))


def test_kernels_of_experts_say_nothing_of_dense_ones() -> None:
    dense, moe = load_card("llama-3.1-8b"), load_card("qwen3-30b-a3b")
    groups = {
        (card.name, precision): engine_groups("vllm", None, "h200_sxm", card, precision)[0]
        for card in (dense, moe)
        for precision in ("bf16", "fp8_block")
    }
    assert len(set(groups.values())) == 4
    assert all("h200_sxm" in group and group.startswith("engine kernels on device: vllm") for group in groups.values())


def test_the_better_device_is_not_the_slower_one() -> None:
    """The same chip with more memory bandwidth generated 13 % slower, and trained 8 % slower, by deviations alone."""
    small = ["simulation.replications=1", "workload.prompts_per_step=32"]
    old, new = (project(load_scenario("quickstart", [f"hardware={name}", *small])) for name in ("h100_sxm", "h200_sxm"))
    for phase in ("generation_s", "train_s", "logprob_s"):
        assert new.candidate.phases[phase].mean <= old.candidate.phases[phase].mean * 1.001, phase
        assert new.baseline.phases[phase].mean <= old.baseline.phases[phase].mean * 1.001, phase
