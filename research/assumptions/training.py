"""Assumptions on a trainer's layer: its time with and without graphs, and what its host takes."""

from __future__ import annotations

from bench.cases import ModelDims
from bench.measurements import Measurement, Measurements
from research.assumptions.rows import Assumption, Basis, assumed, divided, launched, of_mode
from rlsim.calibration.selfcheck import card_of
from rlsim.costs.engine.layers import UNCOMPILED_LAUNCHES
from rlsim.costs.operators.device import device_of
from rlsim.costs.overheads import training_overheads
from rlsim.costs.trainer.layer import HOST_BACKWARD, LAUNCHES_PER_LAYER_FACTOR, LayerTime, TrainingLayers
from rlsim.costs.trainer.layout import MicroBatches
from rlsim.parameters.sets import stack_of_release
from rlsim.schema.loop import Cluster
from rlsim.schema.scenario import Scenario
from rlsim.schema.trainer import Stack, Trainer
from rlsim.schema.workload import ConstantLength, Workload
from rlsim.tables.operators import available

PRETRAINING = "megatron_bridge"
"""Framework whose layers stand for tuned pretraining: the speed of all others is relative to its."""


def training_assumptions(measured: Measurements, basis: Basis) -> list[Assumption]:
    """Rows of each model whose layer was replayed as a graph, or else measured eagerly."""
    layers = measured.of("layer_forward_backward")
    rows: list[Assumption] = []
    for model in dict.fromkeys(record.case.text("model") for record in layers):
        own = [record for record in layers if record.case.text("model") == model]
        eager = {record.case.number("tokens"): record for record in own if record.case.text("mode") != "graph"}
        graph = {record.case.number("tokens"): record for record in of_mode(own, "graph")}
        # A GPU replays the layers of a few models alone; a CPU none.
        if eager and (graph or measured.metadata.device_type == "cpu"):
            one = _Layer(model, measured, basis)
            rows += [*one.longest(eager, graph), *one.shortest(eager, graph)]
    return rows


Records = dict[int, Measurement]


class _Layer:
    """One layer of ``model``, measured and priced."""

    def __init__(self, model: str, measured: Measurements, basis: Basis) -> None:
        self.model, self.measured, self.basis = model, measured, basis
        self.dims: ModelDims = measured.models[model]
        self.moe = bool(self.dims.experts)

    def longest(self, eager: Records, graph: Records) -> list[Assumption]:
        """Forward and backward of the most tokens that were measured both ways, under two sets of fitted terms."""
        tokens = max(eager.keys() & graph.keys() or eager.keys())
        rows: list[Assumption] = []
        for mode, found in (("eager", eager.get(tokens)), ("graph", graph.get(tokens))):
            if found is None:
                continue
            what = f"forward and backward, {tokens:,} tokens, {mode}"
            for stack, of in ((None, "RL trainers"), (stack_of_release(PRETRAINING, None), "pretraining")):
                layer = self.priced(tokens, stack, mode == "graph")
                used = sum(part.seconds for part in (*layer.forward(), *layer.backward()))
                origin = f"cost model, {self._fitted(stack)}"
                rows += assumed(f"{self.model} layer ({of})", used, origin, found.seconds, what)
        return rows

    def shortest(self, eager: Records, graph: Records) -> list[Assumption]:
        """What the host takes, of the fewest tokens: the device has little to do."""
        tokens = min(eager.keys() & graph.keys() or eager.keys())
        forward = self._forward(tokens)
        forward_s = None if forward is None else forward.facts.host_s
        both = eager[tokens].facts.host_s
        backward_s = None if forward_s is None or both is None else both - forward_s
        floor_s = self.priced(tokens, None, False).floor_s
        name = "moe_host_layer_s" if self.moe else "UNCOMPILED_LAUNCHES x factor x host_launch_s"
        origin = self._fitted(None) if self.moe else "trainer.host_launch_s, assumption"
        rows = assumed(f"{name}, {self.model}", floor_s, origin, forward_s, "host time of an eager forward pass")
        rows += assumed(
            "HOST_BACKWARD", HOST_BACKWARD, "rlsim/costs, assumption", divided(backward_s, forward_s),
            f"host time of backward over forward, {self.model}", "1",
        )  # fmt: skip
        replayed = graph.get(tokens)
        if replayed is None:
            return rows
        launches = UNCOMPILED_LAUNCHES * LAUNCHES_PER_LAYER_FACTOR * (1 + HOST_BACKWARD)
        what = f"kernels forward and backward, {self.model}"
        rows += assumed("launches of a layer", launches, "rlsim/costs, assumption", launched(replayed), what, "1")
        if self.moe:
            share, terms = divided(replayed.seconds, eager[tokens].seconds), self.basis.fitted.training
            what = f"replayed over eager layer, {tokens:,} tokens, {self.model}"
            rows += assumed(
                "graph_host_share", terms.graph_host_share, f"fitted: training/{terms.name}", share, what, "1"
            )
        return rows

    def _forward(self, tokens: int) -> Measurement | None:
        found = (one for one in self.measured.of("layer_forward") if one.case.text("model") == self.model)
        return next((one for one in found if one.case.number("tokens") == tokens), None)

    def _fitted(self, stack: Stack | None) -> str:
        sets = self.basis.fitted
        return f"fitted: parameters/{sets.steps.name}" if stack is None else f"fitted: training/{sets.training.name}"

    def priced(self, tokens: int, stack: Stack | None, graphs: bool) -> LayerTime:
        """The layer over one sequence of ``tokens`` as a projection prices it. stack: None for RL trainers."""
        profile, card = self.basis.profile, card_of(self.dims).model_copy(update={"max_position_embeddings": tokens})
        trainer = Trainer(stack=stack, cuda_graphs=graphs)
        scenario = Scenario(
            name="one layer", model=card, hardware=profile, trainer=trainer, cluster=Cluster(num_gpus=1),
            workload=Workload(
                prompts_per_step=1, generations_per_prompt=1, max_sequence_tokens=tokens,
                prompt_tokens=ConstantLength(kind="constant", tokens=1),
                response_tokens=ConstantLength(kind="constant", tokens=tokens - 1),
            ),
        )  # fmt: skip
        known = profile.operator_tables is not None and any(
            system == profile.operator_tables for system, _ in available()
        )
        device = device_of(profile, scenario.engine.name, None if known else self.basis.tables)
        layers = TrainingLayers(card, trainer, device, training_overheads(scenario, self.basis.fitted).of_update)
        batch = MicroBatches(count=1.0, tokens=float(tokens), sum_squared=float(tokens) ** 2, steps=1)
        return layers.layer(batch, self.moe)
