"""Further files of others that the net reads: logs of runs that change, Python launchers, agents' traces, recipes."""

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from agent_processes import PROCESSES, workload, written
from test_python_as_python import SCRIPTS, SET
from test_python_launchers import TRL, UNSLOTH
from test_supervised_imports import COMMANDS
from test_swift import GKD, GRPO, MEGATRON

from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario, vary
from rlsim.readers.frameworks.asked import Asked
from rlsim.readers.frameworks.exporting import export_scenario
from rlsim.readers.frameworks.importing import import_config, read_config
from rlsim.readers.logs.growth import growth_of
from rlsim.readers.logs.reading import RunLog, read_log
from rlsim.readers.logs.steady import measured_of, steady_of, with_facts
from rlsim.readers.logs.watching import Watcher
from rlsim.readers.python.script import Options, calls_of
from rlsim.readers.shell.script import commands_of
from rlsim.readers.traces import Format
from rlsim.readers.traces.reading import Reading, read_trace
from rlsim.readers.traces.requests import Requests
from rlsim.readers.traces.workload import workload_of
from rlsim.schema.scenario import Scenario
from tests.golden.consoles import LOGS
from tests.golden.forms import agent_texts, request_texts
from tests.golden.launchers import PYTHON, SHELL
from tests.golden.plain import plain
from tests.readers.damage import EXPORTS, records

Answer = dict[str, Any]
Input = tuple[str, str, str, Callable[[Path], Answer]]
"""Case, name of its file, text, and what reads it."""
QUANTITIES = {"timing_s/step": 100.0, "timing_s/gen": 60.0, "timing_s/update_actor": 25.0, "timing_s/old_log_prob": 6.0,
              "response_length/mean": 800.0, "prompt_length/mean": 100.0}  # fmt: skip
MOVES: tuple[dict[str, tuple[int, float]], ...] = (
    {},
    {"timing_s/gen": (30, 1.5), "timing_s/step": (30, 1.3)},
    {"response_length/mean": (25, 1.4), "timing_s/gen": (26, 1.4), "timing_s/step": (26, 1.25)},
    {"timing_s/update_actor": (20, 1.6), "timing_s/step": (20, 1.2)},
    {"timing_s/step": (35, 0.7)},
)
"""Quantities that move: at which step, and by which ratio."""
GROWN = 0.006
"""By which each step of some runs takes longer than the one before."""


def run_text(number: int) -> str:
    """JSON lines of a run of 60 steps that warms up, stalls, changes or grows, begins anew, and names its engine."""
    rng, rows = random.Random(number), ["Initializing a V1 LLM engine (v0.17.1) with config: model='m', seed=0\n"]
    moves, grown, restarted = MOVES[number % len(MOVES)], number // len(MOVES) % 2, number % 3 == 2
    for step in [*range(1, 41), *range(38 if restarted else 41, 61)]:
        row: dict[str, Any] = {"step": step}
        for name, level in QUANTITIES.items():
            at, ratio = moves.get(name, (99, 1.0))
            value = level * rng.lognormvariate(0, 0.03) * (ratio if step >= at else 1)
            row[name] = round(value * (1 + GROWN * grown) ** step * (1.8 if step <= number % 4 else 1), 3)
        if step == 33:
            row["timing_s/step"] *= 4
        if step % 10 == 0 and number % 2:
            row["timing_s/testing"] = 30.5
            row["timing_s/step"] += 30.5
        rows.append(json.dumps(row) + "\n")
    return "".join(rows)


def mlperf_text() -> str:
    """Events of MLPerf with steps in their metadata and in their values."""
    head = {"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME"}
    rows = [{**head, "key": "global_batch_size", "value": 256, "metadata": {}}]
    for step in range(1, 12):
        value = {"train_step_time": 300.5 + step, "weight_sync_time": 15.25, "policy_training_time": 90.0 - step}
        rows.append({**head, "key": "tracked_stats", "value": value, "metadata": {"samples_count": 256 * step}})
    return "".join(f"0: :::MLLOG {json.dumps(row)}\n" for row in rows)


@cache
def quickstart() -> Scenario:
    """A scenario beside which logs are read."""
    return load_scenario("quickstart")


def logged(path: Path) -> Answer:
    """What a log says, its steady steps, and what a scenario takes from it."""
    log = read_log(path)
    answer: Answer = {"log": plain(log), "form": log.form.replace(" ", "_")}
    answer |= {"sync": sorted(log.of_loop("sync").values), "async": sorted(log.of_loop("async").values)}
    for name, chosen in (("all", None), ("some", (log.steps[len(log.steps) // 3], log.steps[-1]))):
        steady = steady_of(log, chosen)
        answer[name] = [plain(steady), *measured_of(steady)]
    scenario = quickstart()
    answer["taken"] = plain(with_facts(scenario, steady_of(log))[1])
    answer["contradicts"] = log.contradictions(scenario)
    return answer


def watched(path: Path) -> Answer:
    """The lines of a watch that sees a run grow, and what grew."""
    log, watcher, lines = read_log(path), Watcher(None, _unasked, every=7), list[Any]()
    for count in range(1, len(log.steps) + 1, 3):
        lines += watcher.lines(first_steps(log, count))
    return {"lines": plain(lines), "growth": plain(growth_of(log, None, 1.0)), **logged(path)}


def first_steps(log: RunLog, count: int) -> RunLog:
    """A log as it was after so many steps."""
    return replace(log, steps=log.steps[:count], values={name: one[:count] for name, one in log.values.items()})


def _unasked(*given: object, **named: object) -> Any:
    raise AssertionError("without a scenario nothing is explained")


def called(path: Path) -> Answer:
    """The calls of a Python script."""
    calls, stop = calls_of(path, Options({}, []), SET, path.parent)
    return {"calls": [repr((one.name, one.given, one.named)).replace(" ", "_").replace("/", "|") for one in calls],
            "stop": bool(stop)}  # fmt: skip


def followed(path: Path) -> Answer:
    """The commands of a shell script."""
    lines = [json.dumps(words).replace(str(path.parent), "HERE") for words in commands_of(path)]
    return {"commands": [line.translate({32: "_", 47: "|"}) for line in lines]}


def optioned(path: Path) -> Answer:
    """The calls of a Python script with words on its command line and a module beside it."""
    (path.parent / "lib.py").write_text("shared = 3\nclass Base:\n    base: int = 1\n    def inherited(self):\n"
                                        "        return self.base + shared\ndef helper(n):\n    return n * shared\n"
                                        "if __name__ == '__main__':\n    shared = 0\n")  # fmt: skip
    options = Options({"lr": 0.5, "steps": 12, "no_log": True, "base": 8, "quick": True, "max_steps": 6}, ["train-it"])
    calls, stop = calls_of(path, options, {"SET": "value", "MILES_SCRIPT_SIZE": "3", "N": "4"}, path.parent)
    told = [repr((one.name, one.given, one.named, one.line)).translate({32: "_", 47: "|"}) for one in calls]
    return {"calls": told, "stop": stop, "read": sorted(options.read)}


def agents(path: Path, reading: Reading = Reading()) -> Answer:  # noqa: B008 - frozen
    """The workload that trajectories or requests make, and how it is told."""
    found = read_trace(path, reading)
    found = workload_of(found) if isinstance(found, Requests) else found
    return {"answer": plain(found.as_dict()), "text": [f" {line}" for line in found.text().split("\n")]}


def further(folder: Path) -> Iterator[Input]:
    """Inputs beside those of frameworks' configurations. folder: where traces are made."""
    for number in range(10):
        yield f"log, run {number}", "run.jsonl", run_text(number), watched
    for form, text in EXPORTS.items():
        yield f"log, {form}", "run.csv", text, logged
    for name, text in LOGS.items():
        yield f"log of {name}", "run.txt", text, watched
    yield "log, MLPerf", "run.out", mlperf_text(), logged
    for name, text in SHELL.items():
        yield f"shell, {name}", "run.sh", text, followed
    for name, text in PYTHON.items():
        yield f"python, {name}", "run.py", text, optioned
    for number, text in enumerate(SCRIPTS):
        yield f"python {number}", "run.py", text, called
    for name in PROCESSES:
        made = written(folder / "made.jsonl", workload(name, prompts=6, size=4))
        yield f"agents {name}", "t.jsonl", made.read_text(encoding="utf-8"), agents
    for name, text in agent_texts().items():
        yield f"agents of {name}", "t.jsonl", text, lambda path: agents(path, Reading(Format.AGENTS))
    for name, text in request_texts().items():
        yield f"requests, {name}", "t.txt", text, agents
        yield f"requests, {name} by groups", "t.txt", text, lambda path: agents(path, Reading(group_size=2))
    for form, (text, _) in records().items():
        yield f"damaged {form}", "run.log", text, logged


def recipes() -> Iterator[tuple[str, str, str, str]]:
    """Further runs: case, framework, name of its file and text."""
    for framework, command in COMMANDS.items():
        yield f"{framework}, sft", framework, "run.sh", command.replace("KIND", "sft")
    yield "swift, colocated", "swift", "run.sh", GRPO.format(mode="colocate", more="--deepspeed zero2")
    yield "swift, served", "swift", "run.sh", GRPO.format(mode="server", more="--tuner_type full --async_generate true")
    yield "swift, megatron", "swift", "run.sh", MEGATRON.format(more="")
    yield "swift, distilled", "swift", "run.sh", GKD
    yield "trl, python", "trl", "run.py", TRL
    yield "trl, unsloth", "trl", "run.py", UNSLOTH.replace("    !pip install unsloth", "    pass")


CHANGED: dict[str, tuple[Any, ...]] = {
    "workload.prompts_per_step": (64,), "workload.generations_per_prompt": (4,),
    "workload.max_sequence_tokens": (8192,),
    "cluster.num_gpus": (64,), "cluster.generation_gpus": (8, None), "loop.mode": ("sync", "async"),
    "loop.policy_lag": (2,),
    "loop.staleness_fraction": (0.5,), "loop.update_every": (2,), "loop.in_flight_updates": (True, False),
    "loop.max_in_flight_groups": (96,), "loop.max_age": (3,), "loop.refit_precision": ("engine",),
    "engine.name": ("vllm", "sglang"), "engine.tensor_parallel": (1, 2, 4), "engine.pipeline_parallel": (2,),
    "engine.expert_parallel": (2,), "engine.attention_data_parallel": (2,), "engine.weight_precision": ("fp8", "bf16"),
    "engine.kv_precision": ("fp8", "bf16"), "engine.max_running_sequences": (96,), "engine.max_batched_tokens": (9000,),
    "engine.max_captured_tokens": (128,), "engine.gpu_memory_utilization": (0.55,), "engine.cuda_graphs": (True, False),
    "engine.prefix_caching": (True, False), "engine.chunked_prefill": (True, False),
    "engine.overlap_scheduling": (False,),
    "speculation.method": ("none",), "speculation.draft_length": (3,), "trainer.backend": ("fsdp", "megatron"),
    "trainer.tensor_parallel": (1, 2), "trainer.pipeline_parallel": (2,), "trainer.context_parallel": (2,),
    "trainer.expert_parallel": (2,), "trainer.precision": ("fp8",), "trainer.lora_rank": (16,),
    "trainer.global_batch_samples": (32,), "trainer.epochs": (2,), "trainer.sequence_packing": (True, False),
    "trainer.micro_batch_tokens": (8192,), "trainer.micro_batch_samples": (2,), "trainer.zero_stage": (2, 3),
    "trainer.logprob_micro_batch_tokens": (8192,), "trainer.recompute": ("none", "selective", "full"),
    "trainer.fused_kernels": (True,), "trainer.optimizer_on_host": (True,), "trainer.offload": (True, False),
    "trainer.policy_logprobs": (True, False), "trainer.reference_logprobs": (True, False),
}  # fmt: skip
"""Values of a scenario that are written back to a configuration one at a time."""


def exported(framework: str, path: Path) -> Iterator[tuple[str, Answer]]:
    """What a configuration becomes with each change of its scenario."""
    base = read_config(framework, path)
    scenario = import_config(framework, path, asked=Asked(hardware="gb200_nvl72"), lenient=True).scenario
    for key, values in CHANGED.items():
        for value in values:
            try:
                answer = export_scenario(vary(scenario, {key: value}), framework, base)
            except InputError as error:
                yield f"{key} {value}", {"refused": len(re.findall(r"\b[a-z_]+\.[a-z_.]*[a-z]", str(error)))}
            else:
                yield f"{key} {value}", {"overrides": list(answer.overrides), "left": list(answer.left)}
