"""A hardware profile from eight numbers of a datasheet; what a datasheet does not say is assumed and says so.

Apart from :mod:`rlsim.tables.profile`, which every command imports, since ``rlsim hardware new`` alone writes one.
"""

import re
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict
from pydantic import ValidationError

from rlsim.errors import InputError, shortened
from rlsim.files.lookup import catalogue
from rlsim.files.reading import shown_path
from rlsim.files.writing import staged_folder
from rlsim.files.yaml import parse_yaml
from rlsim.files.yaml_rules import place_finder
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.messages import as_input_error
from rlsim.units import GIB, GIGA, TERA

SUFFIX = ".yaml"
UNITS = {"memory_gib": GIB, "memory_gb_per_s": GIGA, "bf16_tflops": TERA, "fp8_tflops": TERA, "link_gb_per_s": GIGA}
"""Units of a datasheet's numbers in those of a profile's keys; the numbers are the words of the template."""


class Datasheet(Struct, frozen=True):
    """What the datasheet of a GPU says; rates dense and per GPU, the link in one direction."""

    memory_gib: float
    memory_gb_per_s: float
    bf16_tflops: float
    fp8_tflops: float
    link_gb_per_s: float
    gpus_per_node: int
    power_w: float
    price_per_hour_usd: float


def write_profile(name: str, sheet: Datasheet, out: Path | None = None) -> Path:
    """Write the commented profile ``name`` of ``sheet`` to ``out`` (default NAME.yaml here); returns its path.

    Raises InputError for a name that is taken or no name, a file that exists, and numbers out of the schema's bounds;
    nothing is written then.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", name):
        raise InputError(f"'{shortened(name)}' is no name of a profile: letters, digits, _ . and -, a letter first")
    if name.lower() in catalogue("hardware_profiles"):
        raise InputError(
            f"a profile '{name.lower()}' comes with rlsim (rlsim hardware show {name}); choose another name"
        )
    path = out or Path(f"{name}{SUFFIX}")
    if path.suffix != SUFFIX:
        raise InputError(f"{shown_path(path)}: the file of a profile must end in {SUFFIX}")
    if path.exists():
        raise InputError(f"{shown_path(path)}: exists already; nothing was written")
    template = Path(__file__).with_name("new_profile.yaml").read_text(encoding="utf-8")
    numbers = {word: f"{number * UNITS.get(word, 1):.6g}" for word, number in asdict(sheet).items()}
    text = re.sub(r"<(\w+)>", lambda found: name if found[1] == "name" else numbers[found[1]], template)
    try:
        # Checked as a text before it is written: numbers in wrong units are out of the schema's bounds.
        HardwareProfile.model_validate(parse_yaml(text, shown_path(path), True))
    except ValidationError as error:
        raise as_input_error(error, f"the numbers of '{name}'", HardwareProfile, place_finder("")) from error
    with staged_folder(path.parent) as folder:
        (folder / path.name).write_text(text, encoding="utf-8")
    return path
