"""Scenarios, layers and profiles for the tests of the costs."""

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from rlsim.calibration.table_writing import write_table
from rlsim.costs.engine.hosts import NO_HOST, HostOverheads
from rlsim.costs.engine.iteration import IterationCosts
from rlsim.costs.engine.layers import EngineLayers
from rlsim.costs.engine.prices import engine_prices
from rlsim.costs.interface import IterationTable, Part, PhaseCost, StepCost
from rlsim.costs.operators.collectives import Collectives
from rlsim.costs.operators.device import device_of
from rlsim.costs.operators.operators import Operators
from rlsim.costs.overheads import Overheads, TrainingOverheads
from rlsim.costs.prices import PriceInputs
from rlsim.costs.trainer.layout import MicroBatches, TrainedBatch
from rlsim.costs.trainer.training import TrainingCosts, step_cost
from rlsim.costs.transfer.job import WeightTransfer
from rlsim.costs.transfer.methods import TransferTerms
from rlsim.loading.models import load_card
from rlsim.parameters.sets import load_transfer_parameters
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.scenario import Scenario
from rlsim.schema.trainer import StackFeatures
from rlsim.tables.files import TableLayout
from rlsim.tables.operators import OperatorTables
from rlsim.tables.profile import load_profile, table_device


@dataclass(frozen=True)
class Costs:
    """Prices of one scenario, asked for one by one."""

    scenario: Scenario

    @cached_property
    def inputs(self) -> PriceInputs:
        return PriceInputs(self.scenario)

    @property
    def iteration_costs(self) -> IterationCosts:
        return engine_prices(self.inputs.engine)

    @property
    def iteration(self) -> IterationTable:
        return self.iteration_costs.table

    @property
    def transfers(self) -> WeightTransfer:
        return self.inputs.transfers

    def step(self, total_tokens: np.ndarray) -> StepCost:
        return step_cost(self.inputs.trainer, TrainedBatch.of(total_tokens, len(total_tokens)))

    def phases(self, total_tokens: np.ndarray) -> dict[str, PhaseCost]:
        """Every duration but those of iterations."""
        step, transfers = self.step(total_tokens), self.transfers
        trainer = {"train": step.train, "logprob": step.logprob, "data": step.data}
        return {**trainer, "prepare": transfers.prepare(), "refit": transfers.transfer()}


RATES = ("memory_bandwidth_bytes_per_s", "nvlink_bandwidth_bytes_per_s", "network_bandwidth_bytes_per_s",
         "host_link_bandwidth_bytes_per_s", "bf16_flops", "fp8_flops")  # fmt: skip
"""Rates of a profile of which none may speed anything up when it shrinks."""

WORKLOAD: dict[str, Any] = {"prompts_per_step": 16, "generations_per_prompt": 16,
                            "response_tokens": {"kind": "lognormal", "mean_tokens": 1000.0, "log_sigma": 0.7},
                            "max_sequence_tokens": 4096}  # fmt: skip

EAGLE: dict[str, Any] = {"method": "eagle3", "draft_length": 3, "acceptance_length": 2.0}

BANDWIDTH = 3.35e12 * 0.8
"""HBM3 of an H100 SXM at the share assumed where nothing was measured."""
MATRIX_RATE = 989e12 * 0.7
VOCABULARY = 151_936
"""Of the Qwen3 family."""
ONE = MicroBatches(count=1, tokens=8192.0, sum_squared=8 * 1024.0**2, steps=1)
even = partial(StackFeatures, expert_imbalance=1.0)  # routing is forced to be even
PLAIN_TRAINING = TrainingOverheads(
    dense_speed=1.0, moe_speed=1.0, dense_efficiency=1.0, grouped_efficiency=1.0, wide_efficiency=1.0,
    wide_grouped_efficiency=1.0, elementwise_passes=1.0, adapter_passes=1.0, permute_passes=6.0, quantise_bytes=4.0,
    logits_bytes=72.0, overlap_cost=0.5, exchange_factor=1.0, attention_speed=1.0, context_attention=1.0,
    moe_host_layer_s=0.0055, expert_host_s=0.0, launch_factor=1.0, step_fixed_s=0.0, features=even(),
)  # fmt: skip
PLAIN = Overheads(
    engine=HostOverheads(iteration_s=0.0015, sequence_s=1.5e-5),
    training=PLAIN_TRAINING,
    refit=TransferTerms.of(load_transfer_parameters("start"), "nemo_rl", tensor_s=2e-4, fixed_s=0.5),
    handover_tensor_s=0.0,
    source="tests",
)
"""Overheads at round values: operators at the speed of their tables, so that tests do not move with a fit."""


def scenario(model: str = "qwen3-8b", hardware: HardwareProfile | str = "h100_sxm", **sections: Any) -> Scenario:
    """A scenario of 8 GPUs with a small workload; ``sections`` are merged over its own."""
    profile = load_profile(hardware) if isinstance(hardware, str) else hardware
    base: dict[str, Any] = {"cluster": {"num_gpus": 8}, "workload": WORKLOAD, "trainer": {"recompute": "full"},
                            "simulation": {"posterior": "none"}}  # fmt: skip
    merged = {key: {**base.get(key, {}), **sections.get(key, {})} for key in {*base, *sections}}
    card = load_card(model).model_dump(mode="json")
    return Scenario.model_validate(
        {"name": "test", "model": card, "hardware": profile.model_dump(mode="json"), **merged}
    )


def deepseek(hardware: HardwareProfile | str = "gb200_nvl72", **sections: Any) -> Scenario:
    """DeepSeek-V3 on 256 GPUs; without other words in FP8 over 16 GPUs, experts among them."""
    engine = {"tensor_parallel": 16, "expert_parallel": 16, "weight_precision": "fp8", **sections.pop("engine", {})}
    layout = {"expert_parallel": 16, "pipeline_parallel": 16}
    return scenario("deepseek-v3", hardware, cluster={"num_gpus": 256}, engine=engine, trainer=layout, **sections)


def without_tables(name: str) -> HardwareProfile:
    """A profile whose operators come from the roofline alone."""
    return load_profile(name).model_copy(update={"operator_tables": None})


BARE = without_tables("h100_sxm")


def bare(model: str = "qwen3-8b", hardware: HardwareProfile = BARE, **sections: Any) -> Scenario:
    """``scenario`` on a device without tables."""
    return scenario(model, hardware, **sections)


def exactly(value: float) -> Any:
    """Equal but for the order of additions."""
    return pytest.approx(value, rel=1e-9)


def seconds(parts: tuple[Part, ...], name: str = "") -> float:
    """Of the parts of this name, or of all."""
    return sum(part.seconds for part in parts if name in ("", part.name))


def scaled(profile: HardwareProfile, key: str, factor: float) -> HardwareProfile:
    quantity = getattr(profile, key)
    return profile.model_copy(update={key: quantity.model_copy(update={"value": quantity.value * factor})})


def tables_of(profile: HardwareProfile) -> OperatorTables | None:
    return None if profile.operator_tables is None else OperatorTables.load(profile.operator_tables, "vllm")


def operators(profile: HardwareProfile) -> Operators:
    return Operators(profile, tables_of(profile), table_device(profile))


def fabric(profile: HardwareProfile) -> Collectives:
    return Collectives(profile, tables_of(profile), table_device(profile))


def layers(given: Scenario, host: HostOverheads = NO_HOST) -> EngineLayers:
    return EngineLayers(given.model, given.engine, operators(given.hardware), fabric(given.hardware), host)


def training(given: Scenario, **terms: Any) -> TrainingCosts:
    """The trainer of a scenario under overheads at round values, a floor of no time for its MoE layers among them."""
    own = replace(PLAIN_TRAINING, **{"moe_host_layer_s": 0.0, **terms})
    device = device_of(given.hardware, "vllm")
    return TrainingCosts(given.model, given.trainer, device, own, given.cluster.training)


def faked(folder: Path, *tables: tuple[TableLayout, list[tuple[Any, ...]]]) -> OperatorTables:
    """Tables of ``folder`` with these rows: keys, sizes and seconds of each."""
    folder.mkdir(parents=True, exist_ok=True)
    for layout, rows in tables:
        names = (*layout.keys, *layout.sizes, "latency_s")
        columns = {name: np.array(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
        write_table(folder, layout, {**columns, "kernel": np.full(len(rows), "fake")})
    return OperatorTables(folder, {})
