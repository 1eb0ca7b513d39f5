"""Model cards by name, from a card file, or from a Hugging Face config.json."""

import re
from pathlib import Path
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.files.lookup import YAML_SUFFIXES, as_path, catalogue, find_entry
from rlsim.files.yaml import lists_beside
from rlsim.schema.base import changed
from rlsim.schema.messages import read_record
from rlsim.schema.model import ModelCard
from rlsim.schema.vision import VisionTower

_VARIANTS = re.compile(r"-(instruct|thinking|base|chat|hf|fp8|nvfp4|fp4|bf16|awq|gptq|2507|0528)(?=-|$)")
"""Endings that change weights or their precision and no dimension."""
_QUANTISED = re.compile(r"-(fp8|nvfp4|fp4|awq|gptq)(?=-|$)", re.IGNORECASE)
"""Those of them that change the precision, which a scenario states on its own."""
_FOUR_BITS = re.compile(r"-(awq|gptq|int4|4bit)(?=-|$)", re.IGNORECASE)
"""Endings of checkpoints whose weights have four bits."""


def list_cards() -> list[str]:
    """Names of the model cards that come with rlsim, sorted."""
    return list(catalogue("scenarios", "models"))


_NODES = re.compile(r"\s+\d+-nodes?$")
"""What some tables append to the name of a model: the size of the run."""


def card_of_published(name: str) -> str | None:
    """Model card of a model as tables and configurations call it; what they append in brackets does not count."""
    return card_of_same_layers(_NODES.sub("", re.sub(r"\s*\(.*\)$", "", name.strip().rstrip("/"))))


def card_of_same_layers(name: str) -> str | None:
    """Card of a model as tables and Hugging Face call it (``Qwen/Qwen3-30B-A3B-Instruct-2507``); None without one.

    Variants that have the dimensions of a card count as that: other weights, another precision.
    """
    base = name.split("/")[-1].lower()
    known = {card.lower(): card for card in list_cards()}
    for wanted in (base, _VARIANTS.sub("", base)):
        for spelled in (wanted, re.sub(r"[\s_]+", "-", wanted)):
            card = lists_beside(__file__, "same_layers.yaml").get(spelled, spelled)
            if card in known:
                return known[card]
    return None


def load_card(name_or_path: str | Path, base: Path | None = None) -> ModelCard:
    """Card by name, from a card YAML, a Hugging Face config.json, or a folder that holds one.

    A name is that of a card (``qwen3-8b``) or a repository on Hugging Face that has its dimensions
    (``Qwen/Qwen3-8B-Base``). base: folder from which a relative path counts. Raises InputError for an unknown name or
    an invalid file.
    """
    name = str(name_or_path)
    path = as_path(name, (*YAML_SUFFIXES, ".json"), base) or _named(name)
    if path.suffix.lower() not in YAML_SUFFIXES:
        from rlsim.loading.huggingface import card_from_huggingface  # which no shipped model needs

        return card_from_huggingface(path)
    card = read_record(path, ModelCard)
    # A card's own file says itself whether its model sees.
    tower = None if as_path(name, YAML_SUFFIXES, base) else tower_of(name)
    return card if tower is None else changed(card, vision=tower)


_OTHER_WEIGHTS = re.compile(
    r"(?!.*((?<![\d.])\d+(\.\d+)?[bm](-|$)|prun|spars|shrunk|upscal|expand|slim|draft|eagle|moe|layer)).*"
)
"""What may follow a card's name where other weights have its layers: anything that names no further size and no change
of the layers."""


_CUT = re.compile(r"(?<!\d)\d+-?layers?(?![a-z])")
"""What the name of a model says of which some layers are left, for tests (Kimi-K2.5-2layer, GLM-5.2_5layer)."""


def card_by_shape(name: str) -> tuple[str, str] | None:
    """Card of the layers that a checkpoint has by its name, and how its name says so; None where it does not.

    name: as configurations write it, a path included. After :func:`card_of_published` count the patterns of
    name_patterns.yaml, then a card's name with words behind it, which are of other weights (``Qwen3-0.6B-Wordle-SFT``).
    """
    exact = card_of_published(name)
    if exact is not None:
        return exact, "name"
    base = re.sub(r"[\s_]+", "-", name.strip().rstrip("/").split("/")[-1].lower())
    if _CUT.search(base):
        return None
    known = {card.lower(): card for card in list_cards()}
    for pattern, card in lists_beside(__file__, "name_patterns.yaml").items():
        # Dots in the list are those of release numbers; `.*` alone stays a pattern.
        found = re.fullmatch(pattern.replace(".", r"\.").replace(r"\.*", ".*"), base)
        if found:
            groups = ["", *(group or "" for group in found.groups())]
            target = card.format(*groups)
            return (known[target], f"layers of {known[target]}") if target in known else None
    # Longest first: glm-4.5-air begins with the name of another card, glm-4.5.
    for card in sorted(known, key=len, reverse=True):
        if base.startswith(f"{card}-") and _OTHER_WEIGHTS.fullmatch(base[len(card) + 1 :]):
            return known[card], f"layers of {known[card]}"
    return None


def same_layers(one: str, other: str) -> bool:
    """Whether two names are of one checkpoint or, by their cards, of checkpoints with the same layers."""
    if one == other:
        return True
    first, second = card_by_shape(one), card_by_shape(other)
    return first is not None and second is not None and first[0] == second[0]


_SEES = re.compile(r"(?<![a-z])(vl|omni|\d(\.\d)?v)(?![a-z])|internvl", re.IGNORECASE)
"""Names of models with a vision tower."""


def tower_of(name: str) -> VisionTower | None:
    """The vision tower of a checkpoint, by its name (towers.yaml); None where none is known."""
    base, towers = name.rstrip("/").rpartition("/")[2].lower(), lists_beside(__file__, "towers.yaml")
    found = next((tower for pattern, tower in towers.items() if re.fullmatch(pattern, base)), None)
    return None if found is None else VisionTower.model_validate(found)


def lacking_tower(name: str) -> dict[str, Any] | None:
    """The record of ``missing`` for a checkpoint that sees, by its name, without stated images; None for others."""
    base = shortened(name.rstrip("/").rpartition("/")[2], 80)
    if not _SEES.search(base):
        return None
    if tower_of(name) is None:
        return {"part": f"the vision tower of {base} and the tokens of its images", "belongs_to": ["model"]}
    return {"part": f"the images that {base} sees (state workload.images)", "belongs_to": ["model", "workload.images"]}


def lacking_weights(name: str) -> dict[str, Any] | None:
    """The record of ``missing`` for a policy whose checkpoint has 4-bit weights, by its name; None for others."""
    base = shortened(name.rstrip("/").rpartition("/")[2], 80)
    if not _FOUR_BITS.search(base):
        return None
    return {"part": f"the 4-bit weights of {base}", "step": "either", "belongs_to": ["model"]}


def _named(name: str) -> Path:
    """The card of a name. Raises InputError where there is none, and for repositories of quantised weights."""
    cards, repository = catalogue("scenarios", "models"), name.rstrip("/")
    base = repository.rpartition("/")[2]
    same = card_of_same_layers(base) if "/" in repository else None
    if same is None and base not in cards:
        same = (card_by_shape(repository) or (None,))[0]
    if same is None:
        otherwise = "; for another model give the path of its Hugging Face config.json"
        return find_entry(base, cards, "model", otherwise)
    if _QUANTISED.search(base) and same != base.lower():
        raise InputError(
            f"'{shortened(name)}' holds quantised weights; give model {same} and state engine.weight_precision"
        )
    return cards[same]
