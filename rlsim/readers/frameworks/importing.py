"""A framework's configuration as a scenario, with an accounting of every key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlsim.costs.memory import check_beside, engine_memory, trainer_memory
from rlsim.errors import Infeasible, InputError, readable, shortened
from rlsim.files.reading import shown_path
from rlsim.files.yaml import dump_document
from rlsim.loading.models import lacking_tower, lacking_weights
from rlsim.loading.scenario import scenario_of_text, vary
from rlsim.readers.frameworks.accounting import Accounting, account_for, idle_sections
from rlsim.readers.frameworks.asked import LARGER, Asked, Draft, complete, mean_sample_tokens
from rlsim.readers.frameworks.files import override_list, read_tree, shipped_layer
from rlsim.readers.frameworks.framework import Framework
from rlsim.readers.frameworks.launch import (
    Launch,
    flag_layer,
    framework_of_file,
    launch_of,
    launcher_of,
    repository_of,
    starts_run,
    starts_supervised,
)
from rlsim.readers.frameworks.missing import missing_parts
from rlsim.readers.frameworks.reader import Reader
from rlsim.readers.frameworks.refusals import explained
from rlsim.readers.frameworks.registry import FORKS, SUPERVISED, framework_of
from rlsim.readers.frameworks.trees import COMMAND_LINE, ConfigTree, Layer, applied, lookup, nested, renamed, stacked
from rlsim.schema.base import changed
from rlsim.schema.loop import Loop
from rlsim.schema.scenario import Scenario

LONGEST = "workload.max_sequence_tokens"
"""The scenario key without which no length can be told."""
OF_ROLLOUTS = ("engine.", "speculation.", "loop.mode", "loop.refit", "cluster.generation_gpus", "trainer.offload",
               "trainer.policy_logprobs", "trainer.critic", "trainer.epochs", "trainer.global_batch_samples",
               "workload.max_response_tokens")  # fmt: skip
"""Scenario keys without a meaning where nothing is generated and each batch of a data set is an update."""
OF_TRAINING = ("trainer.", "cluster.generation_gpus", "cluster.reference_gpus", *(
    f"loop.{name}" for name in Loop.model_fields if name != "rollouts_alone"))  # fmt: skip
"""Scenario keys without a meaning where nothing is trained."""
NO_RL = {
    "rm": "reward modelling",
    "distillation": "distillation",
}
"""Sections of configurations without RL."""
MOST_NAMED = 40
"""Keys that a refusal names."""
FROM_MEMORY = "from memory"
"""How the source of a card begins that was compared with nothing."""
REQUIRED = ("workload.prompts_per_step", "workload.generations_per_prompt", LONGEST, "cluster.num_gpus")
"""Scenario keys without a default, which the rules of every framework give."""
COMMENT_KEYS = 20
"""Keys that the head of a written scenario names."""


@dataclass(frozen=True)
class Imported:
    """A scenario, its file, and what became of every key."""

    scenario: Scenario
    text: str
    accounting: Accounting

    def as_dict(self) -> dict[str, Any]:
        """Plain values: the scenario file's text and the accounting."""
        return {"scenario": self.text, "accounting": self.accounting.as_dict()}


def import_config(
    framework: str,
    path: Path,
    overrides: Sequence[str] = (),
    asked: Asked | None = None,
    root: Path | None = None,
    start: str | None = None,
    strict: bool = False,
    lenient: bool = False,
) -> Imported:
    """The scenario of a configuration, a launch script or a command line.

    framework: its name. path: the file, or a command's first word. overrides: words of the framework's
    command line. root: folder that inherited files must lie in. start: name of the base configuration under ``path``
    where it names none. strict: a key that is not understood, and a model card from memory, is an error. lenient: not
    even a key that holds a batch, a layout, a backend, a precision, an algorithm, an agent or an environment is, nor a
    teacher that cannot be priced.
    Raises InputError naming file, key and the nearest known key.
    """
    own = SUPERVISED.get(framework)
    if own is not None and (starts_supervised(overrides) or framework_of_file(path) == own):
        framework = own
    path, overrides = launcher_of(framework_of(framework), path, overrides)
    try:
        tree = read_config(framework, path, overrides, root, start)
        document, accounting = document_of(framework, tree, asked or Asked(), lenient)
        _check_understood(tree, accounting, strict, lenient)
    except InputError as error:
        whose = framework_of_file(path)
        # A fork's files look like those of what it forked: whose they are says nothing of it.
        if whose in (None, framework) or framework in FORKS:
            raise
        known = next((name for name, sft in SUPERVISED.items() if sft == whose), whose)
        raise InputError(f"{shown_path(path)}: is {known}'s; rlsim import {known} {shown_path(path)}") from error
    imported = _imported(path, tree, document, accounting)
    if _too_small(imported.scenario):
        given = asked or Asked()
        imported = _on_larger_device(framework, path, tree, given, imported.scenario, lenient) or imported
    scenario = imported.scenario
    if strict and scenario.model.source.startswith(FROM_MEMORY):
        raise InputError(
            f"{tree.where}: the card of {scenario.model.name} is {FROM_MEMORY}; give --model its config.json"
        )
    return imported


def _check_understood(tree: ConfigTree, accounting: Accounting, strict: bool, lenient: bool) -> None:
    """Raise InputError with the keys that are not understood and may not be left out."""
    refused = accounting.of("not_understood") if strict else () if lenient else accounting.heavy
    if not refused:
        return
    other = next((kind for kind in NO_RL if all(one.key.startswith(f"{kind}.") for one in refused)), "")
    if other:
        raise InputError(f"{tree.where}: is of {NO_RL[other]} ('{other}'), and rlsim projects steps of RL")
    listed = ", ".join(
        f"'{shortened(one.key, 100)}'" + (f" ({one.detail})" if one.detail else "") for one in refused[:MOST_NAMED]
    )
    more = f" and {len(refused) - MOST_NAMED} more" if len(refused) > MOST_NAMED else ""
    verb = "are" if len(refused) > 1 else "is"
    hint = "" if strict else "; --lenient leaves them out" if len(refused) > 1 else "; --lenient leaves it out"
    raise InputError(f"{tree.where}: {listed}{more} {verb} not understood{hint}")


def _imported(path: Path, tree: ConfigTree, document: dict[str, Any], accounting: Accounting) -> Imported:
    # The scenario is loaded from the text that the user gets, so that the saved file means the same.
    text = f"{_head(path, accounting)}{dump_document(document)}"
    try:
        return Imported(scenario_of_text(text, f"{tree.where} as a scenario", Path()), text, accounting)
    except InputError as error:
        # The message names keys of a scenario that the user never saw.
        known = framework_of(accounting.framework)
        raise explained(error, known, tree, model=document.get("model")) from error


def _too_small(scenario: Scenario) -> bool:
    """Whether the device's memory does not hold the engine or the trainer."""
    try:
        engine_memory(scenario)
        if scenario.engine.prefill is not None:
            engine_memory(changed(scenario, engine=scenario.engine.of_prefill))
        trainer_memory(scenario)
        check_beside(scenario)
    except Infeasible as error:
        # What cannot run for another reason is cured by no larger device.
        return error.unit == "bytes"
    return False


def _on_larger_device(
    framework: str, path: Path, tree: ConfigTree, asked: Asked, scenario: Scenario, lenient: bool
) -> Imported | None:
    """The import on the least device that holds what an assumed one does not; None where a device is stated or none
    holds it. Recipes are run by those who publish them: a layout that exceeds a guessed device says that the guess is
    wrong."""
    small = scenario.hardware.name
    for larger in LARGER.get(small, ()) if asked.hardware is None else ():
        if not _too_small(vary(scenario, {"hardware": larger})):
            again = replace(asked, hardware=larger, smaller_device=small)
            return _imported(path, tree, *document_of(framework, tree, again, lenient))
    return None


def read_config(
    framework: str, path: Path, overrides: Sequence[str] = (), root: Path | None = None, start: str | None = None
) -> ConfigTree:
    """The whole configuration of a file, a launch script or a command line, with its inheritance and overrides."""
    known = framework_of(framework)
    if start is not None and start not in known.shipped:
        raise InputError(f"--config-name '{shortened(start)}' is none of {', '.join(known.shipped)}")
    if starts_run(path, overrides):
        return renamed(_launched(known, launch_of(known, path, overrides, root), path, root), known.renamed)
    tree = read_tree(path, known, root, None if start is None else known.shipped[start], choices_of(overrides))
    # The command line comes last: it is given now, the list was written by an earlier run.
    words = [*override_list(path), *overrides]
    if known.form in ("words", "toml"):
        above = stacked([Layer(tree.where, tree.values, own=True), Layer(COMMAND_LINE, flag_layer(words))], tree.where)
        tree = ConfigTree(tree.where, above.values, {**tree.given, **above.given}, tree.notes)
        return renamed(tree, known.renamed)
    return renamed(applied(tree, words, known.nearest), known.renamed)


def choices_of(words: Sequence[str]) -> dict[str, str]:
    """Words of a command line that may choose options of Hydra's groups."""
    return {word.partition("=")[0]: word.partition("=")[2] for word in words if re.match(r"[\w/]+=", word)}


def _launched(known: Framework, run: Launch, path: Path, root: Path | None) -> ConfigTree:
    """The configuration of a run that a script or a command line starts."""
    where = shown_path(path)
    if run.config is not None:
        shipped = known.shipped.get(run.name or "", known.start)
        folder = root or repository_of(run.config)
        below = read_tree(run.config, known, folder, shipped, choices_of(run.words))
    else:
        below = stacked([shipped_layer(name) for name in known.shipped.get(run.name or "", known.start)], where)
    notes = below.notes
    if run.name is not None and run.config is None:
        notes = (*notes, f"{run.name}.yaml is not there: rlsim's own tree of documented defaults stands in")
    if run.note:
        notes = (*notes, run.note)
    inherited = Layer(below.where, below.values, own=True)
    words = known.form in ("words", "toml")
    layers = [inherited, run.facts(), *([Layer(where, flag_layer(run.words))] if words else [])]
    tree = stacked(layers, where, notes)
    own = run.config is None or run.name in known.shipped  # a base configuration of the framework's
    given = tree.given if own else {**below.given, **tree.given}
    tree = ConfigTree(where, tree.values, given, notes)
    return tree if words else applied(tree, run.words, known.nearest, where)


def document_of(
    framework: str, tree: ConfigTree, asked: Asked, lenient: bool = False
) -> tuple[dict[str, Any], Accounting]:
    """The scenario of a configuration as a document, and the accounting of its keys. Raises InputError naming keys of
    the configuration where it is none."""
    known = framework_of(framework)
    try:
        return _document_of(known, tree, asked, lenient)
    except InputError as error:
        raise explained(error, known, tree) from error


def _document_of(known: Framework, tree: ConfigTree, asked: Asked, lenient: bool) -> tuple[dict[str, Any], Accounting]:
    framework, reader = known.name, Reader(tree)
    longest = next(rule for rule in known.rules if rule.target == LONGEST)
    cap = longest.read(reader)
    if cap is None and isinstance(lookup(tree.values, longest.key(reader).partition(".")[0]), dict):
        key = longest.key(reader)
        raise reader.error(key, "must be a whole number of at least 1", reader.value(key))
    facts = known.facts(reader)
    reader.mean_tokens = mean_sample_tokens(facts, asked, cap) if cap else None
    draft = Draft(keys_of(known, reader), known.assumed(reader))
    for half, others in (("loop.supervised", OF_ROLLOUTS), ("loop.rollouts_alone", OF_TRAINING)):
        if draft.keys.get(half):
            draft.keys = {key: value for key, value in draft.keys.items() if not key.startswith(others)}
    for rule in known.rules:
        if rule.target in REQUIRED and rule.target not in draft.keys:
            missing = reader.error(rule.key(reader), "must be given", reader.value(rule.key(reader)))
            raise explained(missing, known, tree, [rule.target])
    if known.stack:
        facts = replace(facts, settings=(*facts.settings, ("stack", known.stack)))
    complete(draft, facts, asked, tree.where)
    name = shortened(Path(tree.where).stem, 200)
    sections = nested({"name": name, "question": f"How long is a step of {framework}'s {name}?", **draft.keys})
    document = {key: sections[key] for key in Scenario.model_fields if key in sections}
    idle = idle_sections(known, tree, reader, draft.keys)
    lacking = missing_parts(framework, tree, reader, draft.keys, idle, lenient)
    lacking += [{"part": part, "step": "longer", "keys": []} for part in facts.lacking]
    if lacking_tower(asked.model or facts.model):  # which says that images are missing
        lacking = [one for one in lacking if one["part"] != "the images of its prompts"]
    # A model that is asked for by its name has its own stated on loading.
    if not asked.model:
        served = draft.keys.get("engine.weight_precision") == "int4"
        by_name = (lacking_tower(facts.model), None if served else lacking_weights(facts.model))
        lacking += [one for one in by_name if one]
    stated = {"assumptions": draft.assumptions, **({"missing": lacking} if lacking else {})}
    return {**document, **stated}, account_for(known, tree, reader, draft.keys)


def keys_of(framework: Framework, reader: Reader) -> dict[str, Any]:
    """Scenario keys that the rules of a framework give."""
    found = {rule.target: rule.read(reader) for rule in framework.rules}
    return {target: value for target, value in found.items() if value is not None}


def _head(path: Path, accounting: Accounting) -> str:
    lines = [f"Imported from {accounting.framework}'s {shown_path(path)}: {accounting.summary().splitlines()[0]}."]
    for status, title in (("not_simulated", "May matter, not simulated"), ("not_understood", "Not understood")):
        found = accounting.of(status)
        lines += [f"{title}: {shortened(account.key, 100)}" for account in found[:COMMENT_KEYS]]
    return "".join(f"# {readable(line)}\n" for line in lines)
