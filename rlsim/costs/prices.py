"""price(): every second of a run, before time passes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from rlsim.costs.borrowed import tables_error
from rlsim.costs.device import Device, device_of
from rlsim.costs.engine_prices import EngineInputs, engine_inputs, engine_prices
from rlsim.costs.interface import FloatArray, Prices, StepCost
from rlsim.costs.iteration import IterationCosts
from rlsim.costs.memory import EngineMemory, engine_memory, trainer_memory
from rlsim.costs.overheads import Overheads, overheads_of
from rlsim.costs.trainer_prices import TrainedBatch, TrainerInputs, step_cost, trainer_inputs
from rlsim.costs.weight_transfer import WeightTransfer
from rlsim.hardware.fitted import fitted_of
from rlsim.hardware.tables import OperatorTables
from rlsim.results import MemoryParts
from rlsim.schema.scenario import Scenario
from rlsim.workload.batches import expected_prompt_tokens
from rlsim.workload.draw import DrawnWorkload


@dataclass(frozen=True)
class ScenarioPrices(Prices):
    """Prices with what a summary tells of them: parts of an iteration, memory per GPU in bytes, and overheads.

    stand_in: engine whose operator tables stand in for those of the scenario's; None where it has its own.
    """

    engine: IterationCosts
    engine_memory: EngineMemory
    trainer_bytes: MemoryParts
    overheads: Overheads
    stand_in: str | None = None


@dataclass(frozen=True, eq=False)
class PriceInputs:
    """A scenario taken apart into what each half depends on, each found where it is asked for.

    tables: in place of those that the hardware profile names.
    """

    scenario: Scenario
    tables: OperatorTables | None = None

    @cached_property
    def device(self) -> Device:
        """The GPU with its tables and links. Raises InputError where tables are missing."""
        scenario = self.scenario
        return device_of(scenario.hardware, scenario.engine.name, self.tables, scenario.rack_aligned)

    @cached_property
    def overheads(self) -> Overheads:
        """Host and framework costs."""
        error = tables_error(self.device.operators.sources)
        return overheads_of(self.scenario, fitted_of(self.scenario), error)

    @cached_property
    def transfers(self) -> WeightTransfer:
        """Weights between trainer and engine."""
        return WeightTransfer(self.scenario, self.device.fabric, self.overheads)

    @cached_property
    def engine_memory(self) -> EngineMemory:
        """Memory of an engine GPU. Raises Infeasible where the engine does not fit."""
        return engine_memory(self.scenario)

    @cached_property
    def engine(self) -> EngineInputs:
        """What an iteration table depends on. Raises Infeasible where the engine does not fit."""
        prompt_tokens = expected_prompt_tokens(self.scenario.workload)
        memory = self.engine_memory
        return engine_inputs(
            self.scenario,
            self.device,
            self.overheads.engine,
            prompt_tokens,
            memory.kv_capacity_tokens,
            memory.running_sequences,
        )

    @cached_property
    def trainer(self) -> TrainerInputs:
        """What log-prob passes and updates depend on."""
        return trainer_inputs(self.scenario, self.device, self.overheads.training, self.transfers)


def price(scenario: Scenario, workload: DrawnWorkload, tables: OperatorTables | None = None) -> ScenarioPrices:
    """Price everything that ``scenario`` does with ``workload``; ``tables`` as in :class:`PriceInputs`.

    Raises Infeasible where the scenario cannot run.
    """
    return priced(PriceInputs(scenario, tables), workload)


def priced(inputs: PriceInputs, workload: DrawnWorkload) -> ScenarioPrices:
    """Price ``workload`` of a scenario taken apart before. Raises Infeasible where the scenario cannot run."""
    scenario = inputs.scenario
    engine = engine_prices(inputs.engine)
    trainer_bytes = trainer_memory(scenario)
    lagged = scenario.loop.mode == "async"
    known = workload.steps[: workload.trained] if scenario.known_batches else ()

    def batch(total_tokens: FloatArray, generated_samples: int) -> StepCost:
        return step_cost(inputs.trainer, TrainedBatch.of(total_tokens, generated_samples))

    return ScenarioPrices(
        iteration=engine.table,
        replicas=scenario.cluster.generation // scenario.engine.gpus_per_replica,
        prepare=inputs.transfers.prepare(),
        refit=inputs.transfers.prepare() if lagged and scenario.cluster.colocated else inputs.transfers.transfer(),
        wake=inputs.transfers.sleep_between_rollouts(),
        steps=tuple(batch(step.trained_tokens, step.generated_samples) for step in known),
        batch=batch,
        engine=engine,
        engine_memory=inputs.engine_memory,
        trainer_bytes=trainer_bytes,
        overheads=inputs.overheads,
        stand_in=inputs.device.stand_in,
    )
