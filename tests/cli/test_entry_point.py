"""The entry point ``rlsim`` in a process of its own, and called by another program."""

import subprocess
import sys

CALLED = """
from rlsim.cli import program
try:
    program()
except SystemExit as end:
    print("went on after", end.code)
"""


def test_another_program_goes_on_after_it():
    ran = subprocess.run([sys.executable, "-c", CALLED, "models"], capture_output=True, text=True, check=False)
    assert "went on after 2" in ran.stdout or "went on after 0" in ran.stdout


def test_the_module_ends_with_its_exit_code():
    for words, code in ((("--version",), 0), (("project", "nothing_like_it"), 2)):
        ran = subprocess.run([sys.executable, "-m", "rlsim", *words], capture_output=True, text=True, check=False)
        assert ran.returncode == code
