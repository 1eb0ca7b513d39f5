"""Fitted parameters by name or path: ``calibration/fitted/NAME.yaml``."""

from __future__ import annotations

import functools
from pathlib import Path

from pydantic import ValidationError

from rlsim.datafiles import data_folder
from rlsim.errors import InputError
from rlsim.loading_yaml import read_yaml
from rlsim.schema.fitted import FittedParameters
from rlsim.schema.messages import as_input_error

DEFAULT = "nemo_rl"
"""Fit to the published steps of NeMo-RL."""


@functools.lru_cache(maxsize=16)
def load_fitted(name_or_path: str | None = None) -> FittedParameters:
    """Parameters called ``name_or_path`` (default: the fit to published steps), or from a file of that path.

    Raises InputError naming what there is, or the key that is wrong.
    """
    folder = data_folder("calibration") / "fitted"
    wanted = name_or_path or DEFAULT
    path = Path(wanted) if wanted.endswith((".yaml", ".yml")) else folder / f"{wanted}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.yaml")))
        raise InputError(f"no fitted parameters '{wanted}'; there are {known}, or give a path to a .yaml file")
    try:
        return FittedParameters.model_validate(read_yaml(path))
    except ValidationError as error:
        raise as_input_error(error, str(path), FittedParameters) from None
