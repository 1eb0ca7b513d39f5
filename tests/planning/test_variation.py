"""Keys that stand for several: k, lag, generation_share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsim.errors import InputError
from rlsim.loading.scenario import vary
from rlsim.loading.variation import Overrides, split_gpus
from rlsim.planning.grammar import Axis, grid, parse_axis, parse_sizes
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import Speculation
from rlsim.workload.acceptance import acceptance_of, two_parameter_rates


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_k_keeps_the_acceptance_of_each_position(tiny: Scenario, k: int) -> None:
    own = acceptance_of(tiny.speculation).position_rates
    rates = acceptance_of(vary(tiny, {"k": k}).speculation).position_rates
    assert len(rates) == k
    np.testing.assert_allclose(rates[:3], own[:k], rtol=1e-12)


def test_mappings_nested_or_dotted_are_overrides(tiny: Scenario) -> None:
    changed = vary(tiny, {"speculation": {"draft_length": 2, "acceptance_length": 2.5}, "engine.tensor_parallel": 2})
    texts = ("speculation.draft_length=2", "speculation.acceptance_length=2.5", "engine.tensor_parallel=2")
    assert changed == vary(tiny, *texts)
    assert changed.speculation.method == tiny.speculation.method
    assert vary(tiny, {"engine.version": "0.10"}).engine.version == "0.10"
    with pytest.raises(InputError, match="tensor_parallell"):
        vary(tiny, {"engine": {"tensor_parallell": 2}})


def test_k_lag_and_shares_keep_rates_modes_and_replicas(tiny: Scenario, lagged: Scenario) -> None:
    own = two_parameter_rates(0.886, 0.985, 3)
    stated = {"acceptance_length": float(1 + own.sum()), "acceptance_decay": 0.985, "acceptance_at_draft_length": 3}
    speculation = Speculation(method="eagle3", draft_length=7, **stated)
    np.testing.assert_allclose(acceptance_of(speculation).position_rates, two_parameter_rates(0.886, 0.985, 7), 1e-9)
    speculation = Speculation(method="ngram", draft_length=1, acceptance_at_draft_length=2,
                              position_acceptance=(0.8, 0.6), match_probability=0.25)  # fmt: skip
    assert acceptance_of(speculation).position_rates.tolist() == pytest.approx([0.2])
    plain = vary(tiny, {"k": 0})
    assert not plain.speculation.active
    assert not vary(plain, {"k": 0}).speculation.active
    with pytest.raises(InputError, match="k needs a scenario with speculation"):
        vary(plain, {"k": 2})
    split = vary(tiny, {"lag": 2})
    assert (split.loop.mode, split.loop.policy_lag, split.measured_steps) == ("async", 2, range(6, 12))
    assert (split.cluster.generation, split.cluster.training) == (4, 4)
    together = vary(lagged, {"lag": 0})
    assert (together.loop.mode, together.cluster.colocated) == ("sync", True)
    one = vary(tiny, "loop.refit_method=cuda_ipc")  # a plan of lag 0 set it to auto, and a lag that was none to 0
    assert vary(one, {"lag": 0}) == one
    base = vary(lagged, "cluster.num_gpus=16", "cluster.generation_gpus=12", "cluster.training_gpus=4")
    grown = vary(base, {"cluster.num_gpus": 64})
    assert (grown.cluster.generation, grown.cluster.training) == (48, 16)
    split = vary(lagged, {"cluster.num_gpus": 32, "generation_share": 0.7, "engine.tensor_parallel": 4})
    assert (split.cluster.generation, split.cluster.training) == (24, 8)


@pytest.mark.parametrize(("overrides", "said"), [
    ({"k": -1}, "must be at least 0"),
    ({"k": "two"}, "must be a whole number"),
    ({"lag": 0.5}, "must be a whole number"),
    ({"generation_share": 1}, "must lie between 0 and 1"),
    ({"generation_share": "half"}, "must be a number"),
    ({"generation_share": 0.5, "cluster.generation_gpus": 4}, "contradict"),
    ({"generation_share": 0.5, "cluster.num_gpus": "many"}, "must be a whole number"),
])  # fmt: skip
def test_bad_values_are_answers(lagged: Scenario, overrides: Overrides, said: str) -> None:
    with pytest.raises(InputError, match=said):
        vary(lagged, overrides)


@given(st.integers(2, 512), st.floats(0.01, 0.99), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]))
def test_a_split_is_as_near_as_replicas_and_shards_allow(gpus: int, share: float, replica: int, shard: int) -> None:
    found = split_gpus(gpus, share, replica, shard)
    valid = [n for n in range(replica, gpus, replica) if (gpus - n) % shard == 0]
    if valid:
        assert found in valid
        assert abs(found - share * gpus) == min(abs(n - share * gpus) for n in valid)
    else:
        assert 1 <= found < max(gpus, replica + 1)


K = "speculation.draft_length"


@pytest.mark.parametrize(("text", "values"), [
    ("1:4", ("1", "2", "3", "4")),
    ("1:8:3", ("1", "4", "7")),
    ("1.5:2.1:0.2", ("1.5", "1.7", "1.9", "2.1")),
    ("64..512x2", ("64", "128", "256", "512")),
    ("1..10x2.5", ("1", "2.5", "6.25")),
    ("3", ("3",)),
    ("none, eagle3", ("none", "eagle3")),
    ("[0.9,0.8],[0.7,0.6]", ("[0.9,0.8]", "[0.7,0.6]")),
])  # fmt: skip
def test_values(text: str, values: tuple[str, ...]) -> None:
    assert parse_axis(f"{K}={text}") == Axis((K,), values)


@pytest.mark.parametrize(("text", "said"), [
    (K, "is not KEY=VALUES"), ("=1:3", "is not KEY=VALUES"),
    ("speculation.draft_lenght=1:3", "did you mean 'speculation.draft_length'"), ("zzz.qqq=1", "unknown key 'zzz.qqq'"),
    (f"{K}=", "an empty value"), (f"{K}=1,,3", "an empty value"), (f"{K}=8:1", "the range is empty"),
    (f"{K}=512..64x2", "the range is empty"), (f"{K}=1:8:0", "the step must be above 0"),
    (f"{K}=1..8x1", "a factor above 1"), (f"{K}=1,2,1", "twice"),
    (f"{K}=%s", r"speculation.draft_length=%s: .*write a list a,b,c, a range 1:8"),
    (f"{K}=1,[2", r"speculation.draft_length=1,\[2: .*write a list"), (f"{K}=1..7", r"did you mean 1:7, or 1\.\.7x2"),
    (f"{K}=0:1:1e-9", "more than 1,000,000"),
])  # fmt: skip
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_axis(text)


@given(st.integers(-50, 50), st.integers(0, 60), st.integers(1, 9))
def test_a_range_is_python_s_with_its_end(low: int, length: int, step: int) -> None:
    axis = parse_axis(f"cluster.num_gpus={low}:{low + length}:{step}")
    assert [int(value) for value in axis.values] == list(range(low, low + length + 1, step))


def test_a_grid_holds_every_combination_a_key_once_and_sizes_are_lists() -> None:
    cells = grid([parse_axis(f"{K}=1:2"), parse_axis("engine.tensor_parallel,engine.expert_parallel=2,4")])
    assert [tuple(cell.values()) for cell in cells] == [(1, 2, 2), (1, 4, 4), (2, 2, 2), (2, 4, 4)]
    with pytest.raises(InputError, match="stands on two axes"):
        grid([parse_axis(f"{K}=1"), parse_axis(f"{K}=2")])
    assert parse_sizes("64..256x2") == (64, 128, 256)
    for text in ("0", "1.5", "many"):
        with pytest.raises(InputError, match=f"--gpus {text}"):
            parse_sizes(text)
