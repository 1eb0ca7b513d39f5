"""Trainers without tables and with overheads at round values, for the tests of their coefficients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import builders
import pytest

from rlsim.costs.interface import Part
from rlsim.costs.operators.device import device_of
from rlsim.costs.trainer.layout import MicroBatches
from rlsim.costs.trainer.training import TrainingCosts
from rlsim.schema.scenario import Scenario
from rlsim.schema.trainer import StackFeatures

BARE = builders.without_tables("h100_sxm")
BANDWIDTH = 3.35e12 * 0.8
MATRIX_RATE = 989e12 * 0.7
VOCABULARY = 151_936
ONE = MicroBatches(count=1, tokens=8192.0, sum_squared=8 * 1024.0**2, steps=1)
DEVICE = ("products", "attention", "elementwise")
OVERLAP = StackFeatures(tensor_overlap=True, exchange_overlap=True)


def exactly(value: float) -> object:
    return pytest.approx(value, rel=1e-9)


def scenario(model: str = "qwen3-8b", **sections: object) -> Scenario:
    return builders.scenario(model, BARE, **sections)


def training(given: Scenario, **terms: Any) -> TrainingCosts:
    own = replace(builders.PLAIN_TRAINING, **{"moe_host_layer_s": 0.0, **terms})
    device = device_of(given.hardware, "vllm")
    return TrainingCosts(given.model, given.trainer, device, own, given.cluster.training)


def seconds(parts: tuple[Part, ...], name: str) -> float:
    return sum(part.seconds for part in parts if part.name == name)


def total(parts: tuple[Part, ...]) -> float:
    return sum(part.seconds for part in parts)
