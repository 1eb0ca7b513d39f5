"""Hardware profiles by name or path."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from rlsim.hardware.lookup import YAML_SUFFIXES, as_path, catalogue, find_entry
from rlsim.loading_yaml import read_yaml
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.messages import as_input_error


def list_profiles() -> list[str]:
    """Names of the profiles that come with rlsim, sorted."""
    return list(catalogue("hardware_profiles"))


def load_profile(name_or_path: str | Path, base: Path | None = None) -> HardwareProfile:
    """Profile by name (``gb200_nvl72``, case-insensitive) or from a YAML file.

    base: folder from which a relative path counts. Raises InputError for an unknown name or an invalid file.
    """
    name = str(name_or_path)
    path = as_path(name, YAML_SUFFIXES, base) or find_entry(name, catalogue("hardware_profiles"), "hardware profile")
    try:
        return HardwareProfile.model_validate(read_yaml(path))
    except ValidationError as error:
        raise as_input_error(error, str(path), HardwareProfile) from error
