"""Scripts are followed as bash runs them: the words that a command gets are those that bash hands it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rlsim.readers.shell.script import commands_of

BASH = shutil.which("bash")
SCRIPTS = r"""
A=(1 'two words' 3); prog "${A[@]}" - "${A[*]}" - ${#A[@]} "${!A[@]}" "${A[1]}"
set -- a 'b c' d; prog "$@" - "$*" - $# - "$1" "${2}" "${*}" "${@}"
set -- a b c; shift; prog "$@"; shift 2; prog "$#" "$@" none
X=path/to/file.tar.gz; prog ${X##*/} ${X#*/} ${X%.*} ${X%%.*} ${#X} ${X/to/in} ${X//t/T}
X=hello; prog ${X:1} ${X:1:2} ${X: -2} ${X:0:1} ${X^^} "${X,}"
X=; prog "${X:-d}" "${X-d}" "${Y:-d}" "${Y-d}" "${X:+s}" "${X+s}" "${Y:+s}" "${Y+s}" end
unset Y; : ${Y:=new}; prog $Y "${Y:=other}" "${Z:-${Y}x}"
prog $((1 + 2 * 3)) $((7 / 2)) $((7 % 3)) $((-7 / 2)) $((1 < 2)) $((3 == 3 && 0)) $((5 > 3 ? 1 : 0))
case abc in a) prog 1 ;; a*|z) prog 2 ;; *) prog 3 ;; esac
case "x y" in "x y") prog quoted ;; esac; case 5 in [0-4]) prog low ;; [5-9]) prog high ;; esac
if [[ -z "" && -n x && ! -z y ]]; then prog yes; elif true; then prog other; else prog no; fi
if [ 3 -lt 5 ] && [ 5 -ge 5 ] && [ 4 -le 3 ]; then prog yes; else prog no; fi
if [[ abc == a* && abc != b* && abc =~ ^a.c$ ]]; then prog matches; fi
if [ "a" != "b" -a 1 -eq 1 ]; then prog both; fi; if [ a = b -o c = c ]; then prog either; fi
if ! [ -n "" ]; then prog negated; fi; if true; then :; fi; false || prog or; true && prog and; false && prog never
f() { return 1; }; if f; then prog yes; else prog no; fi
prog 'single $X' "double \$X \"q\"" back\ slash $'tab\tend' "a"'b'c
prog "$(echo one two)" $(echo one two) `echo back`
prog $(seq 3) $(seq 2 2 6) $(basename /a/b.sh .sh) $(dirname /a/b/c) "$(echo -n x)"
X=$(cat <<END
line one
line $((1 + 1))
END
); prog "$X"
X=$(cat <<'END'
raw $Y
END
); prog "$X"
declare -A M=([k]=v [l]=w); prog "${#M[@]}"
prog a \
  b # a comment
prog "a # none" b#c
X=a; Y=X; prog ${!Y}
X=5; [ $X -eq 5 ] && { prog five; prog more; } || prog other
while true; do prog once; break; done; prog end
X="--a 1 --b"; prog $X "${X}" ${X%% *}
set -- --lr 1; while [[ $# -gt 0 ]]; do case $1 in --lr) prog lr $2; shift 2 ;; *) shift ;; esac; done
X=10; X+=5; prog $X; declare -i K=3; prog $K; readonly R=1; prog $R
prog a; exit 0; prog never
A=(); prog ${#A[@]} "${A[@]}" end; A=("${A[@]}" x); prog "${A[@]}"
"""
"""One script a line; one with a here-document goes on to the line of its prog."""


def scripts() -> list[str]:
    found, open_ = list[str](), ""
    for line in SCRIPTS.strip().split("\n"):
        open_ += line + "\n"
        if not line.endswith("\\") and (open_.count("<<") - open_.count("<<<")) in (0, open_.count("\nEND\n)")):
            found.append(open_)
            open_ = ""
    return found


def of_bash(text: str, folder: Path) -> list[list[str]]:
    """The words of every call of prog; in a file, as pipes and redirections of the script take standard output."""
    called = folder / "called"
    called.write_bytes(b"")
    head = f"prog() {{ [ $# -eq 0 ] || printf '%s\\0' \"$@\" >> '{called}'; printf '\\1\\0' >> '{called}'; }}\n"
    subprocess.run([str(BASH), "-c", head + text], env={"PATH": os.environ["PATH"]}, cwd=folder, timeout=20,
                   capture_output=True)  # fmt: skip
    calls = called.read_bytes().decode().split("\1\0")
    return [call.split("\0")[:-1] for call in calls[:-1]]


@pytest.mark.skipif(BASH is None, reason="without bash nothing is there to compare with")
@pytest.mark.parametrize("text", scripts(), ids=lambda text: text[:40])
def test_a_command_gets_the_words_that_bash_hands_it(text: str, tmp_path: Path) -> None:
    wanted = of_bash(text, tmp_path)
    assert wanted
    (tmp_path / "run.sh").write_text(text)
    found = [words[1:] for words in commands_of(tmp_path / "run.sh") if words[0] == "prog"]
    assert found == wanted
