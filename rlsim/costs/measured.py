"""Prices of a stack that was measured whole (:class:`rlsim.schema.parameters.MeasuredStack`).

Iterations are linear in context at each measured batch and draft length, and linear between these; micro-batches are
bilinear in samples and tokens. Beyond the measured range lines go on.
"""

from functools import lru_cache

import numpy as np
from msgspec import Struct

from rlsim.costs.engine.iteration import IterationCosts
from rlsim.costs.interface import IterationTable, Part, PhaseCost
from rlsim.costs.operators.time import OperatorTime
from rlsim.costs.trainer.layout import MicroBatches
from rlsim.errors import InputError
from rlsim.schema.engine import Engine
from rlsim.schema.parameters import MeasuredStack, PassPoint
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import Speculation
from rlsim.units import FloatArray, distinct

CONTEXT_POINTS = 64


def stack_of(scenario: Scenario) -> MeasuredStack | None:
    """The measured stack of a scenario; InputError where it is of another model or of fewer devices."""
    stack, cluster = scenario.simulation.measured_stack, scenario.cluster
    if stack is None:
        return None
    if stack.model != scenario.model.name:
        raise InputError(
            f"simulation.measured_stack: {stack.name} was measured with model {stack.model}, not {scenario.model.name}"
        )
    if max(cluster.generation, cluster.training) > 1:
        raise InputError(
            f"simulation.measured_stack: {stack.name} is of one device that generates and one that trains; the cluster"
            f" has {cluster.generation} and {cluster.training}"
        )
    return stack


class MeasuredIterations(Struct, frozen=True, eq=False):
    """Lines through the measured iterations of one method: seconds and seconds per token of context, by drafted tokens
    and sequences, shape (drafted, sequences)."""

    drafted: FloatArray
    sequences: FloatArray
    at_zero_s: FloatArray
    token_s: FloatArray

    def at(self, drafted: float, sequences: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Seconds without context and seconds per token of it, of iterations that decode ``sequences``."""
        rows = [np.array([_line(drafted, self.drafted, column) for column in held.T]) for held in
                (self.at_zero_s, self.token_s)]  # fmt: skip
        plain, token = (np.array([_line(n, self.sequences, row) for n in sequences.tolist()]) for row in rows)
        return np.maximum(plain, 1e-9), np.maximum(token, 0.0)


def _line(x: float, known: FloatArray, values: FloatArray) -> float:
    """Interpolation that goes on in a line beyond the last known places."""
    if len(known) == 1:
        return float(values[0])
    place = int(np.clip(np.searchsorted(known, x) - 1, 0, len(known) - 2))
    share = (x - known[place]) / (known[place + 1] - known[place])
    return float(values[place] + share * (values[place + 1] - values[place]))


@lru_cache(maxsize=64)
def measured_iterations(stack: MeasuredStack, method: str) -> MeasuredIterations:
    """What ``stack`` measured of iterations with ``method``; InputError where that is nothing."""
    own = [point for point in stack.iterations if point[0] in (method, "none")]
    known = ", ".join(sorted({point[0] for point in stack.iterations}))
    if not any(point[0] == method for point in own):
        raise InputError(
            f"measured stack {stack.name} has no iterations with speculation.method {method}, only {known}"
        )
    sizes = set.intersection(*({p[2] for p in own if p[1] == k} for k in {p[1] for p in own}))
    drafted, sequences = (distinct(np.array(list(values))) for values in ({p[1] for p in own}, sizes))
    plain, token = np.empty((len(drafted), len(sequences))), np.empty((len(drafted), len(sequences)))
    for row, k in enumerate(drafted.tolist()):
        for column, n in enumerate(sequences.tolist()):
            points = np.array([p[3:] for p in own if (p[1], p[2]) == (k, n)])
            tokens, seconds = points.T
            slope = np.polyfit(tokens, seconds, 1)[0] if len(points) > 1 else 0.0
            token[row, column] = max(0.0, float(slope))
            plain[row, column] = max(1e-9, float(np.mean(seconds - token[row, column] * tokens)))
    return MeasuredIterations(drafted.astype(float), sequences.astype(float), plain, token)


def of_method(drafting: Speculation) -> str:
    """Method of the measured iterations that a speculation runs."""
    return drafting.method if drafting.active else "none"


def measured_costs(
    stack: MeasuredStack, engine: Engine, drafting: Speculation, limits: tuple[int, float, float]
) -> IterationCosts:
    """Iteration table of one replica. limits: most decoding sequences, longest context, KV cache in tokens."""
    most, context, room = limits
    n = np.arange(most + 1, dtype=np.float64)
    k = drafting.draft_length if drafting.active else 0
    plain, token = measured_iterations(stack, of_method(drafting)).at(k, np.maximum(n, 1.0))
    plain[0] = token[0] = 0.0
    step = max(8.0, context / (CONTEXT_POINTS - 1))
    attention = token[:, None] * (np.arange(CONTEXT_POINTS) * step)[None, :]
    points = np.array(sorted(stack.prefill), dtype=np.float64)
    grid, added = np.concatenate(([0.0], points[:, 0])), np.concatenate(([0.0], np.maximum.accumulate(points[:, 1])))
    table = IterationTable(
        plain, step, attention, grid, np.zeros(1), added[None, :], tokens_per_sequence=drafting.queries,
        max_batched_tokens=max(engine.budget_tokens, most * drafting.queries),
        max_running_sequences=engine.most_running, kv_capacity_tokens=room,
        chunked_prefill=engine.mixes_prefill,
    )  # fmt: skip
    known = np.ones_like
    return IterationCosts(
        table, {"iterations": OperatorTime(plain, known(plain), "compute")},
        {"context": OperatorTime(attention, known(attention), "memory")}, np.zeros(most + 1, dtype=np.bool_),
        known(grid), "compute", captured_tokens=0,
    )  # fmt: skip


def measured_passes(name: str, points: tuple[PassPoint, ...], batch: MicroBatches) -> Part:
    """All micro-batches of a step through one kind of pass."""
    once = pass_s(points, batch.tokens, batch.sum_squared / batch.tokens)
    return Part(name, batch.steps * batch.count * once, "compute", measured=1.0)


def measured_update(stack: MeasuredStack, batch: MicroBatches) -> PhaseCost:
    """Forward, backward and optimizer over all optimizer steps."""
    optimizer = Part("optimizer", batch.steps * stack.optimizer_s, "memory", measured=1.0)
    return PhaseCost.of([measured_passes("forward and backward", stack.update, batch), optimizer])


def pass_s(points: tuple[PassPoint, ...], tokens: float, length: float) -> float:
    """Seconds of a pass over a micro-batch of ``tokens`` in samples of ``length``."""
    samples, lengths = (distinct(np.array([point[place] for point in points])).astype(float) for place in (0, 1))
    held = {(point[0], point[1]): point[2] for point in points}
    by_length = [np.array([held[int(s), int(t)] for t in lengths]) for s in samples]
    at_length = np.array([_line(length, lengths, row) for row in by_length])
    return max(1e-9, _line(tokens / length, samples, at_length))


def hand_over(stack: MeasuredStack) -> PhaseCost:
    """The weights from the trainer to the engine."""
    return PhaseCost.of([Part("hand-over of weights", stack.hand_over_s, "memory", measured=1.0)])
