"""The program ``rlsim``: how it begins, and how it ends."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rlsim.errors import BAD_INPUT, MESSAGE_CHARACTERS, RlsimError, shortened
from rlsim.files.reading import shown_path

# 128 and the number of SIGINT, as shells count.
INTERRUPTED = 130
"""Exit code of an interrupted program."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code: 0 done, 2 bad input or infeasible, 1 a bug.

    argv: arguments without the program's name; default those of the process.
    """
    # Closed by the caller (>&-): what nobody listens to goes nowhere.
    nowhere = io.StringIO()
    sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    from rlsim.cli.commands import run

    try:
        code = run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        code = INTERRUPTED
    except RlsimError as error:
        _fail(str(error))
    # A full disk or a folder without rights is the user's to mend, and no bug.
    except OSError as error:
        _fail(f"{shown_path(Path(error.filename))}: {error.strerror}" if error.filename else str(error))
    sys.exit(code)  # type: ignore[arg-type]


def _fail(message: str) -> NoReturn:
    print(f"rlsim: {shortened(message, MESSAGE_CHARACTERS)}", file=sys.stderr)
    sys.exit(BAD_INPUT)
