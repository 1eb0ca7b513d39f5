"""Costs shared between cells: what two scenarios have in common is priced once per process.

The iteration table depends on model, hardware, engine, drafter and cap; training on the trainer and its GPUs. Every
shared value is the one that :func:`rlsim.costs.model.build_costs` gives, so sharing never changes an answer.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from rlsim.costs.fabric import Fabric
from rlsim.costs.memory import trainer_memory
from rlsim.costs.model import ScenarioCosts, build_costs
from rlsim.costs.overheads import overheads_of
from rlsim.costs.packing import MicroBatches
from rlsim.costs.reference import reference_profile
from rlsim.costs.refit import WeightMovement
from rlsim.costs.seam import FloatArray, PhaseCost
from rlsim.hardware.fitted import parameters_of
from rlsim.hardware.tables import OperatorTables
from rlsim.schema.scenario import Scenario

ENGINES_KEPT = 48
"""Iteration tables kept per process; one of 8,192 sequences takes some 50 MB with its parts."""
TRAINERS_KEPT = 4096
_ACCEPTANCE = ("acceptance_length", "position_acceptance", "first_acceptance", "acceptance_decay")

T = TypeVar("T")


class Kept:
    """The most recently used values by key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, object] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of ``key``, made where it is missing."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]  # type: ignore[return-value]
        value = make()
        self._values[key] = value
        if len(self._values) > self._most:
            self._values.popitem(last=False)
        return value


@dataclass(frozen=True)
class SharedCosts(ScenarioCosts):
    """Costs that remember what training on a batch takes."""

    known: dict[tuple[str, bytes], PhaseCost] = field(default_factory=dict)

    def logprob(self, total_tokens: FloatArray) -> PhaseCost:
        """Log-prob passes, priced once per batch."""
        return self._remembered("logprob", total_tokens, super().logprob)

    def train(self, total_tokens: FloatArray) -> PhaseCost:
        """All optimizer steps, priced once per batch."""
        return self._remembered("train", total_tokens, super().train)

    def _batches(self, total_tokens: FloatArray, capacity: float, steps: int) -> MicroBatches:
        """Packing, found once for all trainers that pack alike."""
        trainer = self.scenario.trainer
        alike = (
            self.training.layout.data_parallel,
            capacity,
            steps,
            trainer.tensor_parallel,
            trainer.context_parallel,
            trainer.sequence_packing,
            trainer.micro_batch_samples,
        )
        key = (alike, hashlib.blake2b(total_tokens.tobytes(), digest_size=16).digest())
        return _packings.get(key, lambda: super(SharedCosts, self)._batches(total_tokens, capacity, steps))

    def _remembered(self, name: str, tokens: FloatArray, price: Callable[[FloatArray], PhaseCost]) -> PhaseCost:
        key = (name, hashlib.blake2b(tokens.tobytes(), digest_size=16).digest())
        if key not in self.known:
            self.known[key] = price(tokens)
        return self.known[key]


_engines = Kept(ENGINES_KEPT)
_trainers = Kept(TRAINERS_KEPT)
_packings = Kept(TRAINERS_KEPT)
_tables = Kept(16)
_fabrics = Kept(16)


def shared_costs(scenario: Scenario) -> SharedCosts:
    """Costs of ``scenario``; raises Infeasible where it cannot run and InputError where its tables are missing."""
    built: ScenarioCosts = _engines.get(engine_key(scenario), lambda: build_costs(scenario, _operator_tables(scenario)))
    known: dict[tuple[str, bytes], PhaseCost] = _trainers.get(trainer_key(scenario), dict)
    overheads = overheads_of(scenario, parameters_of(scenario))
    own = replace(
        built,
        scenario=scenario,
        training=replace(built.training, trainer=scenario.trainer, gpus=scenario.cluster.training, overheads=overheads),
        movement=replace(built.movement, scenario=scenario, overheads=overheads),
        overheads=overheads,
        trainer_bytes=trainer_memory(scenario),
    )
    return SharedCosts(**vars(own), known=known)


def transfer_s(scenario: Scenario) -> float:
    """Seconds of the weight transfer, with everything around it in a synchronous step, without pricing iterations."""
    fabric: Fabric = _fabrics.get((scenario.hardware, scenario.engine.name), lambda: _fabric(scenario))
    movement = WeightMovement(scenario, fabric, overheads_of(scenario, parameters_of(scenario)))
    return (movement.prepare() if scenario.loop.mode == "sync" else movement.transfer()).seconds


def _fabric(scenario: Scenario) -> Fabric:
    return Fabric(scenario.hardware, _operator_tables(scenario), reference_profile(scenario.hardware))


def engine_key(scenario: Scenario) -> Hashable:
    """Everything that an engine iteration depends on."""
    speculation = scenario.speculation
    drafting = tuple(getattr(speculation, name) for name in type(speculation).model_fields if name not in _ACCEPTANCE)
    workload, loop = scenario.workload, scenario.loop
    batch = (
        workload.samples_per_step,
        workload.generated_batch_factor,
        workload.generations_per_prompt,
        workload.max_sequence_tokens,
        workload.prompt_tokens,
        max(1, loop.policy_lag),
    )
    drafted = drafting if speculation.active else None
    place = (scenario.cluster.generation, scenario.simulation.parameters)
    return (scenario.model, scenario.hardware, scenario.engine, drafted, batch, place)


def trainer_key(scenario: Scenario) -> Hashable:
    """Everything that training on a given batch depends on."""
    trained = scenario.speculation if scenario.speculation.online_training else None
    return (
        scenario.model,
        scenario.hardware,
        scenario.engine.name,
        scenario.trainer,
        scenario.cluster,
        scenario.workload.max_sequence_tokens,
        scenario.simulation.parameters,
        trained,
    )


def _operator_tables(scenario: Scenario) -> OperatorTables | None:
    system = scenario.hardware.operator_tables
    if system is None:
        return None
    return _tables.get((system, scenario.engine.name), lambda: OperatorTables.load(system, scenario.engine.name))
