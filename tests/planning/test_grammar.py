"""The grammar of --vary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsim.errors import InputError
from rlsim.planning.grammar import Axis, grid, parse_axis, parse_sizes

K = "speculation.draft_length"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1:4", ("1", "2", "3", "4")),
        ("1:8:3", ("1", "4", "7")),
        ("1.5:2.1:0.2", ("1.5", "1.7", "1.9", "2.1")),
        ("64..512x2", ("64", "128", "256", "512")),
        ("1..10x2.5", ("1", "2.5", "6.25")),
        ("3", ("3",)),
        ("none, eagle3", ("none", "eagle3")),
        ("[0.9,0.8],[0.7,0.6]", ("[0.9,0.8]", "[0.7,0.6]")),
    ],
)
def test_values(text: str, values: tuple[str, ...]) -> None:
    assert parse_axis(f"{K}={text}") == Axis((K,), values)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (K, "is not KEY=VALUES"),
        ("=1:3", "is not KEY=VALUES"),
        ("speculation.draft_lenght=1:3", "did you mean 'speculation.draft_length'"),
        ("zzz.qqq=1", "unknown key 'zzz.qqq'"),
        (f"{K}=", "an empty value"),
        (f"{K}=1,,3", "an empty value"),
        (f"{K}=8:1", "the range is empty"),
        (f"{K}=512..64x2", "the range is empty"),
        (f"{K}=1:8:0", "the step must be above 0"),
        (f"{K}=1..8x1", "a factor above 1"),
        (f"{K}=1,2,1", "twice"),
        (f"{K}=%s", r"speculation.draft_length=%s: .*write a list a,b,c, a range 1:8"),
        (f"{K}=1,[2", r"speculation.draft_length=1,\[2: .*write a list"),
        (f"{K}=1..7", r"did you mean 1:7, or 1\.\.7x2"),
        (f"{K}=0:1:1e-9", "more than 1,000,000"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_axis(text)


@given(st.integers(-50, 50), st.integers(0, 60), st.integers(1, 9))
def test_a_range_is_python_s_with_its_end(low: int, length: int, step: int) -> None:
    axis = parse_axis(f"cluster.num_gpus={low}:{low + length}:{step}")
    assert [int(value) for value in axis.values] == list(range(low, low + length + 1, step))


def test_a_grid_holds_every_combination_and_shared_values() -> None:
    cells = grid([parse_axis(f"{K}=1:2"), parse_axis("engine.tensor_parallel,engine.expert_parallel=2,4")])
    assert [tuple(cell.values()) for cell in cells] == [(1, 2, 2), (1, 4, 4), (2, 2, 2), (2, 4, 4)]


def test_a_key_may_stand_on_one_axis_only() -> None:
    with pytest.raises(InputError, match="stands on two axes"):
        grid([parse_axis(f"{K}=1"), parse_axis(f"{K}=2")])


def test_sizes() -> None:
    assert parse_sizes("64..256x2") == (64, 128, 256)
    for text in ("0", "1.5", "many"):
        with pytest.raises(InputError, match=f"--gpus {text}"):
            parse_sizes(text)
