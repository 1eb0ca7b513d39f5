"""One prediction of AIConfigurator 0.12 per JSON line: questions on stdin, answers on stdout, in the same order.

Runs under an interpreter that has ``aiconfigurator`` and needs nothing of rlsim; ``peer_engine.py`` starts it. A
question names a system, a backend, a checkpoint, a layout and a load; its answer holds ``decode_step_ms``, the bare
decode step averaged over a response, and for serving ``tpot_ms``, with prefill interleaved; or ``reason``, why not.
Databases are those of the newest engine release that it declares current for the system.
"""

from __future__ import annotations

import json
import logging
import sys
from functools import cache
from typing import Any

try:
    from aiconfigurator.sdk.moe_comm_resolver import resolve_model_config_moe_comm
    from aiconfigurator_core.sdk.backends.factory import get_backend
    from aiconfigurator_core.sdk.config import RuntimeConfig
    from aiconfigurator_core.sdk.config_builders import apply_nextn, build_model_config
    from aiconfigurator_core.sdk.models import (
        check_is_moe,
        get_model,
        resolve_context_fmha_by_data,
        resolve_nvfp4_for_system,
    )
    from aiconfigurator_core.sdk.perf_database import get_database_view, get_latest_database_version
except ImportError as missing:
    sys.exit(f"{missing.name or missing} is not installed")

Question = dict[str, Any]


@cache
def database(system: str, backend: str) -> Any:
    """Measured tables of the release that is current for a system and an engine."""
    release = get_latest_database_version(system=system, backend=backend)
    found = release and get_database_view(system, backend, release, database_mode="SILICON")
    if not found:
        raise ValueError(f"no database of {backend} on {system}")
    return found


@cache
def model(setup: str, serving: bool) -> Any:
    """Its model of an engine; ``setup``: the engine's part of a question as JSON."""
    engine = json.loads(setup)
    tables = database(engine["system"], engine["backend"])
    config = build_model_config(
        engine["tp"], 1, engine["dp"], engine["moe_tp"], engine["moe_ep"],
        gemm_quant_mode=engine["gemm"], kvcache_quant_mode=engine["kv"], moe_quant_mode=engine["moe"],
    )  # fmt: skip
    apply_nextn(config, engine["drafted"])
    if check_is_moe(engine["checkpoint"]):
        config.resolve_moe_parallelism()
        phases = ("context", "generation") if serving else ("generation",)
        resolve_model_config_moe_comm(
            config, model_path=engine["checkpoint"], backend_name=engine["backend"], database=tables,
            required_phases=phases,
        )  # fmt: skip
    if config.moe_comm_backend is None:
        resolve_context_fmha_by_data(config, engine["checkpoint"], tables, engine["backend"], is_context_role=serving)
    resolve_nvfp4_for_system(config, engine["system"], engine["checkpoint"], backend_name=engine["backend"])
    return get_model(engine["checkpoint"], config, engine["backend"])


def predict(question: Question) -> dict[str, float]:
    """Milliseconds of a decode step and, for serving, per output token."""
    engine, backend = question["engine"], get_backend(question["engine"]["backend"])
    tables, setup = database(engine["system"], engine["backend"]), json.dumps(engine, sort_keys=True)
    load = RuntimeConfig(batch_size=question["batch"], isl=question["prompt"], osl=question["response"])
    alone = backend.run_static(model(setup, False), tables, load, "static_gen")
    steps = max(1, question["response"] - 1)
    answer = {"decode_step_ms": sum(alone.get_generation_latency_dict().values()) / steps}
    if question["serving"]:
        served = backend.run_agg(
            model(setup, True), tables, load, ctx_tokens=question["prompt"],
            decode_tokens_per_iteration=question["acceptance_length"],
        )  # fmt: skip
        answer["tpot_ms"] = served.get_result_dict()["tpot"]
    return answer


def answer_of(question: Question) -> dict[str, Any]:
    """The prediction with the numeric formats asked for, else with the checkpoint's own, else the reason."""
    try:
        return dict(predict(question))
    except Exception as reason:  # any of its own kinds: a refusal is an answer
        engine = question["engine"]
        if engine["gemm"] is None and engine["moe"] is None:
            return {"reason": f"{type(reason).__name__}: {reason}".splitlines()[0][:200]}
        own = {**engine, "gemm": engine["gemm"] if engine["moe"] else None, "moe": None}
        return answer_of({**question, "engine": own})


def main() -> None:
    """Answer until stdin ends."""
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        print(json.dumps(answer_of(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
