"""size(): the fewest GPUs that hold a model, how far more of them pay, and the cheapest within a deadline."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.memory import (
    engine_memory,
    kv_bytes_per_gpu_token,
    resident_bytes,
    room_of,
    sure_factor,
    surely,
    trainer_memory,
)
from rlsim.errors import Infeasible, InputError
from rlsim.files.lookup import YAML_SUFFIXES, catalogue
from rlsim.files.reading import TABLE_BYTES, read_text, shown_path
from rlsim.files.yaml import parse_yaml
from rlsim.loading.scenario import as_scenario, scenario_of_text, vary
from rlsim.loading.variation import Overrides, check_trained
from rlsim.planning.new import Answers, plain_limits, scenario_text
from rlsim.planning.objective import check_positive
from rlsim.planning.plan import default_limits, plan
from rlsim.planning.search import nearest_miss
from rlsim.planning.space import SearchLimits, build_space
from rlsim.projection.uncertainty.features import VALUES
from rlsim.projection.verdict import backing, price_words, unmeasured_winner
from rlsim.report.format import seconds
from rlsim.results.planning import ClusterSize, DeviceSize, MemoryShare, Sizing
from rlsim.results.sweep import Plan
from rlsim.schema.scenario import Scenario
from rlsim.workload.agents import mean_turns

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Numbers of GPUs that are looked at for the fewest: part of a node, then whole ones of eight."""
MOST_GPUS = 4096
KNEE_GAIN = 1.4
"""Times by which a doubling must shorten the step to be sensible: 70 % of the GPUs added. Convention."""
LEAST_GAIN = 1.15
"""Times below which no further doubling is looked at."""
PLAIN_TASK = {"gpus": "8", "batch": "64x16", "response-tokens": "2000"}
"""Answers of rlsim new for a model of which nothing else is given; the number of GPUs does not count. Convention."""
WAYS = tuple(itertools.product((1, 2, 4), ("none", "full")))
"""Pipeline stages of an engine, whose tensor parallelism stays within a node, and recomputation of the trainer, in the
order in which they are tried."""


class Wanted(Struct, frozen=True):
    """What a cluster is for: a scenario, or the answers of rlsim new, whose number of GPUs does not count.

    lora_rank: train adapters of this rank; None: all weights. deadline_s: longest step; budget_usd: price of one.
    max_staleness: largest policy lag; default that of a plan for a scenario, 0 for answers. precision: of the weights
    that generate. drafts: whether the scenario's drafter may draft. fit_probability: of memory, with which layouts fit
    that are taken; default the scenario's, else SURE.
    """

    answers: Answers | None = None
    engine: str = "vllm"
    lora_rank: int | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None
    base: Scenario | None = None
    max_staleness: int | None = None
    precision: str | None = None
    drafts: bool = True
    fit_probability: float | None = None

    def check(self) -> None:
        """Raise InputError where there is nothing to size, or limits are none or contradict each other."""
        if (self.answers is None) == (self.base is None):
            raise InputError("size needs a scenario or the answers of rlsim new, and not both")
        if self.base is not None:
            check_trained(self.base, "a size")
        check_positive({"--deadline": self.deadline_s, "--budget": self.budget_usd})
        if self.deadline_s is not None and self.budget_usd is not None:
            raise InputError("--deadline and --budget: give one of them, the other is the answer")

    def scenario(self, device: str, gpus: int, stages: int = 1, recompute: str = "none") -> Scenario:
        """The scenario to plan on so many GPUs of a device, which a plan sets. stages: of an engine's pipeline."""
        if self.base is not None:
            moves: dict[str, object] = {} if device == self.base.hardware.name else {"hardware": device}
            if stages > self.base.engine.pipeline_parallel:
                moves |= _staged(self.base, stages)
            if recompute != "none":
                moves["trainer.recompute"] = recompute
            if self.lora_rank is not None:
                moves["trainer.lora_rank"] = self.lora_rank
            return vary(self.base, moves | self._stated)
        assert self.answers is not None
        trainer: dict[str, int | str] = {} if recompute == "none" else {"recompute": recompute}
        if self.lora_rank is not None:
            trainer["lora_rank"] = self.lora_rank
        engine: dict[str, int | str] = {} if self.engine == "vllm" else {"name": self.engine}
        if stages > 1:
            engine["pipeline_parallel"] = stages
        answers = replace(self.answers, hardware=device, gpus=gpus)
        text = scenario_text(answers, "size", engine, trainer)
        return vary(scenario_of_text(text, f"the scenario for {gpus} {device}", Path()), self._stated)

    @property
    def _stated(self) -> dict[str, object]:
        stated = {"engine.weight_precision": self.precision, "simulation.fit_probability": self.fit_probability}
        return {key: value for key, value in stated.items() if value is not None}

    def limits(self, gpus: int) -> SearchLimits:
        """What a plan on so many GPUs may choose."""
        limits = plain_limits(gpus)
        if self.base is None:
            return replace(limits, lags=tuple(range((self.max_staleness or 0) + 1)))
        most = default_limits(self.base).lags[-1] if self.max_staleness is None else self.max_staleness
        lags = tuple(range(most + 1))
        # Other draft lengths take long to look at and change how long a step is, hardly how many GPUs pay.
        drafted = self.base.speculation.draft_length if self.drafts else 0
        return replace(limits, lags=lags, draft_lengths=tuple({0: 0, drafted: 0}))

    @property
    def held(self) -> str:
        """What no size changes: loop, precision of generation, drafts."""
        lag = self.limits(1).lags[-1]
        loop = "a synchronous step" if lag == 0 else f"a step of lag 0 to {lag}"
        base = self.base
        precision = self.precision or ("bf16" if base is None else base.engine.weight_precision)
        drafted = base is not None and self.drafts and base.speculation.active
        drafts = f"drafts by {base.speculation.method}" if drafted and base is not None else "no drafts"
        return f"{loop}, generation in {precision}, {drafts}"


def _staged(base: Scenario, stages: int) -> Overrides:
    """Engines of so many stages, on a cluster that holds one: the layout that a plan begins from must be valid."""
    moves: Overrides = {"engine.pipeline_parallel": stages}
    prefill = base.engine.prefill
    more = -base.decoding_gpus % (base.engine.tensor_parallel * stages)
    if prefill is not None:
        short = -prefill.gpus % ((prefill.tensor_parallel or base.engine.tensor_parallel) * stages)
        moves["engine.prefill.gpus"], more = prefill.gpus + short, more + short
    if more:
        moves["cluster.num_gpus"] = base.cluster.num_gpus + more
        if base.cluster.generation_gpus is not None:
            moves["cluster.generation_gpus"] = base.cluster.generation_gpus + more
    return moves


def size(
    wanted: Wanted | Scenario | str, devices: Sequence[str] = (), told: Callable[[int], object] = lambda done: None
) -> Sizing:
    """Clusters of each of ``devices`` for a model: the least, the knee of the step, and the one to take.

    wanted: a scenario, its name or its path, or that of a model with PLAIN_TASK, stand for a :class:`Wanted` with all
    else as usual; devices: default those of the scenario. told: called with 1 for every cluster planned. Raises
    InputError where a device or a limit makes no sense.
    """
    if isinstance(wanted, str) and not is_scenario(wanted):
        wanted = Wanted(Answers.parse({"model": wanted, **PLAIN_TASK, "hardware": next(iter(devices), "h100_sxm")}))
    elif not isinstance(wanted, Wanted):
        wanted = Wanted(base=as_scenario(wanted))
    wanted.check()
    if not devices and wanted.base is not None:
        devices = (wanted.base.hardware.name,)
    if not devices:
        raise InputError("--device: name at least one, such as h100_sxm,h200_sxm")
    found = tuple(_device(wanted, device, told) for device in dict.fromkeys(devices))
    able = [(one, chosen) for one in found if (chosen := one.at(one.chosen)) is not None]
    by_step = wanted.budget_usd is not None
    # Each has kept to its budget already: then time decides, else money.
    best = min(able, key=lambda pair: pair[1].step_s.mean if by_step else pair[1].usd_per_step, default=None)
    example = wanted.scenario(devices[0], 8)
    workload = example.workload
    trained = "all weights" if example.trainer.lora_rank is None else "adapters"
    return Sizing(
        model=example.model.name,
        batch=(workload.prompts_per_step, workload.generations_per_prompt),
        response_tokens=round(float(VALUES["response"](example))),
        max_sequence_tokens=example.workload.max_sequence_tokens,
        lora_rank=example.trainer.lora_rank,
        deadline_s=wanted.deadline_s,
        budget_usd=wanted.budget_usd,
        devices=found,
        best=None if best is None else best[0].device,
        held=wanted.held,
        verdict=() if best is None else _verdict(wanted, best[0].device, able),
        assumptions=(
            f"held fixed: {wanted.held}; {trained} trained with {example.trainer.optimizer.capitalize()}",
            *(one.text for one in example.assumptions),
        ),
        turns=mean_turns(workload.agent),
    )


def _verdict(wanted: Wanted, best: str, able: Sequence[tuple[DeviceSize, ClusterSize]]) -> tuple[str, ...]:
    """That nobody measured the device to take, beside the best one that was measured."""
    measured = [(one, at) for one, at in able if not backing(wanted.scenario(one.device, 8).hardware)]
    by_step = wanted.budget_usd is not None
    beside = min(measured, key=lambda pair: pair[1].step_s.mean if by_step else pair[1].usd_per_step, default=None)
    words = ""
    if beside is not None:
        one, at = beside
        words = f"{at.gpus:,} {one.device}, {seconds(at.step_s.mean)} and {at.usd_per_step:.2f} USD"
    return unmeasured_winner(wanted.scenario(best, 8).hardware, words)


def is_scenario(name: str) -> bool:
    """Whether ``name`` is a scenario that comes with rlsim or a file of one, and no model card or configuration."""
    path = Path(name)
    if path.suffix.lower() not in YAML_SUFFIXES or not path.is_file():
        return path.stem in catalogue("scenarios")
    document = parse_yaml(read_text(path, TABLE_BYTES), shown_path(path), True)
    return isinstance(document, Mapping) and bool({"extends", "workload", "model"} & document.keys())


def _device(wanted: Wanted, device: str, advance: Callable[[int], object]) -> DeviceSize:
    least, why = _least(wanted, device)
    sizes, chosen = [] if least is None else _curve(wanted, device, least, advance), None
    if sizes:
        # A plan may refuse what each of its parts is offered for: engine and trainer lie beside each other.
        least = sizes[0].gpus
        chosen, why = _chosen(wanted, sizes)
    at = next((one for one in sizes if one.gpus == chosen), sizes[0] if sizes else None)
    profile = wanted.scenario(device, 8).hardware
    return DeviceSize(
        device=device,
        usd_per_gpu_hour=profile.price_per_gpu_hour_usd.value,
        price=price_words(profile),
        backing=backing(profile),
        least=least,
        knee=knee_of(sizes) if sizes else None,
        chosen=chosen,
        sizes=tuple(sizes),
        memory_share=None if at is None else _share_at(wanted, device, at),
        reason=why,
    )


def _share_at(wanted: Wanted, device: str, at: ClusterSize) -> MemoryShare | None:
    """The engine's share of memory on a cluster; None where it shares no GPU with the trainer."""
    scenario = vary(wanted.scenario(device, at.gpus), {"cluster.num_gpus": at.gpus, "lag": 0, **at.changes})
    return memory_share(scenario) if scenario.cluster.colocated else None


def _least(wanted: Wanted, device: str) -> tuple[int | None, str]:
    """The fewest GPUs on which some engine and some trainer layout fit, or the nearest miss on the most of them."""
    rejected = []
    for gpus, (stages, recompute) in itertools.product(SIZES, WAYS):
        if gpus % stages:
            continue
        try:
            space = build_space(wanted.scenario(device, gpus, stages, recompute), wanted.limits(gpus))
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
    return None, f"{tried}; nearest is {layout or 'one GPU'}: {nearest.text}"


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
        if _dearer(wanted, out):
            break
        # Doublings, so that the gains can be compared with KNEE_GAIN and layouts go on dividing the cluster.
        gpus *= 2
    return out


def _dearer(wanted: Wanted, sizes: Sequence[ClusterSize]) -> bool:
    """Whether the last of ``sizes`` keeps to the deadline at a higher price than a smaller one: more GPUs cost more."""
    within = [one for one in sizes if wanted.deadline_s is not None and one.step_p90_s <= wanted.deadline_s]
    return len(within) > 1 and within[-1].usd_per_step > within[-2].usd_per_step


def _planned(wanted: Wanted, device: str, gpus: int, before: ClusterSize | None) -> ClusterSize | None:
    """The fastest layout on so many GPUs in the first way that fits, and in the way of half of them; None where none
    does."""
    found: list[ClusterSize] = []
    for stages, recompute in WAYS:
        try:
            scenario = wanted.scenario(device, gpus, stages, recompute)
            best = plan(scenario, limits=wanted.limits(gpus), rest=False)
        except (Infeasible, InputError):
            continue
        found.append(_cluster(best, recompute, before, scenario.hardware.memory_bytes.value))
        # Experts over nodes may be slower than recomputation, with which they fit within one.
        wide = int(best.best.overrides["trainer.expert_parallel"]) > scenario.hardware.nvlink_domain_gpus.value
        if not wide and (before is None or before.changes.get("trainer.recompute", recompute) == recompute):
            break
    return min(found, key=lambda one: one.step_s.mean, default=None)


def _cluster(found: Plan, recompute: str, before: ClusterSize | None, available_bytes: float) -> ClusterSize:
    changes: dict[str, int | str] = {} if recompute == "none" else {"trainer.recompute": recompute}
    lagged = bool(found.best.overrides.get("lag"))
    changes |= {
        key: value
        for key, value in found.best.overrides.items()
        if key.partition(".")[0] in ("engine", "trainer")
        or (lagged and key != "cluster.num_gpus")
        or (key == "k" and value)
    }
    layout = found.best.name.partition(", ")[2].removeprefix("sync, ").replace("no speculation, ", "")
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


def memory_share(scenario: Scenario) -> MemoryShare:
    """Shares of a GPU for the engine of a colocated scenario, beside what its trainer keeps there, as sure as layouts
    are that are offered.

    The trainer's process keeps its runtime, the engine's its context; without trainer.offload its weights, gradients
    and optimizer too.
    """
    scenario = surely(scenario)
    available, held = scenario.hardware.memory_bytes.value, trainer_memory(scenario)
    beyond = sure_factor(scenario)
    stays = held.runtime + resident_bytes(scenario)
    # At the hand-over offloaded weights are back beside the engine.
    handover = stays if not scenario.trainer.offload else stays + held.weights
    # All of the GPU, or the share that is looked for here might be refused.
    whole, half = (vary(scenario, {"engine.gpu_memory_utilization": share}) for share in (1.0, 0.5))
    engine = engine_memory(whole)
    outside = engine.parts.context or 0.0
    sequence = scenario.workload.max_sequence_tokens * kv_bytes_per_gpu_token(scenario)
    # The room grows evenly with the share, of whatever the engine's share is a part.
    least = 1.0 - 0.5 * (engine.kv_bytes - sequence) / (engine.kv_bytes - room_of(half, engine))
    return MemoryShare(
        safe=_floored(1.0 - (beyond * handover + outside) / available),
        after_offload=_floored(1.0 - (beyond * stays + outside) / available),
        # Up, where the shares that must leave room are rounded down.
        least=math.ceil(100 * least) / 100,
        fit_probability=scenario.simulation.least_fit,
    )


def _floored(share: float) -> float:
    """A share in whole hundredths, none below 0."""
    # 0.29 x 100 is 28.999... in floats, and must not become 28.
    return max(0.0, math.floor(100 * share + 1e-9) / 100)
