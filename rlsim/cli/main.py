"""The program ``rlsim``: how it begins, and how it ends."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from rlsim.cli.direct import direct_call
from rlsim.errors import MESSAGE_CHARACTERS, RlsimError, shortened
from rlsim.files.reading import shown_path

BAD_INPUT = 2
"""Exit code of bad input and of infeasible configurations; 0 is done, 1 a bug."""
INTERRUPTED = 130
"""That of an interrupted program."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code: 0 done, 2 bad input or infeasible, 1 a bug.

    argv: arguments without the program's name; default those of the process.
    """
    # A command imports much and throws little away: looking for cycles so often would cost a tenth of its start.
    gc.set_threshold(10_000_000, 50, 50)
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        call = direct_call(words)
        if call is None:
            from rlsim.cli.commands import run

            code = run(words)
        else:
            code = call()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except RlsimError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{shown_path(Path(error.filename))}: {error.strerror}" if error.filename else str(error))
    sys.exit(code)  # type: ignore[arg-type]


def program() -> None:
    """:func:`main` as a process of its own, which ends without taking apart what ends with it: a tenth of its time."""
    try:
        main()
    except SystemExit as end:
        if not _owns_process() or "joblib" in sys.modules or not isinstance(end.code, int | None):
            raise  # worker processes are ended by the handlers of an ordinary exit
        with suppress(OSError):  # nobody reads on
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(end.code or 0)


def _owns_process() -> bool:
    """Whether the process is ``rlsim`` or ``python -m rlsim``, not a program that calls this one's entry point."""
    started = sys.modules["__main__"]
    spec = getattr(started, "__spec__", None)
    return getattr(spec, "name", "") == "rlsim.__main__" or Path(getattr(started, "__file__", "")).stem == "rlsim"


def _fail(message: str) -> NoReturn:
    print(f"rlsim: {shortened(message, MESSAGE_CHARACTERS)}", file=sys.stderr)
    sys.exit(BAD_INPUT)
