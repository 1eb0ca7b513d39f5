"""The RL loop, the cluster under it and how it is simulated."""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, cast

from pydantic import Field

from rlsim.schema.asynchrony import (
    STYLES,
    UNLIMITED_BATCHES_AHEAD,
    Asynchrony,
    AtUpdate,
    Membership,
    Stale,
    Style,
    StyleRules,
    Unit,
)
from rlsim.schema.base import Strict
from rlsim.schema.engine_parameters import EngineParameters, TransferParameters
from rlsim.schema.parameters import GlobalParameters, MeasuredStack, TrainingParameters
from rlsim.schema.users import FABRICS, FabricName, as_profile

ASYNCHRONOUS_KEYS = (
    "staleness_fraction", "queue_batches", "update_every", "restart_requests", "membership", "max_in_flight_groups",
    "max_age", "stale", "overlap",
)  # fmt: skip
"""Keys without a meaning in synchronous loops; the older ones are ignored there."""
LIMITS = ("staleness_fraction", "queue_batches")
"""Keys that say in place of policy_lag how far generation may get ahead."""
MOST_GPUS = 2**20


class Cluster(Strict):
    """GPUs and how they are divided. Without a division generation and training share all of them (colocated)."""

    num_gpus: int = Field(ge=1, le=MOST_GPUS)
    """All GPUs."""
    generation_gpus: int | None = Field(None, ge=1, le=MOST_GPUS)
    """GPUs of the rollout engine in a split cluster."""
    training_gpus: int | None = Field(None, ge=1, le=MOST_GPUS)
    """GPUs of the trainer in a split cluster."""
    reference_gpus: int = Field(0, ge=0, le=MOST_GPUS)
    """Of num_gpus those that hold the reference policy alone, in the trainer's layout: its log-probs run beside those
    of the policy (OpenRLHF without colocate_actor_ref: experience_maker.py:102-188 at 3c3be623), and no weights are
    swapped for them. 0: they take turns on the training GPUs."""
    pool_gpus: int = Field(0, ge=0, le=MOST_GPUS)
    """Of num_gpus those that hold other models alone (pools)."""
    placement: Literal["aligned", "scattered"] | None = None
    """aligned: GPUs of one group (a replica, its experts, a tensor-parallel group) are placed in one NVLink domain
    where they fit. scattered: a group of several nodes may lie half in one domain and half in another, as in jobs over
    racks without topology-aware placement; its collectives then cross the network. Default: as the stack's launcher
    places jobs."""
    node_bandwidth_bytes_per_s: float | None = Field(None, gt=1e6, le=1e14)
    """Line rate between nodes of one node and direction, shared by its GPUs. Default: that of ``fabric``; where neither
    is given the profile's for stacks of tuned recipes, else the middle of what users' clusters reached
    (calibration/users), which intervals then hold."""
    fabric: FabricName | None = None
    """The network between nodes by its name, in place of its rate: profile (that of the hardware profile),
    infiniband_8x400, roce_8x400, roce_8x200, efa_p5, efa_p5_sockets, efa_p4d, efa_p6_b200, efa_p6_b300,
    ethernet_2x100, ethernet_100, tcp_25, tcp_10 (rlsim/schema/fabrics.yaml)."""

    @property
    def node_link_bytes_per_s(self) -> float | None:
        """Stated rate of a node's link; None where it is not stated, or is that of the profile."""
        if self.fabric is None or as_profile(self.fabric):
            return self.node_bandwidth_bytes_per_s
        return float(FABRICS[self.fabric]["bytes_per_s"])

    @property
    def link_stated(self) -> bool:
        """Whether the network between nodes is stated."""
        return self.fabric is not None or self.node_bandwidth_bytes_per_s is not None

    @property
    def colocated(self) -> bool:
        """Whether generation and training take turns on the same GPUs."""
        return self.generation_gpus is None and self.training_gpus is None

    @property
    def policy_gpus(self) -> int:
        """GPUs that generate or train."""
        return self.num_gpus - self.reference_gpus - self.pool_gpus

    @property
    def generation(self) -> int:
        """GPUs that generate."""
        if self.generation_gpus is not None:
            return self.generation_gpus
        return self.policy_gpus - (self.training_gpus or 0)

    @property
    def training(self) -> int:
        """GPUs that train."""
        if self.training_gpus is not None:
            return self.training_gpus
        return self.policy_gpus - (self.generation_gpus or 0)

    def _problems(self) -> Iterator[str]:
        if self.fabric is not None and self.node_bandwidth_bytes_per_s is not None:
            yield "give one of fabric and node_bandwidth_bytes_per_s"
        others = {name: gpus for name in ("reference_gpus", "pool_gpus") if (gpus := getattr(self, name))}
        apart = " + ".join(f"{name} ({gpus})" for name, gpus in others.items())
        if self.generation < 1 or self.training < 1:
            split = apart if self.colocated else "generation_gpus and training_gpus"
            yield f"{split} must leave both at least 1 of num_gpus = {self.num_gpus}"
        if not self.colocated and self.generation + self.training != self.policy_gpus:
            yield (
                f"generation_gpus ({self.generation}) + training_gpus ({self.training})"
                f"{apart and f' + {apart}'} must equal "
                f"num_gpus ({self.num_gpus})"
            )


class Loop(Strict):
    """Order of generation, training and weight publication."""

    mode: Literal["sync", "async"] = "sync"
    """sync: phases in turn; async: lagged, on split pools."""
    style: Style | None = None
    """Asynchronous: whose rules hold (docs/SEMANTICS.md); the keys below change single ones. Default nemo_rl
    with in-flight updates."""
    policy_lag: int | None = Field(None, ge=0, le=64)
    """Steps by which a trained sample may be older than the weights; versions where weights are published less often
    than every step. Default: 0 in synchronous loops, else as the style."""
    staleness_fraction: float | None = Field(None, ge=0, le=64)
    """Asynchronous, in place of policy_lag: samples that may be started beyond the batch to be trained on next, as a
    share of it (verl staleness_threshold, ROLL async_generation_ratio)."""
    queue_batches: int | None = Field(None, ge=0, le=64)
    """Asynchronous, in place of policy_lag: batches that wait in a queue while the next one is generated (OpenRLHF)."""
    update_every: int = Field(1, ge=1, le=64)
    """Steps between two publications of weights (verl trigger_parameter_sync_step)."""
    in_flight_updates: bool | None = None
    """Publish weights while requests run (they pause); false waits for the last of them first. Default as the style,
    else true."""
    recompute_kv: bool | None = None
    """Running requests prefill their context again after an update. Default as the style."""
    restart_requests: bool | None = None
    """Running requests are aborted at an update and start again from their prompts. Default as the style."""
    start_unit: Unit | None = None
    """Asynchronous: what starts and is handed over as one. group: each prompt group as soon as one may (NeMo-RL's own
    collector); sample: each sample by itself; batch: all groups of a step, once that many places are free (one worker
    for a step's batch). Default as the style."""
    membership: Membership | None = None
    """Asynchronous: which groups a step trains on. target: those that were started for it; first_done: those that are
    done first. Default as the style."""
    max_in_flight_groups: int | None = Field(None, ge=1, le=20_000_000)
    """Most prompt groups in flight at once; default as the style."""
    max_age: int | None = Field(None, ge=0, le=64)
    """Versions between the start of a group and its training beyond which it counts as stale; default as the style,
    else any."""
    stale: Stale | None = None
    """Groups beyond max_age: train on them, drop them when their turn comes, or cancel them, in flight too. Default as
    the style."""
    streaming: bool = False
    """Synchronous, on split pools: the trainer begins on samples that are done while others are generated; gradients
    accumulate and nothing is stale (StreamRL, AsyncFlow). Training units are samples in the order of their rewards."""
    supervised: bool = False
    """No rollout: a step is the update alone, on samples of a data set that workload describes (supervised
    fine-tuning). With two workload.generations_per_prompt, a pair, and trainer.reference_logprobs it is DPO: the
    reference's forward pass and the update. The engine section is without effect."""
    rollouts_alone: bool = False
    """No training: a step is the generation of its samples alone, with environments and judges (a pipeline that writes
    trajectories, an evaluation). All of cluster.num_gpus but those of pools generate; the trainer section is without
    effect."""
    overlap: bool = True
    """Asynchronous: false stops generation while the trainer works; unfinished requests wait (partial rollouts)."""
    refit_method: Literal[
        "auto",
        "cuda_ipc",
        "nccl_per_tensor",
        "nccl_broadcast",
        "nccl_reshard",
        "checkpoint_engine",
        "checkpoint_engine_p2p",
        "rdma",
        "delta_sharded",
        "disk",
    ] = "auto"
    """Weight transfer. auto: cuda_ipc on shared GPUs, nccl_broadcast between pools. cuda_ipc: every GPU gathers every
    tensor and hands it to the engine beside it. nccl_broadcast: packed buckets from one rank; nccl_per_tensor: a
    collective for each tensor. nccl_reshard: every engine GPU receives its shard. checkpoint_engine: broadcast from
    host memory, with _p2p fetched over RDMA first. rdma: GPU to GPU (NIXL), experts sharded. delta_sharded: changed
    values alone. disk: through shared storage."""
    refit_framework: str | None = Field(None, min_length=1, max_length=60)
    """Framework whose measured transfers count: a name of simulation.transfer_parameters, or 'other'; default: the
    stack's."""
    refit_precision: Literal["bf16", "engine"] = "bf16"
    """Weights on the wire: bf16, which the engine quantises tensor by tensor, or as the engine holds them, quantised by
    the trainer in large batches (taken as free)."""
    refit_full_experts: bool = False
    """rdma: every engine GPU receives all experts, not those that it holds."""
    refit_full_state: bool = False
    """The trainer gathers its whole state before it sends anything, as FSDP1 does."""
    refit_onload: bool = False
    """Split pools: the trainer's FP32 weights lie in host memory and come back for the transfer."""
    refit_changed_share: float = Field(0.02, ge=0, le=1)
    """delta_sharded: values that a step changes. 0.01 to 0.03 in dense models, 0.0002 to 0.0005 at 235B (verl
    docs/advance/delta_weight_sync.md)."""
    refit_disk_bytes_per_s: float = Field(5e9, gt=0, le=1e13)
    """disk: rate of shared storage per node. Assumption."""
    offload_memory: Literal["pageable", "pinned"] = "pageable"
    """Host memory that a colocated trainer offloads to; NeMo-RL up to its main branch of 2026-08: pageable."""
    refit_tensor_s: float | None = Field(None, ge=0, le=10)
    """Host time per weight tensor of a refit; default: fitted."""
    refit_fixed_s: float | None = Field(None, ge=0, le=10_000)
    """Fixed time of a refit (pause, handshakes, barriers); default: fitted."""
    refit_bandwidth_bytes_per_s: float | None = Field(None, gt=0, le=1e15)
    """Rate at which your framework moves one copy of the weights; default: what the links allow."""
    poll_s: float = Field(0.5, ge=0, le=60)
    """Interval at which the asynchronous trainer looks for its batch."""
    driver_sample_s: float = Field(5e-5, ge=0, le=1)
    """Driver time per sample of a step for data handling (data_s). Assumption."""

    driver_bytes_per_s: float | None = Field(None, gt=0, le=1e12)
    """Rate at which one driver collects the padded batch (samples x workload.max_sequence_tokens) from the engines and
    hands it to the trainer's ranks: seconds of data_s, of log-probs and of the update that do not shrink with GPUs.
    Default: the stack's, if it has one."""

    @property
    def rules_of_style(self) -> StyleRules:
        """Rules and defaults of the framework."""
        return STYLES[self.style or "nemo_rl"]

    @property
    def lag(self) -> int:
        """Whole steps of lag: as stated, else those of the style; 0 where another key says how far ahead."""
        if self.policy_lag is not None or self.mode == "sync":
            return self.policy_lag or 0
        stated = any(getattr(self, key) is not None for key in LIMITS)
        return 0 if stated else int(self.rules_of_style.batches_ahead or 0)

    @property
    def asynchrony(self) -> Asynchrony:
        """Rules of a lagged loop: the style's, and what is stated beside it."""
        return _asynchrony(self)

    def _ahead(self) -> float:
        """Batches ahead: as stated, else as the style."""
        if self.staleness_fraction is not None:
            return self.staleness_fraction
        if self.queue_batches is not None:
            return float(self.queue_batches)
        style = self.rules_of_style
        if style.batches_ahead is None:  # a stated lag of 0 says no more than that there is none to state
            return float(self.policy_lag or UNLIMITED_BATCHES_AHEAD)
        return style.batches_ahead if self.policy_lag is None else float(self.policy_lag)

    @property
    def batches_ahead(self) -> float:
        """Batches by which generation may be ahead of training; none in a synchronous loop."""
        return self.asynchrony.batches_ahead if self.mode == "async" else 0.0

    def measured_steps(self, simulation: "Simulation", sync_cycle_steps: int = 1) -> range:
        """Numbers of the steps that are measured: as stated, else by the rules of the loop, in whole cycles.

        sync_cycle_steps: steps of a cycle where the loop is synchronous.
        """
        rules = self.asynchrony if self.mode == "async" else None
        size = sync_cycle_steps if rules is None else rules.cycle_steps
        warmup, steps = simulation.warmup_steps, simulation.steps
        if warmup is None:
            warmup = 0 if rules is None else rules.settling_steps
        if steps is None:
            steps = 1 if rules is None else rules.observed_steps
        # Whole cycles: part of one holds more of its long or of its short steps, and its mean is off
        # (workload/draw.py).
        return range(warmup, warmup + -(-steps // size) * size)

    def _at_update(self, default: AtUpdate) -> AtUpdate:
        if self.in_flight_updates is False:
            return "drain"
        for stated, action in ((self.restart_requests, "restart"), (self.recompute_kv, "recompute")):
            if stated:
                return cast(AtUpdate, action)
            # Stated false, a key takes the style's own action back to the plain one and no other.
            if stated is False and default == action:
                default = "keep"
        # In flight under a style that drains: of the ways to go on, the one that takes nothing anew.
        return "keep" if self.in_flight_updates and default == "drain" else default

    def _problems(self) -> Iterator[str]:
        if self.supervised and (self.streaming or self.mode == "async"):
            yield "supervised has no rollout that training could run beside: it needs mode sync without streaming"
        if self.rollouts_alone and (self.streaming or self.mode == "async"):
            yield "rollouts_alone has no training that could run beside: it needs mode sync without streaming"
        if self.rollouts_alone and self.supervised:
            yield "give one of supervised and rollouts_alone: together nothing is left of a step"
        if self.mode == "sync":
            self._refuse_asynchronous_keys()
            return
        if self.streaming:
            yield "streaming begins to train within a synchronous step: it needs mode sync"
        limits = [key for key in LIMITS if getattr(self, key) is not None]
        if self.policy_lag:
            limits.append("policy_lag")
        if len(limits) > 1:
            yield f"give one of policy_lag, staleness_fraction, queue_batches; got {' and '.join(limits)}"
        if self.recompute_kv and self.restart_requests:
            yield "give one of recompute_kv and restart_requests"
        rules = self.asynchrony
        if rules.stale != "train" and rules.max_age is None:
            yield f"stale {rules.stale} needs max_age"
        if rules.stale != "train" and rules.membership == "target":
            yield f"stale {rules.stale} needs membership first_done: a step waits for its own groups"

    def _refuse_asynchronous_keys(self) -> None:
        if self.policy_lag:
            raise ValueError("policy_lag must be 0 with mode sync (or set loop.mode=async)")
        for key in ASYNCHRONOUS_KEYS:
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key} needs mode async")


class Simulation(Strict):
    """How much is simulated."""

    parameters: GlobalParameters | None = None
    """Global parameters: a name of calibration/parameters, a path, or inline; default the NeMo-RL fit."""
    engine_parameters: EngineParameters | None = None
    """Host and graph terms of engines: a name of calibration/engines, a path, or inline; default the fit to measured
    iterations."""
    training_parameters: TrainingParameters | None = None
    """Terms of training steps: a name of calibration/training, a path, or inline; default the fit to measured steps of
    tuned recipes."""
    transfer_parameters: TransferParameters | None = None
    """Weight transfers by framework: a name of calibration/transfers, a path, or inline; default the fit to measured
    transfers."""
    user_runs: str | None = Field(None, min_length=1, max_length=1000)
    """How runs of users deviate from tuned ones, by framework, backend and model class: a name of calibration/users, a
    path, or none for tuned runs alone; default wild. Stacks of tuned recipes have no part in it."""
    measured_stack: MeasuredStack | None = None
    """Whole iterations, micro-batches and hand-over as measured on this device, in place of operators, fitted terms and
    groups: a path to a file of rlsim calibrate --device cpu, or inline."""
    posterior: str | None = Field(None, min_length=1, max_length=1000)
    """What all measurements together say of the sets above and of groups of runs: a name of calibration/posterior, a
    path to a file of rlsim calibrate, or none for the sets alone; default joint."""
    fit_probability: float | None = Field(None, ge=0.01, le=0.999)
    """Probability of fitting the memory of its GPUs below which a configuration is refused. Default, of what is asked
    about as it is: 0.5 of engines and 0.05 of trainers, with a warning below 0.95 and in the first line below 0.5; 0.5
    of changes of it, and 0.95 of layouts that plan, size or preflight offer (--risk)."""
    seed: int = Field(0, ge=0, le=2**32 - 1)
    """Seed of every random draw."""
    precision: float = Field(0.01, ge=0.001, le=0.5)
    """Relative standard error of the mean step that ends a simulation whose replications are null."""
    replications: int | None = Field(None, ge=1, le=10_000)
    """Independent repetitions behind the intervals; null: as many as give 8 cycles, at least 2, and more until
    precision is met or a million samples (some five seconds) are simulated."""
    exact: bool | None = None
    """Whether a lagged loop is simulated with all of its engines, whatever it costs; false: as one of many equal pools
    where two replications hold more than a million samples. Null: true where replications are stated, else false."""
    steps: int | None = Field(None, ge=1, le=100_000)
    """Steps simulated per replication after the warm-up; rounded up to whole cycles, asynchronous of policy_lag, else
    of the rounds of workload.tail_batching. Default 1, asynchronous 6."""
    warmup_steps: int | None = Field(None, ge=0, le=10_000)
    """First steps dropped. Default 0, asynchronous twice the batches that may be under way at once, and where
    these are more than four twice or four times as many while the ledger of tokens does not balance."""

    @property
    def least_fit(self) -> float:
        """Probability of fitting below which an engine, or a change of what was asked about, is refused."""
        return 0.5 if self.fit_probability is None else self.fit_probability


@lru_cache(maxsize=256)  # asked for at every step of a simulation
def _asynchrony(loop: Loop) -> Asynchrony:
    """Rules of a lagged loop: the style's, and what is stated beside it."""
    style, ahead = loop.rules_of_style, loop._ahead()
    in_flight, max_in_flight = style.in_flight, None
    # 0 batches stand for as many as may be ahead (StyleRules), at least the one that is trained on next.
    if in_flight is not None and in_flight[1] == "batches":
        max_in_flight, in_flight = float(in_flight[0] or max(1.0, ahead)), None
    max_age = math.ceil(ahead) if style.max_age == "ahead" else style.max_age
    max_age = max_age if loop.max_age is None else loop.max_age
    return Asynchrony(
        batches_ahead=ahead,
        membership=loop.membership or style.membership,
        unit=loop.start_unit or style.unit,
        # Who names no framework has NeMo-RL's rules as its performance recipes set them
        # (examples/configs/recipes/llm/performance/*async-1off*.yaml): with in-flight updates.
        at_update=loop._at_update("keep" if loop.style is None else style.at_update),
        update_every=loop.update_every,
        at_take=loop.overlap and (style.at_take or style.waiting or loop.queue_batches is not None),
        max_in_flight=max_in_flight,
        in_flight=in_flight,
        waiting=style.waiting,
        max_age=max_age,
        stale=loop.stale or (style.stale if max_age is not None else "train"),
        resubmit_s=style.resubmit_s,
        overlap=loop.overlap,
    )
