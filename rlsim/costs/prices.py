"""price(): every second of a run, before time passes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlsim.costs.borrowed import tables_error
from rlsim.costs.device import Device, device_of
from rlsim.costs.engine_prices import EngineInputs, engine_inputs, engine_prices
from rlsim.costs.interface import Prices
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


@dataclass(frozen=True)
class PriceInputs:
    """A scenario taken apart into what each half depends on."""

    device: Device
    overheads: Overheads
    transfers: WeightTransfer
    engine_memory: EngineMemory
    engine: EngineInputs
    trainer: TrainerInputs


def price_inputs(scenario: Scenario, tables: OperatorTables | None = None) -> PriceInputs:
    """What prices of ``scenario`` depend on; its halves can be priced apart.

    tables: measured operator tables; by default those that the hardware profile names, of the scenario's engine. Raises
    Infeasible where the engine does not fit its GPU and InputError where tables are missing.
    """
    device = device_of(scenario.hardware, scenario.engine.name, tables)
    device = replace(device, rack_aligned=scenario.rack_aligned)
    overheads = overheads_of(scenario, fitted_of(scenario), tables_error(device.operators.sources))
    transfers = WeightTransfer(scenario, device.fabric, overheads)
    memory = engine_memory(scenario)
    prompt_tokens = expected_prompt_tokens(scenario.workload)
    return PriceInputs(
        device,
        overheads,
        transfers,
        memory,
        engine_inputs(scenario, device, overheads.engine, prompt_tokens, memory.kv_capacity_tokens),
        trainer_inputs(scenario, device, overheads.training, transfers),
    )


def price(scenario: Scenario, workload: DrawnWorkload, tables: OperatorTables | None = None) -> ScenarioPrices:
    """Price everything that ``scenario`` does with ``workload``; arguments as of :func:`price_inputs`.

    Raises Infeasible where the scenario cannot run.
    """
    return priced(scenario, price_inputs(scenario, tables), workload)


def priced(scenario: Scenario, inputs: PriceInputs, workload: DrawnWorkload) -> ScenarioPrices:
    """Price ``workload`` of a scenario taken apart before. Raises Infeasible where the trainer does not fit."""
    trainer_bytes = trainer_memory(scenario)
    engine = engine_prices(inputs.engine)
    trained = (TrainedBatch.of(s.trained_tokens, s.generated_samples) for s in workload.steps[: workload.trained])
    return ScenarioPrices(
        iteration=engine.table,
        replicas=scenario.cluster.generation // scenario.engine.gpus_per_replica,
        prepare=inputs.transfers.prepare(),
        refit=inputs.transfers.transfer(),
        wake=inputs.transfers.sleep_between_rollouts(),
        steps=tuple(step_cost(inputs.trainer, batch) for batch in trained),
        engine=engine,
        engine_memory=inputs.engine_memory,
        trainer_bytes=trainer_bytes,
        overheads=inputs.overheads,
        stand_in=inputs.device.stand_in,
    )
