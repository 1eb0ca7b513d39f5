"""Every model on every device under every engine and tensor-parallel size: prices are numbers that grow with work."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from rlsim.costs.engine.iteration import IterationCosts
from rlsim.costs.engine.prices import EngineInputs, engine_prices
from rlsim.costs.operators.device import Device, device_of
from rlsim.costs.overheads import NO_HOST
from rlsim.costs.trainer.layout import MicroBatches
from rlsim.costs.trainer.training import TrainingCosts
from rlsim.loading.models import list_cards, load_card
from rlsim.schema.engine import Engine
from rlsim.schema.model import ModelCard
from rlsim.schema.scenario import _heads, _recurrent_heads
from rlsim.schema.speculation import Speculation
from rlsim.schema.trainer import Trainer
from rlsim.tables.profile import list_profiles, load_profile
from tests.costs.builders import PLAIN

ENGINES = ("vllm", "sglang", "trtllm")
MEASURED = [
    (profile, name)
    for profile in list_profiles()
    for name in (ENGINES if load_profile(profile).operator_tables else ENGINES[:1])
]
"""Devices with engines; of a device without tables kernels do not know the engine."""
SIZES = (1, 2, 4, 8, 16, 32)
SEQUENCES, CONTEXT, PROMPT = 8, 8192, 100.0
NOISE = 0.75
"""Measured tables are no smooth functions: more tokens take at least this share of what fewer take."""


@cache
def layouts() -> tuple[tuple[ModelCard, int], ...]:
    return tuple(_layouts())


def _layouts() -> Iterator[tuple[ModelCard, int]]:
    for name in list_cards():
        card = load_card(name)
        for size in SIZES:
            try:
                _heads(size, card, "tensor_parallel")
                _recurrent_heads(size, card, "tensor_parallel")
            except ValueError:
                continue
            yield card, size


def engine(card: ModelCard, device: Device, name: str, size: int) -> IterationCosts:
    section = Engine.model_validate({"name": name, "tensor_parallel": size, "max_batched_tokens": 2048})
    inputs = EngineInputs(card, device, section, Speculation(), NO_HOST, SEQUENCES, CONTEXT, PROMPT, 1e6)
    return engine_prices.__wrapped__(inputs)


def is_price(seconds: np.ndarray) -> bool:
    return bool(np.all(np.isfinite(seconds) & (seconds >= 0)))


def grows(seconds: np.ndarray, along: int) -> bool:
    return bool(np.all(np.diff(seconds, axis=along) >= -1e-12 * np.max(np.abs(seconds))))


@pytest.mark.parametrize(("profile", "name"), MEASURED)
def test_engines_have_prices_that_grow_with_batch_and_context(profile: str, name: str) -> None:
    device = device_of(load_profile(profile), name)
    with np.errstate(all="raise", under="ignore"):
        for card, size in layouts():
            where, found = (card.name, size), engine(card, device, name, size)
            table = found.table
            assert is_price(table.step_s) and is_price(table.attention_s) and is_price(table.prefill_s), where
            assert np.all(table.step_s[1:] > 0) and np.all(table.prefill_s[0, 1:] > 0), where
            assert np.all(table.step_s[2:] >= NOISE * table.step_s[1:-1]), where
            for along in (0, 1):
                assert grows(table.attention_s, along), where
            assert grows(table.prefill_s, 1) and grows(table.prefill_context_s, 0), where
            parts = sum(timed.seconds for timed in found.attention.values())
            assert parts[1:] == pytest.approx(table.attention_s[1:], rel=1e-12), where


@pytest.mark.parametrize("profile", list_profiles())
def test_trainers_have_prices_that_grow_with_the_batch(profile: str) -> None:
    device = device_of(load_profile(profile), "vllm")
    with np.errstate(all="raise", under="ignore"):
        for card, size in layouts():
            trainer = Trainer.model_validate({"tensor_parallel": size})
            costs = TrainingCosts(card, trainer, device, PLAIN.training, 2 * size)
            small, large = (costs.step(MicroBatches(2.0, tokens, tokens * 512.0, 1)) for tokens in (1024.0, 4096.0))
            seconds = np.array([part.seconds for part in (*small.parts, *large.parts)])
            assert is_price(seconds) and 0 < small.seconds < large.seconds, (card.name, size)
