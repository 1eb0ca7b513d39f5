"""The list of mutants keeps up with the code: every change of it fits, and every room has some."""


def test_every_mutant_changes_a_line_that_is_there(script) -> None:
    module = script("scripts/mutants")
    found = list(module.all_mutants())
    assert {mutant.room for mutant in found} == set(module.ROOMS)
    for mutant in found:
        compile(mutant.text, mutant.module, "exec")
        assert mutant.text != (module.ROOT / "rlsim" / mutant.module).read_text(encoding="utf-8"), mutant
