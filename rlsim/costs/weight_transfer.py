"""Moving weights: hand-over to a colocated engine, broadcast or resharding between pools, copies to the host and back.

Roots: reading of NeMo-RL v0.7 (export gathers every full tensor to every GPU; engine sleep level 1 copies weights to
the host), published refit times (NeMo-RL checkpoint-engine guide: DeepSeek-V3 broadcast 14.2 s, NIXL 9.3 s; verl: 30B
4.4 s).
"""

from __future__ import annotations

from dataclasses import dataclass

from rlsim.costs.collectives import Collectives
from rlsim.costs.interface import Part, PhaseCost
from rlsim.costs.layout import train_layout, weight_tensors
from rlsim.costs.memory import critic_swapped, weight_bytes
from rlsim.costs.overheads import Overheads
from rlsim.schema.scenario import Scenario
from rlsim.units import BYTES_PER_ELEMENT


@dataclass(frozen=True)
class WeightTransfer:
    """Transfers of one scenario's weights."""

    scenario: Scenario
    fabric: Collectives
    overheads: Overheads

    def _copy(self, name: str, copied_bytes: float) -> Part:
        return Part(name, float(self.fabric.host_copy(copied_bytes).seconds), "host link", "modelled")

    def transfer(self) -> PhaseCost:
        """The weight transfer itself (refit_s).

        Resharding: an engine GPU loads a slice of every tensor, or under expert parallelism whole ones of its experts.
        A stated loop.refit_bandwidth_bytes_per_s replaces what the links allow.
        """
        scenario = self.scenario
        full = weight_bytes(scenario.model, "bf16")
        kind = scenario.loop.refit
        if kind == "auto":
            kind = "colocated" if scenario.cluster.colocated else "broadcast"
        wire = {"colocated": self._gather_s, "broadcast": self._broadcast_s, "reshard": self._reshard_s}[kind]
        stated = scenario.loop.refit_bandwidth_bytes_per_s
        share = 1.0 / scenario.engine.expert_parallel if kind == "reshard" else 1.0
        parts = (
            Part("weights on the wire", full / stated, "network", "assumed")
            if stated
            else Part("weights on the wire", wire(full), "network"),
            Part(
                "handling of weight tensors",
                weight_tensors(scenario.model) * self.overheads.refit_tensor_s * share,
                "host",
                "modelled",
            ),
            Part("refit synchronisation", self.overheads.refit_fixed_s, "host", "modelled"),
        )
        return PhaseCost.of(parts)

    def _gather_s(self, full: float) -> float:
        """Every GPU gathers every full tensor from the ranks of its model copy."""
        trainer = self.scenario.trainer
        gpus = self.scenario.cluster.training
        dense = trainer.tensor_parallel * trainer.pipeline_parallel * trainer.context_parallel
        copy = min(gpus, max(dense, trainer.expert_parallel * trainer.pipeline_parallel))
        return float(
            self.fabric.collective("all_gather", copy if trainer.backend == "megatron" else gpus, full).seconds
        )

    def _broadcast_s(self, full: float) -> float:
        """Pipelined broadcast over all rails of the source node, slowest link first."""
        nodes_rate = self.fabric.network * int(self.fabric.profile.gpus_per_node)
        inside = self.scenario.cluster.num_gpus <= self.fabric.domain
        return full / (self.fabric.nvlink if inside else min(nodes_rate, self.fabric.nvlink))

    def _reshard_s(self, full: float) -> float:
        """Every engine GPU receives just its shard, all in parallel."""
        engine = self.scenario.engine
        shard = full / engine.gpus_per_replica
        inside = self.scenario.cluster.num_gpus <= self.fabric.domain
        return shard / (self.fabric.nvlink if inside else self.fabric.network)

    def prepare(self) -> PhaseCost:
        """Everything around generation on shared GPUs: copies out, hand-over, copies back; else the transfer."""
        scenario = self.scenario
        transfer = self.transfer()
        if not scenario.cluster.colocated:
            return transfer
        parts = transfer.parts
        if scenario.trainer.offload:
            parts += self._offload_parts()
        return PhaseCost.of(parts)

    def sleep_between_rollouts(self) -> PhaseCost:
        """Sleep of a colocated engine between two rollouts with the same weights (dynamic sampling in NeMo-RL)."""
        scenario = self.scenario
        if not scenario.cluster.colocated or not scenario.trainer.offload:
            return PhaseCost.of(())
        return PhaseCost.of([self._engine_sleep("engine sleep between rollouts")])

    def _engine_sleep(self, name: str) -> Part:
        engine = self.scenario.engine
        held = weight_bytes(self.scenario.model, engine.weight_precision) / engine.gpus_per_replica
        return self._copy(name, 2 * held)

    def _offload_parts(self) -> tuple[Part, ...]:
        """Optimizer state and policy weights out and in; engine weights to the host for its sleep and back."""
        weights, optimizer = self._trainer_bytes()
        return (
            self._copy("optimizer to host and back", 2 * optimizer),
            self._copy("policy weights to host and back", 2 * weights),
            self._engine_sleep("engine weights to host and back"),
        )

    def _trainer_bytes(self) -> tuple[float, float]:
        """BF16 weights and optimizer state of one training GPU."""
        trainer, cluster = self.scenario.trainer, self.scenario.cluster
        layout = train_layout(trainer, self.scenario.model, cluster.training)
        held = layout.parameters
        if trainer.backend == "fsdp":
            held = held * trainer.tensor_parallel / cluster.training
        return held * BYTES_PER_ELEMENT["bf16"], layout.optimizer_parameters * trainer.optimizer_bytes_per_parameter

    def reference_swap_s(self) -> float:
        """Policy weights out and reference weights in, and back, around the reference pass."""
        return float(self.fabric.host_copy(4 * self._trainer_bytes()[0]).seconds)

    def critic_swap_s(self, update: bool) -> float:
        """The value model in and out of the GPUs that it shares in turn with the policy: its weights, for an update
        its optimizer too. Zero where both stay resident.
        """
        if not critic_swapped(self.scenario):
            return 0.0
        weights, optimizer = self._trainer_bytes()
        return float(self.fabric.host_copy(2 * (weights + optimizer * update)).seconds)
