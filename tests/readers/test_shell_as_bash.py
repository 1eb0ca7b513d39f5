"""Scripts are followed as bash runs them: the words that a command gets are those that bash hands it."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from shell_grammar import RULES

from rlsim.errors import InputError
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
if [[ -n a && ( -n "" || -z "" ) ]]; then prog yes; else prog no; fi; [[ a == "a*" || ( b == b && ! c == [^c] ) ]] && prog grouped
[ abc = a* ] || prog literal; [[ "$NONE" -eq 0 ]] && prog zero; [ ! -n "" -a 1 -eq 1 ] && prog both; [[ b > a ]] && prog above
for x in 1 2 3 4; do [ $x = 2 ] && continue; [ $x = 4 ] && break; prog $x; done; for a in 1 2; do for b in 1 2; do break 2; done; prog no; done; prog end
f() { [ $1 -gt 2 ] && return 3; prog small $1; return 0; prog never; }; f 1; prog $?; f 5; prog $?
f() { local X=in Y; X=$X$1; prog $X; }; X=out; f 1; prog $X; ( X=sub; prog $X; exit 0; prog no ); prog $X; echo y | read X; prog $X
X=1; unset X; prog "${X-gone}"; A=(a b c); unset 'A[1]'; prog "${A[@]}" ${#A[@]} ${!A[@]}
X=old; Y=2 X=new true; f() { prog "$X"; }; X=new f; prog "$X"; IFS=: read -r a b <<< "x:y:z"; prog "$a" "$b"
prog $((2 ** 5)) $((2 ** 3 ** 2)) $((-2 ** 2)) $((7 & 3 | 8)) $((1 << 4)) $((0x1f)) $((010)) $((~5)) $((1 ? 2 : 3)) $((-7 % 3))
N=3; ((N++)); prog $N $((N++ + ++N)) $N; ((N += 2, N *= 2)); prog $N; let N=N-1; prog $N; A=(4 5); prog $((A[1] + N))
set -- a b c d; prog "${@:2}" - "${@:2:2}" - "${@: -1}"; A=(1 2 3 4); prog "${A[@]:1:2}" - "${A[@]: -2}" - "${A[@]/#/x}"
A=(a b); A[1]=x; A[5]=z; A+=(w); prog "${A[@]}" "${A[-1]}" ${#A[@]} "${!A[@]}"; A[0]+=q; prog $A
declare -A M=([k]=v); M[two words]=w; K=k; prog "${M[$K]}" "${M[two words]}" ${#M[@]} "${M[none]-unset}"
X=aXa; prog ${X/#a/b} ${X/%a/b} ${X//a} ${X/\X/_} ${X^} ${X^^} ${X,} ${X,,}; X="a b[1]"; prog "${X//[[:space:]]/_}" "${X%"[1]"}"
read a b <<< " one two  three "; prog "$a" "$b"; read -ra L <<< "x y z"; prog ${#L[@]} "${L[2]}"; IFS=, read -ra L <<< "p,q,,r"; prog "${L[@]}"
false; prog $?; true; prog $?; [ a = b ]; X=$?; prog $X
prog {a,b}{1..3} x{,y} "{a,b}" {a} {3..1} {01..03} pre{a..c}; for i in {1..3}; do prog $i; done; X={a,b}; prog "$X"
N=3; arr=(); for ((i=0; i<N; i++)); do if ((i < 1)); then arr+=(0); else arr+=(1); fi; done; printf -v F "[%s]" "$(IFS=', '; echo "${arr[*]}")"; prog "$F"
i=0; while [ $i -lt 4 ]; do i=$((i + 1)); [ $i = 2 ] && continue; prog $i; done; until ((i == 0)); do ((i--)); done; prog $i
prog "$(printf '%s-%02d\n' a 7 b 8)" "$(echo -e 'x\ty')" "$(echo seen >&2; echo kept)" "$(cd /; pwd)"
case ab in a*) prog 1 ;;& *b) prog 2 ;& c) prog 3 ;; *) prog 4 ;; esac; case "a*" in "a*") prog star ;; esac
IFS=,; X=a,b; prog $X; A=(1 2); prog "${A[*]}"; IFS=' '; prog $X
[[ v12 =~ ^v([0-9]+)$ ]] && prog "${BASH_REMATCH[1]}"; [[ abc =~ ^[[:alpha:]]+$ ]] && prog letters; [[ aab =~ ^a+b*$ ]] && prog two
"""  # noqa: E501 - a script is a line
"""One script a line; one with a here-document goes on to the line of its prog."""


def scripts() -> list[str]:
    found, open_ = list[str](), ""
    for line in SCRIPTS.strip().split("\n"):
        open_ += line + "\n"
        if not line.endswith("\\") and open_.count("<<END") + open_.count("<<'END") == open_.count("\nEND\n)"):
            found.append(open_)
            open_ = ""
    assert not open_
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


def followed_alike(rule: str, seed: str, count: int, folder: Path) -> None:
    """Random statements by a rule of the grammar give the words that bash hands prog."""
    rng = random.Random(f"{rule} {seed}")
    text = "".join(f"{RULES[rule](rng)}\n" for _ in range(count))
    (folder / "run.sh").write_text(text)
    found = [words[1:] for words in commands_of(folder / "run.sh") if words[0] == "prog"]
    assert found == of_bash(text, folder)


@pytest.mark.skipif(BASH is None, reason="without bash nothing is there to compare with")
@pytest.mark.parametrize("rule", RULES)
def test_random_statements_are_followed_as_bash_follows_them(rule: str, tmp_path: Path) -> None:
    for seed in range(4):
        followed_alike(rule, str(seed), 50, tmp_path)


@pytest.mark.nightly
@pytest.mark.skipif(BASH is None, reason="without bash nothing is there to compare with")
@pytest.mark.parametrize("rule", RULES)
def test_any_random_statements_are_followed_as_bash_follows_them(rule: str, tmp_path: Path) -> None:
    for seed in range(15):
        followed_alike(rule, f"further {seed}", 100, tmp_path)


NOT_KNOWN = {
    "X=$((NOBODY * 2)); prog $X $((NOBODY + 1))": ["$X", "$((NOBODY + 1))"],
    "N=$(nproc-of); prog $((N * 2)) $((1 / 0))": ["$((N * 2))", "$((1 / 0))"],
    "X=ab; prog ${X@Q} ${X^^[a]} $(cat none.txt)": ["$(${X@Q})", "$(${X^^[a]})", "$(cat none.txt)"],
    "X=$(echo part; nproc-of); prog $X": ["$X"],
    "A=(); for ((i=0; i<NOBODY; i++)); do A+=(0); done; prog ${#A[@]} ${A[0]}": ["$(${#A[@]})", "$A"],
    "n=0; until reachable; do n=$((n + 1)); done; prog $n": ["$n"],
    "read X; prog $X; nproc-of; prog $?": ["$X"],
    "A=($(nproc-of)); prog ${#A[@]}; declare -n R=A": ["$(${#A[@]})"],
    "X=$(printf %q 'a b'); prog $X": ["$X"],
}
"""Scripts, and the first words of prog in which what only the machine knows, or is not followed, stays open."""


@pytest.mark.parametrize("text", NOT_KNOWN)
def test_what_cannot_be_told_is_neither_0_nor_empty(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(text + "\n")
    assert next(words[1:] for words in commands_of(tmp_path / "run.sh") if words[0] == "prog") == NOT_KNOWN[text]


@pytest.mark.parametrize(
    "text",
    [
        "[[ a =~ (a+)+ ]]",
        "[[ a =~ a*b*c* ]]",
        "[[ a =~ a[ ]]",
        "[[ a == @(a|b) ]]",
        "while true; do x=$((x + 1)); done; x=0; " * 2,
    ],
)
def test_a_branch_that_cannot_be_told_is_refused_and_loops_end(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"x=0; {text}\nprog\n")
    with pytest.raises(InputError, match=r"does not follow|leads through more than"):
        commands_of(tmp_path / "run.sh")
