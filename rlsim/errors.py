"""Errors that are answers: what a user can get wrong, told in one message.

``rlsim`` prints any :class:`RlsimError` as one message and ends with exit code 2. Everything else that escapes is
a bug.
"""

import re

BAD_INPUT = 2
"""Exit code of bad input and of infeasible configurations; 0 is done, 1 a bug."""
MESSAGE_CHARACTERS = 590
"""Longest message; with the program's name before it, it stays below 600 characters."""
VALUE_CHARACTERS = 60
"""Longest value of the input that a message repeats."""

_OWN_STYLE = re.compile(r"(\x1b\[[012]m)")
"""Emphasis that rlsim itself writes (report/style.py)."""


def readable(text: str) -> str:
    """``text`` with every control, formatting, spacing or unpaired character written as its escape, such as ``\\x1b``.

    Nothing in it can then move a terminal's cursor, recolour it or turn the direction of writing.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable(text: str) -> str:
    """``text`` with its lines and rlsim's own bold and dim kept, and everything else :func:`readable`: what stands
    between any answer and a terminal."""
    if all(line.isprintable() for line in text.split("\n")):
        return text
    return "\n".join("".join(map(_kept_or_readable, _OWN_STYLE.split(line))) for line in text.split("\n"))


def _kept_or_readable(part: str) -> str:
    return part if _OWN_STYLE.fullmatch(part) else readable(part)


def shortened(text: str, width: int = VALUE_CHARACTERS) -> str:
    """``text``, readable; beyond ``width`` characters its beginning and three dots."""
    # Cut before it is escaped: a value of somebody's file may have millions of characters.
    shown = readable(text[: width + 1])
    return shown if len(shown) <= width else shown[: width - 3] + "..."


class RlsimError(Exception):
    """Base of everything a user can cause; its text is the whole message: readable, of bounded length, in a line."""

    def __str__(self) -> str:
        return shortened(super().__str__(), MESSAGE_CHARACTERS)


class InputError(RlsimError):
    """A file, key or value that cannot be used. The text names the file, the key and what would be valid."""


class Infeasible(RlsimError):  # noqa: N818 - an answer rather than an accident
    """A configuration that cannot run, as a typed answer.

    reason: one sentence; needed, available: the violated bound in ``unit`` (bytes, GPUs, tokens).
    """

    def __init__(self, reason: str, needed: float, available: float, unit: str = "") -> None:
        self.reason, self.needed, self.available, self.unit = reason, needed, available, unit
        super().__init__(reason, needed, available, unit)  # what pickle and SimPy make it anew from

    def __str__(self) -> str:
        needed, available = _amount(self.needed, self.unit), _amount(self.available, self.unit)
        return shortened(f"infeasible: {self.reason} (needed {needed}, available {available})", MESSAGE_CHARACTERS)


def _amount(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value / 2**30:,.1f} GiB"
    return f"{value:,.6g} {unit}".strip()
