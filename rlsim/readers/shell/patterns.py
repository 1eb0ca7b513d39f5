"""What operators make of a variable's value: prefixes and suffixes cut, parts replaced, case changed, slices."""

import re
from collections.abc import Callable
from fnmatch import translate
from typing import Protocol

from rlsim.errors import InputError
from rlsim.readers.shell.arithmetic import NotKnown
from rlsim.readers.shell.syntax import skip_quoted

MOST_CUT, MOST_MATCHED = 10_000, 2_000
"""Characters of a value that a pattern shortens, since each beginning or end of it is tried; and of one that a pattern
with * is held against, whose time grows with their square."""
_CUT = re.compile(r"^(##|#|%%|%|//|/#|/%|/|,,|\^\^|,|\^|:)(.*)$", re.DOTALL)
_CLASSES = {"space": " \t\n\r\f\v", "blank": " \t", "digit": "0-9", "alpha": "A-Za-z", "alnum": "A-Za-z0-9",
            "upper": "A-Z", "lower": "a-z", "xdigit": "0-9A-Fa-f"}  # fmt: skip
"""Classes of POSIX within brackets; Python's patterns know none."""


class Texts(Protocol):
    """What a word stands for."""

    where: str

    def text(self, word: str, empty: bool = False) -> str:
        """One text of a word."""

    def pattern(self, word: str) -> str:
        """A word as a pattern."""

    def arithmetic(self, text: str, empty: bool = False) -> int:
        """An integer expression."""


def with_classes(pattern: str) -> str:
    """A pattern of a shell in the form that Python's have. Raises NotKnown for classes that are not followed."""
    unknown = set(re.findall(r"\[[:.=](\w+)[:.=]\]", pattern)) - set(_CLASSES)
    if unknown:
        raise NotKnown(pattern)
    return re.sub(r"\[:(\w+):\]", lambda found: _CLASSES[found[1]], pattern)


def matcher(pattern: str) -> Callable[[str], object]:
    """Whether a text is what a pattern of a shell describes, as a whole."""
    return re.compile(_translated(pattern)).match


def _translated(pattern: str) -> str:
    return translate(with_classes(pattern).replace("[^", "[!"))


def changed(value: str, rest: str, texts: Texts) -> str:
    """A value behind an operator such as ``##*/`` or ``:1:2``. Raises NotKnown for one that is not followed."""
    found = _CUT.match(rest)
    if found is None:
        if rest:
            raise NotKnown(rest)
        return value
    how, text = found[1], found[2]
    if how in (",,", "^^", ",", "^"):
        if text:
            raise NotKnown(rest)
        begun = len(value) if len(how) > 1 else 1
        return (value[:begun].lower() if how[0] == "," else value[:begun].upper()) + value[begun:]
    if how == ":":
        start, length = slice_of(text, len(value), texts)
        return value[start:][:length]
    if how[0] == "/":
        return _replaced(value, how, text, texts)
    return _shortened(value, how, text, texts)


def slice_of(text: str, size: int, texts: Texts) -> tuple[int, int | None]:
    """Start and length of ``OFFSET:LENGTH`` among ``size``; an offset below 0 counts from the end."""
    offset, mark, length = text.partition(":")
    start = texts.arithmetic(offset)
    start = start if start >= 0 else start + size if start + size >= 0 else size
    return start, texts.arithmetic(length) if mark else None


def _replaced(value: str, how: str, text: str, texts: Texts) -> str:
    place = 0
    while place < len(text) and text[place] != "/":
        place = skip_quoted(text, place, texts.where) if text[place] in "'\"\\$`" else place + 1
    sought, new = texts.pattern(text[:place]), texts.text(text[place + 1 :])
    _bounded(value, sought, texts.where)
    # Without the frame of translate, (?s:...)\Z: what is replaced may stand anywhere.
    inner = _translated(sought)[4:-3] if sought or how in ("/#", "/%") else "(?!)"
    inner = f"\\A(?:{inner})" if how == "/#" else f"(?:{inner})\\Z" if how == "/%" else inner
    # Behind what * took nothing is left, where Python finds nothing once more.
    empty = not value or how in ("/#", "/%")
    made = re.compile(inner, re.DOTALL)
    return made.sub(lambda hit: new if hit[0] or empty else "", value, count=0 if how == "//" else 1)


def _shortened(value: str, how: str, text: str, texts: Texts) -> str:
    if len(value) > MOST_CUT:
        raise InputError(f"{texts.where}: a pattern shortens a value of more than {MOST_CUT:,} characters")
    sought = texts.pattern(text)
    if sought.count("*") > 1:
        _bounded(value, sought, texts.where)
    matches, ends = matcher(sought), range(len(value) + 1)
    if how.startswith("#"):
        hits = [end for end in ends if matches(value[:end])]
        return value[(max if how == "##" else min)(hits) :] if hits else value
    hits = [start for start in ends if matches(value[start:])]
    return value[: (min if how == "%%" else max)(hits)] if hits else value


def _bounded(value: str, pattern: str, where: str) -> None:
    if "*" in pattern and len(value) > MOST_MATCHED:
        raise InputError(f"{where}: a pattern with * is held against a value of more than {MOST_MATCHED:,} characters")
