"""What a shell makes of a word: variables with defaults, arrays, arithmetic, quotes, split fields."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from glob import escape

from rlsim.errors import InputError
from rlsim.readers.shell.arithmetic import NotKnown, reckon
from rlsim.readers.shell.patterns import changed, slice_of
from rlsim.readers.shell.printed import braced, split_fields, unescaped
from rlsim.readers.shell.store import Store, end_of
from rlsim.readers.shell.syntax import skip_bracketed, skip_quoted

MAX_TEXT = 5_000_000
"""Characters of all expanded words together, and words; the longest real script has some 100,000."""
_PLAIN = re.compile(r".[^\\'\"`$]*", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_PARAMETER = re.compile(
    r"^(?P<how>[#!]?)(?P<name>[A-Za-z_]\w*|[0-9]+|[@*#?])(?:\[(?P<index>(?:[^\[\]]|\[[^\[\]]*\])*)\])?(?P<rest>.*)$",
    re.DOTALL,
)
_OPERATOR = re.compile(r"^(:?[-=+?])(.*)$", re.DOTALL)
_ALL_OF_SOME = re.compile(r"\$@|\$\{!?(@|\w+\[@\]).*\}", re.DOTALL)


@dataclass
class Variables(Store):
    """Variables and arrays, and what words are with them."""

    def count(self, characters: int) -> None:
        """Count what is expanded. Raises InputError beyond MAX_TEXT."""
        self.expanded += characters
        if self.expanded > MAX_TEXT:
            raise InputError(f"{self.where}: its words hold more than {MAX_TEXT:,} characters")

    def fields(self, word: str, empty: bool = False) -> list[str]:
        """The fields of an unquoted word of a command. empty: what is not set is nothing instead of ``$NAME``."""
        if not re.search(r"[$`'\"\\{]", word):
            return [word]
        return [part for one in braced(word, self.where) for part in _Expanding(self, empty).fields(one)]

    def text(self, word: str, empty: bool = False) -> str:
        """One text of a word, as in an assignment. empty: an unset variable is nothing instead of ``$NAME``."""
        return " ".join(_Expanding(self, empty).fields(word, split=False))

    def pattern(self, word: str, literal: Callable[[str], str] = escape) -> str:
        """A word as a pattern, in which what is quoted stands for itself as ``literal`` writes it."""
        out, place = "", 0
        while place < len(word):
            start = place
            if word[place] in "'\"\\" or word.startswith("$'", place):
                place = skip_quoted(word, place, self.where)
                out += literal(self.text(word[start:place], empty=True))
                continue
            while place < len(word) and word[place] not in "'\"\\" and not word.startswith("$'", place):
                place = skip_quoted(word, place, self.where) if word[place] in "$`" else place + 1
            out += self.text(word[start:place], empty=True)
        return out

    def arithmetic(self, text: str, empty: bool = False) -> int:
        """An integer expression. empty: as a condition, in which what nobody set is 0. Raises NotKnown for what else
        cannot be told."""
        return reckon(self.text(text, empty).replace('"', ""), _Numbers(self, empty))


@dataclass(frozen=True)
class _Numbers:
    """Variables as arithmetic sees them."""

    variables: Variables
    empty: bool

    def number_text(self, name: str, index: int | None) -> str:
        return self.variables.number_text(name, index, self.empty)

    def assign(self, name: str, value: str) -> None:
        self.variables.assign(name, value)


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
        marks = self.v.texts.get("IFS", " \t\n")
        blank = "".join(char for char in marks if char.isspace())
        if text[:1] and text[0] in blank:
            self._close()
        # What stays open as $(...) stays one word.
        joined = re.sub(r"\$\([^()]*\)", lambda found: found[0].replace(" ", "\0"), text) if "$(" in text else text
        for index, part in enumerate(split_fields(joined, marks)):
            if index:
                self._close()
            self._add(part.replace("\0", " "))
        if text[-1:] and text[-1] in marks:
            self._close()

    def _close(self) -> None:
        if self.open is not None:
            self.done.append(self.open)
        self.open = None

    def _add_all(self, parts: list[str], apart: bool, split: bool, between: str = " ") -> None:
        for index, part in enumerate(parts):
            if index:
                self._close() if apart else self._add(between)
            self._add_split(part, split)

    def _expand(self, word: str, split: bool, quoted: bool, cut: bool = False) -> None:
        """cut: what is plain is split too, as within ``${X:+...}``."""
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
                    if not _ALL_OF_SOME.fullmatch(inner):
                        self._add("")
                    self._expand(inner, split, quoted=True)
                place = end
            elif char == '"':  # of a word within quotes, "${X:+"a"}": nothing
                place += 1
            elif char == "$":
                place = self._dollar(word, place, split, quoted)
            else:
                plain = _PLAIN.match(word, place)
                assert plain is not None  # every character begins one
                self._add_split(plain[0], cut and split and not quoted)
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
            self._add(unescaped(word[place + 2 : end - 1]))
            return end
        if then == "(":
            end = skip_bracketed(word, place + 1, where)
            inner = word[place + 2 : end - 1]
            if inner.startswith("(") and inner.endswith(")"):
                self._known(f"({inner[1:-1]})", lambda: self._add(str(self.v.arithmetic(inner[1:-1], self.empty))))
            else:
                self._substitute(inner, fields)
            return end
        if then == "{":
            end = skip_bracketed(word, place + 1, where)
            whole = word[place + 2 : end - 1]
            self._known(f"${{{whole}}}", lambda: self._parameter(whole, split, quoted))
            return end
        found = _NAME.match(word, place + 1)
        if found is None:
            self._add("$")
            return place + 1
        self._known(found[0], lambda: self._parameter(found[0], split, quoted))
        return found.end()

    def _substitute(self, inner: str, split: bool) -> None:
        """What a command line prints; what a program would print stays as ``$(...)``, so that its option is named."""
        printed = self.v.run(inner)
        if printed is None:
            self._open(inner)
        else:
            self._add_split(printed, split)

    def _open(self, inner: str) -> None:
        self._add("" if self.empty else f"$({inner})")

    def _known(self, inner: str, add: Callable[[], None]) -> None:
        """What cannot be told stays as ``$(...)`` too."""
        try:
            add()
        except NotKnown:
            self._open(inner)

    def _parameter(self, inner: str, split: bool, quoted: bool) -> None:
        found = _PARAMETER.match(inner)
        if found is None:
            raise NotKnown(inner)
        how, name, index, rest = found["how"], found["name"], found["index"], found["rest"]
        if index in ("@", "*") or name in ("@", "*"):
            self._every(how, name, index or name, rest, split, quoted)
            return
        value = self.v.value(name) if index is None else self.v.element(name, index)
        if how == "#":
            if value is None and name in self.v.unknown:
                raise NotKnown(name)
            self._add(str(len(value or "")))
            return
        if how == "!":
            if rest in ("@", "*"):  # names that begin so
                raise NotKnown(inner)
            value = None if value is None else self.v.value(value)
        self._operated(name, value, rest, split, quoted)

    def _every(self, how: str, name: str, which: str, rest: str, split: bool, quoted: bool) -> None:
        """All elements of an array, or all parameters: themselves, their keys or their number, some or changed."""
        held = self.v.elements(name) if name not in ("@", "*") else dict[int | str, str](enumerate(self.v.words, 1))
        if name in self.v.unknown:
            self.v.lost.add(name)
        if how == "#":
            if name in self.v.unknown:
                raise NotKnown(name)
            self._add(str(len(held)))
            return
        choice = _OPERATOR.match(rest)
        if choice and (not held or choice[1].endswith("+")):
            self._operated(name, " ".join(held.values()) if held else None, rest, split, quoted)
            return
        if how == "!":
            parts = [str(key) for key in held]
        elif choice or not rest:
            parts = list(held.values())
        elif rest.startswith(":"):
            if name in self.v.unknown or name in self.v.associative:
                raise NotKnown(name)
            start, length = slice_of(rest[1:], end_of(held), self.v)
            first = [self.v.where] if name in ("@", "*") and start == 0 else []
            parts = [*first, *(text for key, text in held.items() if int(key) >= start)]
            if length is not None and length < 0:
                raise NotKnown(rest)
            parts = parts[:length]
        else:
            parts = [changed(part, rest, self.v) for part in held.values()]
        between = self.v.texts.get("IFS", " ")[:1] if which == "*" and quoted else " "
        self._add_all(parts, split and (which == "@" or not quoted), split and not quoted, between)

    def _operated(self, name: str, value: str | None, rest: str, split: bool, quoted: bool) -> None:
        fields = split and not quoted
        choice = _OPERATOR.match(rest)
        if choice:
            # With a colon an empty value counts as one that is not set (POSIX, 2.6.2).
            has = bool(value) if choice[1].startswith(":") else value is not None
            if choice[1].endswith("+"):
                if has:
                    self._expand(choice[2], split, quoted, cut=True)
            elif has:
                self._add_split(value or "", fields)
            elif choice[1].endswith("?"):
                self._add("" if self.empty else f"${name}")
            elif choice[1].endswith("="):
                text = self.v.text(choice[2], self.empty)
                self.v.assign(name, text)
                self._add_split(text, fields)
            else:
                self._expand(choice[2], split, quoted, cut=True)
            return
        if value is None:
            # Nobody sets an element from outside.
            known = name in ("@", "*") or name.isdigit() or name in self.v.arrays.keys() - self.v.unknown
            self._add_split("" if self.empty or known else f"${name}", fields)
            return
        self._add_split(changed(value, rest, self.v), fields)
