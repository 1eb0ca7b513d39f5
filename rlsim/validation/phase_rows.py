"""Phases of measured RL steps, one record each, beside those of the simulated step.

A row is read as a measured step (:mod:`rlsim.validation.rows`) as far as its columns tell one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rlsim.errors import RlsimError
from rlsim.projection import project
from rlsim.results import Interval, Variant
from rlsim.schema.scenario import Scenario
from rlsim.validation.halves import TableRecords
from rlsim.validation.measured import MeasuredRow, MeasuredTable, Names, measured_value
from rlsim.validation.names import device_profile_name, model_card_name
from rlsim.validation.rows import SkippedRow, number, scenario_of
from rlsim.validation.table import TableRow
from rlsim.validation.transfer_rows import parallel_sizes

PHASES = {
    "step": ("total_step_s", "train_step_time_s"),
    "generation": ("generation_s",),
    "exposed_generation": ("exposed_generation_s", "exposed_generation_time_s"),
    "logprob": ("logprob_total_s",),
    "train": ("train_s", "policy_training_time_s"),
    "refit": ("weight_sync_s", "weight_sync_time_s"),
}
"""Phases that are compared, with the columns that may hold their seconds."""
_ENVIRONMENT = ("step", "generation", "exposed_generation")
"""Phases that wait for the environment of an agent."""


def validate_phases(records: TableRecords) -> MeasuredTable:
    """Every published phase of every row beside its prediction; a row without any is one record that says so."""
    rows: list[MeasuredRow] = []
    names = Names()
    cache: dict[str, Variant] = {}
    for done, record in enumerate(records.rows, start=1):
        rows += _phases(record, names, cache, records.seed)
        records.tell(done)
    return MeasuredTable("phases", records.table, records.digest, tuple(rows))


def _phases(record: TableRow, names: Names, cache: dict[str, Variant], seed: int) -> list[MeasuredRow]:
    cells, name = record.cells, names.of(record)
    known = {phase: value for phase, columns in PHASES.items() if (value := measured_value(cells, columns))}
    parts = [measured_value(cells, [column]) for column in ("old_logprob_s", "ref_logprob_s")]
    if "logprob" not in known and any(parts):
        known["logprob"] = sum(part or 0.0 for part in parts)
    about = {column: cells.get(column, "") for column in ("model", "gpu", "num_gpus")}
    rows = [MeasuredRow(f"{name}:{phase}", phase, "s", value, details=about) for phase, value in known.items()]
    try:
        names.check(record)
        if not rows:
            raise SkippedRow("no phase is given")
        scenario = scenario_of(step_cells(cells), seed)
        found = _simulated(scenario, cache)
    except (SkippedRow, RlsimError) as reason:
        return [row.skip(reason) for row in rows] or [MeasuredRow(name, "no phase", "s", details=about).skip(reason)]
    return [_predicted(row, cells, scenario, found) for row in rows]


def _simulated(scenario: Scenario, cache: dict[str, Variant]) -> Variant:
    """The simulated run; rows of one run, step after step, are simulated once."""
    key = scenario.model_dump_json(exclude={"name"})
    if key not in cache:
        cache[key] = project(scenario).candidate
    return cache[key]


def _predicted(row: MeasuredRow, cells: Mapping[str, str], scenario: Scenario, found: Variant) -> MeasuredRow:
    if row.group in _ENVIRONMENT and measured_value(cells, ["max_agent_turns"]):
        return row.skip("waits for the environment of an agent, whose times are not given")
    phase = "prepare_s" if row.group == "refit" and scenario.loop.mode == "sync" else f"{row.group}_s"
    time: Interval = found.step_s if row.group == "step" else dict(found.phases.items())[phase]
    if time.mean <= 0:
        return row.skip("the simulated step has no such phase")
    return replace(row, predicted=time.mean, low=time.low, high=time.high)


def step_cells(cells: Mapping[str, str]) -> dict[str, str]:
    """The row in the columns of a table of measured steps. Raises SkippedRow where it leaves too much open."""
    model, device = model_card_name(cells["model"]), device_profile_name(cells["gpu"])
    prompt = number(cells, "max_prompt_len", 0.0)
    cap = number(cells, "max_seq_len", 0.0) or prompt + number(cells, "max_response_len", 0.0)
    mean = cells.get("mean_response_len", "") or cells.get("mean_tokens_per_valid_seq", "")
    if not cap or not mean:
        raise SkippedRow("the mean or the longest response is not given")
    placement = cells.get("placement", "").lower()
    lag = cells.get("async_max_age_steps", "") or ("1" if "async" in placement else "")
    engine, trainer = (parallel_sizes(cells.get(name, "")) for name in ("gen_parallelism", "train_parallelism"))
    sharded = "fsdp" in cells.get("train_backend", "").lower()
    out = {
        "id": cells["id"],
        "model": model,
        "gpu": device,
        "num_gpus": cells["num_gpus"],
        "on_off_policy": f"async lag {lag}" if lag else "sync",
        "colocated": "true" if placement.startswith("colocated") else "false",
        "gen_gpus": cells.get("rollout_gpus", "") or cells.get("generation_gpus", ""),
        "train_gpus": cells.get("train_gpus", "") or cells.get("policy_gpus", ""),
        "prompts_per_step": cells["prompts_per_step"],
        "generations_per_prompt": cells.get("generations_per_prompt", "") or cells.get("samples_per_prompt", ""),
        "max_seq_len": f"{cap:g}",
        "avg_seq_len": mean,
        "total_step_time_s": cells.get("total_step_s", "") or cells.get("train_step_time_s", "") or "1",
        "train_backend": "fsdp" if sharded else "megatron",
        "gen_precision": cells.get("gen_precision", "") or cells.get("precision", ""),
        "train_precision": cells.get("policy_precision", "") or cells.get("precision", ""),
        "spec_decode_method": cells.get("spec_method", ""),
        "spec_k": cells.get("spec_k", ""),
        "acceptance_length": cells.get("acceptance_length", ""),
    }
    for size in ("tp", "pp", "ep"):
        out[f"gen_{size}"] = cells.get(f"gen_{size}", "") or str(engine.get(size, 1))
    for size in ("tp", "pp", "cp", "ep"):
        out[f"train_{size}"] = cells.get(f"policy_{size}", "") or str(trainer.get(size, 1))
    return out
