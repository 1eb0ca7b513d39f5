"""Calls of the library whose answers are held, by case: of the evidence, whose commands print no JSON or take long."""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
from commands import AGENT, LAG, WILD
from golden_tables import PUBLISHED, as_table, compared, published, some_rows, sweep_of, swept
from measured_tables import PHASES, ROW, TRAINING, TRANSFER
from parts import PARTS
from pydantic import BaseModel

from bench.loop.events import journal_path
from research.deviations import Deviation, fitted_deviations
from rlsim.calibration.loop_stack import LoopStacks
from rlsim.evidence import Kind, cross, hierarchy, joint, phases, trained_terms
from rlsim.evidence import published as published_rows
from rlsim.evidence.acceptance import fit_curves
from rlsim.evidence.compare import learn, validate_table
from rlsim.evidence.loop.check import (
    configurations,
    predict,
    read_journal,
    replay,
    run_predicted,
    settings_to_run,
    undisturbed,
)
from rlsim.evidence.memory import left_out
from rlsim.evidence.shown import benchmark, site
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection import scale
from rlsim.projection.uncertainty.evidence import EvidenceTable, load_evidence
from rlsim.projection.variant import simulate_variant, so_many
from tests.golden import courses, moved, traits

LOOP = Path(__file__).parents[1] / "evidence" / "loop"


def wild_rows() -> Any:
    """Measured phases of users' runs beside those of their scenarios."""
    rows = [row for row in published("wild/steps") if row["id"] in WILD[:8]]
    flagged, summed = {**rows[0], "flag": "generation not comparable"}, {**rows[1], "notes": "is the sum"}
    return compared([*rows, flagged, summed, {**rows[2], "id": "none"}], WILD, kind="wild")


PHASE_CELLS = (
    {"algorithm": "DAPO", "placement": "colocated sync", "train_backend": "FSDP2", "ref_logprob_s": "0", "flag": "odd",
     "async_max_age_steps": "2", "max_seq_len": "2048", "train_parallelism": "TP2 PP2 EP4", "weight_sync_time_s": "4"},
    {"placement": "disaggregated", "gen_tp": "2", "policy_pp": "2", "framework": "verl",
     "generation_s": "7", "logprob_s": "3", "spec_method": "eagle3", "spec_k": "3", "acceptance_length": "2.4",
     "max_agent_turns": "8", "gpu": "b7", "model": "?", "optimizer_bytes": "12", "framework_version": "0.7"},
    {"logprob_total_s": "4", "mean_response_len": "", "max_response_len": "4096", "precision": "fp8"},
)  # fmt: skip
"""Other cells of a row of phases."""


def agents() -> Any:
    """Steps of a small run of agents: medians, spreads, and rows of their own."""
    turns = f"{AGENT}turns: {{kind: lognormal, mean_turns: 2.5}}, max_turns: 4}}"
    small = load_scenario(LAG[0], ["name=small", turns, "speculation={method: none}", "simulation.steps=6",
                                   "trainer.global_batch_samples=null", "simulation.replications=1"])  # fmt: skip
    cells = {"model": f"a/{small.model.name}", "gpu": small.hardware.name, "num_gpus": str(small.cluster.num_gpus),
             "generation_gpus": str(small.cluster.generation), "max_agent_turns": "4", "prompts_per_step": "4",
             "generations_per_prompt": "4", "framework": "other"}  # fmt: skip
    rows = [{**cells, "id": f"s{n}", "exposed_generation_time_s": str(n % 3), "weight_sync_time_s": "1.5" * (n > 2),
             "policy_training_time_s": f"{3 + n}", "train_step_time_s": f"{30 + 2 * n * n}", "flag": "first" * (n == 8)}
            for n in range(9)]  # fmt: skip
    with patch.object(phases, "_shipped", lambda: (small,)):
        return compared(rows, kind="phases")


def learnt(rows: Sequence[dict[str, str]]) -> Any:
    """What a posterior learns of rows: times before and after, and the columns that moved most."""
    with tempfile.TemporaryDirectory() as folder:
        found = learn(as_table(Path(folder), rows))
    mean, columns = found.posterior.mean, found.posterior.columns
    moved = {columns[place]: float(mean[place]) for place in np.argsort(-np.abs(mean))[:40]}
    times = [{**asdict(one), "remark": bool(one.remark)} for one in found.times]
    return {"times": times, "skipped": len(found.skipped), "mean": moved, "spreads": np.diag(found.posterior.factor)}


def left_out_groups() -> Any:
    """Scores of left-out groups of a small evidence: transfers and some training steps, with their own terms."""
    evidence = load_evidence()
    rows = [row for row in evidence.rows if row.kind == "transfer"][::4]
    rows += [row for row in evidence.rows if row.kind == "training"][::40]
    named = {name for row in rows for name in row.slopes}
    terms = tuple(term for term in evidence.terms if term.name in named)
    with patch.object(cross, "DRAWS", 200), patch.object(hierarchy, "ROUNDS", 6):
        found = cross.validate_cross(EvidenceTable(tuple(rows), terms, evidence.shifts, evidence.digests))
    return {"scores": found, "ranks": found.ranks}  # which no file holds


def fitted_jointly() -> Any:
    """A joint fit of a few rows of each kind in two rounds."""
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(joint, "ROUNDS", 1),
        patch.object(hierarchy, "ROUNDS", 3),
    ):
        paths = []
        for name, rows in (("refit", [row for row in published("refit") if row["framework"] == "verl"]),
                           ("training_steps", published("training_steps")[::60])):  # fmt: skip
            Path(folder, name).mkdir()
            paths.append(as_table(Path(folder, name), rows).rename(Path(folder, f"{name}.csv")))
        found = joint.fit_jointly(paths)
    posterior = found.posterior
    place = np.argsort(-np.abs(posterior.mean))[:40]
    return {"mean": dict(zip((posterior.columns[at] for at in place), posterior.mean[place], strict=True)),
            "spreads": posterior.spreads, "errors": posterior.errors, "rows": posterior.rows, "fit": posterior.fit,
            "members": dict(sorted(found.members.items())), "factor": np.diag(posterior.factor)[place]}  # fmt: skip


def trained() -> Any:
    """Terms of training steps fitted to a few rows."""
    rows = [*published("training_steps")[::80], *published("training_users")[:5]]
    with tempfile.TemporaryDirectory() as folder, patch.object(trained_terms, "ROUNDS", 2):
        return trained_terms.fit_terms([as_table(Path(folder), rows)])


def acceptance_curves() -> Any:
    """Processes fitted to curves over draft length and position."""
    rows = [{"id": f"{kind}{name}{x}", "curve_kind": kind, "series": name, "setting": "", "x_name": x_name, "x": str(x),
             "y_name": y_name, "y": f"{y:.4f}", "unit": unit} for kind, name, x_name, y_name, unit, ys in (
        ("acceptance_by_k", "one_eagle3", "drafted", "mean_acceptance_length", "tokens", (1.7, 2.2, 2.5, 2.7, 2.8)),
        ("acceptance_by_k", "two_ngram", "drafted", "mean_acceptance_length", "tokens", (1.4, 1.6, 1.7)),
        ("acceptance_by_position", "own_mtp", "position", "rate", "1", (0.85, 0.7, 0.52, 0.4)),
    ) for x, y in enumerate(ys, start=1)]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = as_table(Path(folder), rows)
        return {"curves": fit_curves(path), "compared": validate_table(path)}


def looped() -> Any:
    """Journals of the real loop replayed, and what is predicted of some configurations."""
    stacks = LoopStacks.of(json.loads((LOOP / "loop_measurements.json").read_text(encoding="utf-8")))
    found: dict[str, Any] = {"settings": json.loads(settings_to_run("cuda"))[3:5]}
    for path in sorted(LOOP.glob("*.jsonl")):
        settings, events = read_journal(path)
        found[path.stem] = {name: replay(stacks, settings, one) for name, one in
                            (("as it was", events), ("alone", undisturbed(events)))}  # fmt: skip
        found[path.stem]["error"] = found[path.stem]["alone"].error
    found["compared"] = compared_loops(stacks)
    found["predicted"] = [predict(stacks, settings).side for settings, _ in configurations()[::5]]
    return found


def compared_loops(stacks: LoopStacks) -> Any:
    """Journals beside what is predicted of their configurations, and what is said meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        told, said = [], list[Any]()
        for path in sorted(LOOP.glob("*.jsonl"), reverse=True):  # that without drafts first
            settings = read_journal(path)[0]
            over = "" if settings.drafter == "none" else told[0].settings.name
            one = predict(stacks, settings, over)
            told.append(replace(one, settings=settings))
            for number in (1, 2):
                journal = journal_path(settings, Path(folder, "journals", f"round_{number}"))
                journal.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, journal)
        return run_predicted(stacks, told, Path(folder), lambda *words: said.append(words), ran=True), said


ODD = ("1,024", "1,5", "90%", "-", "nan", "1.2e15", "-3", "0", "2.5", "none", "", "True", "x" * 10_001)
"""What people write into cells."""


def odd_cells() -> Any:
    """Tables with such cells, with a unit that slips, and with rows of other lengths."""
    base = {"id": "a", "engine": "vllm", "model": "Llama-3.1-8B", "precision": "bf16", "gpu": "H100", "osl": "64",
            "decode_gpus_per_engine": "1", "isl": "128", "concurrency": "4", "tpot_ms": "7", "spec_method": "none",
            "serving_mode": "agg", "random_range_ratio": "0.8"}  # fmt: skip
    rows = [{**base, "id": f"{column}{n}", column: cell} for n, cell in enumerate(ODD)
            for column in ("isl", "tpot_ms", "random_range_ratio", "concurrency")]  # fmt: skip
    slipped = {**TRAINING, "step_time_s": "9000", "implied_step_time_s": "9000"}, {**base, "tpot_ms": "0.007"}
    with tempfile.TemporaryDirectory() as folder:
        path = as_table(Path(folder), [base, base])
        path.write_text(f"{path.read_text(encoding='utf-8')}b,vllm\n\nc{',' * 40}\n", encoding="utf-8")
        short = validate_table(path)
    return [compared(rows), *(compared([row]) for row in slipped), short]


def scored() -> Any:
    """Predictions of both baselines, and their scores."""
    steps = PUBLISHED / "rl_steps.csv"
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for name in benchmark.BASELINES:
            path, text = Path(folder, "p.csv"), benchmark.baseline(name, steps)
            head, *lines = text.splitlines()
            rows = [f"{line.removesuffix(',,')},{20 + 9 * n},{90 + 50 * n}" for n, line in enumerate(lines)]
            path.write_text("\n".join([head, *rows, *lines[:3]]) + "\n", encoding="utf-8")
            found[name] = {"text": lines, "score": benchmark.score(path, steps)}
    return found


@contextlib.contextmanager
def small_tables() -> Iterator[Callable[[str], Path]]:
    """Where some rows of every published table lie, by name."""
    with tempfile.TemporaryDirectory() as folder:
        for path in (*PUBLISHED.glob("*.csv"), PUBLISHED / "wild" / "steps.csv"):
            name = str(path.relative_to(PUBLISHED))
            Path(folder, name).parent.mkdir(exist_ok=True)
            Path(folder, name).write_text(some_rows(name.removesuffix(".csv"), 3), encoding="utf-8")
        yield lambda name: Path(folder, name)


def shown() -> Any:
    """What the site shows of small tables."""
    kinds = {kind: name for kind, name in site.TABLES.items() if kind in ("steps", "transfers", "rollouts")}
    with small_tables() as small, patch.object(site, "published_table", small), patch.object(site, "REPLICATIONS", 1):
        tables = site.shown_tables(kinds, lambda call, tasks: enumerate(map(call, tasks)), lambda done: None)
    runs = [row for row in published("wild/steps") if row["id"] in WILD[1:3]]
    tables["wild"] = compared(runs, WILD[1:3], kind="wild")
    return {"tables": tables, "anchors": site.anchors(tables), "past": site.past_scores()}


def published_anew() -> Any:
    """All that is compared of published tables, in small, with two more of transfers joined."""
    with small_tables() as small, patch.object(published_rows, "published_table", small):
        shutil.copy(small("refit_more.csv"), small("again.csv"))
        more = {Kind.TRANSFERS: [small("refit_more.csv"), small("again.csv")],
                Kind.TRAINING: [small("training_users.csv")]}  # fmt: skip
        return published_rows.run_published(replications=1, tables=more)


def users() -> Any:
    """Deviations of families from made-up sources."""
    backends = (("verl fsdp", "fsdp dense", "fsdp", "all"), ("slime", "megatron moe", "megatron", "all"),
                ("skyrl", "fsdp dense", "fsdp", "all"))  # fmt: skip
    found = [
        Deviation(phase, f"s{n}", backends[n % 3], 0.9 * np.sin(2.3 * n + len(phase)), 1 + n % 4, 0.1 * (n % 3))
        for phase in ("train", "generation", "logprob")
        for n in range(9 if phase == "train" else 5)
    ]
    return fitted_deviations([*found, Deviation("transfer", "alone", ("all",), 0.4, 2)])


def pools() -> Any:
    """Lagged loops of many engines of which one pool is simulated, with agents and without."""
    split = ("cluster.num_gpus=64", "cluster.generation_gpus=32", "cluster.training_gpus=32", "loop.mode=async",
             "loop.policy_lag=1", "workload.prompts_per_step=64", "simulation.steps=2",
             "workload.generations_per_prompt=4", "trainer.global_batch_samples=null",
             "speculation.method=none")  # fmt: skip
    with patch.object(scale, "MOST_SAMPLES", 2**10), patch.object(scale, "LEAST", 4):
        return [
            {"pools": scale.pools_of(one), "carried": scale.carried(one), "phases": run.phases_s,
             "added": [trace.doubling for trace in run.traces], "counters": run.counters.prefill_tokens,
             "steps": [[step.seconds, step.generated_tokens, step.staleness] for step in run.every_step]}
            for more in ((), ("loop.style=verl_v1", "loop.max_in_flight_groups=72"),
                         (f"{AGENT}turns: {{kind: constant, turns: 2}}, max_environments: 256, calls_per_s: 100}}",))
            for one in [load_scenario("quickstart", [*split, *more])]
            for run in [simulate_variant(vary(one, so_many(one, 2)))]
        ]  # fmt: skip


def memory_scores() -> Any:
    """Published memory with its group left out."""
    return [
        {"kind": one.kind, "groups": one.groups, "error": one.log_error, "single": one.single, "far": one.draws.std(1)}
        for one in left_out.left_out("framework", 200)
    ]


LIBRARY: dict[str, Callable[[], Any]] = {
    "columns of steps": lambda: sweep_of("rl_steps", dict(ROW), 1, replications=1),
    "columns of phases": lambda: compared([*swept(dict(PHASES), PHASE_CELLS, 3)], kind="phases", replications=1),
    "steps of agents": agents,
    "columns of iterations": lambda: [sweep_of("iterations", place) for place in (5, 150)],
    "odd iterations": lambda: compared(
        [
            {**published("iterations")[5], "id": f"i{n}", **more}
            for n, more in enumerate(
                (
                    {"spec_method": "eagle3", "spec_k": "9", "acceptance_length": ""},
                    {"spec_method": "mtp", "spec_k": "77"},
                    {"spec_method": "mtp", "spec_k": "2", "acceptance_length": ""},
                    {"spec_method": "mtp", "spec_k": ""},
                    {
                        "source": "ai-dynamo/aiconfigurator",
                        "engine": "trtllm",
                        "model": "openai/gpt-oss-120b",
                        "gpu": "H200",
                        "engine_version": "",
                        "precision": "mxfp4",
                        "tp": "4",
                        "decode_gpus_per_engine": "4",
                        "ep": "1",
                    },
                    {"decode_step_ms_est": "", "tpot_kind": "mean"},
                    {"serving_mode": "disagg", "concurrency": "640"},
                )
            )
        ]
    ),
    "columns of training": lambda: [sweep_of("training_steps", dict(TRAINING), 1), sweep_of("training_users", 40, 0)],
    "columns of transfers": lambda: [sweep_of("refit", dict(TRANSFER)), sweep_of("refit_more", 3)],
    "columns of rollouts": lambda: [sweep_of("rollouts", 4), compared([{**published("rollouts")[4], "osl": "1"}])],
    "columns of speculation": lambda: sweep_of("speculation", 30),
    "columns of memory": lambda: [sweep_of("memory/rows", place) for place in (0, 70, 140, 200, 240)],
    "columns of peaks": lambda: sweep_of("memory/peaks", 30),
    "wild rows": wild_rows,
    "own iterations": lambda: learnt(published("iterations")[::40]),
    "own steps": lambda: learnt(
        [
            {**ROW, "id": f"r{n}", "total_step_time_s": "45", **more}
            for n, more in enumerate(
                (
                    {},
                    {"train_s": "9", "generation_s": "20"},
                    {"in_fit": "false"},
                    {"total_step_time_s": "0"},
                    {
                        "on_off_policy": "async lag 1",
                        "num_gpus": "16",
                        "gen_gpus": "8",
                        "train_gpus": "8",
                        "generation_s": "9",
                    },
                    {"prompts_per_step": "4096", "generations_per_prompt": "64"},
                )
            )
        ]
    ),
    "own phases": lambda: learnt([dict(PHASES), {**PHASES, "id": "b", "total_step_s": "", "train_s": ""}]),
    "own training": lambda: learnt(published("training_steps")[::60]),
    "own transfers": lambda: learnt(published("refit")),
    "left-out groups": left_out_groups,
    "joint fit": fitted_jointly,
    "trained terms": trained,
    "acceptance curves": acceptance_curves,
    "real loop": looped,
    "odd cells": odd_cells,
    "baselines": scored,
    "site": shown,
    "users": users,
    "pools": pools,
    "memory left out": memory_scores,
    "study": lambda: list(published_rows.study(0, 1)),
    "published": published_anew,
    "watches": courses.watches,
    "runs explained": courses.explained,
    "contributions": courses.contributions,
    "whole runs": courses.whole_runs,
    "runs in blocks": courses.runs_in_blocks,
    "losses": courses.losses,
    "chapters": courses.chapters,
    "folders": courses.folders,
    **traits.CASES,
    **moved.CASES,
    **PARTS,
}
"""Answers of the library, by case."""


def plain(value: Any) -> Any:
    """A record of any kind as mappings, lists and plain values."""
    if isinstance(value, BaseModel):
        return plain(value.model_dump(mode="json"))
    if isinstance(value, msgspec.Struct):
        return plain({name: getattr(value, name) for name in value.__struct_fields__})
    if is_dataclass(value) and not isinstance(value, type):
        return plain({name: getattr(value, name) for name in value.__dataclass_fields__})
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value
