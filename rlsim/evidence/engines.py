"""A measured engine iteration's engine and the load that it was measured under."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from rlsim.costs.engine.iteration import IterationCosts
from rlsim.costs.engine.prices import EngineInputs, engine_inputs, engine_prices
from rlsim.costs.memory import engine_memory
from rlsim.costs.operators.device import device_of
from rlsim.costs.operators.groups import engine_groups
from rlsim.costs.overheads import engine_host
from rlsim.evidence.names import device_profile_name, model_card_name, release, weight_precision
from rlsim.evidence.rows import row_scenario
from rlsim.evidence.tables import Row, SkippedRow, length_tokens, number, whole_number
from rlsim.files.yaml import lists_beside
from rlsim.loading.models import load_card
from rlsim.parameters.sets import Fitted
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.model import ModelCard
from rlsim.tables.profile import load_profile

ENGINES, METHODS = (lists_beside(__file__)[name] for name in ("engines", "served_speculation"))
ASSUMED_ACCEPTANCE = {1: 1.87, 2: 2.15, 3: 2.6}
"""Acceptance length by drafted tokens where a row states none: of MTP on random tokens, as InferenceX serves them."""
SERVING_BUDGET_TOKENS = 8192
"""Token budget of an iteration of a serving engine. Default of vLLM's server and of SGLang's chunks on these GPUs."""
LEAST_SEQUENCES = 256
"""Sequences that a prepared table holds at least, so that rows of one engine share one whatever their load."""
MOST_SEQUENCES, MOST_CONTEXT_TOKENS, MOST_DRAFTED = 16_384, 1_048_576, 32
"""Largest point that is simulated."""
MOST_LOOP_TOKENS = 2**30
"""Prompt tokens that wait at once at most in a closed loop; its simulation prefills a few times as many."""
CONTEXT_STEP_TOKENS = 1024
"""Prepared tables reach to a multiple of this, so that rows of like lengths share one."""
MEMORY_UTILIZATION = 0.95
"""Share of the memory that a serving engine takes; recipes of large models state 0.9 to 0.95."""
TRAINING_GPUS = 64
"""Trainer that a scenario needs beside its engine; nothing of it is priced here."""


@dataclass(frozen=True)
class EngineSetup:
    """An engine as a row describes it; equal setups share one prepared table.

    gpus: of one engine. attention_data_parallel: attention copies within it. sequences, context_tokens: that the table
    holds, rounded up. prompt_tokens: mean length of a prompt.
    """

    model: str
    device: str
    engine: str
    version: str | None
    weight_precision: str
    kv_precision: str
    gpus: int
    attention_data_parallel: int
    expert_parallel: int
    method: str
    draft_length: int
    sequences: int
    context_tokens: int
    prompt_tokens: int


@dataclass(frozen=True)
class Load:
    """What an engine served: requests in its decode phase (``batch``), open requests, and lengths in tokens.

    shortest: lengths are drawn evenly between this share of the nominal and all of it. acceptance_length: tokens that
    a sequence gains in an iteration, 1 without speculation; None where the row does not tell.
    """

    batch: float
    concurrency: int
    prompt_tokens: int
    response_tokens: int
    shortest: float
    acceptance_length: float | None

    @property
    def mean_share(self) -> float:
        """Mean length over the nominal one."""
        return (1 + self.shortest) / 2

    @property
    def context_tokens(self) -> float:
        """Mean context of a sequence over its response."""
        return self.mean_share * (self.prompt_tokens + self.response_tokens / 2)


def _decoding(cells: Row, workers: float, requests: float) -> float:
    """Requests in the decode phase of an engine by Little's law: output tokens/s times seconds per token; 0 if unknown.

    Requests beyond them wait for a prefill or on their way to the decode workers.
    """
    per_s = number(cells, "total_tokens_per_s_per_gpu", 0.0) * number(cells, "num_gpus", 0.0)
    tokens = number(cells, "isl") + number(cells, "osl")
    if cells.get("serving_mode") != "disagg" or not tokens:
        return 0.0
    return min(requests, per_s * number(cells, "osl") / tokens * number(cells, "tpot_ms", 0.0) / 1e3 / workers)


def engine_setup(cells: Row, load: Load) -> EngineSetup:
    """The engine of a row. Raises SkippedRow where the row leaves it open or contradicts itself."""
    engine = cells["engine"].lower()
    if engine not in ENGINES:
        raise SkippedRow(f"engine {engine[:40]!r} is not simulated")
    method, drafted = speculation_of(cells)
    gpus = whole_number(cells, "decode_gpus_per_engine")
    if whole_number(cells, "pp", 1) != 1:
        raise SkippedRow("pipeline parallel serving is not compared")
    longest = load.prompt_tokens + load.response_tokens
    if max(load.batch, load.concurrency) > MOST_SEQUENCES or longest > MOST_CONTEXT_TOKENS:
        raise SkippedRow(f"more than {MOST_SEQUENCES:,} sequences or {MOST_CONTEXT_TOKENS:,} tokens of context")
    if load.concurrency * load.prompt_tokens > MOST_LOOP_TOKENS:
        raise SkippedRow(f"more than {MOST_LOOP_TOKENS:,} prompt tokens at once")
    model, device = model_card_name(cells["model"]), device_profile_name(cells["gpu"])
    precision = weight_precision(cells["precision"], model)
    return EngineSetup(
        model=model,
        device=device,
        engine=engine,
        version=release(engine, cells.get("engine_version", "")),
        weight_precision=precision,
        kv_precision=_kv_precision(cells, precision, device),
        gpus=gpus,
        attention_data_parallel=_attention_copies(cells, gpus),
        expert_parallel=_expert_parallel(cells, gpus, device),
        method=method,
        draft_length=drafted,
        sequences=_rounded_up(max(load.batch, load.concurrency, LEAST_SEQUENCES)),
        context_tokens=CONTEXT_STEP_TOKENS * -(-longest // CONTEXT_STEP_TOKENS),
        prompt_tokens=max(1, round(load.mean_share * load.prompt_tokens)),
    )


def load_of(cells: Row) -> Load:
    """The load of a row. The running batch is the one that follows from Little's law, else requests per engine."""
    concurrency = number(cells, "concurrency", 0.0)
    workers = max(1.0, number(cells, "decode_workers", 1.0))
    requests = number(cells, "decode_batch_per_engine", concurrency / workers)
    batch = number(cells, "est_decoding_reqs_per_engine", 0.0) or _decoding(cells, workers, requests) or requests
    if batch <= 0:
        raise SkippedRow("neither a batch nor a concurrency is given")
    shortest = number(cells, "random_range_ratio", 1.0)
    if not 0 < shortest <= 1:
        raise SkippedRow("random_range_ratio must be above 0 and at most 1")
    method, drafted = speculation_of(cells)
    return Load(
        max(1.0, batch),
        max(1, round(requests or batch)),
        length_tokens(cells, "isl"),
        length_tokens(cells, "osl"),
        shortest,
        _acceptance_length(cells, drafted) if method != "none" else 1.0,
    )


def speculation_of(cells: Row) -> tuple[str, int]:
    """Method and drafted tokens; SkippedRow where the row does not say whether it speculated, or with how many."""
    given = cells.get("spec_method", "").lower()
    if not given:
        raise SkippedRow("unknown whether it speculated")
    if given == "none":
        return "none", 0
    if given not in METHODS:
        raise SkippedRow(f"spec_method {given[:40]!r} is not simulated")
    if not cells.get("spec_k", ""):
        raise SkippedRow("spec_k of a speculating engine is not given")
    drafted = whole_number(cells, "spec_k")
    if drafted > MOST_DRAFTED:
        raise SkippedRow(f"spec_k above {MOST_DRAFTED}")
    return METHODS[given], drafted


def _acceptance_length(cells: Row, drafted: int) -> float | None:
    if not cells.get("acceptance_length", ""):
        return ASSUMED_ACCEPTANCE.get(drafted) if cells["spec_method"].lower() == "mtp" else None
    length = number(cells, "acceptance_length")
    if not 1 <= length <= drafted + 1:
        raise SkippedRow(f"acceptance_length {length:g} is not within 1 and spec_k + 1")
    return length


def _attention_copies(cells: Row, gpus: int) -> int:
    """Attention copies in an engine; one without data-parallel attention.

    Tables name either the engine's size or the attention's own tensor parallelism as ``tp``.
    """
    if cells.get("dp_attention", "").lower() not in ("1", "true"):
        return 1
    tp = whole_number(cells, "tp", 1)
    inferred = gpus // tp if 1 < tp < gpus else gpus
    # Some sources write 1 copy where they mean one on every GPU: with a single one there would be no data parallelism.
    stated = whole_number(cells, "attn_dp", inferred) if cells.get("attn_dp", "") not in ("1", "1.0") else inferred
    if stated != inferred or gpus % stated:
        raise SkippedRow(f"attn_dp {stated} contradicts dp_attention with tp {tp} on {gpus} GPUs")
    return stated


def _kv_precision(cells: Row, weights: str, device: str) -> str:
    """Precision of the cache. Where a row does not tell, quantised checkpoints on Blackwell are taken to cache in FP8.

    Recipes that do tell serve them so there, and on Hopper in BF16; an assumption that the text states.
    """
    given = cells.get("kv_precision", "").lower()
    if given:
        return "fp8" if given.startswith("fp8") else "bf16"
    return "fp8" if weights != "bf16" and _profile(device).nvfp4_flops is not None else "bf16"


def _expert_parallel(cells: Row, gpus: int, device: str) -> int:
    """GPUs over which experts are spread; all of an engine with data-parallel attention over several nodes.

    Sources write 1 there for want of a tensor-parallel split; no engine shards experts of 2,048 over 32 GPUs.
    """
    ep = int(number(cells, "ep", 1.0)) or 1
    if ep == 1 and gpus > int(_profile(device).gpus_per_node) and _attention_copies(cells, gpus) == gpus:
        return gpus
    if gpus % ep:
        raise SkippedRow(f"ep {ep} does not divide the {gpus} GPUs of an engine")
    return ep


def _rounded_up(value: float) -> int:
    """The next power of two, so that rows of similar size share a table."""
    return 1 << max(0, math.ceil(value) - 1).bit_length()


_card = lru_cache(maxsize=64)(load_card)
_profile = lru_cache(maxsize=64)(load_profile)


@dataclass(frozen=True)
class PreparedEngine:
    """Iteration costs of an engine, and whether it spans several nodes or trays.

    deviation: of the logarithm of a predicted iteration, by engine family.
    """

    costs: IterationCosts
    several_nodes: bool
    deviation: float


@lru_cache(maxsize=8)
def prepared_engine(setup: EngineSetup, fitted: Fitted) -> PreparedEngine:
    """Prices of the engine. Raises SkippedRow where it cannot be described, RlsimError where it does not fit."""
    inputs = inputs_of(setup, fitted)
    nodes = -(-setup.gpus // int(inputs.device.profile.gpus_per_node))
    return PreparedEngine(engine_prices(inputs), nodes > 1, fitted.engines.family(setup.engine).error)


def inputs_of(setup: EngineSetup, fitted: Fitted) -> EngineInputs:
    """What the engine's iterations depend on; raises as :func:`prepared_engine`."""
    scenario = row_scenario(_document(setup))
    device = device_of(scenario.hardware, setup.engine)
    capacity = engine_memory(scenario).kv_capacity_tokens
    groups = engine_groups(setup.engine, setup.version, scenario.hardware.name, scenario.model, setup.weight_precision)
    host = replace(engine_host(scenario.engine, fitted.engines), factor=fitted.factor(groups))
    return engine_inputs(scenario, device, host, float(setup.prompt_tokens), capacity)


def _document(setup: EngineSetup) -> dict[str, object]:
    captured = -(-setup.sequences // setup.attention_data_parallel) * (setup.draft_length + 1)
    engine: dict[str, object] = {
        "name": setup.engine,
        "version": setup.version,
        "tensor_parallel": setup.gpus,
        "attention_data_parallel": setup.attention_data_parallel,
        "expert_parallel": setup.expert_parallel,
        "weight_precision": setup.weight_precision,
        "kv_precision": setup.kv_precision,
        "max_running_sequences": setup.sequences,
        "max_batched_tokens": SERVING_BUDGET_TOKENS,
        # No table tells what was captured; recipes of serving benchmarks capture the batch that they serve.
        "max_captured_tokens": min(65536, max(512, captured)),
        "gpu_memory_utilization": MEMORY_UTILIZATION,
        "prefix_caching": False,
        "dispatch": "round_robin",
    }
    speculation: dict[str, object] = {}
    if setup.draft_length:
        speculation = {"method": setup.method, "draft_length": setup.draft_length, "acceptance_length": 1.0}
    lengths = (setup.sequences, setup.prompt_tokens, 1, max(setup.context_tokens, setup.prompt_tokens + 2))
    return engine_document(_card(setup.model), _profile(setup.device), engine, speculation, lengths)


def engine_document(
    model: ModelCard,
    hardware: HardwareProfile,
    engine: Mapping[str, object],
    speculation: Mapping[str, object],
    lengths: tuple[int, int, int, int],
) -> dict[str, object]:
    """The scenario of one engine beside a trainer of which nothing is priced.

    engine, speculation: these sections. lengths: sequences of a step, then tokens of prompt, response and longest.
    """
    gpus, (sequences, prompt, response, longest) = engine.get("tensor_parallel", 1), lengths
    return {
        "name": "engine",
        "model": model,
        "hardware": hardware,
        "cluster": {"num_gpus": gpus + TRAINING_GPUS if isinstance(gpus, int) else gpus, "generation_gpus": gpus},
        "workload": {
            "prompts_per_step": sequences,
            "generations_per_prompt": 1,
            "prompt_tokens": {"kind": "constant", "tokens": prompt},
            "response_tokens": {"kind": "constant", "tokens": response},
            "max_sequence_tokens": longest,
        },
        "engine": dict(engine),
        "speculation": dict(speculation),
    }
