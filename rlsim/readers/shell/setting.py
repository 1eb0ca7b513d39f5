"""What sets variables of a shell: assignments, declarations, ``read``, ``printf -v``, ``unset``, ``shift``, ``let``."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rlsim.readers.shell.arithmetic import NotKnown, assigned_in
from rlsim.readers.shell.expansion import Variables
from rlsim.readers.shell.printed import formatted, split_fields
from rlsim.readers.shell.syntax import Command, Node

DECLARING = ("export", "declare", "local", "readonly", "typeset")
ASSIGNMENT = re.compile(r"^([A-Za-z_]\w*)(?:\[((?:[^\[\]]|\[[^\[\]]*\])*)\])?(\+?)=(.*)$", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")


def assign(variables: Variables, word: str) -> None:
    """Make an assignment as it is written; of a word that is none, nothing."""
    found = ASSIGNMENT.match(word)
    if found is None:
        return
    name, index, more, value = found.groups()
    try:
        if index is None and value.startswith("(") and value.endswith(")"):
            variables.assign_array(name, value[1:-1], bool(more))
            return
        text = variables.text(value)
        if index is not None:
            variables.assign_element(name, index, text, bool(more))
        elif (is_open(text) and value[:1] != "'" and "\\$" not in value) or (more and name in variables.unknown):
            variables.forget(name)
        else:
            _assign_text(variables, name, text, bool(more))
    except NotKnown:
        variables.forget(name)


def is_open(text: str) -> bool:
    """Whether a text is what a program would print."""
    return text.startswith("$(") and text.endswith(")")


def _assign_text(variables: Variables, name: str, text: str, more: bool) -> None:
    held = (variables.value(name) or "") if more else ""
    if name in variables.integers:
        text = str(variables.arithmetic(f"({held or 0}) + ({text})" if more else text, empty=True))
        held = ""
    variables.assign(name, held + text)


def declare(variables: Variables, words: list[str], local: Callable[[str], None] | None) -> None:
    """Follow ``declare``, ``local`` and their like, words as they are written. local: told the names that go with the
    function that runs; None outside of one."""
    flags = "".join(word[1:] for word in words[1:] if re.match(r"-[A-Za-z]", word))
    if set("fFp") & set(flags):
        return
    for word in words[1:]:
        if re.match(r"[-+][A-Za-z]", word):
            continue
        found = ASSIGNMENT.match(word)
        texts = [word] if found else variables.fields(word)
        for text in texts:
            name, mark, value = text.partition("=")
            name = found[1] if found else name.rstrip("+")
            if not _NAME.fullmatch(name):
                continue
            if local and (words[0] == "local" or (words[0] in ("declare", "typeset") and "g" not in flags)):
                local(name)
                if not mark:
                    variables.unset(name)
            for flag, kind in (("A", variables.associative), ("i", variables.integers)):
                kind.update([name] if flag in flags else [])
            if set("nul") & set(flags):  # another name for a variable, or letters changed with each assignment
                variables.forget(name)
                variables.forget(variables.text(value) if "n" in flags and mark else name)
            elif found:
                assign(variables, word)
            elif mark:  # quoted as a whole: it is expanded already
                _assign_text(variables, name, value, False)


def read(variables: Variables, words: list[str], text: str | None) -> bool:
    """``read`` of a here-document or here-string; None: of what is not known."""
    flags, names, arguments = "", list[str](), dict[str, str]()
    rest = iter(words)
    for word in rest:
        if word.startswith("-") and not names:
            flags += word[1:]
            if word[-1] in "adeinNptu" and word[-1] != "e":
                arguments[word[-1]] = next(rest, "")
        else:
            names.append(word)
    listed = arguments.get("a")
    for name in [listed] if listed else names or ["REPLY"]:
        variables.forget(name)
    if text is None or set("nNtu") & set(arguments) or (arguments.get("d") or "\n") != "\n":
        return True
    whole = "d" in arguments
    text = text if whole else text.partition("\n")[0]
    # Without -r a backslash escapes the next character.
    text = text if "r" in flags else re.sub(r"\\(.)", r"\1", text)
    marks = variables.texts.get("IFS", " \t\n")
    if listed:
        variables.arrays[listed] = dict(enumerate(split_fields(text, marks)))
        if re.search(r"\$(\w+|\(.*\))", text, re.DOTALL):
            # Of a list that a program would print nobody knows even how long it is.
            variables.arrays[listed] = {}
        else:
            variables.unknown.discard(listed)
        return not whole
    parts = split_fields(text, marks, len(names)) if names else [text]
    if not is_open(text):
        for at, name in enumerate(names or ["REPLY"]):
            variables.assign(name, parts[at] if at < len(parts) else "")
    return not whole


def mapfile(variables: Variables, words: list[str], text: str | None) -> bool:
    """Lines of a here-string as an array; of what is not known, none that is known."""
    name = words[-1] if words and _NAME.fullmatch(words[-1]) else "MAPFILE"
    variables.forget(name)
    if text is not None and set(words[:-1]) <= {"-t"} and words[:-1] and "$(" not in text:
        variables.arrays[name] = dict(enumerate(text.split("\n")))
        variables.unknown.discard(name)
    return True


def print_to(variables: Variables, words: list[str]) -> None:
    """``printf -v NAME``."""
    text = formatted(words[1:])
    if text is None or is_open(text):
        variables.forget(words[0])
    elif ASSIGNMENT.match(f"{words[0]}="):
        name, _, index = words[0].partition("[")
        variables.assign_element(name, index.rstrip("]"), text) if index else variables.assign(name, text)


def unset(variables: Variables, words: list[str], text: str | None = None) -> bool:
    """Unset variables and elements."""
    for word in words:
        if not word.startswith("-"):
            try:
                variables.unset(word)
            except NotKnown:
                variables.forget(word.partition("[")[0])
    return True


def shift(variables: Variables, words: list[str], text: str | None = None) -> bool:
    """Drop first parameters; more than there are: none, and no success."""
    count = int(words[0]) if words and words[0].isdigit() else 1
    if count > len(variables.words):
        return False
    variables.words = variables.words[count:]
    return True


def let(variables: Variables, words: list[str], text: str | None = None) -> bool:
    """Expressions one after the other; whether the last one is not 0."""
    done = False
    for word in words:
        done = reckoned(variables, word)
    return done


def reckoned(variables: Variables, text: str) -> bool:
    """Whether an expression is not 0; of one that cannot be told, what it sets is not known, and it counts as 0."""
    try:
        # An expression that sets may not take what nobody set for 0: that may come from outside.
        return variables.arithmetic(text, empty=not assigned_in(text)) != 0
    except NotKnown:
        for name in assigned_in(text):
            variables.forget(name)
        return False


SETTING: Mapping[str, Callable[[Variables, list[str], str | None], bool]] = {
    "read": read, "mapfile": mapfile, "readarray": mapfile, "unset": unset, "shift": shift, "let": let,
}  # fmt: skip
"""Builtins that set variables, with their words and what they read."""


def assigned(part: Any) -> Iterator[str]:
    """Names that a part of a script may set."""
    if isinstance(part, Command):
        yield from (found[1] for word in part.words if (found := ASSIGNMENT.match(word)))
        if part.words[:1] and part.words[0] in ("read", "mapfile", "readarray", "printf"):
            yield from (word for word in part.words[1:] if _NAME.fullmatch(word))
    elif isinstance(part, Node):
        if part.kind in ("arithmetic", "count"):
            yield from (name for text in part.parts if isinstance(text, str) for name in assigned_in(text))
        if part.kind == "for":
            yield part.parts[0]
        yield from assigned(part.parts)
    elif isinstance(part, list | tuple):
        for one in part:
            yield from assigned(one)
