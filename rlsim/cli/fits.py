"""The pre-commit hook ``rlsim-fits``: recipes that cannot run are refused before they are committed.

``python -m rlsim.cli.fits FRAMEWORK [--hardware NAME] FILE...``, in the root of the repository with the files. Ends
with 3 where one cannot run, as ``rlsim preflight`` does, with 2 where the words are wrong, else 0. What is no recipe or
is gone is printed and no fault.
"""

import argparse
import sys
from pathlib import Path

from rlsim.cli.preflight import CANNOT_RUN
from rlsim.errors import Infeasible, InputError, shortened

REASON_CHARACTERS = 400


def refusal(framework: str, file: str, hardware: str | None) -> str:
    """Why the recipe in ``file`` cannot run, with settings that would make it fit; empty where it can. Raises
    InputError where it cannot be read."""
    from rlsim.planning.fitting import preflight
    from rlsim.readers.frameworks.asked import Asked
    from rlsim.readers.frameworks.importing import import_config

    if not Path(file).is_file():
        raise InputError("absent")
    answer = preflight(import_config(framework, Path(file), (), Asked(hardware=hardware), Path()).scenario, False)
    if answer.runs:
        return ""
    settings = "".join(f"\n  would fit with {setting}" for setting in answer.settings)
    return shortened(answer.reason, REASON_CHARACTERS) + settings


def main(words: list[str] | None = None) -> int:
    """Print what is refused and what is left out; the exit code."""
    from rlsim.cli.readers import FrameworkName

    parser = argparse.ArgumentParser(prog="rlsim-fits", description="Refuse recipes that cannot run.")
    parser.add_argument("framework", choices=[one.value for one in FrameworkName])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--hardware")
    # Options may stand between the words: pre-commit puts files behind args, whatever these end with.
    given, code = parser.parse_intermixed_args(words), 0
    for file in given.files:
        try:
            reason = refusal(given.framework, file, given.hardware)
        except (InputError, Infeasible) as error:
            print(f"{file}: left out: {shortened(str(error), REASON_CHARACTERS)}")
            continue
        if reason:
            print(f"{file}: {reason}")
            code = CANNOT_RUN
    return code


if __name__ == "__main__":
    sys.exit(main())
