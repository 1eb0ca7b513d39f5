"""What cannot run is refused with the bound: ranks and replicas without work, batches that do not divide or fit,
devices in other units, links faster than their line rate."""

from typing import Any

import pytest

from rlsim.costs.memory import engine_memory, trainer_memory
from rlsim.costs.prices import PriceInputs
from rlsim.errors import Infeasible, InputError
from rlsim.loading.scenario import load_scenario
from rlsim.projection.model_assumptions import training_assumptions
from rlsim.schema.hardware import BOUNDS

ALONE = ("speculation={method: none}", "simulation.replications=1")


@pytest.mark.parametrize(
    ("overrides", "message", "needed", "available"),
    [
        (["cluster.num_gpus=4096", "engine.tensor_parallel=8"], "more data-parallel ranks than samples", 2048, 512),
        (["cluster.num_gpus=4096"], "more engine replicas than rollouts", 4096, 2048),
        (["cluster.num_gpus=1000000"], "more engine replicas than rollouts", 1_000_000, 2048),
        (["trainer.micro_batch_tokens=600"], "exceed trainer.micro_batch_tokens", None, 600),
    ],
)
def test_ranks_and_replicas_have_work(
    overrides: list[str], message: str, needed: float | None, available: float
) -> None:
    inputs = PriceInputs(load_scenario("quickstart", [*ALONE, *overrides]))
    with pytest.raises(Infeasible, match=message) as error:
        inputs.before_work.trainer_bytes  # noqa: B018 - prices are made where they are asked for
        inputs.trainer  # noqa: B018
    assert error.value.available == available and needed in (None, error.value.needed)


def test_as_many_ranks_and_replicas_as_samples_run() -> None:
    widest = load_scenario("quickstart", [*ALONE, "cluster.num_gpus=1024"])
    assert widest.cluster.training // 2 == widest.trainer.global_batch_samples
    assert trainer_memory(widest).total > 0 and engine_memory(widest).kv_capacity_tokens > 0


WRONG: dict[str, Any] = {
    "memory_bandwidth_bytes_per_s": 1790, "bf16_flops": 500, "fp8_flops": 1979, "nvlink_bandwidth_bytes_per_s": 900,
    "network_bandwidth_bytes_per_s": 400, "host_link_bandwidth_bytes_per_s": 64, "memory_bytes": 80,
    "host_memory_bytes": 2048, "nvlink_latency_s": 4.7, "network_latency_s": 5, "eager_launch_s": 16.8,
}  # fmt: skip


@pytest.mark.parametrize("key", WRONG)
def test_a_device_in_other_units_is_refused_with_the_bound(key: str) -> None:
    least, most, unit = BOUNDS[key]
    with pytest.raises(InputError, match=key) as error:
        load_scenario("quickstart", [f"hardware.{key}.value={WRONG[key]}"])
    assert f"must be in {unit}, between {least:g} and {most:g}" in str(error.value)


def test_no_transfer_beats_the_line_rate() -> None:
    """Quickstart's trainer gathers 16 GB over two GPUs at 450 GB/s; a lagged loop sends them over the links it has."""
    for name in ("quickstart", "qwen8b_async_lag1"):
        transfers = PriceInputs(load_scenario(name)).transfers
        job, links = transfers._job, transfers._job.links
        seconds = {part.name: part.seconds for part in transfers.transfer().parts}
        if name == "quickstart":
            assert seconds["gathering of full tensors"] >= job.full_bytes / 2 / links.nvlink_bytes_per_s >= 0.0178
        else:
            assert seconds["weights on the wire"] >= job.wire_bytes / links.nvlink_bytes_per_s


def test_ranks_that_the_samples_do_not_divide_are_told() -> None:
    for gpus, told in ((8, False), (24, True)):
        given = load_scenario("quickstart", [*ALONE, f"cluster.num_gpus={gpus}"])
        text = " ".join(training_assumptions(given, PriceInputs(given).overheads.training))
        assert ("512 samples of an update do not divide over 12 data-parallel ranks" in text) == told
