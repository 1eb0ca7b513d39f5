"""Runs for the golden net: watched beside their scenario, given away, and simulated with all they may lose."""

import json
import os
import random
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from msgspec.structs import asdict

from rlsim.attribution.check import check
from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.project import project
from rlsim.projection.uncertainty.response import StepResponse
from rlsim.readers.logs.answer import Asked, answer_run
from rlsim.readers.logs.contribution import contribution_of
from rlsim.readers.logs.reading import RunLog, read_log, read_text_log
from rlsim.readers.logs.steady import steady_of
from rlsim.readers.logs.text import render_run
from rlsim.readers.logs.watching import Watcher
from rlsim.runs import chapters as chapters_module
from rlsim.runs.chapters import BlockRecord, chapters_of, state_bytes
from rlsim.runs.losses import Course, losses_of
from rlsim.runs.run import run
from rlsim.schema.scenario import Scenario
from tests.golden.commands import LAG
from tests.golden.plain import plain
from tests.golden.texts import first_steps
from tests.golden.traits import noted, words
from tests.readers.event_files import event, event_file, simple, tensor

SMALL = ("simulation.replications=2", "workload.prompts_per_step=16")
NAMES = {"gen": "generation_s", "old_log_prob": "logprob_s", "update_actor": "train_s", "update_weights": "prepare_s"}
Moves = Mapping[str, float]
RUNS: tuple[tuple[Moves, int, Moves, int, Moves], ...] = (
    ({}, 21, {"update_actor": 2.0}, 41, {"update_actor": 0.5}),
    ({"gen": 1.3}, 24, {"gen": 1.5, "tokens": 1.5, "old_log_prob": 1.4, "update_actor": 1.4}, 44, {"gen": 1.4}),
    ({"gen": 2.3, "old_log_prob": 0.35}, 30, {"update_weights": 6.0}, 52, {"tokens": 0.6, "gen": 0.6}),
    ({"update_actor": 0.7}, 18, {"gen": 0.6}, 36, {"old_log_prob": 3.0, "update_actor": 1.2}),
)
"""What a run's phases take over what is expected, and by what they move at two of its steps."""


def _expected(scenario: Scenario) -> dict[str, float]:
    phases = project(scenario, timeline=False).candidate.phases
    return {key: phases[name].mean for key, name in NAMES.items()} | {"tokens": 800.0}


def _logs(scenario: Scenario) -> Iterator[RunLog]:
    """The log of each of RUNS, of 60 steps with noise of 2 %, one of which grows little by little."""
    expected = _expected(scenario)
    for number, (first, at, then, again, last) in enumerate(RUNS):
        rng, out = random.Random(number), ""
        for step in range(1, 61):
            moves = [first, *([then] if step >= at else []), *([last] if step >= again else [])]
            row = {name: value * np.prod([one.get(name, 1.0) for one in moves]) * rng.lognormvariate(0, 0.02)
                   for name, value in expected.items()}  # fmt: skip
            row["update_actor"] *= 1.005**step if number == 1 else 1.0
            timed = {f"timing_s/{name}": value for name, value in row.items() if name != "tokens"}
            out += json.dumps({"step": step, **timed, "timing_s/step": sum(timed.values()) + 1,
                               "response_length/mean": row["tokens"], "prompt_length/mean": 100}) + "\n"  # fmt: skip
        yield read_text_log(out, "run")


def watches() -> Any:
    """The lines of watches that know what is expected, as their runs go on."""
    scenario = load_scenario("quickstart", SMALL)
    found = []
    for number, log in enumerate(_logs(scenario)):
        watcher, lines = Watcher(scenario, check, every=12, written=5 * number - 1), list[Any]()
        for count in range(4, len(log.steps) + 1, 7 + 9 * (number % 2)):
            lines += watcher.lines(first_steps(log, count))
        found.append(lines)
    return found


def explained() -> Any:
    """What logs of runs explain of their scenario, with other ways to run it."""
    scenario = load_scenario("quickstart", SMALL)
    found = []
    for number, log in enumerate(_logs(scenario)):
        asked = Asked((2, 17 + number), ("engine.tensor_parallel=2  trainer.micro_batch_tokens=4096",), number == 1)
        answer = answer_run(log, scenario, asked)
        found.append([answer.as_dict(), answer.scenario_yaml().split("\n")[1:], render_run(answer).split("\n")])
    return found


def folders() -> Any:
    """Logs of folders: MLflow's file for each metric, texts of a run that was resumed, event files, and none."""
    rows = [{"step": n, "timing_s/step": 60.0 + n, "timing_s/gen": 30.0 + n} for n in range(1, 9)]
    lines = [json.dumps(row) + "\n" for row in rows]
    events = [event(n, {"timing_s/step": simple(60.0 + n), "timing_s/gen": tensor(30.0 + n)}) for n in range(1, 6)]
    mlflow = "1 60.5 0\n2 61.5 1\n3 62.5\n4 x 3\n5 64.5 y\n6 65.5 4 5\n\n7 66.5 6\n"
    found: dict[str, Any] = {}
    for name, files in {
        "mlflow": {
            "metrics/timing_s/step": mlflow,
            "metrics/timing_s/gen": mlflow.replace("6", "3"),
            "tags/x": "1 2 3",
        },
        "resumed": {"b.jsonl": "".join(lines[:5]), "a.jsonl": "".join(lines[4:]), "more.md": "no log"},
        "one of several forms": {"run.csv": "step,timing_s/step\n1,9\n2,9\n", "run.log": lines[6], "x.json": lines[7]},
        "events": {"events.out.tfevents.1": event_file(events[:3]), "events.out.tfevents.2": event_file(events[3:])},
        "events below": {
            "train/events.out.tfevents.1": event_file(events),
            "metrics/loss": "1 2 3",
            "run.log": lines[0],
        },
        "nothing": {"x.md": "no log"},
    }.items():
        with tempfile.TemporaryDirectory() as folder:
            for at, (place, text) in enumerate(files.items()):
                file = Path(folder, place)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(text if isinstance(text, bytes) else text.encode())
                os.utime(file, (10**9 + at, 10**9 + at))
            try:
                found[name] = read_log(Path(folder))
            except InputError as error:
                found[name] = str(error).replace(folder, "FOLDER")
    return plain(found)


OWN = {"hardware.name": "my-gpu", "model.name": "my-model", "question": "why", "engine.version": "0.9.1",
       "hardware.price_per_gpu_hour_usd": {"value": 1.0, "source": "assumed", "ref": "a contract"},
       "assumptions": [{"text": "as said", "keys": ["workload"]}], "missing": [{"part": "a judge", "step": "longer"}],
       "workload.agent": {"environment_s": {"kind": "lognormal", "mean_s": 3},
                          "turns": {"kind": "constant", "turns": 2}}}  # fmt: skip
"""What is somebody's own."""
WITHOUT = {"trainer.policy_logprobs": False, "trainer.reference_logprobs": False}


def contributions() -> Any:
    """Runs that are given away: as expected, too fast, too slow, with phases that do not fit into a step."""
    found = []
    for name, more in (("quickstart", {}), (LAG[0], {}), ("quickstart", OWN), ("quickstart", WITHOUT)):
        scenario = vary(load_scenario(name, SMALL), more)
        expected = _expected(scenario)
        for factor, step in ((1.0, 1.0), (0.05, 1.0), (9.0, 9.5), (50.0, 50.0), (1.0, 0.5)):
            row = {f"timing_s/{key}": factor * value for key, value in expected.items() if key != "tokens"}
            row["timing_s/step"] = step * sum(expected[key] for key in NAMES)
            log = read_text_log("".join(json.dumps({"step": n, **row}) + "\n" for n in range(8)), "run")
            given = contribution_of(scenario, steady_of(log.of_loop(scenario.loop.mode)), log.framework, "me")
            found.append({**asdict_of(given), "pull request": given.text, "named": given.name[:2]})
    return found


def asdict_of(given: Any) -> dict[str, Any]:
    """A contribution but for the name that a digest gives it."""
    row = {key: value for key, value in given.row.items() if key != "id"}
    text = given.scenario_yaml.partition("\n")[2]
    return {"row": row, "yaml": text.split("\n"), "removed": given.removed, "no": given.objections, "told": given.lines}


SPLIT = {
    "cluster": {"num_gpus": 8, "generation_gpus": 4, "training_gpus": 4},
    "loop": {"mode": "async", "policy_lag": 2},
}
BASE = {"hardware": "h100_sxm", "cluster": {"num_gpus": 8}, "loop": {}, "engine": {}, "trainer": {}, "assumptions": (),
        "workload": {"prompts_per_step": 8, "generations_per_prompt": 4, "max_sequence_tokens": 1024,
                     "response_tokens": {"kind": "lognormal", "mean_tokens": 300}},
        "speculation": {"method": "eagle3", "draft_length": 3, "acceptance_length": 2.5}}  # fmt: skip
FAULTS = {"gpu_hours_between": 1.5, "restart_s": 40.0, "replica_restart_s": 15.0}
CONDITIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "alone": {"speculation": {"method": "none"}},
    "validated": {"run.validation": {"every_steps": 3, "samples": 9}},
    "validation stated": {"run.validation": {"every_steps": 2, "seconds": 7.5}},
    "stored": {"run.checkpoint": {"every_steps": 3, "bytes_per_s": 1e9, "blocking_share": 0.25}},
    "stored slowly": {"run.checkpoint": {"every_steps": 2, "seconds": 90.0, "blocking_share": 0.1}},
    "failing": {"run.checkpoint": {"every_steps": 4, "seconds": 3.0}, "run.faults": FAULTS},
    "failing, tokens kept": {"run.checkpoint": {"every_steps": 4, "seconds": 3.0},
                             "run.faults": {**FAULTS, "keep_tokens": True}},
    "slow": {"run.slow_nodes": {"share": 0.3, "factor": 1.6}, "run.stalls": {"probability": 0.4, "seconds": 11.0}},
    "grown": {"run.response_growth": ((0, 0.5), (6, 1.5)),
              "run.checkpoint": {"every_steps": 5, "bytes_per_s": 5e8}},
    "of agents": {"workload.agent": {"turns": {"kind": "lognormal", "mean_turns": 3}, "environment_s": {
        "kind": "constant", "seconds": 2.0}, "max_turns": 6}, "run.turns_growth": ((0, 1.0), (6, 2.0))},
}  # fmt: skip
"""What a run loses or becomes."""


def whole_runs() -> Any:
    """Runs of each condition in both modes, in chapters that leave seams, and what they assume."""
    found: dict[str, Any] = {}
    plain = vary(load_scenario("quickstart"), BASE)
    for mode, keys in (("sync", {}), ("async", SPLIT)):
        for name, given in CONDITIONS.items():
            scenario = vary(vary(plain, keys), given)
            seen = list[tuple[int, int]]()
            with noted() as made:
                answer = run(scenario, 7, replications=2, chapter_steps=4, baseline=name in ("plain", "alone"),
                             progress=lambda *counts, seen=seen: seen.append(counts))  # fmt: skip
            own = [one for one in made if one[0].startswith("run ")]
            told = [own, words(list(answer.assumptions[-4:])), seen]
            found[f"{mode}, {name}"] = [answer.candidate, answer.speedup, told, answer.warnings]
    return found


def runs_in_blocks() -> Any:
    """Lagged runs of several blocks, each probed in its midst, as responses grow; without their single steps."""
    found, scenario = [], vary(load_scenario("quickstart"), BASE)
    grown = {"run.response_growth": ((0, 0.5), (70, 2.0)), "run.faults": FAULTS,
             "run.checkpoint": {"every_steps": 5, "seconds": 3.0}}  # fmt: skip
    for keys in (SPLIT, {**SPLIT, "loop.policy_lag": 4, "loop.update_every": 2}):
        with patch.object(chapters_module, "BLOCK_STEPS", 24):
            side = plain(run(vary(scenario, {**keys, **grown}), 70, chapter_steps=48).candidate)
        found.append({name: value for name, value in side.items() if name != "steps"})
    return found


def chapters() -> Any:
    """The chapters of runs of several lengths, by samples of a step and lag; what a checkpoint holds."""
    found: dict[str, Any] = {}
    for mode, keys in (("sync", {}), ("async", SPLIT), ("every 3", {**SPLIT, "loop.update_every": 3})):
        for prompts in (8, 9000, 300_000):
            scenario = vary(vary(load_scenario("quickstart"), BASE), {**keys, "workload.prompts_per_step": prompts})
            for steps, size in ((1, None), (129, None), (3000, None), (100, 33)):
                parts = chapters_of(scenario, steps, size)
                found[f"{mode} {prompts} {steps}"] = [len(parts), *map(asdict, (*parts[:3], parts[-1]))]
    for trainer in (
        {},
        {"trainer.critic": True},
        {"trainer.lora_rank": 16},
        {"trainer.optimizer_bytes_per_parameter": 8},
    ):
        found[f"bytes {trainer}"] = state_bytes(vary(vary(load_scenario("quickstart"), BASE), trainer))
    return found


def losses() -> Any:
    """What runs of 60 known steps lose, by cause, on clusters of several kinds."""
    plain = vary(load_scenario("quickstart"), BASE)
    clusters = {"shared": {}, "apart": SPLIT,
                "two nodes": {"cluster": {"num_gpus": 24, "generation_gpus": 8, "training_gpus": 16}},
                "wide": {"cluster": {"num_gpus": 32}, "engine.tensor_parallel": 16}}  # fmt: skip
    found: dict[str, Any] = {}
    for name, keys in clusters.items():
        ratio = 0.9 if name == "apart" else None
        response = StepResponse(6.0, 1.0, 2.0, 0.0, 1.0, *([] if ratio is None else [ratio]))
        block = BlockRecord(0, 60, asdict(response), [1.0, 1.1], [1.0, 1.2], 8.0, 300.0, 2.0)
        times = {"step_s": 10.0, "generation_s": 6.0, "exposed_generation_s": 6.0, "validation_s": 3.0}
        course = Course({one: np.full((2, 60), value) for one, value in times.items()}, (block,))
        course.values["exposed_generation_s"][:, 0] = 14.0
        for condition, given in CONDITIONS.items():
            if "run." in str(given) and "agents" not in condition:
                lost = losses_of(vary(vary(plain, keys), given), course)
                found[f"{name}, {condition}"] = {
                    "totals": {cause: [one.mean(), one.std(), one.max()] for cause, one in lost.totals.items()},
                    "late": {cause: one[40:].sum() for cause, one in lost.by_step.items()}, "events": lost.events,
                }  # fmt: skip
    return found
