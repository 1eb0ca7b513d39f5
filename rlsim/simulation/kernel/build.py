"""Compile the C sources of this folder beside them: ``python -m rlsim.simulation.kernel.build``.

Nothing but the standard library is needed: the build of the package loads this file by its path.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
FLAGS = ("-std=c11", "-O2", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-shared")
"""Without contraction to fused multiply-adds, which would round other than Python does."""


def library_path() -> Path:
    """Where the compiled kernel lies, no matter whether it is there; it has no Python ABI, one for each platform.

    The name carries a digest of the C sources and of the compiler's flags, so that one compiled otherwise is not found.
    """
    content = b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.[ch]"))) + " ".join(FLAGS).encode()
    digest = hashlib.sha256(content).hexdigest()[:12]
    return FOLDER / f"_event_core_{digest}{'.dll' if sys.platform == 'win32' else '.so'}"


def compiler() -> list[str] | None:
    """The command of a C compiler: ``CC``, else the first of the usual names on the path."""
    import shlex
    import shutil
    import sysconfig

    named = os.environ.get("CC") or sysconfig.get_config_var("CC") or ""
    for command in (named, "cc", "gcc", "clang"):
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            return words
    return None


def build() -> Path | None:
    """Compile to :func:`library_path`; None where there is no compiler or it fails, with one line to stderr."""
    # What only building needs takes a projection 20 ms to import.
    import subprocess
    import tempfile

    command = compiler()
    if command is None:
        print("rlsim: no C compiler found; events are simulated in Python", file=sys.stderr)
        return None
    sources = sorted(str(path) for path in FOLDER.glob("*.c"))
    library = library_path()
    try:
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            made = Path(folder) / library.name
            subprocess.run([*command, *FLAGS, *sources, "-o", str(made)], check=True, capture_output=True, text=True)
            made.replace(library)  # at once: no other process finds half of it
        for path in FOLDER.glob("_event_core_*"):
            if path != library:
                path.unlink(missing_ok=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[0]
        print(f"rlsim: the C kernel does not compile, events are simulated in Python: {reason}", file=sys.stderr)
        return None
    return library


if __name__ == "__main__":
    sys.exit(build() is None)
