"""What a shell makes of a word: variables with defaults, arrays, arithmetic, quotes, split fields."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Any

from rlsim.errors import InputError
from rlsim.readers.shell.syntax import skip_bracketed, skip_quoted, tokens

MAX_TEXT = 5_000_000
"""Characters of all expanded words together, and words; the longest real script has some 100,000."""
MOST_CUT, MOST_MATCHED = 10_000, 2_000
"""Characters of a value that a pattern shortens, since each beginning or end of it is tried; and of one that a pattern
with * is held against, whose time grows with their square."""
_HALF = 2**63
"""Integers of a shell lie from -2^63 on and wrap around."""
_PLAIN = re.compile(r".[^\\'\"`$]*", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_PARAMETER = re.compile(
    r"^(?P<how>[#!]?)(?P<name>[A-Za-z_]\w*|[0-9]+|[@*#?])(?:\[(?P<index>[^\]]*)\])?(?P<rest>.*)$", re.DOTALL
)
_OPERATOR = re.compile(r"^(:?[-=+?])(.*)$", re.DOTALL)
_CUT = re.compile(r"^(##|#|%%|%|//|/|,,|\^\^|:)(.*)$", re.DOTALL)
_ARITHMETIC: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: lambda a, b: int(a / b),
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.UAdd: operator.pos, ast.USub: operator.neg,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip


@dataclass
class Variables:
    """Variables and arrays of a script. run: the output of a command line within ``$(...)``, None where a program would
    print it; given: set from outside, which the script cannot change."""

    where: str
    run: Callable[[str], str | None]
    texts: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    given: frozenset[str] = frozenset()
    expanded: int = 0

    def count(self, characters: int) -> None:
        """Count what is expanded. Raises InputError beyond MAX_TEXT."""
        self.expanded += characters
        if self.expanded > MAX_TEXT:
            raise InputError(f"{self.where}: its words hold more than {MAX_TEXT:,} characters")

    def value(self, name: str) -> str | None:
        """Text of a variable or parameter; None where it is not set."""
        if name.isdigit():
            return (
                self.words[int(name) - 1] if 0 < int(name) <= len(self.words) else self.where if name == "0" else None
            )
        if name in ("@", "*"):
            return " ".join(self.words) if self.words else None
        if name == "#":
            return str(len(self.words))
        if name in self.arrays:
            return self.arrays[name][0] if self.arrays[name] else None
        return self.texts.get(name)

    def assign(self, name: str, value: str) -> None:
        """Set a variable."""
        if name not in self.given:
            self.texts[name] = value

    def forget(self, name: str) -> None:
        """Unset a variable whose value a program would print."""
        if name not in self.given:
            self.texts.pop(name, None)
            self.arrays.pop(name, None)

    def fields(self, word: str) -> list[str]:
        """The fields that an unquoted word of a command gives; an unset variable stays as ``$NAME``."""
        if not re.search(r"[$`'\"\\]", word):
            return [word]
        return _Expanding(self).fields(word)

    def text(self, word: str, empty: bool = False) -> str:
        """One text of a word, as in an assignment. empty: an unset variable is nothing instead of ``$NAME``."""
        return " ".join(_Expanding(self, empty).fields(word, split=False))

    def elements(self, inner: str) -> list[str]:
        """Fields of the words of an array."""
        return [part for token in tokens(inner, self.where) if token.kind == "word" for part in self.fields(token.text)]

    def arithmetic(self, text: str) -> int:
        """An integer expression; what cannot be told is 0."""
        plain = re.sub(r"\$?\b([A-Za-z_]\w*)\b", lambda found: self.value(found[1]) or "0", self.text(text, empty=True))
        plain = re.sub(r"^(.*?)\?(.*):(.*)$", r"(\2) if (\1) else (\3)", plain.strip(), flags=re.DOTALL)
        try:
            # Parsed for its structure and reckoned by _number; nothing in it is ever run.
            (statement,) = ast.parse(f"({plain.replace('&&', ' and ').replace('||', ' or ').strip() or '0'})").body
            value = int(_number(getattr(statement, "value", None)))
            return (value + _HALF) % (2 * _HALF) - _HALF
        except (SyntaxError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError, MemoryError):
            return 0


def _number(node: Any) -> Any:
    match node:
        case ast.Constant(value=int() as value) if abs(value) < 10**15:
            return value
        case ast.BinOp(left, kind, right):
            return _ARITHMETIC[type(kind)](_number(left), _number(right))
        case ast.UnaryOp(ast.Not(), operand):
            return not _number(operand)
        case ast.UnaryOp(kind, operand):
            return _ARITHMETIC[type(kind)](_number(operand))
        case ast.Compare(left, [kind], [right]):
            return _ARITHMETIC[type(kind)](_number(left), _number(right))
        case ast.BoolOp(kind, values):
            return (all if isinstance(kind, ast.And) else any)(_number(value) for value in values)
        case ast.IfExp(test, body, other):
            return _number(body) if _number(test) else _number(other)
    raise ValueError


class _Expanding:
    """One word on its way to fields: finished ones and the one that grows."""

    def __init__(self, variables: Variables, empty: bool = False) -> None:
        self.v, self.empty = variables, empty
        self.done: list[str] = []
        self.open: str | None = None

    def fields(self, word: str, split: bool = True) -> list[str]:
        self._expand(word, split, quoted=False)
        return self.done if self.open is None else [*self.done, self.open]

    def _add(self, text: str) -> None:
        self.open = (self.open or "") + text
        # One more than its characters, so that empty fields count towards the bound too.
        self.v.count(1 + len(text))

    def _add_split(self, text: str, split: bool) -> None:
        if not split:
            self._add(text)
            return
        if text[:1].isspace():
            self._close()
        for index, part in enumerate(text.split()):
            if index:
                self._close()
            self._add(part)
        if text[-1:].isspace():
            self._close()

    def _close(self) -> None:
        if self.open is not None:
            self.done.append(self.open)
        self.open = None

    def _add_all(self, parts: list[str], split: bool) -> None:
        for index, part in enumerate(parts):
            if index:
                self._close() if split else self._add(" ")
            self._add(part)

    def _expand(self, word: str, split: bool, quoted: bool) -> None:
        place, where = 0, self.v.where
        self.v.count(len(word))  # a word within words is looked at once for each of them
        while place < len(word):
            char = word[place]
            if char == "\\":
                self._escape(word[place + 1 : place + 2], quoted)
                place += 2
            elif char == "`" or (char in "'\"" and not quoted):
                end = skip_quoted(word, place, where)
                inner = word[place + 1 : end - 1]
                if char == "`":
                    self._substitute(inner, split and not quoted)
                elif char == "'":
                    self._add(inner)
                else:
                    # "" is an empty field, where "$@" of no words is none at all.
                    if inner not in ("$@", "${@}") and not re.fullmatch(r"\$\{\w+\[@\](?::?[-+].*)?\}", inner):
                        self._add("")
                    self._expand(inner, split, quoted=True)
                place = end
            elif char == "$":
                place = self._dollar(word, place, split, quoted)
            else:
                plain = _PLAIN.match(word, place)
                assert plain is not None  # every character begins one
                self._add(plain[0])
                place = plain.end()

    def _escape(self, char: str, quoted: bool) -> None:
        # A backslash joins two lines; in double quotes it escapes $, `, ", \ and line breaks alone (POSIX, 2.2.3).
        if char != "\n":
            self._add(char if not quoted or char in '$`"\\' else f"\\{char}")

    def _dollar(self, word: str, place: int, split: bool, quoted: bool) -> int:
        where, then = self.v.where, word[place + 1 : place + 2]
        fields = split and not quoted
        if then == "'" and not quoted:
            end = skip_quoted(word, place, where)
            self._add(word[place + 2 : end - 1].replace("\\n", "\n").replace("\\t", "\t").replace("\\'", "'"))
            return end
        if then == "(":
            end = skip_bracketed(word, place + 1, where)
            inner = word[place + 2 : end - 1]
            if inner.startswith("(") and inner.endswith(")"):
                self._add(str(self.v.arithmetic(inner[1:-1])))
            else:
                self._substitute(inner, fields)
            return end
        if then == "{":
            end = skip_bracketed(word, place + 1, where)
            self._parameter(word[place + 2 : end - 1], split, quoted)
            return end
        found = _NAME.match(word, place + 1)
        if found is None:
            self._add("$")
            return place + 1
        self._parameter(found[0], split, quoted)
        return found.end()

    def _substitute(self, inner: str, split: bool) -> None:
        """What a command line prints; what a program would print stays as ``$(...)``, so that its option is named."""
        printed = self.v.run(inner)
        if printed is None:
            self._add("" if self.empty else f"$({inner})")
        else:
            self._add_split(printed, split)

    def _parameter(self, inner: str, split: bool, quoted: bool) -> None:
        found = _PARAMETER.match(inner)
        if found is None:
            self._add(f"${{{inner}}}")
            return
        name, index, rest = found["name"], found["index"], found["rest"]
        every = index in ("@", "*") or name in ("@", "*")
        listed = self.v.words if name in ("@", "*") else self.v.arrays.get(name, [])
        if every and found["how"] != "#" and not (rest and not listed):
            if name not in ("@", "*") and name not in self.v.arrays and name in self.v.texts:
                listed = [self.v.texts[name]]
            parts = [str(n) for n in range(len(listed))] if found["how"] == "!" else listed
            self._add_all(parts, (split and (index or name) == "@") or (split and not quoted))
            return
        if found["how"] == "#":
            self._add(str(len(listed) if every else len(self.v.value(name) or "")))
            return
        value = self.v.value(name)
        if index is not None and not every:
            at = self.v.arithmetic(index) if name in self.v.arrays else -1
            value = listed[at] if 0 <= at < len(listed) else self.v.texts.get(f"{name}[{self.v.text(index)}]")
        if found["how"] == "!":
            value = None if value is None else self.v.value(value)
        self._operated(name, value, rest, split, quoted)

    def _operated(self, name: str, value: str | None, rest: str, split: bool, quoted: bool) -> None:
        fields = split and not quoted
        choice = _OPERATOR.match(rest)
        if choice:
            # With a colon an empty value counts as one that is not set (POSIX, 2.6.2).
            has = bool(value) if choice[1].startswith(":") else value is not None
            if choice[1].endswith("+"):
                if has:
                    self._expand(choice[2], split, quoted=False)
            elif has:
                self._add_split(value or "", fields)
            elif choice[1].endswith("?"):
                self._add("" if self.empty else f"${name}")
            else:
                text = self.v.text(choice[2], self.empty)
                if choice[1].endswith("="):
                    self.v.assign(name, text)
                self._add_split(text, fields)
            return
        if value is None:
            self._add("" if self.empty or name in ("@", "*") or name.isdigit() else f"${name}")
            return
        self._add_split(_cut(value, rest, self.v), fields)


def _cut(value: str, rest: str, variables: Variables) -> str:
    """Prefixes, suffixes, replacements, case and slices of a value."""
    found = _CUT.match(rest)
    if found is None:
        return value
    how, text = found[1], found[2]
    if how in (",,", "^^"):
        return value.lower() if how == ",," else value.upper()
    if how == ":":
        parts = [variables.arithmetic(part) for part in text.split(":")]
        return value[parts[0] :][: parts[1]] if len(parts) > 1 else value[parts[0] :]
    if how in ("/", "//"):
        old, _, new = text.partition("/")
        sought = variables.text(old)
        _bounded(value, sought, variables.where)
        # Without the frame of translate, (?s:...)\Z: what is replaced may stand anywhere.
        pattern = re.compile(translate(sought)[4:-3] or "(?!)", re.DOTALL)
        return pattern.sub(lambda _: variables.text(new), value, count=0 if how == "//" else 1)
    if len(value) > MOST_CUT:
        raise InputError(f"{variables.where}: a pattern shortens a value of more than {MOST_CUT:,} characters")
    sought = variables.text(text)
    if sought.count("*") > 1:
        _bounded(value, sought, variables.where)
    pattern = re.compile(translate(sought))
    ends = range(len(value) + 1)
    if how.startswith("#"):
        hits = [end for end in ends if pattern.match(value[:end])]
        return value[(max if how == "##" else min)(hits) :] if hits else value
    hits = [start for start in ends if pattern.match(value[start:])]
    return value[: (min if how == "%%" else max)(hits)] if hits else value


def _bounded(value: str, pattern: str, where: str) -> None:
    if "*" in pattern and len(value) > MOST_MATCHED:
        raise InputError(f"{where}: a pattern with * is held against a value of more than {MOST_MATCHED:,} characters")
