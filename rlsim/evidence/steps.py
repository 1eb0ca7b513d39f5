"""Measured RL steps beside the simulated ones, with their phases. Lengths of the table exclude the prompt."""

import re
from collections.abc import Sequence
from typing import Any

from rlsim.evidence.rows import (
    Comparison,
    MeasuredRow,
    Predict,
    Prediction,
    device_profile_name,
    model_card_name,
    row_scenario,
)
from rlsim.evidence.tables import (
    STEP_COLUMNS,
    Row,
    SkippedRow,
    Table,
    flag,
    length_tokens,
    measured_value,
    number,
    parallel,
    whole_number,
)
from rlsim.files.yaml import lists_beside
from rlsim.loading.models import load_card
from rlsim.parameters.posterior import NONE
from rlsim.parameters.sets import DEFAULT_STACK, Fitted, load_stack, stack_of_release
from rlsim.projection.project import project
from rlsim.results import Variant
from rlsim.results.validation import ComparedRow, PhaseError
from rlsim.schema.scenario import NEMO_RL, Scenario
from rlsim.schema.trainer import Stack
from rlsim.tables.profile import load_profile

PROMPT_TOKENS = 107
"""Prompt with template of OpenMathInstruct-2 on these recipes: tokens/s x time - mean generated, median of 41 rows."""
LOG_SIGMA = 0.8
"""Spread of log lengths where a table gives only the mean: that of ``rlsim new``. Assumption."""
RECIPE_OPTIMIZER_BYTES = 8.0
"""State a parameter of the precision-aware optimizer, which the recipes of frameworks use whose steps are published."""
MTP_ACCEPTANCE_LENGTH = 1.82
"""DeepSeek-R1 MTP with k=1 (vLLM PR 12755), where a row publishes none."""
MAX_SAMPLES = 200_000
"""Samples of one step that a row may ask for; the largest published one has 4,096."""


METHODS: dict[str, str] = lists_beside(__file__)["speculation"]
"""Methods of speculation as tables call them."""


def _measured_rows(name: str, cells: Row) -> list[MeasuredRow]:
    about = {"model": cells.get("model", ""), "device": cells.get("gpu", ""), "mode": cells.get("on_off_policy", "")}
    about["release"] = cells.get("framework_version", "")
    group = ", ".join(part for part in (about["model"].split("/")[-1], about["device"], about["mode"]) if part)
    return [MeasuredRow(name, group, "s", measured_value(cells, "total_step_time_s"), cells, about, phased=True)]


def _predictor(table: Table, fitted: Fitted) -> Predict:
    """A function that predicts the step of a measured row and its phases, in seconds, as rlsim prices."""
    simulated = Simulated()

    def predict(row: MeasuredRow) -> Prediction:
        if not number(row.cells, "total_step_time_s"):
            raise SkippedRow("total_step_time_s must be above 0")
        scenario = scenario_of(row.cells, table.seed, table.replications)
        found = simulated.variant(scenario)
        phases = {
            name: PhaseError(predicted=time.mean, measured=_measured_phase(row.cells, name, scenario))
            for name, time in found.phases.items()
        }
        return Prediction(found.step_s, phases=phases)

    return predict


def _extra_fields(table: Table, rows: Sequence[ComparedRow]) -> dict[str, Any]:
    absent = [name for name in lists_beside(__file__)["parallel_columns"] if name not in table.rows[0].cells]
    return {"remarks": (f"not in the table and taken as 1: {', '.join(absent)}",) if absent else ()}


STEPS = Comparison(_measured_rows, _predictor, _extra_fields)
"""Measured RL steps beside simulated ones; equal steps are simulated once."""


class Simulated:
    """Simulated runs, each of them once."""

    def __init__(self) -> None:
        self._known: dict[str, Variant] = {}

    def variant(self, scenario: Scenario) -> Variant:
        """The run of a scenario, whatever its name."""
        # Names do not change a run; rows that repeat a configuration are simulated once.
        key = scenario.model_dump_json(exclude={"name", "question"})
        if key not in self._known:
            self._known[key] = project(scenario).candidate
        return self._known[key]


def _measured_phase(cells: Row, phase: str, scenario: Scenario) -> float | None:
    """Measured seconds of a phase, where published.

    Column refit_s holds everything between the last optimizer step and the first token in synchronous runs, which is
    our ``prepare_s``; in asynchronous ones it is the pause at publication.
    """
    synchronous = scenario.loop.mode == "sync"
    if phase == ("refit_s" if synchronous else "prepare_s"):
        return None
    column = "refit_s" if phase == "prepare_s" else phase
    if phase == "exposed_generation_s" and synchronous and not cells.get(column):
        # All of it is exposed where nothing trains meanwhile.
        column = "generation_s"
    return number(cells, column) if cells.get(column) else None


def scenario_of(row: Row, seed: int = 0, replications: int | None = None) -> Scenario:
    """The scenario of one measured step: that which ``rlsim validate`` and ``calibrate own`` predict.

    replications: default those of a scenario. Raises SkippedRow where the row leaves something essential open.
    """
    for column in STEP_COLUMNS:
        if not row.get(column, "").strip():
            raise SkippedRow(f"{column} is not given")
    lag = _lag(row["on_off_policy"])
    document: dict[str, object] = {
        "name": row["id"][:200],
        "model": load_card(model_card_name(row["model"], listed=True)),
        "hardware": load_profile(device_profile_name(row["gpu"], listed=True)),
        "stack": stack_of(row),
        "cluster": _cluster(row, lag),
        "workload": _workload(row),
        "engine": _engine(row),
        "speculation": _speculation(row),
        "trainer": _trainer(row),
        "loop": {
            "mode": "async" if lag else "sync",
            "policy_lag": lag,
            "in_flight_updates": flag(row, "in_flight_weight_updates", True),
        },
        "simulation": {
            "seed": seed,
            **({} if replications is None else {"replications": replications}),
            # Tables of this kind hold recipes of their makers; runs of users are of kind wild.
            "user_runs": NONE,
        },
    }
    return row_scenario(document)


def _lag(text: str) -> int:
    """Policy lag: 'sync', 'on-policy', 'async lag N', 'async N', 'N-step off-policy'."""
    words = text.lower()
    digits = re.search(r"\d+", words)
    if re.match(r"sync|on[- ]?policy", words):
        return 0
    if words.startswith("async") or "off" in words:
        return int(digits.group()) if digits else 1
    raise SkippedRow(f"on_off_policy must be 'sync', 'async lag N' or 'N-step off-policy'; got {text[:40]!r}")


def _precision(row: Row, column: str) -> str:
    """Number format of a cell; block and microscaling FP8 count as FP8, and a format that is not known is refused."""
    text = row.get(column, "").strip().lower() or "bf16"
    for marks, name in ((("bf16", "bfloat16"), "bf16"), (("fp8",), "fp8"), (("fp4",), "nvfp4")):
        if any(mark in text for mark in marks):
            return name
    raise SkippedRow(f"{column} must be bf16, fp8 or nvfp4; got {text[:40]!r}")


def stack_of(row: Row) -> Stack:
    """The stack of the row's framework: verl's, else the NeMo-RL stack of its release, the newest that is not newer.

    Without a release the default one; NeMo-RL's main branch of mid 2026 counts as the newest release.
    """
    if "verl" in row.get("framework", "").lower():
        return load_stack("verl")
    release = re.search(r"v(\d+\.\d+)", row.get("framework_version", ""))
    if release is None:
        return load_stack(DEFAULT_STACK)
    return stack_of_release(NEMO_RL, release.group(1)) or load_stack(DEFAULT_STACK)


def _cluster(row: Row, lag: int) -> dict[str, int]:
    total = whole_number(row, "num_gpus")
    if not lag and flag(row, "colocated", True):
        return {"num_gpus": total}
    generation = whole_number(row, "gen_gpus", max(1, total // 2))
    training = whole_number(row, "train_gpus", max(1, total - generation))
    return {"num_gpus": total, "generation_gpus": generation, "training_gpus": training}


def _workload(row: Row) -> dict[str, object]:
    prompts, group = whole_number(row, "prompts_per_step"), whole_number(row, "generations_per_prompt")
    trained = whole_number(row, "rollout_batch", prompts * group)
    if max(prompts * group, trained) > MAX_SAMPLES:
        raise SkippedRow(f"{max(prompts * group, trained):,} samples in one step are more than {MAX_SAMPLES:,}")
    # Some runs generate more than they train on (dynamic sampling).
    factor = max(1.0, prompts * group / trained)
    cap, mean = whole_number(row, "max_seq_len"), number(row, "avg_seq_len")
    prompt = length_tokens(row, "prompt_tokens", min(PROMPT_TOKENS, max(1, cap // 4)))
    if mean >= cap - prompt:
        raise SkippedRow(f"avg_seq_len {mean:g} reaches max_seq_len {cap} less a prompt of {prompt} tokens")
    return {
        "prompts_per_step": max(1, round(trained / group)),
        "generations_per_prompt": group,
        "generated_batch_factor": factor,
        "prompt_tokens": {"kind": "constant", "tokens": prompt},
        "response_tokens": {"kind": "lognormal", "mean_tokens": mean, "log_sigma": LOG_SIGMA},
        "max_sequence_tokens": cap,
    }


def _engine(row: Row) -> dict[str, object]:
    server_engine = flag(row, "async_engine", _lag(row["on_off_policy"]) > 0)
    sequences = whole_number(row, "inferred_max_num_seqs", 128 if server_engine else 1024)
    return {
        **parallel(row, "gen_", "tensor", "pipeline", "expert"),
        "weight_precision": _precision(row, "gen_precision"),
        "max_running_sequences": sequences,
        "max_batched_tokens": 2048 if server_engine else 16384,
        "gpu_memory_utilization": number(row, "gpu_memory_utilization", 0.6),
        "dispatch": "round_robin" if server_engine else "static",
    }


def _speculation(row: Row) -> dict[str, object]:
    method = row.get("spec_decode_method", "").strip().lower() or "none"
    if method == "none":
        return {}
    name = METHODS.get(method)
    if name is None:
        raise SkippedRow(f"spec_decode_method {method!r} is not known")
    k = whole_number(row, "spec_k")
    default = MTP_ACCEPTANCE_LENGTH if name == "mtp" and k == 1 else None
    return {
        "method": name,
        "draft_length": k,
        "acceptance_length": number(row, "acceptance_length", default),
        "trained_context_tokens": whole_number(row, "max_seq_len"),  # measured over these responses
    }


def _trainer(row: Row) -> dict[str, object]:
    cap = whole_number(row, "max_seq_len")
    return {
        "backend": _backend(row),
        **parallel(row, "train_", "tensor", "pipeline", "context", "expert"),
        "precision": _precision(row, "train_precision"),
        "global_batch_samples": whole_number(row, "train_gbs", 10**9) if row.get("train_gbs", "").strip() else None,
        "sequence_packing": flag(row, "sequence_packing", True),
        "micro_batch_tokens": whole_number(row, "train_mb_tokens", cap),
        "logprob_micro_batch_tokens": whole_number(row, "logprob_mb_tokens", cap),
        "recompute": "full" if flag(row, "activation_checkpointing", False) else "none",
        **_optimizer(row),
        "policy_logprobs": flag(row, "prev_logprobs_recomputed", not _on_policy_ratio(row)),
        "reference_logprobs": _reference_logprobs(row),
    }


def _optimizer(row: Row) -> dict[str, float]:
    """State of the optimizer as given, else of the recipes of a framework that is named, else a scenario's default."""
    named = any(row.get(column, "").strip() for column in ("framework", "framework_version"))
    if not named and not row.get("optimizer_bytes", "").strip():
        return {}
    return {"optimizer_bytes_per_parameter": number(row, "optimizer_bytes", RECIPE_OPTIMIZER_BYTES)}


def _backend(row: Row) -> str:
    given = row.get("train_backend", "").strip().lower()
    if given in ("megatron", "fsdp"):
        return given
    if given:
        raise SkippedRow(f"train_backend must be megatron or fsdp; got {given[:40]!r}")
    # Rows without the column name DTensor or FSDP in their recipe, if at all.
    hints = f"{row['id']} {row.get('notes', '')}".lower()
    return "fsdp" if "dtensor" in hints or "fsdp" in hints else "megatron"


def _on_policy_ratio(row: Row) -> bool:
    """Whether the recipes of the row's release skip the policy's log-prob pass: NeMo-RL v0.7, one update per batch."""
    if "v0.7" not in row.get("framework_version", "").lower():
        return False
    batch = whole_number(
        row, "rollout_batch", whole_number(row, "prompts_per_step") * whole_number(row, "generations_per_prompt")
    )
    return whole_number(row, "train_gbs", batch) == batch


def _reference_logprobs(row: Row) -> bool:
    """Whether the reference policy's forward pass runs; it does by default even without a KL penalty (NeMo-RL)."""
    text = row.get("reference_policy_kl", "").lower()
    by_default = "recomputed" in text or not any(word in text for word in ("kl=0.0", "skip", "none"))
    return flag(row, "reference_logprobs", by_default)
