"""HTML as a tree: the one place where text becomes HTML, and where it is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass

from rlsim.errors import readable

VOID = frozenset({"meta", "br"})
"""Elements without an end tag."""


@dataclass(frozen=True)
class Markup:
    """HTML that is inserted as it is. Only :func:`tag`, :func:`joined` and constants of this package make it."""

    html: str


Child = Markup | str | None
Value = str | float | int | None


def escaped(text: str) -> str:
    """``text`` as HTML shows it, in elements and in quoted attributes.

    Control, formatting and unpaired characters appear as their escapes: they could turn the direction of writing, and
    no encoding of files takes unpaired ones.
    """
    return html.escape(readable(text), quote=True)


def tag(name: str, /, *children: Child, **attributes: Value) -> Markup:
    """An element; text in it and values of attributes are escaped.

    ``class_`` stands for class, other underscores for hyphens; attributes and children that are None are left out.
    ``name`` and the names of attributes are constants of the program.
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(_written(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Markup(f"<{name}{shown}>")
    return Markup(f"<{name}{shown}>{joined(children).html}</{name}>")


def joined(children: Iterable[Child]) -> Markup:
    """Elements and texts one after the other; texts are escaped."""
    return Markup(
        "".join(child.html if isinstance(child, Markup) else escaped(child) for child in children if child is not None)
    )


def _written(value: str | float | int) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
