"""Model cards by name, from a card file, or from a Hugging Face config.json."""

from __future__ import annotations

from pathlib import Path

from rlsim.hardware.lookup import YAML_SUFFIXES, as_path, catalogue, find_entry
from rlsim.schema.huggingface import card_from_huggingface
from rlsim.schema.messages import read_record
from rlsim.schema.model import ModelCard


def list_cards() -> list[str]:
    """Names of the model cards that come with rlsim, sorted."""
    return list(catalogue("scenarios", "models"))


def load_card(name_or_path: str | Path, base: Path | None = None) -> ModelCard:
    """Card by name (``qwen3-8b`` or ``Qwen/Qwen3-8B``), from a card YAML, a config.json, or a folder that holds one.

    base: folder from which a relative path counts. Raises InputError for an unknown name or an invalid file.
    """
    name = str(name_or_path)
    path = as_path(name, (*YAML_SUFFIXES, ".json"), base)
    if path is None:
        path = find_entry(
            name.rstrip("/").rpartition("/")[2],
            catalogue("scenarios", "models"),
            "model",
            "; for another model give the path of its Hugging Face config.json",
        )
    if path.suffix.lower() not in YAML_SUFFIXES:
        return card_from_huggingface(path)
    return read_record(path, ModelCard)
