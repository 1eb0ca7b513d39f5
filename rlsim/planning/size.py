"""size(): the fewest GPUs that hold a model, how far more of them pay, and the cheapest within a deadline."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.memory import RUNTIME_BYTES, engine_memory, kv_bytes_per_gpu_token, resident_bytes, trainer_memory
from rlsim.errors import Infeasible, InputError
from rlsim.loading.scenario import scenario_of_text, vary
from rlsim.planning.new import Answers, plain_limits, scenario_text
from rlsim.planning.objective import check_positive
from rlsim.planning.plan import plan
from rlsim.planning.space import HEADROOM, build_space, nearest_miss
from rlsim.results.planning import ClusterSize, DeviceSize, MemoryShare, Sizing
from rlsim.results.sweep import Plan
from rlsim.schema.scenario import Scenario

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Numbers of GPUs that are looked at for the fewest: part of a node, then whole ones of eight."""
MOST_GPUS = 4096
KNEE_GAIN = 1.4
"""Times by which a doubling must shorten the step to be sensible: 70 % of the GPUs added. Convention."""
LEAST_GAIN = 1.15
"""Times below which no further doubling is looked at."""
REPLICATIONS = 3
WAYS = tuple(itertools.product((1, 2, 4), ("none", "full")))
"""Pipeline stages of an engine, whose tensor parallelism stays within a node, and recomputation of the trainer, in the
order in which they are tried."""


class Wanted(Struct, frozen=True):
    """What a cluster is for. answers: model, device, batch and mean response; its number of GPUs does not count.

    lora_rank: train adapters of this rank; None: all weights. deadline_s: longest step; budget_usd: price of one.
    """

    answers: Answers
    engine: str = "vllm"
    lora_rank: int | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None

    def check(self) -> None:
        """Raise InputError where limits are none or contradict each other."""
        check_positive({"--deadline": self.deadline_s, "--budget": self.budget_usd})
        if self.deadline_s is not None and self.budget_usd is not None:
            raise InputError("--deadline and --budget: give one of them, the other is the answer")

    def scenario(self, device: str, gpus: int, stages: int = 1, recompute: str = "none") -> Scenario:
        """The plain scenario on so many GPUs of a device. stages: of an engine's pipeline."""
        trainer: dict[str, int | str] = {} if recompute == "none" else {"recompute": recompute}
        if self.lora_rank is not None:
            trainer["lora_rank"] = self.lora_rank
        engine: dict[str, int | str] = {} if self.engine == "vllm" else {"name": self.engine}
        if stages > 1:
            engine["pipeline_parallel"] = stages
        answers = replace(self.answers, hardware=device, gpus=gpus)
        text = scenario_text(answers, "size", engine, trainer)
        scenario = scenario_of_text(text, f"the scenario for {gpus} {device}", Path())
        return vary(scenario, {"simulation.replications": REPLICATIONS})


def size(wanted: Wanted, devices: Sequence[str], told: Callable[[int], object] = lambda done: None) -> Sizing:
    """Clusters of each of ``devices`` for a model: the least, the knee of the step, and the one to take.

    told: called with 1 for every cluster planned. Raises InputError where a device or a limit makes no sense.
    """
    wanted.check()
    if not devices:
        raise InputError("--device: name at least one, such as h100_sxm,h200_sxm")
    found = tuple(_device(wanted, device, told) for device in dict.fromkeys(devices))
    able = [(one, chosen) for one in found if (chosen := one.at(one.chosen)) is not None]
    by_step = wanted.budget_usd is not None
    # Each has kept to its budget already: then time decides, else money.
    best = min(able, key=lambda pair: pair[1].step_s.mean if by_step else pair[1].usd_per_step, default=None)
    example = wanted.scenario(devices[0], 8)
    return Sizing(
        model=example.model.name,
        batch=wanted.answers.batch,
        response_tokens=wanted.answers.response_tokens,
        max_sequence_tokens=example.workload.max_sequence_tokens,
        lora_rank=wanted.lora_rank,
        deadline_s=wanted.deadline_s,
        budget_usd=wanted.budget_usd,
        devices=found,
        best=None if best is None else best[0].device,
        assumptions=(
            "synchronous GRPO, generation and training in turn on all GPUs, BF16 weights, Adam, without speculation",
            *(one.text for one in example.assumptions),
        ),
    )


def _device(wanted: Wanted, device: str, advance: Callable[[int], object]) -> DeviceSize:
    least, why = _least(wanted, device)
    sizes, chosen = [] if least is None else _curve(wanted, device, least, advance), None
    if sizes:
        chosen, why = _chosen(wanted, sizes)
    at = next((one for one in sizes if one.gpus == chosen), sizes[0] if sizes else None)
    return DeviceSize(
        device=device,
        usd_per_gpu_hour=wanted.scenario(device, 8).hardware.price_per_gpu_hour_usd.value,
        least=least,
        knee=knee_of(sizes) if sizes else None,
        chosen=chosen,
        sizes=tuple(sizes),
        memory_share=None if at is None else memory_share(vary(wanted.scenario(device, at.gpus), at.changes)),
        reason=why,
    )


def _least(wanted: Wanted, device: str) -> tuple[int | None, str]:
    """The fewest GPUs on which some engine and some trainer layout fit, or the nearest miss on the most of them."""
    rejected = []
    for gpus, (stages, recompute) in itertools.product(SIZES, WAYS):
        if gpus % stages:
            continue
        try:
            space = build_space(wanted.scenario(device, gpus, stages, recompute), plain_limits(gpus))
        except Infeasible as error:
            return None, str(error)
        if space.usable:
            return gpus, ""
        rejected += space.rejected
    nearest = nearest_miss(rejected)
    tried = (
        f"nothing fits up to {SIZES[-1]:,} GPUs, engines of up to {WAYS[-1][0]} nodes and trainers of 16 stages tried"
    )
    if nearest is None:
        return None, tried
    layout = ", ".join(f"{key}={value}" for key, value in nearest.overrides.items() if value != 1 and "." in key)
    return None, f"{tried}; nearest is {layout or 'one GPU'}: {nearest.reason}"


def _curve(wanted: Wanted, device: str, least: int, advance: Callable[[int], object]) -> list[ClusterSize]:
    """The least cluster and doublings of it, until they hardly pay any more."""
    out: list[ClusterSize] = []
    gpus = least
    while gpus <= MOST_GPUS:
        found = _planned(wanted, device, gpus, out[-1] if out else None)
        advance(1)
        if found is not None:
            out.append(found)
        if out and (found is None or (found.speedup is not None and found.speedup < LEAST_GAIN)):
            break
        # Doublings, so that the gains can be compared with KNEE_GAIN and layouts go on dividing the cluster.
        gpus *= 2
    return out


def _planned(wanted: Wanted, device: str, gpus: int, before: ClusterSize | None) -> ClusterSize | None:
    """The fastest layout on so many GPUs in the first way that fits, and in the way of half of them; None where none
    does."""
    found: list[ClusterSize] = []
    for stages, recompute in WAYS:
        try:
            scenario = wanted.scenario(device, gpus, stages, recompute)
            best = plan(scenario, limits=plain_limits(gpus), rest=False)
        except (Infeasible, InputError):
            continue
        found.append(_cluster(best, recompute, before, scenario.hardware.memory_bytes.value))
        if before is None or before.changes.get("trainer.recompute", recompute) == recompute:
            break
    return min(found, key=lambda one: one.step_s.mean, default=None)


def _cluster(found: Plan, recompute: str, before: ClusterSize | None, available_bytes: float) -> ClusterSize:
    changes: dict[str, int | str] = {} if recompute == "none" else {"trainer.recompute": recompute}
    changes |= {
        key: value for key, value in found.best.overrides.items() if key.partition(".")[0] in ("engine", "trainer")
    }
    layout = found.best.name.partition("sync, ")[2].replace("no speculation, ", "")
    numbers = found.best.numbers
    return ClusterSize(
        gpus=numbers.num_gpus,
        step_s=numbers.step,
        step_p90_s=found.best.step_p90_s or numbers.step.high,
        usd_per_step=numbers.cost_per_step_usd,
        speedup=None if before is None else before.step_s.mean / numbers.step.mean,
        layout=layout if recompute == "none" else f"{layout}, recompute {recompute}",
        changes=changes,
        generation_share=numbers.generation_memory_bytes / available_bytes,
        training_share=numbers.training_memory_bytes / available_bytes,
    )


def knee_of(sizes: Sequence[ClusterSize]) -> int:
    """The last size of which every doubling so far shortened the step by KNEE_GAIN."""
    found = sizes[0].gpus
    for one in sizes[1:]:
        if one.speedup is None or one.speedup < KNEE_GAIN:
            break
        found = one.gpus
    return found


def _chosen(wanted: Wanted, sizes: Sequence[ClusterSize]) -> tuple[int | None, str]:
    """The cheapest within the deadline, the fastest within the budget, or the knee; and why there is none."""
    if wanted.deadline_s is not None:
        # By the 90th percentile: a deadline that holds in the mean is missed half of the time.
        if within := [one for one in sizes if one.step_p90_s <= wanted.deadline_s]:
            return min(within, key=lambda one: one.usd_per_step).gpus, ""
        fastest = min(one.step_p90_s for one in sizes)
        return None, f"no step keeps to {wanted.deadline_s:g} s with 90 %; the fastest keeps to {fastest:.1f} s"
    if wanted.budget_usd is not None:
        if within := [one for one in sizes if one.usd_per_step <= wanted.budget_usd]:
            return min(within, key=lambda one: one.step_s.mean).gpus, ""
        least = min(one.usd_per_step for one in sizes)
        return None, f"no step costs as little as {wanted.budget_usd:g} USD; the cheapest costs {least:.2f} USD"
    return knee_of(sizes), ""


def memory_share(scenario: Scenario, headroom: float = HEADROOM) -> MemoryShare:
    """Shares of a GPU for the engine of a colocated scenario, beside what its trainer keeps there.

    The trainer's process keeps its runtime; without trainer.offload its weights, gradients and optimizer too.
    """
    available, held = scenario.hardware.memory_bytes.value, trainer_memory(scenario)
    stays = RUNTIME_BYTES + resident_bytes(scenario)
    # At the hand-over offloaded weights are back beside the engine.
    handover = stays if not scenario.trainer.offload else stays + held.weights
    # All of the GPU, or the share that is looked for here might be refused.
    engine = engine_memory(vary(scenario, {"engine.gpu_memory_utilization": 1.0}))
    sequence = scenario.workload.max_sequence_tokens * kv_bytes_per_gpu_token(scenario)
    least = (engine.parts.total + sequence) / available
    return MemoryShare(
        safe=_floored(1.0 - headroom - handover / available),
        after_offload=_floored(1.0 - headroom - stays / available),
        # Up, where the shares that must leave room are rounded down.
        least=math.ceil(100 * least) / 100,
        headroom=headroom,
    )


def _floored(share: float) -> float:
    """A share in whole hundredths, none below 0."""
    # 0.29 x 100 is 28.999... in floats, and must not become 28.
    return max(0.0, math.floor(100 * share + 1e-9) / 100)
