"""A measured engine iteration's engine, as a scenario, and the load that it was measured under."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from msgspec.structs import replace

from rlsim.costs.engine.hosts import HostOverheads, engine_host
from rlsim.costs.engine.iteration import IterationCosts
from rlsim.costs.engine.prices import EngineInputs, engine_inputs, engine_prices
from rlsim.costs.memory import engine_memory
from rlsim.costs.operators.device import device_of
from rlsim.costs.operators.groups import engine_groups
from rlsim.evidence import rows
from rlsim.evidence.tables import Row, SkippedRow, length_tokens, number, whole_number
from rlsim.files.yaml import lists_beside
from rlsim.loading.models import load_card
from rlsim.parameters.sets import Fitted
from rlsim.schema.engine import Engine
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.model import ModelCard
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import Speculation
from rlsim.schema.workload import ConstantLength
from rlsim.tables.profile import load_profile

ENGINES, METHODS, RECEIVED, AHEAD, EXPERTS_UNSTATED = (
    lists_beside(__file__)[name]
    for name in ("engines", "served_speculation", "received", "scheduled_ahead", "experts_unstated")
)
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
class Load:
    """What an engine served: requests in its decode phase (``batch``), open requests, and lengths in tokens.

    shortest: lengths are drawn evenly between this share of the nominal and all of it. acceptance_length: tokens that
    a sequence gains in an iteration, 1 without speculation; None where the row states none. receive_interval: decode
    iterations between two looks of the engine for new requests.
    """

    batch: float
    concurrency: int
    prompt_tokens: int
    response_tokens: int
    shortest: float
    acceptance_length: float | None
    receive_interval: int = 1

    @property
    def mean_share(self) -> float:
        """Mean length over the nominal one."""
        return (1 + self.shortest) / 2

    @property
    def context_tokens(self) -> float:
        """Mean context of a sequence over its response."""
        return self.mean_share * (self.prompt_tokens + self.response_tokens / 2)


def load_of(cells: Row) -> Load:
    """The load of a row. The running batch is the one that follows from Little's law, else requests per engine."""
    concurrency = number(cells, "concurrency", 0.0)
    workers = max(1.0, number(cells, "decode_workers", 1.0))
    requests = number(cells, "decode_batch_per_engine", concurrency / workers)
    batch = number(cells, "est_decoding_reqs_per_engine", 0.0) or _decoding(cells, workers, requests) or requests
    if not batch:
        raise SkippedRow("neither a batch nor a concurrency is given")
    prompt_tokens, response_tokens, shortest = _lengths(cells)
    method, drafted = speculation_of(cells)
    return Load(
        max(1.0, batch),
        max(1, round(requests or batch)),
        prompt_tokens,
        response_tokens,
        shortest,
        _acceptance_length(cells, drafted) if method != "none" else 1.0,
        _receive_interval(cells, concurrency),
    )


def _lengths(cells: Row) -> tuple[int, int, float]:
    """Nominal tokens of prompts and responses, and the shortest as a share of them.

    Lengths that are no whole numbers are means of drawn ones, which reach from nothing to twice the mean
    (``random-range-ratio`` 0, the default of SGLang's ``bench_serving``).
    """
    nominal = length_tokens(cells, "isl"), length_tokens(cells, "osl")
    if not cells.get("random_range_ratio", "") and any(number(cells, name) % 1 for name in ("isl", "osl")):
        return 2 * nominal[0], 2 * nominal[1], 0.0
    shortest = number(cells, "random_range_ratio", 1.0)
    if not 0 < shortest <= 1:
        raise SkippedRow("random_range_ratio must be above 0 and at most 1")
    return *nominal, shortest


def _receive_interval(cells: Row, concurrency: float) -> int:
    """Decode iterations between two looks of the engine for new requests: as stated, else as its recipe sets it."""
    if cells.get("scheduler_recv_interval", ""):
        return whole_number(cells, "scheduler_recv_interval")
    # The recipes that set the interval serve without copies of attention (names.yaml: received).
    given = {name: cells.get(name, "").lower() for name in ("engine", "source", "model", "gpu", "dp_attention")}
    served = given["engine"] == "sglang" and given["dp_attention"] not in ("1", "true")
    named = (any(word in given[of] for word in RECEIVED[f"{of}s"]) for of in ("source", "model", "gpu"))
    if not served or not all(named):
        return 1
    return int(RECEIVED["many" if concurrency >= RECEIVED["many_from"] else "few"])


def _decoding(cells: Row, workers: float, requests: float) -> float:
    """Requests in the decode phase of an engine by Little's law: output tokens/s times seconds per token; 0 if unknown.

    Requests beyond them wait for a prefill or on their way to the decode workers.
    """
    per_s = number(cells, "total_tokens_per_s_per_gpu", 0.0) * number(cells, "num_gpus", 0.0)
    tokens = number(cells, "isl") + number(cells, "osl")
    if cells.get("serving_mode") != "disagg" or not tokens:
        return 0.0
    return min(requests, per_s * number(cells, "osl") / tokens * number(cells, "tpot_ms", 0.0) / 1e3 / workers)


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


def engine_setup(cells: Row, load: Load) -> Scenario:
    """The engine of a row, for a table that rows of like loads share; SkippedRow where it is open or contradictory."""
    name = cells["engine"].lower()
    if name not in ENGINES:
        raise SkippedRow(f"engine {name[:40]!r} is not simulated")
    method, drafted = speculation_of(cells)
    gpus = whole_number(cells, "decode_gpus_per_engine")
    if whole_number(cells, "pp", 1) != 1:
        raise SkippedRow("pipeline parallel serving is not compared")
    longest = load.prompt_tokens + load.response_tokens
    if max(load.batch, load.concurrency) > MOST_SEQUENCES or longest > MOST_CONTEXT_TOKENS:
        raise SkippedRow(f"more than {MOST_SEQUENCES:,} sequences or {MOST_CONTEXT_TOKENS:,} tokens of context")
    if load.concurrency * load.prompt_tokens > MOST_LOOP_TOKENS:
        raise SkippedRow(f"more than {MOST_LOOP_TOKENS:,} prompt tokens at once")
    model = rows.model_card_name(cells["model"])
    profile = load_profile(rows.device_profile_name(cells["gpu"]))
    precision, copies = rows.weight_precision(cells["precision"], model, cells["model"]), _attention_copies(cells, gpus)
    prefix_cached = name == "sglang" and not any(source in cells.get("source", "").lower() for source in AHEAD)
    # The next power of two, so that rows of similar size share a table.
    sequences = 1 << (math.ceil(max(load.batch, load.concurrency, LEAST_SEQUENCES)) - 1).bit_length()
    engine = {
        "name": name,
        "version": rows.release(name, cells.get("engine_version", "")),
        "tensor_parallel": gpus,
        "attention_data_parallel": copies,
        "weight_precision": precision,
        "kv_precision": _kv_precision(cells, precision, profile),
        "expert_parallel": _expert_parallel(cells, gpus, copies, profile),
        "max_running_sequences": sequences,
        "max_batched_tokens": SERVING_BUDGET_TOKENS,
        # No table states what was captured; recipes of serving benchmarks capture the batch that they serve.
        "max_captured_tokens": min(65536, max(512, -(-sequences // copies) * (drafted + 1))),
        "gpu_memory_utilization": MEMORY_UTILIZATION,
        # Prompts are random, so that a cache helps none of them; but SGLang's decides what is scheduled ahead.
        "prefix_caching": prefix_cached,
        "overlap_scheduling": True if name == "sglang" and not prefix_cached else None,
        "dispatch": "round_robin",
    }
    # The table prices a verification, whatever it accepts; the acceptance of a row is in its Load.
    speculation = {"method": method, "draft_length": drafted, "acceptance_length": 1.0} if drafted else {}
    prompt_tokens = max(1, round(load.mean_share * load.prompt_tokens))
    context_tokens = CONTEXT_STEP_TOKENS * -(-longest // CONTEXT_STEP_TOKENS)
    lengths = (sequences, prompt_tokens, 1, max(context_tokens, prompt_tokens + 2))
    document = engine_document(_card(model), profile, engine, speculation, lengths)
    # Random tokens share no experts.
    workload = {**rows.constant_workload(*lengths), "routing_overlap": 1.0}
    return rows.row_scenario({**document, "workload": workload})


def _attention_copies(cells: Row, gpus: int) -> int:
    """Attention copies in an engine; one without data-parallel attention.

    Tables name either the engine's size or the attention's own tensor parallelism as ``tp``.
    """
    if cells.get("dp_attention", "").lower() not in ("1", "true"):
        return 1
    tp = whole_number(cells, "tp", 1)
    inferred = gpus // tp if tp < gpus else gpus
    # Some sources write 1 copy where they mean one on every GPU: with a single one there would be no data parallelism.
    stated = whole_number(cells, "attn_dp", inferred) if cells.get("attn_dp", "") not in ("1", "1.0") else inferred
    if stated != inferred or gpus % stated:
        raise SkippedRow(f"attn_dp {stated} contradicts dp_attention with tp {tp} on {gpus} GPUs")
    return stated


def _kv_precision(cells: Row, weights: str, profile: HardwareProfile) -> str:
    """Precision of the cache. Where a row states none, quantised checkpoints on Blackwell are taken to cache in FP8.

    Recipes that state one serve them so there, and on Hopper in BF16; an assumption that the text states. NVIDIA's own
    quantised checkpoints (ModelOpt) state FP8 for the cache wherever they run (hf_quant_config.json,
    kv_cache_quant_algo).
    """
    given = cells.get("kv_precision", "").lower()
    if given:
        return "fp8" if given.startswith("fp8") else "bf16"
    return (
        "fp8" if weights != "bf16" and (rows.by_modelopt(cells["model"]) or profile.nvfp4_flops is not None) else "bf16"
    )


def _expert_parallel(cells: Row, gpus: int, copies: int, profile: HardwareProfile) -> int:
    """GPUs over which experts are spread; all of an engine with data-parallel attention over several nodes.

    Sources write 1 there for want of a tensor-parallel split; no engine shards experts of 2,048 over 32 GPUs. Others
    had no column for it (EXPERTS_UNSTATED).
    """
    ep = int(number(cells, "ep", 1.0)) or 1
    if ep == 1 and all(cells.get(name, "").lower() == value for name, value in EXPERTS_UNSTATED.items()):
        return gpus
    if ep == 1 and gpus > int(profile.gpus_per_node) and copies == gpus:
        return gpus
    if gpus % ep:
        raise SkippedRow(f"ep {ep} does not divide the {gpus} GPUs of an engine")
    return ep


# Tables of thousands of rows name a few dozen models.
_card = lru_cache(maxsize=64)(load_card)


# Rows come in the order of their engines (Comparison.order), so that few are held; each has large tables.
@lru_cache(maxsize=8)
def prepared_engine(setup: Scenario, fitted: Fitted) -> IterationCosts:
    """Prices of the engine; RlsimError where it does not fit."""
    return engine_prices(inputs_of(setup, fitted))


def groups_of(setup: Scenario) -> tuple[str, ...]:
    """Groups whose deviations the engine's iterations have."""
    engine = setup.engine
    return engine_groups(engine.name, engine.version, setup.hardware.name, setup.model, engine.weight_precision)


def inputs_of(setup: Scenario, fitted: Fitted) -> EngineInputs:
    """Inputs of the prices of the engine's iterations; raises as :func:`prepared_engine`."""
    prompt = setup.workload.prompt_tokens
    assert isinstance(prompt, ConstantLength)
    device, capacity = device_of(setup.hardware, setup.engine.name), engine_memory(setup).kv_capacity_tokens
    host = _host(setup.engine, setup.model, setup.hardware, fitted, setup.speculation)
    host = replace(host, factor=fitted.factor(groups_of(setup)))
    return engine_inputs(setup, device, host, float(prompt.tokens), capacity)


def moved_hosts(inputs: EngineInputs, moves: Mapping[str, Fitted]) -> dict[str, HostOverheads]:
    """The engine's host under each of the moved sets whose term it has; with the deviation of the row's groups, which
    would else count as a slope of every term."""
    engine, factor, drafting = inputs.engine, inputs.host.factor, inputs.drafting
    # Terms of a family are called engines/FAMILY/TERM, those of all engines have fewer parts.
    engine_moves = {
        term: sets for term, sets in moves.items() if len(parts := term.split("/")) < 3 or parts[1] == engine.name
    }
    device = inputs.device.profile
    hosts = {term: _host(engine, inputs.model, device, sets, drafting) for term, sets in engine_moves.items()}
    return {term: replace(host, factor=factor) for term, host in hosts.items()}


def _host(
    engine: Engine, card: ModelCard, device: HardwareProfile, fitted: Fitted, drafting: Speculation
) -> HostOverheads:
    """Host terms of a server, or of one in its caller's process, whose time per sequence is the caller's."""
    served, steps = engine_host(engine, card, fitted.engines, drafting), fitted.steps
    if not engine.in_process:
        return served
    factor = steps.host_factor(device.host_cpu)
    iteration_s = served.iteration_s + factor * steps.in_process_iteration_s
    return replace(served, iteration_s=iteration_s, sequence_s=factor * steps.in_process_sequence_s)


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
    gpus = engine.get("tensor_parallel", 1)
    return {
        "name": "engine",
        "model": model,
        "hardware": hardware,
        "cluster": {"num_gpus": gpus + TRAINING_GPUS if isinstance(gpus, int) else gpus, "generation_gpus": gpus},
        "workload": rows.constant_workload(*lengths),
        "engine": dict(engine),
        "speculation": dict(speculation),
    }
