"""A set of engine parameters at round values, which no fit moves."""

from typing import Any

from rlsim.schema.engine_parameters import EngineParameters


def family(engine: str, **changes: Any) -> dict[str, Any]:
    plain = {"overlap_s": 1e-6, "iteration_s": 0.003, "sequence_s": 3e-5, "error": 0.1}
    drafting = {"drafting_iteration_s": 5e-4, "drafting_sequence_s": 4e-6, "drafting_rows": 7}
    return {"engine": engine, "rows": 12, **plain, **drafting, **changes}


def content(**changes: Any) -> dict[str, Any]:
    fit = {"command": "c", "rows": 12, "data_digest": "d", "median_error": 0.1, "p90_error": 0.2}
    return {"name": "round", "description": "round values", "fit": {**fit, "held_out_median_error": 0.15},
            "network_hop_s": 2e-5, "families": [family("vllm"), family("sglang", iteration_s=0.002), family("trtllm")],
            **changes}  # fmt: skip


ENGINES = EngineParameters.model_validate(content())
