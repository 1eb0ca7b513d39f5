"""Conditions of a shell: ``[ ... ]``, ``test`` and ``[[ ... ]]``, by what binds and what is quoted."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress

from rlsim.errors import InputError, shortened
from rlsim.readers.shell.arithmetic import NotKnown
from rlsim.readers.shell.expansion import Variables
from rlsim.readers.shell.patterns import matcher, with_classes

_NUMBERS = {"-eq": "__eq__", "-ne": "__ne__", "-lt": "__lt__", "-le": "__le__", "-gt": "__gt__", "-ge": "__ge__"}
_BINARY = frozenset(("=", "==", "!=", "=~", "<", ">", "-nt", "-ot", "-ef", *_NUMBERS))
_FILES = ("-f", "-e", "-d", "-r", "-s", "-x", "-w", "-a")
_UNARY = frozenset(("-z", "-n", "-v", *_FILES, "-L", "-h", "-t", "-p", "-S", "-b", "-c", "-g", "-k", "-u", "-O", "-G",
                    "-N", "-o", "-R"))  # fmt: skip
_GROUP, _LOOPS = re.compile(r"\)\s*[*+{]"), re.compile(r"[*+{]")


def holds(words: Sequence[str], double: bool, variables: Variables, is_there: Callable[[str], bool]) -> bool:
    """Whether a condition holds; one that asks for what is not known does not.

    words: within the brackets, as they are written. double: within ``[[``. Raises InputError naming what of ``[[``
    is not followed.
    """
    given = [word for word in words if word != "\n"]
    if not double:
        given = [part for word in words for part in variables.fields(word, empty=True)]
        # A number that nobody set, such as a process's rank, comes from outside: it is 0, as [[ has it.
        given = ["", *given] if given[:1] and given[0] in _NUMBERS else given
    # Of four words, the first of which is !, the others are negated as a whole (POSIX, test).
    negated = not double and len(given) == 4 and given[0] == "!"
    given = given[negated:]
    condition = _Condition(given, double, variables, is_there)
    try:
        if not given:
            return False
        found = condition.either()
        if condition.place == len(given):
            return found != negated
    except (IndexError, NotKnown):
        pass
    if not double:
        return False  # bash calls it an error, which is no success
    raise InputError(f"{variables.where}: [[ {shortened(' '.join(words))} ]] is a condition that rlsim does not follow")


class _Condition:
    """A place among the words of a condition. idle: behind a part that decides."""

    def __init__(self, words: list[str], double: bool, variables: Variables, is_there: Callable[[str], bool]) -> None:
        self.words, self.double, self.v, self.is_there = words, double, variables, is_there
        self.place, self.idle = 0, 0

    def at(self, text: str) -> bool:
        return self.place < len(self.words) and self.words[self.place] == text

    def either(self) -> bool:
        found = self.both()
        while self.at("||" if self.double else "-o"):
            self.place += 1
            self.idle += found
            right = self.both()
            self.idle -= found
            found = found or right
        return found

    def both(self) -> bool:
        found = self.one()
        while self.at("&&" if self.double else "-a"):
            self.place += 1
            self.idle += not found
            right = self.one()
            self.idle -= not found
            found = found and right
        return found

    def one(self) -> bool:
        left = self.words[self.place]
        following = self.words[self.place + 1 : self.place + 3]
        if len(following) == 2 and following[0] in _BINARY:
            self.place += 3
            return not self.idle and self.compared(left, following[0], following[1])
        if left == "!" and following:
            self.place += 1
            return not self.one()
        if left == "(" and following:
            self.place += 1
            found = self.either()
            if not self.at(")"):
                raise NotKnown(" ".join(self.words))
            self.place += 1
            return found
        if left in _UNARY and following:
            self.place += 2
            return not self.idle and self.tested(left, self.text(following[0]))
        self.place += 1
        return not self.idle and bool(self.text(left))

    def text(self, word: str) -> str:
        return self.v.text(word, empty=True) if self.double else word

    def tested(self, how: str, operand: str) -> bool:
        if how == "-v":
            return self.v.value(operand) is not None
        if how in _FILES:
            return self.is_there(operand)
        return (how == "-z") != bool(operand) if how in ("-z", "-n") else False

    def compared(self, left: str, how: str, right: str) -> bool:
        left = self.text(left)
        if how in _NUMBERS:
            return self.counted(left, how, self.text(right))
        if how == "=~":
            return self.matches(left, right)
        if how in ("<", ">"):
            return (left < self.text(right)) if how == "<" else (left > self.text(right))
        # A pattern stands within [[ alone, and only where it is not quoted.
        alike = bool(matcher(self.v.pattern(right))(left)) if self.double else left == right
        return alike if how in ("=", "==") else not alike if how == "!=" else False

    def counted(self, left: str, how: str, right: str) -> bool:
        if not self.double and not all(re.fullmatch(r"\s*[-+]?\d+\s*|", one) for one in (left, right)):
            return False
        with suppress(NotKnown):
            base = [self.v.arithmetic(one, empty=True) if self.double else int(one or 0) for one in (left, right)]
            return bool(getattr(base[0], _NUMBERS[how])(base[1]))
        return False

    def matches(self, left: str, right: str) -> bool:
        pattern = with_classes(self.v.pattern(right, re.escape))
        # A script must not choose how long matching takes.
        if len(left) > 200 or len(pattern) > 100 or _GROUP.search(pattern) or len(_LOOPS.findall(pattern)) > 2:
            raise NotKnown(right)
        try:
            found = re.search(pattern, left)
        except re.error as error:
            raise NotKnown(right) from error
        if found:
            self.v.arrays["BASH_REMATCH"] = dict(enumerate([found[0], *(one or "" for one in found.groups())]))
        return found is not None
