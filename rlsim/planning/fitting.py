"""Which single setting would make a scenario fit into memory that does not."""

from __future__ import annotations

from collections.abc import Iterator

from rlsim.costs.memory import check_beside, check_host, engine_memory, trainer_memory
from rlsim.errors import Infeasible, InputError
from rlsim.projection.moves import varied
from rlsim.schema.scenario import Scenario

HALVINGS = 6
"""A setting is lowered to a sixty-fourth at most: below that nobody runs."""
SHARES = (0.95, 0.92, 0.88, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.45, 0.4, 0.35, 0.3)
"""Shares of a GPU's memory that are tried for an engine, the nearest to the stated one first."""


def fits(scenario: Scenario) -> bool:
    """Whether engine, trainer and host have room for ``scenario``."""
    try:
        engine_memory(scenario)
        trainer_memory(scenario)
        check_beside(scenario)
        check_host(scenario)
    except Infeasible:
        return False
    return True


def settings_that_fit(scenario: Scenario) -> list[str]:
    """Settings (KEY=VALUE) each of which alone makes ``scenario`` fit, of every key the one that changes it least.

    None where engine, trainer and host have room as it is: what was refused is then another part's, as a pool's.
    """
    if fits(scenario):
        return []
    found: dict[str, str] = {}
    for key, value in _settings(scenario):
        if key not in found and _alone(scenario, key, value):
            found[key] = f"{key}={value:g}" if isinstance(value, float) else f"{key}={str(value).lower()}"
    return list(found.values())


def _alone(scenario: Scenario, key: str, value: int | float | str) -> bool:
    try:
        return fits(varied(scenario, {key: value}))
    except InputError:  # a layout that does not divide the GPUs, say
        return False


def _settings(scenario: Scenario) -> Iterator[tuple[str, int | float | str]]:
    """Settings by key, nearest to the scenario's first; those that cost the least speed before the others."""
    engine, trainer, workload = scenario.engine, scenario.trainer, scenario.workload
    for share in sorted(SHARES, key=lambda one: abs(one - engine.gpu_memory_utilization)):
        yield "engine.gpu_memory_utilization", share
    if not trainer.offload and scenario.cluster.colocated:
        yield "trainer.offload", True
    micro_batch = trainer.micro_batch_tokens or workload.max_sequence_tokens
    for key, now in (
        ("engine.max_running_sequences", engine.max_running_sequences),
        ("engine.max_batched_tokens", engine.max_batched_tokens),
        ("trainer.micro_batch_tokens", micro_batch),
        ("trainer.micro_batch_samples", trainer.micro_batch_samples),
        ("workload.max_sequence_tokens", workload.max_sequence_tokens),
    ):
        yield from ((key, now >> halvings) for halvings in range(1, HALVINGS + 1) if now >> halvings)
    if trainer.recompute != "full":
        yield "trainer.recompute", "full"
    for key, degree in (
        ("engine.tensor_parallel", engine.tensor_parallel),
        ("trainer.tensor_parallel", trainer.tensor_parallel),
        ("trainer.context_parallel", trainer.context_parallel),
        ("trainer.pipeline_parallel", trainer.pipeline_parallel),
    ):
        # Tensor and context parallelism beyond a node are no remedy that anybody runs.
        most = int(scenario.training_device.gpus_per_node)
        yield from ((key, degree << doublings) for doublings in range(1, 4) if degree << doublings <= most)
    if not trainer.optimizer_on_host:
        yield "trainer.optimizer_on_host", True
    if engine.kv_precision == "bf16":
        yield "engine.kv_precision", "fp8"
