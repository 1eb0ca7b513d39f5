"""Compile the C sources of this folder beside them: ``python -m rlsim.simulation.kernel.build``."""

import sys

from rlsim.files.kernel import build

if __name__ == "__main__":
    sys.exit(build() is None)
