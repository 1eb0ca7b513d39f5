"""Random statements of shell scripts, each by a rule of the grammar, that bash and the reader must follow alike.

Left out is what the reader leaves open on purpose (programs, unset names) and what bash ends a script for.
"""

# ruff: noqa: E501 - a script is a line

import random
from collections.abc import Callable, Mapping

NAMES = ("X", "Y", "LONG", "_z")
TEXTS = ("", "a", "abc", "a.b.c", "dir/sub/file.tar.gz", "two words", " lead", "tail ", "x:y::z", "a,b,,c", "AbC", "a*b",
         "[x]", "5", "-3", "0", "007", "abcabc", "ends]", "it's", 'q"q', "a\tb", "-n", "==", "back\\slash")  # fmt: skip
PATTERNS = ("a", "*", "?", "a*", "*c", "*.*", ".*", "*/", "/*", "[a-c]", "[!a]*", "[^a]*", "b?", "[[:alpha:]]", "'*'", "\\*",
            "[[:upper:]]*", "*[[:space:]]*", '"a b"', "$P", '"$P"', "ab", "bc", "")  # fmt: skip
BINARY = ("+", "-", "*", "&", "|", "^", "<<", ">>", "<", ">", "<=", ">=", "==", "!=", "&&", "||")
NUMBERS = ("0", "1", "2", "3", "7", "10", "63", "0x1F", "010", "16#fF", "2#101", "9223372036854775807", "100")


def quoted(text: str) -> str:
    """A word that stands for a text, in single quotes."""
    return "'" + text.replace("'", "'\\''") + "'"


def expression(rng: random.Random, depth: int = 3) -> str:
    """An integer expression over i, j and A, with assignments."""
    kind = rng.randrange(12) if depth else rng.randrange(3)
    inner = lambda: expression(rng, depth - 1)  # noqa: E731 - of this call's generator
    match kind:
        case 0:
            return rng.choice(NUMBERS)
        case 1:
            return rng.choice(("i", "j", "$i", "${j}", "A[1]", "A[i & 1]", "name", "${#A[@]}"))
        case 2:
            return rng.choice(("i++", "j--", "++j", "--i", "- -i", "+3", "- 2"))
        case 3:
            return f"({inner()})"
        case 4:
            return f"{rng.choice('-!~+')} {inner()}"
        case 5:
            return f"({inner()} ? {inner()} : {inner()})"
        case 6:
            mark = rng.choice(("=", "+=", "-=", "*=", "&=", "|=", "^=", "<<=", ">>="))
            return f"({rng.choice('ij')} {mark} {inner()} & 15)"
        case 7:
            return f"{inner()} {rng.choice('/%')} {rng.choice(('3', '(- 7)', '2', 'name'))}"
        case 8:
            return f"({inner()} & 7) ** {rng.choice('0123')}"
        case 9:
            return f"({inner()}, {inner()})"
        case _:
            return f"{inner()} {rng.choice(BINARY)} {inner()}"


def arithmetic(rng: random.Random) -> str:
    """Expressions in each place that takes one, and what they set."""
    one = expression(rng)
    use = rng.choice((f"prog $(({one}))", f"(({one})); prog $?", f'let "K = {one}"; prog $? $K', f"prog ${{A[{one} & 1]}}",
                      f'declare -i K="{one}"; prog $K; K+=2; prog $K; unset K', f"K=$(({one})); prog $K",
                      f"if (({one})); then prog yes; else prog no; fi"))  # fmt: skip
    return f"i={rng.randrange(-9, 9)} j={rng.choice(NUMBERS[:-2])} name=4; A=(5 -6); {use}; prog $i $j"


def parameter(rng: random.Random) -> str:
    """A value behind an operator, quoted or not."""
    value, pattern, other = rng.choice(TEXTS), rng.choice(PATTERNS), rng.choice(PATTERNS[:16])
    rest = rng.choice((
        f"##{pattern}", f"#{pattern}", f"%%{pattern}", f"%{pattern}", f"/{pattern or 'a'}/<>", f"//{pattern or 'a'}/-",
        f"/#{pattern}/<", f"/%{pattern}/>", f"//{other or 'a'}", ":1", ":1:2", ": -2", ": -3:2", ":0:1", ":9", ":${#X}", "^", "^^", ",", ",,",
        ":-else where", "-else", ":+there 'is one'", "+there", ":=new", "",
    ))  # fmt: skip
    word = f"${{X{rest}}}"
    unset = rng.random() < 0.2 and any(mark in rest[:2] for mark in "-+=") and not rest.startswith(": ")
    begin = "unset X" if unset else f"X={quoted(value)}"
    return f'P={rng.choice(("a", "*", "b*"))}; {begin}; prog {word} "{word}" v{word}w "-{word}-" ${{#X}}'


def arrays(rng: random.Random) -> str:
    """Arrays made, changed, sliced and joined."""
    words = " ".join(quoted(rng.choice(TEXTS)) for _ in range(rng.randrange(5)))
    change = rng.choice((":", "A[1]=new", "A+=(more 'of it')", "unset 'A[0]'", "A[7]=far", "A[-1]+=end", "A[i+1]+=x",
                         "B=(\"${A[@]}\"); A=(\"${B[@]}\" \"${B[@]}\")", "A=([2]=two three [0]=none)"))  # fmt: skip
    if change == "A[-1]+=end" and not words:
        change = ":"
    use = rng.choice(('"${A[@]}"', "${A[@]}", '"${A[*]}"', "${#A[@]}", '"${!A[@]}"', '"${A[1]-none}"', '"${A[@]:1}"', '"$A"',
                      '"${A[@]:1:2}"', '"${A[@]: -1}"', '"${A[@]%a*}"', '"${A[@]/a/o}"', "x${A[@]}y", '"x${A[@]}y"', "${#A[0]}",
                      '"${A[@]+has}"', '"${A[@]:-empty}"', '"${A[i]-}"', '"${A[@]/#/pre}"', '"${A[@]/%/ post}"'))  # fmt: skip
    return f'i=1; A=({words}); {change}; prog {use} end ${{!A[@]}}; for x in "${{A[@]}}"; do prog in "$x"; done; IFS=:; prog "${{A[*]}}"; unset IFS'


def keyed(rng: random.Random) -> str:
    """Associative arrays by their keys."""
    key, other = rng.choice(("k", "two words", "7", "a.b")), rng.choice(("k", "l", "7"))
    use = rng.choice(('"${M[$K]}"', '"${M[k]-unset}"', "${#M[@]}", '"${M[l]:-none}"', '"${M[$K]:1}"', '"${!M[@]}"'))
    more = rng.choice((":", f"M[{other}]=more", f'M["{key}"]+=on', f"unset 'M[{key}]'", "M=()"))
    begin = rng.choice(
        (f"declare -A M; M[{key}]=one", f"declare -A M=([{key}]=one)", f'declare -A M; K="{key}"; M[$K]="o e"')
    )
    if other != key and use == '"${!M[@]}"':
        use = "${#M[@]}"  # the order of keys is nobody's
    return f'unset M; {begin}; {more}; K="{key}"; prog {use} end'


def conditions(rng: random.Random) -> str:
    """Tests of texts, numbers and patterns, and what joins them."""

    def single(double: bool) -> str:
        # What looks like an operator makes many words of [ ambiguous, which bash calls an error.
        texts = TEXTS if double else TEXTS[:-3]
        left, right = quoted(rng.choice(texts)), quoted(rng.choice(texts))
        a, b = rng.choice(("3", "-3", "07", "12", "$n")), rng.choice(("3", "4", "$n"))
        forms = [f"-z {left}", f"-n {left}", f"{left} = {right}", f"{left} == {right}", f"{left} != {right}", left,
                 f'"$n" {rng.choice(("-eq", "-ne", "-lt", "-le", "-gt", "-ge"))} {b}', "-e / ", "-f /none", "-d /",
                 f"{a} {rng.choice(('-eq', '-ne', '-lt', '-le', '-gt', '-ge'))} {b}"]  # fmt: skip
        if double:
            forms += [f"{left} == {rng.choice(PATTERNS[:-1])}", f"{left} != {rng.choice(PATTERNS[:-1])}", "-v n", "-v none", "n+1 -gt 3",
                      f"{rng.choice(('a', 'b'))} {rng.choice('<>')} {rng.choice(('a', 'b'))}", f"{left} =~ ^[a-z]+$",
                      f"{left} =~ [0-9]", f"{left} =~ ^(a)(.)?", "$n =~ ^-?[0-9]+$", f"{left} =~ 'a.b'"]  # fmt: skip
        return rng.choice(forms)

    def joined(double: bool, depth: int = 2) -> str:
        if not depth or rng.random() < 0.3:
            return single(double)
        one, two = joined(double, depth - 1), joined(double, depth - 1)
        also = ("&&", "||") if double else ("-a", "-o")
        kinds = [f"{one} {rng.choice(also)} {two}", f"! {one}"]
        if double:
            kinds += [f"( {one} )", f"! ( {one} {rng.choice(also)} {two} )"]
        return rng.choice(kinds)

    words = rng.choice(
        (f"[[ {joined(True)} ]]", f"[[ {joined(True)} ]]", f"[ {joined(False)} ]", f"test {single(False)}")
    )
    use = rng.choice((f"{words}; prog $?", f"{words} && prog yes || prog no", f"if {words}; then prog y; elif ! {words}; then prog n; fi",
                      f"! {words}; prog $?", f'{words}; prog $? "${{BASH_REMATCH[1]-}}"'))  # fmt: skip
    return f"n={rng.choice(('3', '4', '-3'))}; P='a*'; unset BASH_REMATCH; {use}"


def flow(rng: random.Random) -> str:
    """Loops, functions, cases and subshells that set, leave and return."""
    n, m = rng.randrange(4), rng.randrange(4)
    word = quoted(rng.choice(TEXTS))
    patterns = "|".join(rng.choice(PATTERNS[:-1]) for _ in range(2))
    end = rng.choice((";;", ";&", ";;&"))
    leave = rng.choice(("break", "continue", "break 2", "continue 2", ":"))
    return rng.choice((
        f"for x in a b c d; do for y in 1 2 3; do [ $y = {n} ] && {leave}; prog $x $y; done; done; prog $x $y",
        f"for ((k = {n}; k < 5; k += {m + 1})); do ((k == 3)) && {leave.split()[0]}; prog $k; done; prog $k",
        f"k=0; while ((k < 4)); do ((k++)); [ $k = {n} ] && {leave.split()[0]}; prog $k; done; prog $k",
        f"k=6; until ((k <= {n})); do k=$((k - 1)); prog $k; done; prog $k; until true; do :; done; prog $?",
        f"P=a; case {word} in {patterns}) prog one {end} (*b*|5) prog two {end} *) prog rest ;; esac; false; case a in b) ;; esac; prog $?",
        f"f() {{ local v=in w; w=$1; [ $1 -gt {n} ] && return {m}; prog $v $w $#; }}; v=out; f {m} 2; prog $v ${{w-none}}; f {n+1}; prog $?",
        f"v=1; ( v=2; prog $v; exit {rng.choice(('0', ''))} ; prog no ); prog $v; {{ v=3; }}; prog $v",
        f"set -- a 'b c' d; shift {n % 3}; prog $? $# \"$@\" - \"$*\" \"${{1-none}}\" \"${{@:2}}\" ${{@: -1}}",
        f"f() {{ return {n}; }}; f || prog failed $?; f && prog fine; ! f; prog $?; if f; then prog t; else prog e; fi",
        f"v=old; f() {{ prog \"$v\" $1; }}; v=new f {n}; prog $v; v=a w=b true; prog $v ${{w-none}}",
        f"f() {{ for a; do [ \"$a\" = {word} ] && continue; prog \"$a\"; done; set -- only; prog $@; }}; set -- 1 2; f {word} x; prog $@",
        f"false {rng.choice(('&&', '||'))} prog a {rng.choice(('&&', '||'))} prog b; true && false; prog $?; : | false; prog $?",
        f"k={n}; if ((k > 2)); then prog big; elif ((k == 1)); then prog one; else prog small; fi; prog $((k > 1 ? k : -k))",
        f"eval 'v={n}; prog $v'; w=v; prog ${{!w}}; export E={n}; readonly RO{rng.randrange(10**9)}=1; prog $E",
        f"g() {{ f2() {{ prog inner $1; return {m}; }}; f2 \"$@\"; prog $?; }}; g {word}",
    ))  # fmt: skip


def printed(rng: random.Random) -> str:
    """What builtins print, in substitutions and here-documents."""
    word, n = quoted(rng.choice(TEXTS)), rng.randrange(-3, 12)
    form = "".join(
        rng.choice(("%s", "%d", "%5s", "%-4s|", "%03d", "%%", "\\n", "\\t", " ", "x", "%x", "%.2f", "%+d"))
        for _ in range(4)
    )
    values = " ".join(str(rng.randrange(-9, 99)) for _ in range(rng.randrange(5)))
    values = values.replace("-", "") if "%x" in form else values
    path = rng.choice(("/a/b.sh", "a", "/", "a/", "/a/b/", "./x.tar.gz", "a//b", ""))
    return rng.choice((
        f"prog \"$(printf '{form}' {values})\"", f"printf -v V '{form}' {values}; prog \"$V\"", f"prog \"$(printf '%s' {word})\"",
        f'prog "$(echo {word} {n})" $(echo {word})', f'prog "$(echo -n {word}; echo .)" "$(echo -e \'a\\tb\\\\n\')"',
        f"prog $(seq {n}) $(seq {n} 5) $(seq 1 3 {n}) $(seq 9 -2 {n})", f'prog "$(basename {path!r})" "$(dirname {path!r})"',
        f"prog {{{n}..4}} {{a,b{{1,2}},}}{word} x{{04..{abs(n)}}} {{a..e..2}} {{9..{n}..3}} '{{a,b}}' {{one}} {{e..a}}",
        f"V=$(cat <<END\n{word} $((1 + {n})) \\$X `echo in` \"q\"\nEND\n); prog \"$V\"",
        f"V=$(cat <<'END'\n$X {n} \\n\nEND\n); prog \"$V\"", f'read -r a b <<< {word}; prog "$a" "$b" $?',
        f"IFS=: read -r a b c <<< {word}; prog \"$a\" \"$b\" \"$c\"", f"IFS=, read -ra L <<< {word}; prog ${{#L[@]}} \"${{L[@]}}\"",
        f"IFS=,; V={word}; prog $V; unset IFS; prog $V \"$V\"", f"mapfile -t L <<< $'a\\nb c\\n{n}'; prog ${{#L[@]}} \"${{L[@]}}\"",
        f'prog "$(prog() {{ echo shadow; }}; prog)" "$(cd /tmp/..; pwd)" $\'a\\tb\\\'c\' a{word}b"{n}"c\\ d',
        f"read a b <<< 'x\\y z'; prog \"$a\" \"$b\"; prog \"$(basename {path!r}x.sh .sh)\" \"$(echo $(echo {word}))\"",
        f'prog "$(echo lost {n} | echo {word})" "$(printf a; echo b | false; echo c)"',
        f"prog $(expr {n} + 3) `expr 7 \\* {n}` $(expr 9 / 2)",
        f"IFS=' ,'; V='a , b,c  d,'; prog $V; IFS=; V='a b'; prog $V {word}; unset IFS",
    ))  # fmt: skip


RULES: Mapping[str, Callable[[random.Random], str]] = {
    "arithmetic": arithmetic, "parameter": parameter, "arrays": arrays, "keyed": keyed, "conditions": conditions,
    "flow": flow, "printed": printed,
}  # fmt: skip
