"""Compile the C sources of this folder beside them: ``python -m rlsim.simulation.kernel.build``.

Nothing but the standard library is needed: the build of the package loads this file by its path.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
LIBRARY = FOLDER / f"_event_core{'.dll' if sys.platform == 'win32' else '.so'}"
"""Where the compiled kernel lies. It has no Python ABI: one for each platform."""

FLAGS = ("-std=c99", "-O2", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-shared")
"""Without contraction to fused multiply-adds, which would round other than Python does."""


def sources_digest() -> str:
    """Digest of the C sources, which a library carries: one compiled from other sources is not loaded."""
    content = b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.[ch]")))
    return hashlib.sha256(content).hexdigest()[:16]


def compiler() -> list[str] | None:
    """The command of a C compiler: ``CC``, else the first of the usual names on the path."""
    named = os.environ.get("CC") or sysconfig.get_config_var("CC") or ""
    for command in (named, "cc", "gcc", "clang"):
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            return words
    return None


def build() -> Path | None:
    """Compile into :data:`LIBRARY`; None where there is no compiler or it fails, with one line to stderr."""
    command = compiler()
    if command is None:
        print("rlsim: no C compiler found; events are simulated in Python", file=sys.stderr)
        return None
    sources = sorted(str(path) for path in FOLDER.glob("*.c"))
    digest = f'-DSOURCES_DIGEST="{sources_digest()}"'
    try:
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            made = Path(folder) / LIBRARY.name
            subprocess.run(
                [*command, *FLAGS, digest, *sources, "-o", str(made)], check=True, capture_output=True, text=True
            )
            made.replace(LIBRARY)  # at once: other processes find the old library or the new one
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[0]
        print(f"rlsim: the C kernel does not compile, events are simulated in Python: {reason}", file=sys.stderr)
        return None
    return LIBRARY


if __name__ == "__main__":
    sys.exit(build() is None)
