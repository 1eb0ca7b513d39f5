"""Launch scripts for the golden net: what no bash can be asked about, because a program of the machine is."""

# ruff: noqa: E501 - a line of a script or of a log is a line

SHELL = {
    "statuses": "\n".join(
        f"{one}; prog $?; {one} && prog y || prog n; if {one}; then prog t; else prog e; fi"
        for one in (
            "mapfile -t L <<< x",
            "unset L",
            "let 1",
            "let 0",
            "readarray x < f",
            "declare x",
            "declare -n r=x",
            "printf -v a b",
            "printf -v 'a b' c",
            "cd x",
            "set -- a b",
            "export A=1",
            "local q=1",
            "source none.sh",
            "source",
            "cat <<< x",
            "cat < f",
            "eval true",
            "eval false",
            "shift",
            "shift 9",
            "read a <<< x",
            "read a",
            "read -d '' a <<< x",
            "wait",
            "(true)",
            "(false)",
            "true | true",
            "true | false",
            "check | true",
            "f() { :; }",
            "f",
            "((1))",
            "((0))",
            "((NOBODY))",
            "for x in a; do false; done",
            "for ((k = 0; k < 1; k++)); do false; done",
            "while false; do :; done",
            "while check; do false; done",
            "until true; do :; done",
            "case a in b) ;; esac",
            "case a in a) false ;; esac",
            "if false; then :; fi",
            "if check; then :; fi",
            "break",
            "continue",
            "return",
            "expr 1",
            "expr x",
            "A=1",
            "A=$(false)",
            "A=$(check)",
            "A=(1)",
            "check",
            "! check",
            "echo x",
            "exit 1",
            "bash -c false",
            "bash none.sh",
            "[ a ]",
            "[ $NOBODY ]",
            "{ false; }",
            "$NOTHING",
            "$(echo true)",
            "source sub.sh",
            "test -f sub.sh",
        )
    ),
    "not known": r"""
N=$(count-of); prog $N $((N * 2)) "${N:-4}" "${N:+has}" ${#N} "${N%x}" "${N/a/b}" "${N:1}" ${N}x "$N-$N"
A=($(list-of)); prog "${A[@]}" ${#A[@]} "${A[1]}" "${A[@]:1}" "${!A[@]}" ${A[*]} "${A[0]:-none}"; A+=(x); prog "${A[@]}" ${#A[@]}
for x in $(list-of); do prog in $x; Z=$x; done; prog $Z $x
X=$(echo part; count-of); prog "$X"; X=$(count-of || echo 8); prog $X; X=$(true && count-of); prog $X; X="a $(count-of) b"; prog "$X" $X
X=set; prog "${X#$NOBODY}" "${X/$NOBODY/y}"; case "" in $NOBODY) prog nobody ;; esac; [[ a == $NOBODY* ]] && prog star; prog "${X:+"a b"}c" "${X:-"d"}" "${X:+'e'}"; X=`count-of`; prog $X; X=$(count-of | tail -1); prog $X; X=$(count-of > /dev/null); prog "$X"; X=$(echo 7 | filter); prog $X
X=$(start-it > out.log; echo 3); prog $X; X=$(prog inner >&2; echo 4); prog $X; X=$(if check; then echo 5; else echo 6; fi); prog $X
if check; then prog yes; elif check2 && true; then prog other; else prog no; fi; check && prog a; check || prog b; ! check && prog c
while check; do i=$((i + 1)); prog $i; done; prog $i; until check; do j=1; sleep 1; done; prog $j; while read l; do prog $l; done < file; prog $l
for ((k = 0; k < NOBODY; k++)); do m=$k; prog $k; done; prog $k $m; for ((k = 0; k < 2; k++)); do prog $k; done; prog $k
((NOBODY > 3)) && prog big; ((NOBODY)) || prog zero; ((q = NOBODY + 1)); prog $q; ((r = 5)); ((r += NOBODY)); prog $r; let s=2 t=NOBODY; prog $s $t
read v; prog $v $?; read -p name w; prog $w; read -r y <<< "$(count-of)"; prog $y; read a b <<< "1 $(count-of)"; prog $a $b
printf -v P '%s' "$(count-of)"; prog $P; printf -v P '%q' x; prog $P; printf -v P[1] '%d' 7; prog ${P[1]}; X=$(printf '%b' 'a\tb'); prog $X
[ $NOBODY = 1 ] && prog one; [ -z "$NOBODY" ] && prog empty; [[ $NOBODY == "" ]] && prog nothing; [[ -n $(count-of) ]] || prog none
case $NOBODY in "") prog empty ;; *) prog some ;; esac; case $(count-of) in [0-9]*) prog digits ;; *) prog rest ;; esac
prog ${NOBODY?gone} ${NOBODY:?gone} "${NOBODY:=set}" $NOBODY ${X@Q} ${!PRE*} ${!NOTHING} ${A[i]} $! $$ $- ${10} $10
expr 1 + 2; prog $((2 ** -1)) $((3 ** -1)) $((3 % 0)) $((1 +)) $((a b)) $((09)) $((5#9)) $((x[0])) $(expr $NOBODY + 1) $(expr 4 \* 3) $(expr a b)
""",
    "declared": r"""
declare -i K=3+4; K+=1; prog $K; declare +i K; declare -u U=abc; prog $U; declare -l V=ABC; prog $V; declare -n R=K; prog $R
declare -A M=([a]=1 [b c]=2); M[d]=3; M[a]+=x; prog "${M[a]}" "${M[b c]}" ${#M[@]} "${M[$(key-of)]}"; unset 'M[a]'; prog ${#M[@]} "${M[a]-gone}"
f() { local a=1 b; declare c=2; declare -g d=3; typeset e=4; local -i n=2+2; local -a L=(1 2); readonly g=5; export h=6; prog $a $b $c $d $e $n ${L[1]} $g $h; }
a=o b=o c=o d=o e=o n=o h=o; f; prog $a $b $c $d $e $n "${L[1]-}" $g $h; typeset -g T=7; prog $T; export "Q=two words" W; prog "$Q" $W
declare -r "X=$K"; prog $X; declare -f f; declare -p K; declare -x Y=1 Z=2; prog $Y $Z; export Y=$Y:3; prog $Y; local O=1; prog $O
g() { local v=$1; h2; prog $v $w; }; h2() { v=changed; w=global; }; g first; prog ${v-none} $w; g() { local A=(x y); A+=(z); prog ${#A[@]}; }; A=(1); g; prog ${#A[@]}
A=(1 2 3); A[5]=6; A+=(7); unset 'A[0]'; prog "${!A[@]}" "${A[@]}"; A=([3]=x [1]=y z); prog "${!A[@]}" "${A[@]}"; unset A; prog "${A[@]}" end
S=a; S+=b; A=(p); A+=q; prog $S $A; I=5; I=$((I++ + ++I)); prog $I; X=$((x = 3, x *= 2)); prog $X $x; prog $((1 ? y = 4 : (y = 5))) $y
V=1 W=$V prog $V $W; V=2 f2 $V; prog $V; IFS=: V=a:b prog $V; B=$? ; prog $B; false; B=$?; C=$?; prog $B $C; B=$(false); prog $?
set -- one 'two three' four; prog $# "$2" "${@:2:1}" "${*: -1}"; shift 5; prog $? $#; shift; prog "$@"; set -e -- x; prog $1; set -o pipefail; prog $1
""",
    "read": r"""
read -r a b c <<< "1 2 3 4 5"; prog "$a" "$b" "$c"; read a <<< "  lead  "; prog "$a"; read -ra L <<< "x y  z"; prog ${#L[@]} "${L[2]}"; read <<< "reply it"; prog "$REPLY"
IFS=, read -r a b <<< "p,,q"; prog "$a" "$b"; read -d '' D <<< "to the end"; prog "$D" $?; read -d : E <<< "a:b"; prog "$E"; read -n 2 F <<< abc; prog "$F"
read -r a <<END
one
two
END
prog $a; read a <<< 'x\ny'; prog $a; read -r a <<< 'x\ny'; prog $a; read -e -r a <<< "edit"; prog $a; read -a M -r <<< "$(list-of)"; prog ${#M[@]} "${M[0]}"
mapfile -t L <<< "$(echo a; echo b)"; prog ${#L[@]} "${L[1]}"; mapfile L <<< x; prog ${#L[@]}; readarray -t Q <<< $'1\n2\n3'; prog "${Q[@]}"; mapfile -t <<< only; prog "${MAPFILE[0]}"
mapfile -t N <<< "$(list-of)"; prog ${#N[@]}; mapfile -s 1 -t N <<< a; prog ${#N[@]}; mapfile -t N < file; prog ${#N[@]} "${N[@]}"
printf -v V '%s-%02d,' a 7 b 8; prog "$V"; printf -v V '%5.2f|%x|%+d' 1.5 255 3; prog "$V"; printf -v 'A[2]' '%s' z; prog "${A[2]}"; printf -v V '%d' abc; prog "$V"
prog "$(printf '%s\n' a b)" "$(printf '%%')" "$(printf '%-5s|' x)" "$(printf '%3d' 1 22)" "$(printf plain)" "$(printf '%c' x)" "$(printf)"
prog $(seq 3) - $(seq 2 3) - $(seq 5 -2 1) - $(seq 1 0 3) - $(seq 1.5) - $(seq 3 1) - $(seq a); prog $(basename /a/b.tar.gz .gz) $(basename / ) $(basename -- x/y) $(dirname a) $(dirname /a) $(dirname /a/b c/d)
prog $(realpath x/../y) $(pwd) $(cd sub; pwd) $(cd -; pwd); cd one/two; prog $(pwd) $(realpath .); cd ..; prog $(pwd); cd; prog $(pwd)
prog $(echo -n a; echo b) "$(echo -e 'x\ty\nz')" "$(echo -ne 'q\n')" "$(echo -E 'a\tb')" $(echo -x) "$(echo -e -n r)"
""",
    "left": r"""
f() { [ $1 -gt 2 ] && return 3; return; }; f 1; prog $?; f 5; prog $?; f 5 || prog failed; if f 1; then prog fine; else prog bad; fi; f() { false; }; f; prog $?
g() { check && return 1; prog in; return 2; prog never; }; g; prog $?; h() { return $(count-of); }; h; prog $?; h && prog unknown; return 4; prog $? after; ff() { :; } && prog defined; let; prog $?; let 0; prog $?; let 1 0; prog $?
for a in 1 2 3; do for b in x y; do [ $b = y ] && continue 2; prog $a $b; done; prog never; done; prog $?; for a in 1 2; do break 5; done; prog out; break; prog still
while true; do while true; do break 2; done; prog never; done; prog end; for a in 1 2 3; do [ $a = 2 ] && continue; prog $a; [ $a = 3 ] && break; done; for a in; do prog none; done; prog $a
n=0; while ((n < 3)); do ((n++)); ((n == 2)) && continue; prog $n; done; prog $n; until [ $n -eq 0 ]; do n=$((n - 1)); done; prog $n; while false; do :; done; prog $?
( exit 1 ); prog $?; ( prog sub; exit 0; prog never ); prog $?; (x=1; cd /; false); prog $? ${x-unset}; { y=2; true; }; prog $y; $(exit 0); X=$(echo a; exit 0; echo b); prog $X
if check; then exit 1; fi; prog on; [ -d /none ] || exit 1; prog further; check || exit 0; prog gone
false | true; prog $?; true | false; prog $?; echo x | prog from-pipe; prog a | prog b | prog c; ! true; prog $?; ! false && prog negated; prog bg & prog fg; wait
case abc in a*) prog 1 ;;& *c) prog 2 ;& z) prog 3 ;; *) prog 4 ;; esac; case x in y) prog no ;; esac; prog $?; case x in y) ;; esac && prog none || prog failed; case "a b" in a\ b) prog quoted ;; esac; case a in (a|b) prog paren ;; esac
eval "E=5; prog \$E"; eval prog 'a b'; bash -c 'prog inner $1; Z=9' name x; prog ${Z-unset}; sh -c "prog $E"; bash -lc 'prog login'; bash none.sh; env A=1 bash -c 'prog env'
source none.sh a b; . none2.sh; source; bash; cat > out.txt <<END
text $E
END
cat <<END > out2.txt
more
END
cat file <<END
not read
END
cat - <<END
read
END
cat <<'END'
shown $E
END
prog "$(cat <<END
in $E
END
)" "$(cat file)" "$(cat - <<< here)"
cat > b.txt <<-END
	tabs
	END
prog "${BASH_SOURCE[0]}" "$BASH_SOURCE" "$0" "$(dirname "${BASH_SOURCE[0]}")"; prog "$(cat <<-END
		more tabs
	END
)"
[ -f none.sh ]; prog $?; [[ -e run.sh && -d . ]] && prog there; test -s run.sh && prog size; [ a -nt b ]; prog $?; [[ -v E ]] && prog has; [[ 3 -lt $E && $E -ne 4 ]] && prog number
[[ abc =~ ^(a)(b)?(x)?c$ ]] && prog "${BASH_REMATCH[@]}"; [[ a == [[:upper:]] ]]; prog $?; [[ "a*" == a\* ]] && prog literal; [ a = b -o \( c = c \) ] && prog grouped; [ x ] && prog true; [ ]; prog $?
NPROC_PER_NODE=4 swift rlhf --a 1; NNODES=2; swift sft; export CUDA_VISIBLE_DEVICES=0,1; megatron pt; torchrun --nproc $NPROC_PER_NODE x.py; python -m a.b -- "$0" | tee log
""",
}
"""Scripts by what they are about: what only the machine knows, kinds of variables, what is read and printed, and ends."""

PYTHON = {
    "options": """
from dataclasses import dataclass, field
from lib import shared, helper, Base
from lib.missing import gone
import lib, other as o, torch, os, argparse, tyro
@dataclass
class More(Base):
    lr: float = 0.1
    steps: str = "9"
    log: bool = True
    names: list = field(default_factory=list)
    size: int = field(default=4)
    other: object = field(default_factory=torch.Thing)
    plain: int
    def __post_init__(self):
        self.total = self.size * 2 + shared
    @property
    def both(self):
        return f"{self.lr}/{self.steps}"
m = More(size=5)
prog(m.lr, m.steps, m.log, m.names, m.size, m.total, m.both, m.base, m.inherited(), m.plain, m.other, m.none, More.base)
a = tyro.cli(More); h, = [HfArgumentParser(More)]; prog(a.size, h.lr, a.total, helper(2), lib.helper(3), lib.shared, o.x, gone, lib.none)
parser = argparse.ArgumentParser()
parser.add_argument("--lr", default=1.0); parser.add_argument("-s", "--max-steps", type=int, default=7)
parser.add_argument("--switch", action="store_true"); parser.add_argument("--named", dest="other_name", default="d"); parser.add_argument("file")
args = parser.parse_args(); prog(args.lr, args.max_steps, args.switch, args.other_name, args.file, args.log)
def main(lr: float = 0.2, config: More = None, log=False, *, key=3): prog(lr, config.size, log, key)
tyro.cli(main); typer.run(main); app = typer.Typer()
@app.command()
def train_it(steps: int = 1, quick: bool = False): prog("train", steps, quick); train(steps)
@app.command("x")
def prepare(steps=2): prog("prepare", steps); convert()
def execute_train(config): prog("never")
execute_train("c", more=1); launch.execute_train_now(2)
""",
    "not known": """
import torch, os, json
x = torch.size(); y = x + 1; z = "a" + str(x) + f"{x}-{x.y:>5}"; d = {"k": x, x: 1, **x, "l": 2}; l = [1, x, *x, *[3]]
prog(x, y, z, d, l, x > 1, x == x, not x, -x, x and 1, x or 2, 0 and x, 1 or x, (x and 0) or 3, x if x else 4, [n for n in x], [n for n in [x, 1] if n], len(l))
if x: prog("yes")
elif y: prog("no")
else: prog("neither")
if x:
    pass
else:
    def f(a, b=x): return a or b
prog(f(0), f(1, 2), f(x), (lambda q: q + 1)(x), os.environ["SET"], os.environ.get("UNSET", 5), os.getenv("UNSET"), int(os.getenv("N", "3")), os.environ)
for n in x: prog("none")
for n in range(3): n += 1; prog(n, n / 2, n // 2, n ** 2, "ab" * n, [n] * n, n % 2, n | 4, n & 1, n << 1)
a, b = x; (c, *e) = [1, 2]; g, h = 1, (2, 3); i, (j, k) = g, h; d["new"] = 5; d[x] = 6; l[0] = 9; x.attr = 1; prog(a, b, c, i, j, k, d, l, d["k"], d.get("none", 7), l[-1], l[1:], "abc"[::2], "abc"[:2], x[0], d["none"])
prog("a,b".split(","), ",".join(["x", 1]), "Abc".lower().replace("b", "d"), "abc".find("b"), [3, 1].sort(), sorted([3, 1]), {"a": 1}.items(), (1, 2).count(1), {1}.union([2]), "x".encode(), list("ab"), set([1]), tuple([1]), dict(a=1), max(1, 2), sum([1, 2]), round(2.567, 1), abs(-1), bool([]), float("1.5"), str(1.0), int("x"))
def g2(*rest, **more): return rest, more
prog(*g2(1, 2, a=3), **{"named": x}); prog("/a" / "b", Path("c") / "d", "p" / x, "%s" % 1, 2 ** 70, 10 ** 5000, "a" * 20000, 1 / 0, {}["a"], [][0], None + 1, f"{1.5:.2f}{3!r}{'s':>{4}}{2:123456789}")
if torch.cuda.is_available(): pass
def risky():
    if torch.ok(): return 1
    raise ValueError("maybe")
prog(risky()); s = {n: 1 for n in [1]}; t = {n for n in [1, 2]}; u = (n for n in "ab"); w = [a for a in [1] for b in [2]]; prog(s, t, u, w, [*u])
match [1, "a", None]:
    case [1, str()]: prog("short")
    case [1, "a" | "b" as letter, None]: prog("third", letter)
match 5:
    case 4 | 5 if x: prog("guard")
match x:
    case _: prog("any")
with open("f") as file: prog(file.read(), json.loads("{}"))
while True: prog("loop")
def outer(n=1):
    def inner(): return n + level
    level = 2
    return inner()
prog(outer(), outer(5), outer(n=x)); global_ = outer; assert x; assert global_; del a; prog(a)
assert not outer(), "stops here"
prog("never")
""",
}
"""Launchers by what they are about: options of their command lines and their own modules, and what running alone shows."""
