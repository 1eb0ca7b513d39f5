"""A scenario as overrides of a framework's configuration, and as a patched configuration."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlsim.costs.memory import memory_share
from rlsim.errors import InputError, shortened
from rlsim.files.yaml import dump_document
from rlsim.loading.models import card_by_shape
from rlsim.loading.variation import check_trained
from rlsim.readers.frameworks.files import shipped_layer
from rlsim.readers.frameworks.framework import Framework, Rule
from rlsim.readers.frameworks.importing import keys_of
from rlsim.readers.frameworks.reader import Reader
from rlsim.readers.frameworks.registry import framework_of
from rlsim.readers.frameworks.targets import default_of
from rlsim.readers.frameworks.trees import ConfigTree, Layer, leaves, merged, nested, present, stacked, without
from rlsim.schema.base import Strict, replaced
from rlsim.schema.loop import LIMITS
from rlsim.schema.scenario import Scenario

MAX_WRITES = 3
"""How often a rule is written until all read what the scenario says: modes that open further keys take a second time,
and two rules that undo each other would go on for ever; what is undone then has no counterpart."""
UNSET = ("cluster.generation_gpus", "trainer.lora_rank")
"""Scenario keys of which null says something; of others it leaves the configuration as it is."""
LAUNCHER = "launcher."
"""Section of what a launcher says (launch.py), which no option of the program takes."""
SETTINGS = ("cluster", "engine", "loop", "trainer")
"""Sections of a scenario that hold what a configuration decides."""
NO_SETTINGS = frozenset(
    f"{section}.{name}"
    for section, names in {
        "cluster": "fabric node_bandwidth_bytes_per_s pool_gpus training_gpus",
        "engine": "version expert_balance host host_iteration_s host_sequence_s host_slowdown in_process",
        "loop": "driver_bytes_per_s driver_sample_s poll_s offload_memory refit_bandwidth_bytes_per_s refit_fixed_s"
        " refit_changed_share refit_disk_bytes_per_s refit_framework refit_full_state refit_onload refit_tensor_s",
        "trainer": "stack host_launch_s host_memory_bytes_per_s device_efficiency moe_device_efficiency"
        " moe_host_layer_s expert_imbalance neighbouring_experts expert_products flash_attention_2 fused_adapters"
        " frozen_precision logits_bytes logits_chunk_vocabulary optimizer_step optimizer_bytes_per_parameter",
    }.items()
    for name in names.split()
)
"""Keys of these that say how fast or how large software and machines are, not what they are asked to do."""
KEPT = ("loop.recompute_kv", "loop.restart_requests")
"""Keys whose false says that running requests go on, as they do where nothing is said."""
SHARE = "loop.staleness_fraction"
"""Key of how far generation may be ahead in batches, which policy_lag counts whole."""
AUTOMATIC = ("cuda_ipc", "nccl_broadcast")
"""Weight transfers that loop.refit_method auto stands for, on shared GPUs and between pools."""


@dataclass(frozen=True)
class Exported:
    """What to set in a framework's configuration.

    overrides: one word each, for the framework's command line. config: the patched configuration as YAML. left: what
    of the scenario no key says, in sentences.
    """

    framework: str
    overrides: tuple[str, ...]
    config: str
    left: tuple[str, ...]


def export_scenario(scenario: Scenario, framework: str, base: ConfigTree | None = None) -> Exported:
    """Overrides that make a configuration say what ``scenario`` does, and the configuration with them.

    base: the user's configuration; only keys whose meaning differs are overridden. Without it every key that rlsim
    knows is written, over the framework's own base configuration.
    """
    check_trained(scenario, "an export")
    found = _exported(scenario, framework, base)
    left = {sentence.partition("=")[0] for sentence in found.left}
    if "loop.policy_lag" in left and "loop.style" not in left:  # of another loop no key means the same
        ways = [found, *(_exported(one, framework, base) for one in _said_otherwise(scenario))]
        return min(ways, key=lambda one: len(one.left))
    return found


def _said_otherwise(scenario: Scenario) -> Iterator[Scenario]:
    """The scenario with its lag said by each other key by which the same loop is as far ahead: verl's fully
    asynchronous trainer and ROLL have a share of a batch."""
    loop = scenario.loop
    for key in LIMITS:
        other = replaced(loop, {"policy_lag": None, key: loop.policy_lag})
        if other.asynchrony == loop.asynchrony:
            yield replaced(scenario, {"loop": other})


def _exported(scenario: Scenario, framework: str, base: ConfigTree | None) -> Exported:
    known = framework_of(framework)
    tree = base or _start(known, scenario)
    wanted = _all_wanted(known, scenario)
    stated = {target for target in wanted if _stated(scenario, target) is not None}
    values, left = _settle(known, tree, wanted, stated, _defaults(scenario), mean_sample(scenario))
    left = _by_program(known, scenario, left)
    reader = Reader(ConfigTree(tree.where, values), mean_sample(scenario))
    keys_of(known, reader)
    old = dict(leaves(tree.values))
    changed = {key: reader.value(key) for key, value in leaves(values) if key not in old or old[key] != value}
    if base is None:
        # A card is no checkpoint: that of the shipped configuration is nobody's.
        changed.pop(known.model, None)
        read = {key: reader.value(key) for key, _ in leaves(values) if key in reader.read - {known.model}}
        changed = {**read, **changed}
    launched = {key: value for key, value in changed.items() if key.startswith(LAUNCHER)}
    changed = {_former(key, tree.aliases): value for key, value in changed.items() if key not in launched}
    overrides = tuple(
        word
        for key, value in sorted(changed.items())
        for word in _override(known, key, value, present(tree.values, key))
    )
    left += [
        f"{key.removeprefix(LAUNCHER)}={_word(value)}: yours to tell the launcher" for key, value in launched.items()
    ]
    left += [
        f"{_option(known, key)}: leave it out of your command"
        for key, value in sorted(changed.items())
        if base is not None and known.form in ("words", "toml") and _off(value) and key in base.given
    ]
    left += [*(_unwritten(scenario) if base is None else ()), *_filter(known, scenario, reader)]
    left += [*_optionless(known, scenario), *_model(known, scenario, base)]
    if base is None:
        config = _patch(known, changed)
    else:
        head = f"# {tree.where} as rlsim export patches it: {len(changed)} keys changed.\n"
        config = f"{head}{dump_document(_laid_back(values, tree, changed))}"
    return Exported(framework, overrides, config, tuple(left))


def _override(framework: Framework, key: str, value: Any, there: bool) -> list[str]:
    """A key's value as the framework's command line takes it; an option that is off is left away."""
    if framework.form not in ("words", "toml"):
        # Hydra refuses key=value for a key that the configuration does not have; ++ adds or replaces it.
        return [f"{'' if there else '++'}{key}={_word(value)}"]
    if _off(value):
        return []
    option = _option(framework, key)
    return [option if value is True else f"{option} {_word(value)}"]


def _option(framework: Framework, key: str) -> str:
    return f"--{key.replace('_', '-') if framework.dashes else key}"


def _off(value: Any) -> bool:
    """Whether an option with this value is one that is not given."""
    return value is None or value is False


def _former(key: str, aliases: Mapping[str, str]) -> str:
    """A key as its configuration calls it."""
    found = (old + key[len(name) :] for name, old in aliases.items() if f"{key}.".startswith(f"{name}."))
    return next(found, key)


def _laid_back(values: Mapping[str, Any], tree: ConfigTree, changed: Mapping[str, Any]) -> Mapping[str, Any]:
    """``values`` under the names of their configuration."""
    for name in tree.aliases:
        values = without(values, name)
    return merged(values, nested(changed)) if tree.aliases else values


def mean_sample(scenario: Scenario) -> float | None:
    """Mean sample with its prompt and all turns, where plain numbers say it."""
    workload, agent = scenario.workload, scenario.workload.agent
    prompt = getattr(workload.prompt_tokens, "tokens", None)
    response = getattr(workload.response_tokens, "mean_tokens", None) or getattr(
        workload.response_tokens, "tokens", None
    )
    if not isinstance(prompt, int) or not isinstance(response, int | float):
        return None
    turns = 1.0 if agent is None else getattr(agent.turns, "mean_turns", None) or getattr(agent.turns, "turns", 1)
    return float(
        min(workload.max_sequence_tokens, prompt + response * (turns if isinstance(turns, int | float) else 1))
    )


def _start(framework: Framework, scenario: Scenario) -> ConfigTree:
    """The shipped trees, with nodes of the scenario's hardware."""
    names = (scenario.loop.mode == "async" and framework.start_asynchronous) or framework.start
    first = {framework.node_size: int(scenario.hardware.gpus_per_node), **framework.begin}
    nodes = Layer("", nested(first), own=True)
    return stacked([*map(shipped_layer, names), nodes], f"rlsim's defaults of {framework.name}")


def _settle(
    framework: Framework,
    tree: ConfigTree,
    wanted: dict[str, Any],
    stated: set[str],
    defaults: Mapping[str, Any],
    mean: float | None,
) -> tuple[dict[str, Any], list[str]]:
    """Values of the tree with every rule written, and what could not be.

    stated: keys that the scenario itself holds. What it leaves to its style is not missed where no key says it.
    defaults: what holds of keys that the tree leaves open, other than by the schema.
    """
    values, reader, changed = tree.values, Reader(tree, mean), True
    times = Counter[str]()
    while changed:
        left, changed = [], False
        for rule in framework.rules:
            have, want = _have(rule, reader, defaults), wanted[rule.target]
            if _alike(rule.target, have, want) or (want is None and rule.target not in UNSET):
                continue
            changes = _written(rule, want, reader) if times[rule.target] < MAX_WRITES else {}
            written = merged(values, nested(changes)) if changes else values
            after = Reader(ConfigTree(tree.where, written), mean)
            if changes and _says(rule, after, defaults, want):
                values, reader, changed = written, after, True
                times[rule.target] += 1
            elif rule.target in stated or rule.read(reader) is not None:
                left.append(f"{rule.target}={_word(want)} has no counterpart; the configuration says {_word(have)}")
    return values, left


def _by_program(framework: Framework, scenario: Scenario, left: list[str]) -> list[str]:
    """What no option says, with one line for a loop that the framework runs by another program or mode."""
    loop = scenario.loop
    style = "partial" if loop.overlap is False else loop.style or "nemo_rl"
    program = framework.programs.get(style if loop.mode == "async" else "sync")
    if program is None or not any(line.startswith(("loop.mode=", "loop.style=")) for line in left):
        return left
    moved = [line for line in left if line.startswith(("loop.", "cluster.generation_gpus="))]
    keys = ", ".join(line.partition(" has no counterpart")[0] for line in moved)
    return [*(line for line in left if line not in moved), f"{keys}: {framework.name} does so by {program}"]


def _says(rule: Rule[Any], after: Reader, defaults: Mapping[str, Any], want: Any) -> bool:
    """Whether a configuration says what is wanted; one that its framework refuses says nothing."""
    try:
        return _alike(rule.target, _have(rule, after, defaults), want)
    except InputError:
        return False


def _defaults(scenario: Scenario) -> dict[str, Any]:
    """Values of keys that an engine or a stack decides by itself where nobody states them."""
    engine = replaced(scenario.engine, {"gpu_memory_utilization": None, "lora_rank": None})
    trainer = replaced(scenario.trainer, {"policy_logprobs": None})
    unstated = replaced(scenario, {"engine": engine, "trainer": trainer})
    return {
        "engine.gpu_memory_utilization": memory_share(unstated),
        "engine.lora_rank": unstated.released_engine.lora_rank or 0,
        "trainer.policy_logprobs": unstated.policy_logprobs,
    }


def _have(rule: Rule[Any], reader: Reader, defaults: Mapping[str, Any]) -> Any:
    found = rule.read(reader)
    return defaults.get(rule.target, default_of(rule.target)) if found is None else found


def _written(rule: Rule[Any], want: Any, reader: Reader) -> dict[str, Any]:
    try:
        return dict(rule.write(want, reader))
    # What the configuration's other values do not allow is no error of the user's: it has no counterpart.
    except (InputError, ZeroDivisionError):
        return {}


def _all_wanted(framework: Framework, scenario: Scenario) -> dict[str, Any]:
    """What a scenario says of the keys of a framework; one that knows shares of a batch alone has its lag as such."""
    wanted = {rule.target: _wanted(scenario, rule.target) for rule in framework.rules}
    if _lag_as_share(framework) and wanted[SHARE] is None and scenario.loop.mode == "async":
        wanted[SHARE] = float(scenario.loop.lag) or None
    return wanted


def _lag_as_share(framework: Framework) -> bool:
    """Whether a framework says by a share of a batch alone how far generation may be ahead."""
    targets = {rule.target for rule in framework.rules}
    return SHARE in targets and "loop.policy_lag" not in targets


def _wanted(scenario: Scenario, target: str) -> Any:
    """What a scenario says of one key, where nothing is stated as its defaults mean it."""
    trainer, loop = scenario.trainer, scenario.loop
    asynchronous = loop.mode == "async"
    at_update = loop.asynchrony.at_update if asynchronous else None
    micro = trainer.micro_batch_tokens or scenario.workload.max_sequence_tokens
    meant = {
        # Frameworks count the GPUs of policy and engines; pools have theirs beside them.
        "cluster.num_gpus": scenario.cluster.num_gpus - scenario.cluster.pool_gpus,
        "cluster.generation_gpus": None if scenario.cluster.colocated else scenario.cluster.generation,
        "trainer.policy_logprobs": scenario.policy_logprobs,
        "trainer.global_batch_samples": trainer.global_batch_samples or scenario.workload.samples_per_step,
        "trainer.micro_batch_tokens": micro if trainer.sequence_packing else None,
        "trainer.logprob_micro_batch_tokens": (trainer.logprob_micro_batch_tokens or micro)
        if trainer.sequence_packing
        else None,
        "trainer.logprob_micro_batch_samples": (trainer.logprob_micro_batch_samples or trainer.micro_batch_samples)
        if not trainer.sequence_packing
        else None,
        # Of Megatron-Core's exchange; FSDP's gathers have none.
        "trainer.gradient_overlap": trainer.gradient_overlap if trainer.backend == "megatron" else None,
        "engine.gpu_memory_utilization": memory_share(scenario),
        "engine.lora_rank": scenario.released_engine.lora_rank or 0,
        "loop.in_flight_updates": None if at_update is None else at_update != "drain",
        "loop.recompute_kv": None if at_update is None else at_update == "recompute",
        "loop.style": (loop.style or "nemo_rl") if asynchronous else None,
        "loop.policy_lag": loop.policy_lag if asynchronous else None,  # 0 or none of a synchronous loop
        "speculation.method": scenario.speculation.method if scenario.speculation.active else "none",
        "speculation.draft_length": scenario.speculation.draft_length if scenario.speculation.active else 0,
    }
    return meant[target] if target in meant else _stated(scenario, target)


def _stated(scenario: Scenario, target: str) -> Any:
    found: Any = scenario
    for name in target.split("."):
        found = None if found is None else getattr(found, name)  # an optional section that is not there states nothing
    return found


def _alike(target: str, have: Any, want: Any) -> bool:
    """Whether two values mean the same; a transfer that its cluster takes by itself is the automatic one."""
    if target == "loop.refit_method":
        have, want = ("auto" if method in AUTOMATIC else method for method in (have, want))
    return bool(have == want)


def _word(value: Any) -> str:
    """A value as Hydra's command line takes it."""
    if value is None or isinstance(value, bool | list | dict):
        return json.dumps(value)
    return str(value)


def _optionless(framework: Framework, scenario: Scenario) -> list[str]:
    """Settings that the scenario states and no option of the framework says, in one sentence."""
    targets = [rule.target for rule in framework.rules]
    found = []
    for section in SETTINGS:
        record = getattr(scenario, section)
        for name, field in type(record).model_fields.items():
            key, value = f"{section}.{name}", getattr(record, name)
            said = any(f"{target}.".startswith(f"{key}.") for target in targets) or key in NO_SETTINGS
            said = said or (key in KEPT and value is False) or (key == "loop.policy_lag" and _lag_as_share(framework))
            if not said and value != field.get_default(call_default_factory=True):
                found.append(key if isinstance(value, Strict) else f"{key}={_word(value)}")
    if scenario.workload.tail_batching is not None:
        found.append("workload.tail_batching")
    return [f"no option of {framework.name} that rlsim knows says {', '.join(found)}"] if found else []


def _model(framework: Framework, scenario: Scenario, base: ConfigTree | None) -> list[str]:
    """A model or a draft that the base does not name: a card is no checkpoint."""
    key = framework.model
    drafts = scenario.speculation.active and scenario.speculation.method in ("eagle3", "draft_model")
    left = ["speculation.draft: name the checkpoint of your draft"] if drafts and base is None else []
    found = None if base is None else card_by_shape(Reader(base).text(key))
    if found is not None and found[0].lower() == scenario.model.name.lower():
        return left
    return [*left, f"{key}: name your checkpoint of {shortened(scenario.model.name)}"]


def _filter(framework: Framework, scenario: Scenario, reader: Reader) -> list[str]:
    """Dynamic sampling that the configuration does not have: the filter is a function of the user's own."""
    share = scenario.workload.usable_group_share
    if share == 1 or framework.facts(reader).dynamic:
        return []
    return [f"workload.usable_group_share={share:g}: turn on the filter that throws groups away"]


def _unwritten(scenario: Scenario) -> list[str]:
    """What an export without a base leaves to the user: no framework takes it from a scenario."""
    workload = scenario.workload
    agent = ["workload.agent: state turns and tools in your own files"] if workload.agent else []
    agent += ["workload.images: name a data set that has them"] if workload.images else []
    return agent + [f"pools: {pool.name} is yours to start" for pool in scenario.pools]


def _patch(framework: Framework, changed: dict[str, Any]) -> str:
    name = next(iter(framework.shipped))
    inherits: Any = [name, "_self_"] if framework.hydra else name
    head = f"# Lay it beside {framework.name}'s own {name.removesuffix('.yaml')}.yaml, which it inherits from.\n"
    return f"{head}{dump_document({'defaults': inherits, **nested(changed)})}"
