"""price(): every second of a run, before time passes."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.engine.draft_policy import DraftPolicy
from rlsim.costs.engine.iteration import IterationCosts
from rlsim.costs.engine.prices import EngineInputs, engine_inputs, engine_prices, engine_times, running_at_most
from rlsim.costs.interface import KvTier, Part, PhaseCost, PrefillService, Prices, StepCost
from rlsim.costs.links import node_link
from rlsim.costs.measured import hand_over, stack_of
from rlsim.costs.memory import (
    EngineMemory,
    check_beside,
    check_host,
    engine_memory,
    kv_bytes_per_gpu_token,
    trainer_memory,
)
from rlsim.costs.operators.device import Device, datasheet_factors, device_of, tables_error
from rlsim.costs.operators.groups import phase_groups
from rlsim.costs.overheads import Overheads, factor_of, overheads_of
from rlsim.costs.pools import PoolInputs, alone, with_pools
from rlsim.costs.trainer.layout import TrainedBatch
from rlsim.costs.trainer.training import TrainerInputs, step_cost, trainer_inputs
from rlsim.costs.transfer.job import WeightTransfer
from rlsim.errors import Infeasible
from rlsim.parameters.sets import Fitted
from rlsim.parameters.terms import fitted_of
from rlsim.results import MemoryParts
from rlsim.schema.base import replaced
from rlsim.schema.scenario import Scenario
from rlsim.schema.stated import Pool
from rlsim.schema.trainer import Trainer
from rlsim.tables.operators import OperatorTables
from rlsim.units import FloatArray
from rlsim.workload.acceptance import DraftPlan
from rlsim.workload.acceptance_steps import draft_outlook, draft_plan
from rlsim.workload.batches import expected_prompt_tokens, expected_response_tokens
from rlsim.workload.draw import DrawnStep, DrawnWorkload


class ScenarioPrices(Prices, frozen=True):
    """Prices with what a summary shows of them: parts of an iteration, memory per GPU in bytes, and overheads.

    stand_in: engine whose operator tables stand in for those of the scenario's; None where it has its own.
    """

    engine: IterationCosts
    engine_memory: EngineMemory
    trainer_bytes: MemoryParts
    overheads: Overheads
    stand_in: str | None = None


class PriceInputs(Struct, frozen=True, eq=False, dict=True):
    """A scenario taken apart into what each half depends on, each found where it is asked for.

    tables: in place of those that the hardware profile names. bare: for times alone, without the parts of an iteration.
    """

    scenario: Scenario
    tables: OperatorTables | None = None
    bare: bool = False
    moved: Overheads | None = None
    """Overheads in place of the scenario's own: those of another layout of its trainer, see :meth:`of_trainer`."""
    slower_exchange: float = 1.0
    """Factor on exchanges of experts over a network whose latency was fitted."""

    @cached_property
    def device(self) -> Device:
        """The generating GPU with its tables and links. Raises InputError where tables are missing."""
        scenario = self.scenario
        network = node_link(scenario).of_gpu(scenario.hardware, self.slower_exchange)
        return device_of(scenario.hardware, scenario.engine.name, self.tables, scenario.rack_aligned, network)

    @cached_property
    def training_device(self) -> Device:
        """The training GPU, where it is another kind with the tables of its profile."""
        scenario, kind = self.scenario, self.scenario.training_hardware
        if kind is None:
            return self.device
        network = node_link(scenario).of_gpu(kind, self.slower_exchange)
        return device_of(kind, scenario.engine.name, None, scenario.rack_aligned, network)

    @cached_property
    def overheads(self) -> Overheads:
        """Host and framework costs."""
        if self.moved is not None:
            return self.moved
        measured = stack_of(self.scenario)
        # The larger of both kinds of GPU: one number widens all phases that tables price.
        tables = max(tables_error(one.operators.sources) for one in (self.device, self.training_device))
        error = tables if measured is None else measured.error
        return overheads_of(self.scenario, self.fitted, error, self._datasheet)

    @property
    def _datasheet(self) -> tuple[float, float]:
        """Factors on generation and training of devices that nobody measured; 1 where a stack's own times are."""
        known = stack_of(self.scenario) is not None
        return (1.0, 1.0) if known else datasheet_factors(self.device, self.training_device)

    @cached_property
    def fitted(self) -> Fitted:
        """The sets that overheads come from."""
        return fitted_of(self.scenario)

    def of_trainer(self, trainer: Trainer) -> PriceInputs:
        """Inputs with another layout of the trainer; of the overheads only the deviations of its groups change."""
        scenario, now = replaced(self.scenario, {"trainer": trainer}), self.overheads
        groups = phase_groups(scenario)
        train, logprob, transfer = (
            factor_of(scenario, self.fitted, phase, groups[phase]) for phase in ("train", "logprob", "transfer")
        )
        ratio, train = logprob / train, train * self._datasheet[1]
        if (train, ratio, transfer) != (now.training.factor, now.training.logprob_factor, now.refit.factor):
            training = replace(now.training, factor=train, logprob_factor=ratio)
            refit = replace(now.refit, factor=transfer)
            now = replace(now, training=training, refit=refit)
        return PriceInputs(scenario, self.tables, moved=now)

    @cached_property
    def transfers(self) -> WeightTransfer:
        """Weights between trainer and engine."""
        return WeightTransfer(self.scenario, self.training_device.fabric, self.overheads)

    @cached_property
    def engine_memory(self) -> EngineMemory:
        """Memory of an engine GPU. Raises Infeasible where the engine does not fit."""
        return engine_memory(self.scenario)

    @cached_property
    def engine(self) -> EngineInputs:
        """Inputs of the iteration table. Raises Infeasible where the engine does not fit."""
        scenario, memory = self.scenario, self.engine_memory
        prompt, room = expected_prompt_tokens(scenario.workload), memory.kv_capacity_tokens
        inputs = engine_inputs(scenario, self.device, self.overheads.engine, prompt, room)
        return replace(running_at_most(inputs, memory.running_sequences), policy=_policy(scenario))

    @cached_property
    def draft_plan(self) -> DraftPlan | None:
        """Draft lengths along a response where they follow the live batch; None where samples accept alike anyway."""
        scenario, engine = self.scenario, self.engine
        choice = None if scenario.speculation.variation is None else engine_prices(engine).choice
        if choice is None or engine.policy is None:
            return None
        workload, replicas = scenario.workload, scenario.replicas
        # The batch in training is no longer with the engines.
        ahead = max(1.0, scenario.loop.asynchrony.pace - 1.0) if scenario.loop.mode == "async" else 1.0
        given = workload.samples_per_step * workload.generated_batch_factor * workload.launch_factor * ahead
        drafted = np.rint(choice.drafted).astype(np.int64)
        draining = scenario.loop.mode == "sync" and workload.agent is None
        return draft_plan(workload, engine.policy.lengths, drafted, given / replicas, draining)

    @cached_property
    def trainer(self) -> TrainerInputs:
        """Inputs of log-prob passes and updates. Raises Infeasible where micro-batches hold no mean sample."""
        _check_micro_batch(self.scenario)
        return trainer_inputs(self.scenario, self.training_device, self.overheads.training, self.transfers)

    def batch_cost(self, total_tokens: FloatArray, generated_samples: int) -> StepCost:
        """The trainer's work on a batch: total tokens of its samples, and how many were generated for it."""
        return self.step_cost(TrainedBatch.of(total_tokens, generated_samples))

    def step_cost(self, batch: TrainedBatch) -> StepCost:
        """The trainer's work on a batch with that of the pools."""
        if self.scenario.loop.rollouts_alone:
            nothing, reward_s = PhaseCost(0.0), self.scenario.workload.batch_reward_s
            rewarded = PhaseCost.of([Part("reward", reward_s, "host", "assumed")])
            return with_pools(self.pools, StepCost(rewarded, nothing, nothing), batch)
        return with_pools(self.pools, step_cost(self.trainer, batch), batch)

    @cached_property
    def pools(self) -> tuple[PoolInputs, ...]:
        """Inputs of the models beside the policy. Raises Infeasible where one does not fit."""
        return tuple(_pool_inputs(self.scenario, pool) for pool in self.scenario.pools)

    @cached_property
    def before_work(self) -> ScenarioPrices:
        """All that no drawn work changes, without any steps. Raises Infeasible where the scenario cannot run."""
        scenario, transfers = self.scenario, self.transfers
        check_beside(scenario)
        check_host(scenario)
        engine = (engine_times if self.bare else engine_prices)(self.engine)
        lagged = scenario.loop.mode == "async"
        handed = None if (stack := stack_of(scenario)) is None else hand_over(stack)
        nobody = scenario.loop.supervised or scenario.loop.rollouts_alone  # to hand weights over, or to wake for
        if nobody:
            handed = PhaseCost(0.0)
        return ScenarioPrices(
            iteration=engine.table,
            replicas=scenario.replicas,
            prepare=handed or transfers.prepare(),
            refit=handed or (transfers.prepare() if lagged and scenario.cluster.colocated else transfers.transfer()),
            wake=PhaseCost(0.0) if nobody else transfers.sleep_between_rollouts(),
            steps=(),
            batch=self.batch_cost,
            kv_token_s=self._kv_token_s(),
            tier=self._tier(),
            prefill=self._prefill(),
            engine=engine,
            engine_memory=self.engine_memory,
            trainer_bytes=trainer_memory(scenario),
            overheads=self.overheads,
            stand_in=self.device.stand_in,
        )

    def _kv_token_s(self) -> float:
        """Each GPU of a replica sends its share to its like in another, over NVLink where that joins all of them."""
        fabric, scenario = self.device.fabric, self.scenario
        # Requests may move between any two replicas: one pair across the network sets the rate.
        across = scenario.cluster.generation > fabric.domain
        return float(fabric.broadcast(kv_bytes_per_gpu_token(scenario), across).seconds)

    def _prefill(self) -> PrefillService | None:
        """Engines that prefill alone, priced as any other of their layout. Raises Infeasible where none fits."""
        scenario, given = self.scenario, self.scenario.engine.prefill
        if given is None:
            return None
        own = PriceInputs(replaced(scenario, {"engine": scenario.engine.of_prefill}), self.tables, bare=True)
        table, budget = engine_times(own.engine).table, own.engine.engine.budget_tokens
        full_s = float(np.interp(budget, table.prefill_grid_tokens, table.prefill_s[0]))
        sent_s = self._kv_token_s()
        if given.bytes_per_s is not None:
            sent_s = kv_bytes_per_gpu_token(scenario) / given.bytes_per_s
        engines = given.gpus // own.scenario.engine.gpus_per_replica
        return PrefillService(engines, table, full_s / budget, sent_s, given.latency_s)

    def _tier(self) -> KvTier | None:
        """What kv_offload holds; copies of the attention read side by side."""
        given, engine = self.scenario.engine.kv_offload, self.scenario.engine
        if given is None:
            return None
        token_bytes = kv_bytes_per_gpu_token(self.scenario) / engine.attention_data_parallel
        link_s = float(self.device.fabric.host_copy(token_bytes).seconds)
        read_s = link_s if given.bytes_per_s is None else token_bytes / given.bytes_per_s
        capacity, sent_s = int(given.capacity_bytes / token_bytes), 0.0
        if given.store_bytes_per_s is not None:
            sent_s = token_bytes * engine.gpus_per_replica / given.store_bytes_per_s
        through = given.write == "through"
        return KvTier(capacity, read_s, given.latency_s, through, given.shared, given.prefetch, sent_s)


def _pool_inputs(scenario: Scenario, pool: Pool) -> PoolInputs:
    """A pool as a scenario of its own, taken apart as any other. Raises Infeasible where its model does not fit."""
    own = PriceInputs(alone(scenario, pool))
    swap_s = 0.0 if pool.gpus else own.transfers.reference_swap_s() / 2  # its weights in and out
    replicas = own.scenario.cluster.num_gpus // pool.gpus_per_replica
    found = PoolInputs(pool, replicas, swap_s, scenario.loop.mode == "async")
    if pool.runs_on == "trainer":
        return replace(found, trainer=own.trainer)
    room = own.engine_memory.kv_capacity_tokens
    samples = expected_prompt_tokens(scenario.workload) + expected_response_tokens(scenario.workload)
    return replace(found, engine=engine_inputs(own.scenario, own.device, own.overheads.engine, samples, room))


def _check_micro_batch(scenario: Scenario) -> None:
    """A packed micro-batch holds a sample of mean length; a longer one has a micro-batch of its own."""
    trainer, workload = scenario.trainer, scenario.workload
    capacity = trainer.micro_batch_tokens
    mean = expected_prompt_tokens(workload) + expected_response_tokens(workload)
    if scenario.sequence_packing and capacity is not None and mean > capacity:
        raise Infeasible(
            "samples of mean length exceed trainer.micro_batch_tokens; raise it, or lower the lengths", mean, capacity,
            "tokens",
        )  # fmt: skip


def _policy(scenario: Scenario) -> DraftPolicy | None:
    """The policy by which draft lengths follow the live batch; None where the length is fixed.

    The acceptance is that of the middle one of the measured steps: a run has one iteration table.
    """
    speculation, workload = scenario.speculation, scenario.workload
    if not speculation.active or speculation.policy == "fixed":
        return None
    steps = scenario.measured_steps
    lengths, kinds = draft_outlook(speculation, workload, (steps.start + steps.stop - 1) // 2)
    context = expected_prompt_tokens(workload) + 0.5 * expected_response_tokens(workload)
    above, schedule = speculation.off_above_sequences, speculation.schedule
    return DraftPolicy(speculation.policy, above, context, lengths, kinds, schedule)


def price(scenario: Scenario, workload: DrawnWorkload, tables: OperatorTables | None = None) -> ScenarioPrices:
    """Price everything that ``scenario`` does with ``workload``; ``tables`` as in :class:`PriceInputs`.

    Raises Infeasible where the scenario cannot run.
    """
    return priced(PriceInputs(scenario, tables), workload)


def priced(inputs: PriceInputs, workload: DrawnWorkload) -> ScenarioPrices:
    """Price ``workload`` of a scenario taken apart before. Raises Infeasible where the scenario cannot run."""
    # Other batches are priced when the trainer takes them (Prices.batch): nobody knows them before.
    known = workload.steps[: workload.trained] if inputs.scenario.known_batches else ()
    steps = tuple(inputs.step_cost(trained_batch(step)) for step in known)
    return replace(inputs.before_work, steps=steps)


def trained_batch(step: DrawnStep) -> TrainedBatch:
    """The batch that a drawn step trains on; its digest is taken once, however many trainers are priced on it."""
    return TrainedBatch(step.trained_tokens, step.generated_samples, step.trained_digest)
