"""The command line: parse, one library call, print. Whatever is heavy is imported inside the commands."""

import os

# Before NumPy is imported: BLAS threads cost 0.1 s to start, no matrix here is worth them, and sums that they split
# would round by the number of cores. Pydantic has no plugins to look for.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

from rlsim.cli.main import main

__all__ = ["main"]
