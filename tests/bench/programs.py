"""Programs of bench/ in a process of their own, in any folder, with modules that are not there."""

import subprocess
import sys
from pathlib import Path

BLOCK = "import sys, runpy\nfor name in {names!r}: sys.modules[name] = None\n"
ENTRY = "sys.path[:0] = [{folder!r}]\nsys.argv[1:] = {arguments!r}\nrunpy.run_module({module!r}, run_name='__main__')"
NOT_ON_THE_MEASURED_MACHINE = ["rlsim", "pydantic", "simpy", "scipy", "pyarrow", "yaml", "matplotlib", "typer"]


def run(folder: Path, blocked: list[str], *arguments: object, module: str) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in arguments]
    code = BLOCK.format(names=blocked) + ENTRY.format(folder=str(folder), arguments=words, module=module)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
