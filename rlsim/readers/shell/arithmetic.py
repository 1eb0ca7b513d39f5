"""Integer arithmetic of a shell, as in ``$((...))``, ``((...))`` and subscripts, by bash's operators and precedence."""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Protocol

_HALF = 2**63
"""Integers of a shell lie from -2^63 on and wrap around."""
_MOST_DEEP = 20
"""Variables that hold the names of variables, each of the next one."""
_TOKEN = re.compile(
    r"\s*(\d+#\w+|0[xX][0-9a-fA-F]+|\d+|[A-Za-z_]\w*|<<=|>>=|\*\*|\+\+|--|&&|\|\||[-+*/%&|^]=|<<|>>|[<>=!]="
    r"|[-+*/%<>=!~&|^?:,()\[\]])\s*"
)
_ASSIGNING = frozenset(("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^="))
_BINDING: Mapping[str, int] = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7, "<<": 8, ">>": 8,
    "+": 9, "-": 9, "*": 10, "/": 10, "%": 10, "**": 11,
}  # fmt: skip
"""How tightly an operator of two operands binds; signs bind tighter than all, ``**`` too (bash: -2 ** 2 is 4)."""


class NotKnown(Exception):  # noqa: N818 - no error: another answer
    """What only the machine knows, or a construct that is not followed."""


class Names(Protocol):
    """Where names have their values."""

    def number_text(self, name: str, index: int | None) -> str:
        """What a name holds. Raises NotKnown."""

    def assign(self, name: str, value: str) -> None:
        """Set a name."""


def reckon(text: str, names: Names, depth: int = 0) -> int:
    """Value of an expression; assignments in it are made. Raises NotKnown for what cannot be told."""
    tokens, place = [], 0
    while place < len(text.rstrip()):
        found = _TOKEN.match(text, place)
        if found is None:
            raise NotKnown(text)
        tokens.append(found[1])
        place = found.end()
    return _Reckoning(tokens, names, depth).whole() if tokens else 0


def assigned_in(text: str) -> set[str]:
    """Names that an expression may set."""
    return set(re.findall(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?\s*(?:\+\+|--|(?:<<|>>|[-+*/%&|^])?=(?!=))", text)) | set(
        re.findall(r"(?:\+\+|--)\s*([A-Za-z_]\w*)", text)
    )


def _wrapped(value: int) -> int:
    return (value + _HALF) % (2 * _HALF) - _HALF


def _divided(left: int, right: int) -> int:
    if not right:
        raise NotKnown("division by 0")
    # A shell cuts towards zero, Python rounds down.
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


def _power(base: int, exponent: int) -> int:
    if exponent < 0:
        raise NotKnown("exponent less than 0")
    return pow(base, exponent, 2 * _HALF)  # bounded, where the whole power need not be


_REPLACED: Mapping[str, Callable[[int, int], int]] = {
    "|": operator.or_, "^": operator.xor, "&": operator.and_, "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    ">": operator.gt, "<=": operator.le, ">=": operator.ge, "<<": lambda a, b: a << (b & 63),
    ">>": lambda a, b: a >> (b & 63), "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divided,
    "%": lambda a, b: a - b * _divided(a, b), "**": _power,
}  # fmt: skip


class _Reckoning:
    """A place among the tokens of an expression. idle: within a branch that is not taken."""

    def __init__(self, tokens: list[str], names: Names, depth: int) -> None:
        self.tokens, self.names, self.depth = tokens, names, depth
        self.place, self.idle = 0, 0

    def whole(self) -> int:
        value = self.list()
        if self.place < len(self.tokens):
            raise NotKnown(" ".join(self.tokens))
        return value

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.place + ahead] if self.place + ahead < len(self.tokens) else ""

    def take(self) -> str:
        self.place += 1
        return self.tokens[self.place - 1]

    def expect(self, text: str) -> None:
        if self.peek() != text:
            raise NotKnown(" ".join(self.tokens))
        self.place += 1

    def list(self) -> int:
        value = self.assignment()
        while self.peek() == ",":
            self.take()
            value = self.assignment()
        return value

    def assignment(self) -> int:
        if _is_name(self.peek()) and self.peek(1) in _ASSIGNING:
            name, how = self.take(), self.take()[:-1]
            before = self.load(name, None) if how else 0  # first, as what follows may set it
            value = self.assignment()
            return self.store(name, self.applied(how, before, value) if how else value)
        value = self.operation(1)
        if self.peek() != "?":
            return value
        self.take()
        first = self.skipping(not value, self.list)
        self.expect(":")
        second = self.skipping(bool(value), self.assignment)
        return first if value else second

    def skipping(self, idle: bool, part: Callable[[], int]) -> int:
        self.idle += idle
        value = part()
        self.idle -= idle
        return value

    def operation(self, least: int) -> int:
        left = self.operand()
        while (binds := _BINDING.get(how := self.peek(), 0)) >= least:
            self.take()
            rest = binds if how == "**" else binds + 1  # powers alone associate to the right
            if how in ("&&", "||"):
                right = self.skipping(bool(left) == (how == "||"), lambda rest=rest: self.operation(rest))  # type: ignore[misc]
                left = int(bool(left and right) if how == "&&" else bool(left or right))
            else:
                left = self.applied(how, left, self.operation(rest))
        return left

    def applied(self, how: str, left: int, right: int) -> int:
        return 0 if self.idle else _wrapped(int(_REPLACED[how](left, right)))

    def operand(self) -> int:
        how = self.take() if self.peek() else ""
        if how in ("++", "--") and _is_name(self.peek()):
            name = self.take()
            return self.store(name, self.applied(how[0], self.load(name, None), 1))
        if how in ("+", "++", "--"):  # two signs before a number
            return self.operand()
        if how in ("-", "!", "~"):
            value = self.operand()
            return _wrapped(-value) if how == "-" else int(not value) if how == "!" else ~value
        if how == "(":
            value = self.list()
            self.expect(")")
            return value
        if not _is_name(how):
            return _number(how)
        index = None
        if self.peek() == "[":
            self.take()
            index = self.list()
            self.expect("]")
        value = self.load(how, index)
        if index is None and self.peek() in ("++", "--"):
            self.store(how, self.applied(self.take()[0], value, 1))
        return value

    def load(self, name: str, index: int | None) -> int:
        if self.idle:
            return 0
        if self.depth > _MOST_DEEP:
            raise NotKnown(name)
        return reckon(self.names.number_text(name, index), self.names, self.depth + 1)

    def store(self, name: str, value: int) -> int:
        if not self.idle:
            self.names.assign(name, str(value))
        return value


def _is_name(text: str) -> bool:
    return text[:1].isalpha() or text[:1] == "_"


def _number(text: str) -> int:
    base, mark, digits = text.rpartition("#")
    try:
        if mark:
            return _wrapped(int(digits, int(base)))
        # A leading 0 makes it octal, 0x hexadecimal.
        return _wrapped(int(text, 16 if text[:2] in ("0x", "0X") else 8 if text[:1] == "0" else 10))
    except ValueError as error:
        raise NotKnown(text) from error
