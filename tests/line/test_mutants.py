"""The list of mutants keeps up with the code: every change of it fits, and every room has some."""

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "mutants"


def test_every_mutant_changes_a_line_that_is_there() -> None:
    loader = SourceFileLoader("mutants", str(SCRIPT))
    specification = importlib.util.spec_from_loader("mutants", loader)
    module = importlib.util.module_from_spec(specification)
    sys.modules["mutants"] = module
    loader.exec_module(module)
    found = list(module.all_mutants())
    assert {mutant.room for mutant in found} == set(module.ROOMS)
    for mutant in found:
        compile(mutant.text, mutant.module, "exec")
        assert mutant.text != (SCRIPT.parents[1] / "rlsim" / mutant.module).read_text(encoding="utf-8"), mutant
