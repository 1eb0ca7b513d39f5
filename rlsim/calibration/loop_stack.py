"""The loop of bench/loop as one measured stack: its files, and the scenario that each of its configurations is."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from bench import BenchError
from bench.cases import CPU_CACHE_BYTES, read_json, write_whole
from bench.loop.events import journal_path
from bench.loop.settings import DRAFT_LAYERS, LoopSettings, base_settings, settings_from
from rlsim.calibration.calibrate import _as_input_errors, profile_name
from rlsim.calibration.selfcheck import card_of
from rlsim.errors import InputError
from rlsim.files.reading import TABLE_BYTES, read_text, shown_path
from rlsim.files.yaml import dump_document, dump_yaml, lists_beside
from rlsim.loading.scenario import dump_scenario, scenario_of_text, vary
from rlsim.schema.base import changed
from rlsim.schema.drafter import draft_model_from_card
from rlsim.schema.hardware import HardwareProfile, SourcedValue
from rlsim.schema.model import ModelCard
from rlsim.schema.parameters import MeasuredStack
from rlsim.schema.scenario import Scenario
from rlsim.tables.profile import load_profile
from rlsim.workload.draw import draw

if TYPE_CHECKING:
    from bench.loop.results import Row

_LISTS = lists_beside(__file__, "loop_stack.yaml")
ENGINE: str = _LISTS["engines"]["name"]
MEASUREMENTS = "loop_measurements.json"
METHODS = {"none": "none", "model": "draft_model", "ngram": "ngram"}
RANGE_OF_THREE = 1.69
"""Mean range of three normal draws, in standard deviations: what the spread of three rounds says of one."""
UNMEASURED = 0.05
"""Standard deviation of the logarithm of what no part of the loop alone shows: caches that phases share, and a machine
whose pace changes while a configuration runs. Assumption."""
Say = Callable[[str], None]
Points = Sequence[tuple[Any, ...]]
"""Points of a measured stack, whose last place is seconds."""


@dataclass(frozen=True)
class LoopStacks:
    """What was measured (JSON of ``bench.loop.measure``) as records: the loop's model, and stacks by the setting of the
    machine: shared, alone, beside."""

    measured: Mapping[str, Any]
    card: ModelCard
    profile: HardwareProfile
    stacks: Mapping[str, MeasuredStack]

    @classmethod
    def of(cls, measured: Mapping[str, Any]) -> LoopStacks:
        """Records of measurements."""
        settings = _settings(measured)
        about, card = measured["about"], _card(settings)
        source = f"python -m bench.loop on {about['device']}, torch {about['torch']}, {about['date'][:10]}"
        made = {
            name: _stack(f"{ENGINE}, {name}", source, card.name, content)
            for name, content in measured["stacks"].items()
        }
        return cls(measured, card, _profile(measured, source), made)

    def at(self, pace: float) -> LoopStacks:
        """The stacks on a machine that is ``pace`` times slower than when they were measured."""
        parts = self.measured["stacks"].items()
        return self.of({**self.measured, "stacks": {name: _slower(content, pace) for name, content in parts}})

    def setting(self, settings: LoopSettings) -> str:
        """Setting of the machine of a configuration: shared, beside or alone."""
        return "shared" if settings.placement == "shared" else "beside" if settings.lag else "alone"

    def files(self) -> dict[str, str]:
        """Profile, engine family, stacks and a scenario, by name of the file."""
        shown = scenario_of(self, _settings(self.measured))
        engines = shown.simulation.engine_parameters
        assert engines is not None
        out = {f"stack_{name}.yaml": dump_yaml(stack) for name, stack in self.stacks.items()}
        return {
            **out, f"{self.profile.name}.yaml": dump_yaml(self.profile), f"{ENGINE}.yaml": dump_yaml(engines),
            "loop.yaml": dump_scenario(shown),
        }  # fmt: skip


def measure_stacks(folder: Path, say: Say, again: bool = True, device: str = "cpu") -> LoopStacks:
    """Measure the loop's parts on a device into ``folder``, or read what lies there. InputError where torch or the
    device is missing."""
    path = folder / MEASUREMENTS
    with _as_input_errors(), _torch():
        if again or not path.is_file():
            from bench.loop.measure import GPU, Plan, measure_loop
            from bench.loop.results import require_device

            require_device(device)
            found = measure_loop(base_settings(device), GPU if device == "cuda" else Plan(), say)
            write_whole(path, json.dumps(found, indent=1) + "\n", f"cannot write {path}")
        from bench.loop.measure import SCHEMA

        stacks = LoopStacks.of(read_json(path, SCHEMA, "measurement of the loop"))
        for name, text in stacks.files().items():
            write_whole(folder / name, text, f"cannot write {folder / name}")
    return stacks


def pace_of(stacks: LoopStacks) -> Callable[[], float]:
    """A function that returns how many times slower the machine is now than when the stacks were measured."""
    with _as_input_errors(), _torch():
        from bench.loop.pace import Pace

        pace = Pace(_settings(stacks.measured))
    return lambda: pace.seconds() / float(stacks.measured["pace_s"])


def common_settings(device: str) -> LoopSettings:
    """What configurations of the loop on a device have in common."""
    return base_settings(device)


def was_run(settings: LoopSettings, journals: Path) -> bool:
    """Whether a configuration has a journal in a folder."""
    return journal_path(settings, journals).is_file()


def read_run(settings: LoopSettings, journals: Path) -> tuple[Row, Path]:
    """Row and journal of a configuration that was run before; BenchError's message where there is none."""
    with _as_input_errors(), _torch():
        from bench.loop.results import row_of

        path = journal_path(settings, journals)
        ran, events = read_journal(path)
        if ran.lengths != settings.lengths:
            raise InputError(f"{shown_path(path)}: ran other lengths than those that are predicted")
        return row_of(ran, events), path


def read_journal(path: Path) -> tuple[LoopSettings, list[dict[str, Any]]]:
    """Settings and events of a journal that ``python -m bench.loop --journal`` or check-loop wrote."""
    try:
        first, *events = (json.loads(line) for line in read_text(path, TABLE_BYTES).splitlines())
        return settings_of(first["settings"]), events
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{shown_path(path)}: is no journal of the loop ({str(error)[:60]})") from error


def run_settings(settings: LoopSettings, say: Say, journals: Path) -> tuple[Row, Path]:
    """Run one configuration for real; its row, and its journal in the folder ``journals``."""
    with _as_input_errors(), _torch():
        from bench.loop.events import write_events
        from bench.loop.results import row_of, run_loop

        events = run_loop(settings, say).events
        return row_of(settings, events), write_events(settings, events, journals)


@contextmanager
def _torch() -> Any:
    """PyTorch as the loop wants it, or an error that says that it is missing."""
    # Threads that spin at a barrier make a shared CPU tens of times slower; OpenMP reads this as torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        yield
    except ModuleNotFoundError as error:
        # A module missing inside bench is a defect, not a missing extra.
        if error.name != "torch":
            raise
        raise BenchError("the loop needs torch, which is not installed here (pip install torch)") from error


def _settings(measured: Mapping[str, Any]) -> LoopSettings:
    """Settings of the machine, model and prompts that were measured."""
    base = base_settings(str(measured["about"]["device_type"]))
    return replace(base, model=str(measured["model"]), prompt_tokens=int(measured["prompt_tokens"]))


def _card(settings: LoopSettings) -> ModelCard:
    return card_of(settings.dims, settings.model, 4096, "bench/loop/settings.py")


def scenario_of(stacks: LoopStacks, settings: LoopSettings, busy: tuple[float, float] = (1.0, 1.0)) -> Scenario:
    """The scenario that a configuration of the loop is, on its measured stack. InputError where it was not measured.

    busy: of a lagged loop whose halves share a GPU, shares of time in which generator and trainer are at work.
    """
    if settings.model != stacks.measured["model"] or settings.prompt_tokens != stacks.measured["prompt_tokens"]:
        raise InputError(f"{settings.name}: model and prompts differ from the measured {stacks.measured['model']}")
    stack = stacks.stacks[stacks.setting(settings)]
    if settings.lag and settings.device == "cuda":
        stack = between(stacks.stacks["alone"], stack, busy)
    parts = stacks.measured["stacks"][stacks.setting(settings)]
    document = _document(settings, stacks.card, stacks.profile)
    document["speculation"] = _speculation(stacks, settings)
    document["loop"]["driver_sample_s"] = parts["data"][0][0]
    document["simulation"] |= {"engine_parameters": _family(stacks), "measured_stack": stack.model_dump(mode="json")}
    return scenario_of_text(dump_document(document), f"configuration {settings.name}")


def _document(settings: LoopSettings, card: ModelCard, profile: HardwareProfile) -> dict[str, Any]:
    """What a scenario of a configuration says without anything measured."""
    always, split = _LISTS["scenario"], settings.placement == "split"
    workload = {
        "prompts_per_step": settings.prompts, "generations_per_prompt": settings.samples,
        "prompt_tokens": {"kind": "constant", "tokens": settings.prompt_tokens},
        "response_tokens": {
            "kind": "quantiles", "quantiles": list(settings.quantiles), "tokens": list(settings.response_tokens)
        },
        "max_sequence_tokens": settings.prompt_tokens + round(max(settings.response_tokens)),
    }  # fmt: skip
    engine = {
        "max_running_sequences": settings.running, "max_batched_tokens": settings.budget_tokens,
        "cuda_graphs": settings.device == "cuda",
    }  # fmt: skip
    trainer = {"micro_batch_samples": settings.micro_batch, "policy_logprobs": settings.policy_logprobs}
    simulation = {"seed": settings.seed, "steps": settings.steps, "warmup_steps": settings.warmup_steps}
    return {
        "name": settings.name, "question": always["question"],
        "model": card.model_dump(mode="json"), "hardware": profile.model_dump(mode="json"),
        "cluster": {"num_gpus": 2, "generation_gpus": 1, "training_gpus": 1} if split else {"num_gpus": 1},
        "workload": workload, "engine": always["engine"] | engine, "trainer": always["trainer"] | trainer,
        "loop": {**_LISTS["lagged"], "policy_lag": settings.lag} if split else {},
        "simulation": always["simulation"] | simulation,
    }  # fmt: skip


def drawn_lengths(settings: LoopSettings, scenario: Scenario | None = None) -> tuple[tuple[int, ...], ...]:
    """Response lengths by step that the scenario of a configuration draws: they depend on nothing that is measured."""
    if scenario is None:
        document = _document(settings, _card(settings), load_profile("h100_sxm"))
        document["engine"]["name"] = "vllm"  # any engine that is known without a measurement
        scenario = scenario_of_text(dump_document(document), f"configuration {settings.name}")
    drawn = draw(vary(scenario, "speculation.method=none"), 0).steps
    return tuple(tuple(step.rollouts[0].batch.response_tokens.tolist()) for step in drawn)


def with_drawn_lengths(stacks: LoopStacks, scenario: Scenario, settings: LoopSettings) -> LoopSettings:
    """The configuration with the response lengths that the scenario's seed draws, and the threads that were measured:
    both sides meet the same work on the same machine."""
    return replace(settings, lengths=drawn_lengths(settings, scenario), threads=int(stacks.measured["threads"]))


def _speculation(stacks: LoopStacks, settings: LoopSettings) -> dict[str, Any]:
    if settings.queries == 1:
        return {"method": "none"}
    accepted = stacks.measured["acceptance"][settings.drafter]
    stated = {"position_acceptance": accepted, "acceptance_at_draft_length": len(accepted)}
    stated["draft_graph"] = "one" if settings.device == "cuda" else "none"
    if settings.drafter == "model":
        drafter = changed(draft_model_from_card(stacks.card), num_layers=DRAFT_LAYERS)
        stated["draft"] = drafter.model_dump(mode="json")
    return {"method": METHODS[settings.drafter], "draft_length": settings.draft_length, **stated}


def _stack(name: str, source: str, model: str, content: Mapping[str, Any]) -> MeasuredStack:
    points = [[METHODS[method], *rest] for method, *rest in content["iterations"]]
    deviation = math.log1p(content["spread"]) / RANGE_OF_THREE
    return MeasuredStack.model_validate({
        "name": name, "source": source, "model": model, "iterations": points,
        **{key: content[key] for key in ("prefill", "logprob", "update")},
        "optimizer_s": content["optimizer"][0][0], "hand_over_s": content["hand_over"][0][0],
        "error": round(math.hypot(deviation, UNMEASURED), 4),
    })  # fmt: skip


def between(alone: MeasuredStack, beside: MeasuredStack, busy: tuple[float, float]) -> MeasuredStack:
    """The stack of two halves that share a device, where the other half is at work a share of the time.

    A half makes progress at its pace beside the other in that share, and at its own in the rest. busy: shares of
    generator and trainer. Iterations that were not measured beside keep the mean ratio of those that were.
    """
    generating, training = busy

    def mixed(own: Points, slowed: Points, share: float) -> list[list[Any]]:
        paired = {tuple(point[:-1]): point[-1] for point in slowed}
        ratios = [paired[key] / point[-1] for point in own if (key := tuple(point[:-1])) in paired]
        mean = fmean(ratios)
        found = []
        for *sizes, seconds in own:
            other = paired.get(tuple(sizes), seconds * mean)
            found.append([*sizes, 1.0 / (share / other + (1.0 - share) / seconds)])
        return found

    def one(own_s: float, other_s: float, share: float) -> float:
        return 1.0 / (share / other_s + (1.0 - share) / own_s) if own_s and other_s else own_s

    points = {
        name: mixed(getattr(alone, name), getattr(beside, name), training if name in ("iterations", "prefill") else
                    generating) for name in ("iterations", "prefill", "logprob", "update")
    }  # fmt: skip
    whole = {
        name: one(getattr(alone, name), getattr(beside, name), generating) for name in ("optimizer_s", "hand_over_s")
    }
    return MeasuredStack.model_validate({**beside.model_dump(mode="json"), **points, **whole})


def _slower(content: Mapping[str, Any], pace: float) -> dict[str, Any]:
    """Measured points, whose last place is seconds, times a pace."""
    return {
        name: [[*sizes, seconds * pace] for *sizes, seconds in points] if isinstance(points, list) else points
        for name, points in content.items()
    }


def _family(stacks: LoopStacks) -> dict[str, Any]:
    """The loop as an engine family: host time of an iteration is that of its launches, which the device waits for."""
    shared, always = stacks.stacks["shared"], _LISTS["engines"]
    rows, drafting = len(shared.iterations), sum(point[1] > 0 for point in shared.iterations)
    fitted = {"rows": rows, "drafting_rows": drafting, "error": min(1.0, shared.error)}
    return {
        **always, "description": f"Measured by {shared.source}.", "fit": {**always["fit"], "rows": rows},
        "families": [always["families"][0] | fitted],
    }  # fmt: skip


def _profile(measured: Mapping[str, Any], source: str) -> HardwareProfile:
    """The CPU as a device: rates that the loop's own products and copies reached; a GPU's shipped profile, where there
    is one."""
    about, quantities = measured["about"], dict[str, SourcedValue]()
    if about["device_type"] == "cuda":
        return load_profile(profile_name(str(about["device"]), "cuda"))
    memory = float(about["host_memory_bytes"])
    known = {"memory_bytes": memory, "host_memory_bytes": max(memory, 1e9), "cache": CPU_CACHE_BYTES} | measured["host"]
    for key, entry in _LISTS["profile"].items():
        value = entry["value"] if "value" in entry else known[entry["is"]]
        if "assumed" in entry:
            quantities[key] = SourcedValue(value=value, source="assumed", ref=entry["assumed"])
        else:
            quantities[key] = SourcedValue(value=float(f"{value:.5g}"), source="measured", ref=source)
    texts = {"description": f"{about['device']}, as the loop of bench/loop uses it", "host_cpu": about["host_cpu"]}
    return HardwareProfile.model_validate({"name": "cpu_loop", **texts, **quantities})


def settings_of(content: Mapping[str, Any]) -> LoopSettings:
    """Settings of a mapping; InputError for a key that there is none of."""
    with _as_input_errors():
        return settings_from(content)
