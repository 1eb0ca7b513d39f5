"""The compiled kernel: where it lies, how it is built, and which implementation runs.

Nothing but the standard library is needed: the build of the package loads this file by its path.
"""

import ctypes
import hashlib
import os
import sys
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "simulation" / "kernel"
FLAGS = ("-std=c11", "-O2", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-shared")
"""Without contraction to fused multiply-adds, which would round other than Python does."""
EXTRA_FLAGS = "RLSIM_KERNEL_FLAGS"
"""Environment variable: further flags of the compiler, after FLAGS, such as those of sanitizers (scripts/sanitize)."""
VARIABLE = "RLSIM_KERNEL"
"""Environment variable: ``python`` forces the Python reference; unset or ``auto`` takes the kernel where it is."""


def _flags() -> list[str]:
    return [*FLAGS, *os.environ.get(EXTRA_FLAGS, "").split()]


def library_path() -> Path:
    """Where the compiled kernel lies, no matter whether it is there; it has no Python ABI, one for each platform.

    The name carries a digest of the C sources and of the compiler's flags, so that one compiled otherwise is not found.
    """
    # In order: that of a file system differs between machines, and with it the digest would.
    content = b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.[ch]"))) + " ".join(_flags()).encode()
    digest = hashlib.sha256(content).hexdigest()[:12]
    return FOLDER / f"_event_core_{digest}{'.dll' if sys.platform == 'win32' else '.so'}"


def compiler() -> list[str] | None:
    """The command of a C compiler: ``CC``, else the first of the usual names on the path."""
    import shlex
    import shutil
    import sysconfig

    named = os.environ.get("CC") or sysconfig.get_config_var("CC") or ""
    for command in (named, "cc", "gcc", "clang"):
        # CC may hold options (gcc -pthread) or a wrapper in front (ccache gcc).
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
            subprocess.run([*command, *_flags(), *sources, "-o", str(made)], check=True, capture_output=True, text=True)
            made.replace(library)  # at once: no other process finds half of it
        # What a sanitizer compiled lies beside the library that everybody else loads.
        for path in FOLDER.glob("_event_core_*") if EXTRA_FLAGS not in os.environ else ():
            if path != library:
                path.unlink(missing_ok=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[0]
        print(f"rlsim: the C kernel does not compile, events are simulated in Python: {reason}", file=sys.stderr)
        return None
    return library


def compiled() -> ctypes.CDLL | None:
    """The kernel, or None where it was not compiled or RLSIM_KERNEL asks for the reference."""
    wanted = os.environ.get(VARIABLE, "auto")
    if wanted not in ("auto", "python"):
        from rlsim.errors import InputError

        raise InputError(f"{VARIABLE}: must be auto or python, not {wanted!r}")
    return None if wanted == "python" else _load()


@cache
def _load() -> ctypes.CDLL | None:
    path = library_path()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        if path.exists():  # one that was never compiled was reported when rlsim was installed
            print(f"rlsim: {path} does not load, events are simulated in Python: {error}", file=sys.stderr)
        return None
