"""Models beside the policy (``pools``), priced by the same engine and trainer models: what they take of a step."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from pydantic import ValidationError

from rlsim.costs.engine.prices import EngineInputs, engine_prices
from rlsim.costs.interface import Part, PhaseCost, StepCost
from rlsim.costs.operators.work import Matrix
from rlsim.costs.trainer.layout import TrainedBatch
from rlsim.costs.trainer.training import TrainerInputs, logprob_pass
from rlsim.costs.trainer.work import passes
from rlsim.schema.base import changed
from rlsim.schema.loop import Loop
from rlsim.schema.messages import as_input_error
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import Speculation
from rlsim.schema.stated import Pool

POOL_STEPS_KEPT = 1024
"""Seconds of pools cached per process."""


class PoolInputs(Struct, frozen=True):
    """What the seconds of a pool depend on; equal inputs have equal prices. One of engine and trainer is there.

    replicas: copies of its weights. swap_s: weights in and out of GPUs that are the trainer's.
    """

    pool: Pool
    replicas: int
    swap_s: float
    lagged: bool
    engine: EngineInputs | None = None
    trainer: TrainerInputs | None = None


def alone(scenario: Scenario, pool: Pool) -> Scenario:
    """The scenario of a pool's model alone on the pool's GPUs: same lengths, software and devices. Raises InputError
    where its keys do not go together."""
    try:
        return _alone(scenario, pool)
    except ValidationError as error:
        raise as_input_error(error, f"pools: {pool.name}, as a scenario of its own", Scenario) from error


def _alone(scenario: Scenario, pool: Pool) -> Scenario:
    gpus = pool.gpus or scenario.cluster.training
    one = {"num_gpus": gpus, "generation_gpus": None, "training_gpus": None, "reference_gpus": 0, "pool_gpus": 0}
    software = {key: getattr(scenario.engine, key) for key in ("name", "version", "dispatch", "in_process")}
    kept = ("weight_precision", "gpu_memory_utilization")
    served = (*(key for key in LAYOUT if key != "context_parallel"), *kept)
    engine = {key: getattr(pool, key) for key in (served if pool.runs_on == "engine" else kept)}
    trained = pool.runs_on == "trainer"
    layout = {key: getattr(pool, key) if trained else 1 for key in LAYOUT}
    sizes = {"virtual_stages": 1, "mtp_layers": 0, "global_batch_samples": None, "local_batch_samples": None}
    plain = {"lora_rank": None, "critic": False, "reference_logprobs": False, "policy_logprobs": True}
    return Scenario.model_validate(
        {
            **dict(scenario),
            "model": pool.model,
            "hardware": scenario.training_device if trained or not pool.gpus else scenario.hardware,
            "training_hardware": None,
            "cluster": changed(scenario.cluster, **one),
            "engine": {**software, **engine},
            "speculation": Speculation(),
            "trainer": changed(scenario.trainer, **layout, **sizes, **plain),
            "loop": Loop(),
            "pools": (),
            "missing": (),
        }
    )


LAYOUT = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
"""Keys of a trainer's layout that a pool has too."""


@lru_cache(maxsize=POOL_STEPS_KEPT)
def pool_cost(inputs: PoolInputs, batch: TrainedBatch) -> PhaseCost:
    """What a pool is busy with a batch, in seconds, one part for all of it."""
    if inputs.trainer is not None:
        overheads = inputs.trainer.overheads
        found = logprob_pass(inputs.trainer, batch).deviating(overheads.factor * overheads.logprob_factor)
        bound = max(found.parts, key=lambda part: part.seconds).bound
        return PhaseCost.of([Part(inputs.pool.name, inputs.pool.share * found.seconds, bound)])
    assert inputs.engine is not None
    return PhaseCost.of([Part(inputs.pool.name, _engine_s(inputs, inputs.engine, batch), "compute")])


def _engine_s(inputs: PoolInputs, engine: EngineInputs, batch: TrainedBatch) -> float:
    """Seconds of an engine that reads samples in whole iterations of its token budget and then generates for each.

    P / q iterations of q prefill tokens, the LM head over all of them where log-probs are wanted, and of n running
    sequences g iterations for every n samples.
    """
    pool, table = inputs.pool, engine_prices(engine).table
    tokens = batch.total_tokens + pool.read_tokens
    samples = pool.share * len(tokens) / inputs.replicas
    read = pool.share * float(tokens.sum()) / inputs.replicas
    budget = min(read, table.max_batched_tokens)
    chunk_s = float(np.interp(budget, table.prefill_grid_tokens, table.prefill_s[0]))
    seconds = read / budget * (chunk_s + _head_s(engine, pool, budget))
    contexts = table.context_step_tokens * np.arange(len(table.prefill_context_s))
    seconds += pool.share / inputs.replicas * float(tokens @ np.interp(tokens / 2, contexts, table.prefill_context_s))
    if pool.generated_tokens:
        context = float(tokens.mean()) + pool.generated_tokens / 2
        held = table.kv_capacity_tokens / (float(tokens.mean()) + pool.generated_tokens)
        running = max(1, min(math.ceil(samples), table.max_running_sequences, len(table.step_s) - 1, int(held)))
        points = table.context_step_tokens * np.arange(table.attention_s.shape[1])
        iteration_s = float(table.step_s[running] + np.interp(context, points, table.attention_s[running]))
        seconds += max(1.0, samples / running) * pool.generated_tokens * iteration_s
    return seconds


def _head_s(engine: EngineInputs, pool: Pool, tokens: float) -> float:
    """The LM head over the tokens of an iteration, whose log-probs a teacher gives back; else it is of the last token
    of each sample alone, which the iteration has."""
    if pool.role != "teacher":
        return 0.0
    card = engine.model
    head = Matrix("lm_head", -(-card.vocab_size // engine.engine.tensor_parallel), card.hidden_size)
    return float(np.sum(passes(engine.device, [head], tokens, "bf16").forward.seconds))


def with_pools(pools: Sequence[PoolInputs], cost: StepCost, batch: TrainedBatch) -> StepCost:
    """The step's cost with what its pools add to it.

    On the trainer's GPUs they come in turn. On their own a teacher works beside the log-prob passes, which its rest
    prolongs, and rewards follow the batch; in a lagged loop all of them work beside the step before, which is as long
    as the longest of them at the least.
    """
    if not pools:
        return cost
    busy = [(one, pool_cost(one, batch)) for one in pools]
    logprob, data = list(cost.logprob.parts), list(cost.data.parts)
    beside: dict[str, list[Part]] = {"logprob": [], "data": [], "step": []}
    for one, found in busy:
        phase = logprob if one.pool.role == "teacher" else data
        if not one.pool.gpus:
            phase += [*found.parts, Part("pool swap", one.swap_s, "host link")]
        elif one.lagged:
            beside["step"] += found.parts
        else:
            beside["logprob" if one.pool.role == "teacher" else "data"] += found.parts
    logprob += _beyond(beside["logprob"], cost.logprob.seconds)
    data += _beyond(beside["data"], 0.0)
    whole_s = sum(part.seconds for part in (*logprob, *data)) + cost.train.seconds
    data += _beyond(beside["step"], whole_s)
    return replace(cost, logprob=PhaseCost.of(logprob), data=PhaseCost.of(data))


def _beyond(parts: Sequence[Part], hidden_s: float) -> list[Part]:
    """What the longest of pools that work at once takes beyond ``hidden_s``."""
    longest = max(parts, key=lambda part: part.seconds, default=None)
    return [] if longest is None else [Part(longest.name, max(0.0, longest.seconds - hidden_s), "schedule")]
