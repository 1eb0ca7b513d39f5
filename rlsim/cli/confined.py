"""rlsim on what it was passed alone: ``python -m rlsim.cli.confined WORDS`` reads no file outside of the current folder
but those of its installation."""

import sys
from pathlib import Path

from rlsim.cli.main import main
from rlsim.files.reading import confine

if __name__ == "__main__":
    confine(Path.cwd())
    main(sys.argv[1:])
