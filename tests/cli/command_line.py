"""What tests of the command line share: a small scenario file, the program as a process, its complaints."""

import subprocess
import sys
from typing import Any

from tests.loading.small_scenario import SMALL as LONGER

SMALL = LONGER.replace("400", "200").replace("2048", "1024") + "simulation: {replications: 2}\n"


def process(*argv: str, stdout: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from rlsim.cli import main; main()", *argv]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True)


def complains(result: tuple[int, str, str], *naming: str) -> None:
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("rlsim: ") and err.count("\n") == 1
    for name in naming:
        assert name in err
