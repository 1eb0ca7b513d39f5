"""Which source a fitted term or a group belongs to, and what would settle it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlsim.costs.operators.groups import family_of, refit_method, series
from rlsim.parameters.posterior import Posterior
from rlsim.projection.uncertainty.slopes import LAUNCH
from rlsim.schema.scenario import Scenario

Kind = Literal["launches", "iterations", "training", "transfers", "steps", "inputs"]
"""What would be measured: the host's launches, rows of a table of that kind, or a guessed input of the scenario."""

TRANSFER_TERMS = ("steps/colocated_tensor_s",)
LAYER_HOST = ("moe_host_layer_s", "graph_host_share", "host_factor")
TRAINING_STEP_TERMS = ("dense_efficiency", "moe_efficiency", "fsdp_efficiency")


@dataclass(frozen=True)
class Origin:
    """A source. text: what it is. kind: what measures it. assumed: whether no measurement says anything of it."""

    text: str
    kind: Kind
    assumed: bool = False


def origin_of(name: str, scenario: Scenario, posterior: Posterior) -> Origin:
    """The source that a term or a group of ``scenario`` belongs to."""
    if "/" in name and ":" not in name:
        return _term(name, scenario)
    return _group(name, scenario, posterior)


def _term(name: str, scenario: Scenario) -> Origin:
    if name == LAUNCH.name:
        return Origin("launches beyond the captured graphs (assumed within a factor of two)", "launches", assumed=True)
    last = name.rpartition("/")[2]
    if name.startswith("transfers/") or name in TRANSFER_TERMS:
        return _transfers(scenario)
    if last in LAYER_HOST:
        return Origin("host time per layer in training", "training")
    if name.startswith("training/") or last in TRAINING_STEP_TERMS:
        return _trained(scenario)
    return _iterations(scenario) if name.startswith("engines/") else _rollouts(scenario)


def _group(name: str, scenario: Scenario, posterior: Posterior) -> Origin:
    family, known = family_of(name), posterior.place(name) is not None
    if family == "engine release":
        return _iterations(scenario) if known else _never(_released(scenario), "iterations")
    if family.startswith("engine"):
        return _iterations(scenario) if known else _never(_pair(scenario.engine.name, scenario), "iterations")
    if family in ("rollout release", "rollout of model on device"):
        return _rollouts(scenario) if known else _never(f"rollouts of {_pair(_framework(scenario), scenario)}", "steps")
    if family == "rollout of run":
        return Origin("this layout's rollout", "steps")
    if family in ("speculation", "draft length"):
        return Origin("what drafting adds to a rollout", "steps")
    if family.startswith("trainer"):
        return _trained(scenario) if known else _never(f"training of {_pair(_trainer(scenario), scenario)}", "training")
    if family == "training of run":
        return Origin("this layout's log-probs and update", "steps")
    if family == "transfer of run":
        return Origin("this layout's weight transfer", "steps")
    refit = f"{refit_method(scenario)} of {scenario.refit_framework} with {scenario.model.name}"
    return _transfers(scenario) if known else _never(refit, "transfers")


def _never(what: str, kind: Kind) -> Origin:
    """What no measurement holds is drawn anew and is a source apart from what is known of its parts."""
    return Origin(f"{what}: never measured", kind, assumed=True)


def _iterations(scenario: Scenario) -> Origin:
    return Origin(f"iterations of {_pair(_released(scenario), scenario)}", "iterations")


def _rollouts(scenario: Scenario) -> Origin:
    return Origin(f"what {_framework(scenario)} adds to iterations in a rollout", "steps")


def _trained(scenario: Scenario) -> Origin:
    return Origin(f"speed of training of {_pair(_trainer(scenario), scenario)}", "training")


def _transfers(scenario: Scenario) -> Origin:
    return Origin(f"weight transfer by {refit_method(scenario)}", "transfers")


def _pair(what: str, scenario: Scenario) -> str:
    return f"{what} with {scenario.model.name} on {scenario.hardware.name}"


def _released(scenario: Scenario) -> str:
    return f"{scenario.engine.name} {series(scenario.engine_version or '')}".strip()


def _framework(scenario: Scenario) -> str:
    stack = scenario.stack
    return "other frameworks" if stack is None else f"{stack.framework} {stack.release or ''}".strip()


def _trainer(scenario: Scenario) -> str:
    stack = scenario.training_stack
    return "other frameworks" if stack is None else stack.framework


def settle(origin: Origin, scenario: Scenario) -> tuple[str, str]:
    """What would settle a source of ``scenario``, in a clause, and the command that takes it in."""
    engine, model, device = scenario.engine, scenario.model.name, scenario.hardware.name
    release = f" {scenario.engine_version}" if scenario.engine_version else ""
    if origin.kind == "launches":
        captures = f"look up what {engine.name}{release} captures (engine.max_captured_tokens)"
        return f"measure the host's launches, or {captures}", "rlsim calibrate --device cuda"
    if origin.kind == "inputs":
        return "state what your runs have: logs and rollouts tell it", "rlsim traces ROLLOUTS.jsonl"
    if origin.kind == "iterations":
        batches = f"a few batches at TP {engine.tensor_parallel}"
        return f"time iterations of {engine.name}{release} with {model} on {device}, {batches}", _from("iterations")
    if origin.kind == "training":
        return f"time training steps of {model} on {device} with {_trainer(scenario)}", _from("training")
    if origin.kind == "transfers":
        return f"time a weight transfer of {model} by {refit_method(scenario)}", _from("transfers")
    return "time one step as this scenario runs it, with its phases", _from("steps")


def _from(table: str) -> str:
    return f"rlsim calibrate own own_{table}.csv"
