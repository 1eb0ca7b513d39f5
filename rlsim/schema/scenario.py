"""The scenario: one question, fully stated."""

import math
from typing import Any, Self

from pydantic import Field

from rlsim.schema.asynchrony import check_half
from rlsim.schema.base import Strict, replaced
from rlsim.schema.engine import SMALL_DEVICE, SMALL_GIB, Engine, check_divides, check_engine, check_layout
from rlsim.schema.engine_parameters import OTHER
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.loop import Cluster, Loop, Simulation
from rlsim.schema.messages import InOurWords
from rlsim.schema.model import ModelCard
from rlsim.schema.run import RunConditions
from rlsim.schema.speculation import Speculation, check_drafting
from rlsim.schema.stated import Assumption, Missing, Pool
from rlsim.schema.trainer import Stack, StackFeatures, Trainer
from rlsim.schema.vision import check_images
from rlsim.schema.workload import Workload
from rlsim.units import GIB

NEMO_RL = "nemo_rl"
"""Framework of a scenario without a stack."""
MAX_SIMULATED_STEPS = 1600
"""Steps of all replications together; their intervals are far narrower by then than the model's error."""
LEAST_CYCLES = 8
"""Cycles of all replications of a scenario that states none, whose means the error of a simulation is taken from."""
MOST_SAMPLES = 2**20
"""Samples that a scenario which states no replications is simulated for, some five seconds; two replications are."""

SPLIT_METHODS = ("nccl_per_tensor", "nccl_broadcast", "nccl_reshard", "rdma", "delta_sharded")
"""Weight transfers from the trainer's GPUs to others."""


class Scenario(Strict, metaclass=InOurWords):
    """Everything a projection depends on. Same scenario and seed, same answer."""

    name: str = Field(min_length=1, max_length=200)
    """Name of the scenario."""
    question: str = Field("", max_length=2000)
    """What it answers, in a sentence."""
    model: ModelCard
    """Model card: a name, a path to a card or Hugging Face config.json, or inline."""
    hardware: HardwareProfile
    """Hardware profile: a name, a path, or inline."""
    training_hardware: HardwareProfile | None = None
    """Hardware profile of the training GPUs of a split cluster, where they are of another kind than those that
    generate; default ``hardware``."""
    stack: Stack | None = None
    """Software generation: a name of calibration/stacks (nemo_rl-0.7), a path, or inline; default the newest one with
    measured steps. Its trainer, engine release and placement count where nothing else is stated."""
    cluster: Cluster
    workload: Workload
    engine: Engine = Engine()
    speculation: Speculation = Speculation()
    trainer: Trainer = Trainer()
    loop: Loop = Loop()
    pools: tuple[Pool, ...] = ()
    """Models beside the policy that read every sample: teachers, reward models, judges."""
    simulation: Simulation = Simulation()
    run: RunConditions | None = None
    """What a whole run meets besides its steps (rlsim run): lengths that grow, validation, checkpoints, failures. Other
    commands ignore it."""
    assumptions: tuple[Assumption, ...] = ()
    """What the scenario's author assumed, each with its reason; printed with the answer."""
    missing: tuple[Missing, ...] = ()
    """What the real run has and no key simulates; every answer begins with it."""

    @property
    def missing_parts(self) -> tuple[str, ...]:
        """Clauses that say what is missing and which way it moves the step."""
        return tuple(one.text for one in self.missing)

    @property
    def training_device(self) -> HardwareProfile:
        """GPUs of the trainer."""
        return self.training_hardware or self.hardware

    @property
    def training_stack(self) -> Stack | None:
        """Software of the trainer."""
        return self.trainer.stack or self.stack

    @property
    def engine_version(self) -> str | None:
        """Release of the rollout engine: the stated one, else that of the stack; None for the newest measured one."""
        if self.engine.version is not None or self.stack is None or self.stack.engine != self.engine.name:
            return self.engine.version
        return self.stack.engine_version

    @property
    def released_engine(self) -> Engine:
        """The rollout engine with its release, its adapter and its limits: as stated, else as stack or device say."""
        engine, rank, stack = self.engine, self.engine.lora_rank, self.training_stack
        if rank is None and stack is not None and stack.engine_adapters in ("always", self.trainer.backend):
            rank = self.trainer.lora_rank
        found: dict[str, Any] = {"version": self.engine_version, "lora_rank": rank}
        small = self.hardware.memory_bytes.value < SMALL_GIB * GIB or "a100" in self.hardware.name.lower()
        if engine.name == "vllm" and small:
            found |= {key: value for key, value in SMALL_DEVICE.items() if getattr(engine, key) is None}
        return engine if found == {key: getattr(engine, key) for key in found} else replaced(engine, found)

    @property
    def shares_gpus(self) -> bool:
        """Whether an engine takes turns with the trainer on its GPUs."""
        return self.cluster.colocated and not (self.loop.supervised or self.loop.rollouts_alone)

    @property
    def rack_aligned(self) -> bool:
        """Whether groups of GPUs lie within NVLink domains: as stated, else as the stack places them."""
        stated = self.cluster.placement or ("aligned" if self.stack is None else self.stack.placement)
        return stated == "aligned" or self.cluster.num_gpus <= self.hardware.nvlink_domain_gpus.value

    @property
    def policy_logprobs(self) -> bool:
        """Whether the policy's log-probs are recomputed: as stated, else as the stack's recipes do."""
        trainer, stack = self.trainer, self.training_stack
        if self.loop.supervised or self.loop.rollouts_alone:
            return False
        if trainer.policy_logprobs is not None:
            return trainer.policy_logprobs
        one_update = (trainer.global_batch_samples or self.workload.samples_per_step) >= self.workload.samples_per_step
        on_policy = one_update and trainer.epochs == 1 and self.loop.mode == "sync"
        style = self.loop.rules_of_style.policy_logprobs if self.loop.mode == "async" else None
        if style == "updates":
            return not one_update or trainer.epochs > 1 or trainer.critic or trainer.reference_logprobs
        if style is not None:
            return style
        return stack is None or stack.policy_logprobs or not on_policy

    @property
    def sequence_packing(self) -> bool:
        """Whether the trainer packs sequences: as stated, unless it trains a draft that cannot take them packed."""
        return self.trainer.sequence_packing and (
            not self.speculation.trained_online or self.speculation.online_packing
        )

    @property
    def measured_steps(self) -> range:
        """Numbers of the simulated steps that are measured, those after the warm-up."""
        return self.loop.measured_steps(self.simulation, self.workload.cycle_steps)

    @property
    def replications(self) -> int:
        """Replications that are simulated first: as stated, else enough for an error of their mean."""
        if self.simulation.replications:
            return self.simulation.replications
        measured = self.measured_steps
        cycles = len(measured) // self.cycle_steps
        affordable = MOST_SAMPLES // (measured.stop * self.workload.samples_per_step)
        return max(2, min(affordable, math.ceil(LEAST_CYCLES / cycles)))

    @property
    def decoding_gpus(self) -> int:
        """GPUs that generate but those that prefill alone."""
        return self.cluster.generation - (0 if self.engine.prefill is None else self.engine.prefill.gpus)

    @property
    def replicas(self) -> int:
        """Engines that decode."""
        return self.decoding_gpus // self.engine.gpus_per_replica

    @property
    def known_batches(self) -> bool:
        """Whether the batch of a step is known before it is generated: not where a trainer takes what is done first."""
        return not self.workload.racing if self.loop.mode == "sync" else self.loop.asynchrony.membership == "target"

    @property
    def cycle_steps(self) -> int:
        """Consecutive steps that make one observation (:func:`~rlsim.workload.draw.steps_per_lag_cycle`)."""
        return self.loop.asynchrony.cycle_steps if self.loop.mode == "async" else self.workload.cycle_steps

    @property
    def driver_bytes_per_s(self) -> float | None:
        """Rate at which one driver hands the padded batch over: as stated, else the stack's; None: it does not."""
        stack = None if self.loop.supervised else self.training_stack  # each rank reads its own part of a data set
        return self.loop.driver_bytes_per_s or (None if stack is None else stack.driver_bytes_per_s)

    @property
    def refit_framework(self) -> str:
        """Framework whose measured weight transfers count: the stated one, else that of the stack."""
        return self.loop.refit_framework or (NEMO_RL if self.stack is None else self.stack.framework)

    @property
    def training_features(self) -> StackFeatures:
        """What the trainer does: as stated, else as its stack does on this hardware."""
        stack = self.training_stack
        features = StackFeatures() if stack is None else stack.trainer_features(self.training_device.rack)
        names = StackFeatures.model_fields
        stated = {name: getattr(self.trainer, name) for name in names if getattr(self.trainer, name) is not None}
        if features.flash_attention_2 is None:
            stated.setdefault("flash_attention_2", self.trainer.backend == "fsdp")
        # Each was validated as a key of the trainer: a search of layouts asks for this at every one of thousands.
        return replaced(features, stated)

    def model_post_init(self, context: Any, /) -> None:
        """What pydantic calls when all sections are there."""
        self.fits_together()

    def fits_together(self) -> Self:
        """Itself. Raises ValueError where its sections do not fit each other."""
        _simulated_steps(self)
        for check in (check_half, _loop_and_cluster, _engine_and_model, _trainer_and_model, _global_batch, _run):
            check(self)
        check_drafting(self.speculation, self.model, self.engine.tensor_parallel)
        return self


def _simulated_steps(s: Scenario) -> None:
    measured, replications = s.measured_steps, s.replications
    count = measured.stop * replications
    if count > MAX_SIMULATED_STEPS:
        raise ValueError(
            f"simulation: ({measured.start:,} warmup_steps + {len(measured):,} steps) x {replications:,} replications"
            f" are {count:,} simulated steps; at most {MAX_SIMULATED_STEPS:,} are simulated"
        )


def _loop_and_cluster(s: Scenario) -> None:
    if s.training_hardware is not None and s.cluster.colocated:
        raise ValueError(
            "training_hardware needs GPUs that train alone: give cluster.generation_gpus and cluster.training_gpus"
        )
    if s.loop.mode == "async":
        _asynchrony(s)
        _whole_rollouts(s)
    if s.engine.migration != "none" and (s.workload.racing or s.workload.agent is not None):
        raise ValueError(
            "engine.migration moves single responses that a step awaits: give neither workload.agent nor "
            "workload.tail_batching beside it"
        )
    if s.loop.streaming:
        _streaming(s)
    _refit(s)
    agent = s.workload.agent
    alone = agent is not None and (agent.sandboxes is not None or agent.starts)
    if alone and s.engine.dispatch == "static":
        raise ValueError(
            "workload.agent.max_trajectories, nodes and start_s let trajectories start one by one, which "
            "engine.dispatch static cannot deal out; give round_robin, least_loaded or shared_queue"
        )
    if s.engine.kv_offload is not None and (agent is None or not s.engine.prefix_caching):
        raise ValueError("engine.kv_offload holds agents' prefixes: give workload.agent and engine.prefix_caching true")
    if s.run is not None and s.run.turns_growth and (agent is None or agent.replay is not None):
        raise ValueError("run.turns_growth scales turns that are drawn: give workload.agent, without replay")
    if (pooled := sum(pool.gpus for pool in s.pools)) != s.cluster.pool_gpus:
        raise ValueError(f"pools: their gpus ({pooled}) must equal cluster.pool_gpus ({s.cluster.pool_gpus})")
    if s.decoding_gpus < 1 or s.decoding_gpus % s.engine.gpus_per_replica:
        beside = "" if s.engine.prefill is None else " that are left of engine.prefill"
        raise ValueError(
            f"engine.tensor_parallel x pipeline_parallel ({s.engine.gpus_per_replica}) must divide the "
            f"{s.decoding_gpus} generation GPUs{beside} (cluster.num_gpus or cluster.generation_gpus)"
        )


def _whole_rollouts(s: Scenario) -> None:
    """What only a synchronous loop, which awaits its rollouts, can do."""
    for stated, key, instead in (
        (s.workload.usable_group_share < 1, "workload.usable_group_share below 1", "workload.generated_batch_factor"),
        (s.workload.tail_batching is not None, "workload.tail_batching", "loop.membership first_done"),
        (s.engine.migration != "none", "engine.migration", "engine.dispatch least_loaded"),
    ):
        if stated:
            raise ValueError(f"{key} needs loop.mode sync, whose steps are whole rollouts; give {instead} instead")


def _asynchrony(s: Scenario) -> None:
    rules = s.loop.asynchrony
    if s.cluster.colocated and rules.overlap:
        raise ValueError(
            "loop.mode async needs a split cluster: give cluster.generation_gpus and cluster.training_gpus (or "
            "loop.overlap false, which lets both take turns on the same GPUs)"
        )
    if s.cluster.colocated and rules.at_update == "keep":
        raise ValueError(
            "loop.overlap false on the same GPUs frees the KV cache of running requests: give loop.recompute_kv, "
            "loop.restart_requests or loop.in_flight_updates false"
        )
    batch = math.ceil(s.workload.prompts_per_step * s.workload.generated_batch_factor - 1e-9)
    together, stated = rules.unit == "batch", s.loop.max_in_flight_groups
    if (together or rules.waiting) and stated is not None and stated < batch:
        why = "start together (loop.start_unit batch)" if together else f"wait (loop.style {s.loop.style})"
        raise ValueError(f"loop.max_in_flight_groups ({stated}) must hold the {batch} groups of a batch, which {why}")
    if s.cluster.colocated and rules.update_every > 1:
        raise ValueError("loop.update_every above 1 needs a split cluster: shared GPUs hand over at every step")


def _streaming(s: Scenario) -> None:
    if s.cluster.colocated:
        raise ValueError(
            "loop.streaming needs a trainer on GPUs of its own: give cluster.generation_gpus and cluster.training_gpus"
        )
    if s.workload.tail_batching is not None:
        raise ValueError(
            "loop.streaming trains on samples before a race of workload.tail_batching tells which of them count; give "
            "one of both"
        )


def _refit(s: Scenario) -> None:
    method, fitted = s.loop.refit_method, s.simulation.transfer_parameters
    if method == "cuda_ipc" and not s.cluster.colocated:
        raise ValueError("loop.refit_method cuda_ipc needs generation and training on the same GPUs")
    if method in SPLIT_METHODS and s.cluster.colocated:
        raise ValueError(f"loop.refit_method {method} needs a split cluster (cluster.generation_gpus)")
    if fitted is not None and s.loop.refit_framework not in (None, *fitted.names, OTHER):
        raise ValueError(
            f"simulation.transfer_parameters {fitted.name} holds no loop.refit_framework "
            f"{str(s.loop.refit_framework)[:40]!r}, only {', '.join(fitted.names)} and {OTHER}"
        )


def _engine_and_model(s: Scenario) -> None:
    engine, model, fitted = s.engine, s.model, s.simulation.engine_parameters
    if fitted is not None and engine.name not in fitted.names:
        raise ValueError(
            f"simulation.engine_parameters {fitted.name} holds no family for engine.name {engine.name}, "
            f"only {', '.join(fitted.names)}"
        )
    if s.workload.images is not None:
        check_images(s.workload.images, model.vision, model.name)
    check_engine(engine, model, s.hardware)


def _trainer_and_model(s: Scenario) -> None:
    if s.loop.rollouts_alone:
        return
    trainer, model, gpus, apart = s.trainer, s.model, s.cluster.training, s.cluster.reference_gpus
    check_layout("trainer", trainer.tensor_parallel, trainer.pipeline_parallel, trainer.expert_parallel, model)
    if trainer.virtual_stages > 1 and trainer.pipeline_parallel * trainer.virtual_stages > model.num_layers + 2:
        raise ValueError(
            f"trainer.pipeline_parallel x virtual_stages ({trainer.pipeline_parallel * trainer.virtual_stages}) "
            f"exceeds the {model.num_layers} layers of {model.name}, its embedding and its head"
        )
    if trainer.precision == "nvfp4" and s.training_device.nvfp4_flops is None:
        raise ValueError(f"trainer.precision nvfp4 is not supported by {s.training_device.name}; take bf16 or fp8")
    shard = trainer.tensor_parallel * trainer.pipeline_parallel * trainer.context_parallel
    sizes = "trainer.tensor_parallel x pipeline_parallel x context_parallel"
    check_divides(shard, gpus, sizes, "training GPUs (cluster.num_gpus or cluster.training_gpus)")
    if apart and not trainer.reference_logprobs:
        raise ValueError("cluster.reference_gpus has nothing to do with trainer.reference_logprobs false")
    check_divides(shard, apart, sizes, "of cluster.reference_gpus")
    if model.moe is not None:
        check_divides(
            trainer.expert_parallel, model.moe.num_experts, "trainer.expert_parallel", f"experts of {model.name}"
        )
        spread, named = trainer.expert_parallel * trainer.expert_tensor_parallel, "trainer.expert_parallel"
        named += " x expert_tensor_parallel" if trainer.expert_tensor_parallel > 1 else ""
        for count, pool in ((gpus, "training"), (apart, "reference")):
            stage = f"{pool} GPUs of one pipeline stage (cluster.num_gpus or cluster.{pool}_gpus)"
            check_divides(spread, count // trainer.pipeline_parallel, named, stage)
    if (local := trainer.local_batch_samples) is not None:
        if trainer.sequence_packing:
            raise ValueError("trainer.local_batch_samples needs trainer.sequence_packing false")
        check_divides(
            trainer.micro_batch_samples, local, "trainer.micro_batch_samples", "samples of trainer.local_batch_samples"
        )
    if trainer.mtp_layers and not model.mtp_layers:
        raise ValueError(f"trainer.mtp_layers ({trainer.mtp_layers}) needs a native MTP head; {model.name} has none")


def _global_batch(s: Scenario) -> None:
    batch = None if s.loop.rollouts_alone else s.trainer.global_batch_samples
    if batch is not None and batch > s.workload.samples_per_step:
        raise ValueError(
            f"trainer.global_batch_samples ({batch}) exceeds the {s.workload.samples_per_step} samples of a step "
            "(workload.prompts_per_step x generations_per_prompt)"
        )
    if batch is not None:
        check_divides(batch, s.workload.samples_per_step, "trainer.global_batch_samples", "samples of a step")


def _run(s: Scenario) -> None:
    validation = None if s.run is None else s.run.validation
    if validation is not None and validation.samples is not None and s.workload.agent is not None:
        raise ValueError("run.validation.samples cannot price trajectories of workload.agent; give seconds instead")
