"""The cost model of one scenario: everything the simulation may ask for, built once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rlsim.costs.draft import Drafting, draft_card
from rlsim.costs.fabric import Fabric
from rlsim.costs.iteration import IterationCosts, build_iteration
from rlsim.costs.layers import EngineLayers
from rlsim.costs.measured import lent_tables, tables_error
from rlsim.costs.memory import EngineMemory, engine_memory, kv_bytes_per_gpu_token, trainer_memory
from rlsim.costs.operators import Operators
from rlsim.costs.overheads import Overheads, overheads_of
from rlsim.costs.packing import MicroBatches, micro_batches
from rlsim.costs.reference import reference_profile
from rlsim.costs.refit import WeightMovement
from rlsim.costs.seam import FloatArray, IterationTable, Part, PhaseCost
from rlsim.costs.training import HEAD, TrainingCosts
from rlsim.hardware.fitted import parameters_of
from rlsim.hardware.tables import OperatorTables
from rlsim.schema.drafter import draft_parameters
from rlsim.schema.fitted import FittedParameters
from rlsim.schema.model import parameter_counts
from rlsim.schema.scenario import Scenario
from rlsim.schema.workload import ConstantLength


@dataclass(frozen=True)
class ScenarioCosts:
    """Costs of one scenario on its hardware; implements :class:`rlsim.costs.seam.CostModel`."""

    scenario: Scenario
    iteration_costs: IterationCosts
    training: TrainingCosts
    movement: WeightMovement
    overheads: Overheads
    engine: EngineMemory
    trainer_bytes: dict[str, float]

    @property
    def iteration(self) -> IterationTable:
        """Engine iterations of one replica."""
        return self.iteration_costs.table

    @property
    def replicas(self) -> int:
        """Data-parallel replicas of the engine."""
        return self.scenario.cluster.generation // self.scenario.engine.gpus_per_replica

    def data(self, samples: int) -> PhaseCost:
        """Driver work on one step's batch."""
        return PhaseCost.of([Part("driver", samples * self.scenario.loop.driver_sample_s, "host", "assumed")])

    def prepare(self) -> PhaseCost:
        """Weights to a colocated engine and everything around it."""
        return self.movement.prepare()

    def wake(self) -> PhaseCost:
        """The engine's sleep between two rollouts of a step."""
        return self.movement.wake()

    def refit(self) -> PhaseCost:
        """The weight transfer alone."""
        return self.movement.transfer()

    def _batches(self, total_tokens: FloatArray, capacity: float, steps: int) -> MicroBatches:
        trainer = self.scenario.trainer
        cp = trainer.context_parallel
        multiple = trainer.tensor_parallel * (2 * cp if cp > 1 else 1)
        return micro_batches(
            total_tokens,
            self.training.layout.data_parallel,
            capacity,
            steps,
            multiple,
            trainer.sequence_packing,
            trainer.micro_batch_samples,
        )

    def logprob(self, total_tokens: FloatArray) -> PhaseCost:
        """Log-prob passes of the policy and of the reference, with the swap of weights around the latter."""
        trainer = self.scenario.trainer
        passes = int(trainer.policy_logprobs) + int(trainer.reference_logprobs)
        capacity = (
            trainer.logprob_micro_batch_tokens
            or trainer.micro_batch_tokens
            or self.scenario.workload.max_sequence_tokens
        )
        once = self.training.forward(self._batches(total_tokens, capacity, 1))
        parts = list(once.repeated(passes).parts)
        if trainer.critic:
            parts += self._critic("value pass", once, update=False)
        if trainer.reference_logprobs:
            parts.append(Part("reference swap", self.movement.reference_swap_s(), "host link", "modelled"))
        return PhaseCost.of(parts)

    def train(self, total_tokens: FloatArray) -> PhaseCost:
        """All optimizer steps of one RL step."""
        trainer, workload = self.scenario.trainer, self.scenario.workload
        steps = max(1, math.ceil(len(total_tokens) / (trainer.global_batch_samples or len(total_tokens))))
        capacity = trainer.micro_batch_tokens or workload.max_sequence_tokens
        cost = self.training.step(self._batches(total_tokens, capacity, steps))
        drafter = Part("draft training", cost.seconds * self._draft_training_share(), "compute", "modelled")
        parts = list(PhaseCost.of((*cost.parts, drafter)).repeated(trainer.epochs).parts)
        if trainer.critic:
            parts += self._critic("value update", cost.repeated(trainer.epochs), update=True)
        return PhaseCost.of(parts)

    def _critic(self, name: str, cost: PhaseCost, update: bool) -> list[Part]:
        """The policy's pass or update without its LM head (a value is one number), and the swap around it."""
        bare = [part for part in cost.parts if part.name != HEAD]
        longest = max(bare, key=lambda part: part.seconds)
        swap = Part("value model swap", self.movement.critic_swap_s(update), "host link", "modelled")
        return [Part(name, sum(part.seconds for part in bare), longest.bound, "modelled"), swap]

    def _draft_training_share(self) -> float:
        """FLOP of the draft head's own pass relative to the policy's, where it is trained online."""
        draft = draft_card(self.scenario.speculation, self.scenario.model)
        if draft is None or not self.scenario.speculation.online_training:
            return 0.0
        return draft_parameters(draft, self.scenario.model) / parameter_counts(self.scenario.model).active


def build_costs(
    scenario: Scenario, tables: OperatorTables | None = None, fitted: FittedParameters | None = None
) -> ScenarioCosts:
    """Prepare the costs of ``scenario``; raises Infeasible where it cannot run.

    tables: measured operator tables; by default those that the hardware profile names, of the scenario's engine.
    fitted: parameters that no table holds; by default those that ``simulation.parameters`` names.
    """
    profile = scenario.hardware
    if tables is None and profile.operator_tables is not None:
        tables = OperatorTables.load(profile.operator_tables, scenario.engine.name)
    memory = engine_memory(scenario)
    trainer_bytes = trainer_memory(scenario)
    reference = reference_profile(profile)
    operators = Operators(profile, tables, reference, lent_tables(profile, reference, tables))
    fabric = Fabric(profile, tables, reference)
    layers = EngineLayers(scenario.model, scenario.engine, operators, fabric)
    parameters = fitted or parameters_of(scenario)
    overheads = overheads_of(scenario, parameters, tables_error(operators.sources))
    drafting = Drafting(layers, scenario.speculation, operators.profile.eager_launch_s.value)
    iteration = build_iteration(
        layers,
        drafting,
        overheads,
        _most_sequences(scenario),
        float(scenario.workload.max_sequence_tokens),
        _prompt_tokens(scenario),
        memory.kv_capacity_tokens,
    )
    return ScenarioCosts(
        scenario,
        iteration,
        TrainingCosts(scenario.model, scenario.trainer, operators, fabric, overheads, scenario.cluster.training),
        WeightMovement(scenario, fabric, overheads),
        overheads,
        memory,
        trainer_bytes,
    )


def _most_sequences(scenario: Scenario) -> int:
    """Most sequences that one replica can ever decode at once."""
    workload, engine = scenario.workload, scenario.engine
    in_flight = (
        workload.samples_per_step * math.ceil(workload.generated_batch_factor) * (max(1, scenario.loop.policy_lag) + 1)
    )
    replicas = scenario.cluster.generation // engine.gpus_per_replica
    group = workload.generations_per_prompt if engine.dispatch == "static" else 1
    return max(1, min(engine.max_running_sequences, math.ceil(in_flight / replicas) + group + 1))


def _prompt_tokens(scenario: Scenario) -> float:
    prompt = scenario.workload.prompt_tokens
    if isinstance(prompt, ConstantLength):
        return float(prompt.tokens)
    mean = getattr(prompt, "mean_tokens", None)
    return float(mean if mean is not None else np.mean(getattr(prompt, "tokens", (512.0,))))


def memory_parts(costs: ScenarioCosts, resident_kv_tokens: float) -> dict[str, float]:
    """Memory of one engine GPU with ``resident_kv_tokens`` tokens cached on its replica."""
    scenario = costs.scenario
    kv = resident_kv_tokens / scenario.engine.attention_data_parallel * kv_bytes_per_gpu_token(scenario)
    return {**costs.engine.parts, "KV cache": kv}
