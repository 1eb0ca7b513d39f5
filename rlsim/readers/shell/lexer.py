"""Tokens of a shell script: words as they are written, operators, here-documents."""

from __future__ import annotations

import re
from typing import NamedTuple

from rlsim.errors import InputError

OPERATORS = (
    ";;&", "<<<", "&>>", "<<-", "&&", "||", ";;", "<<", ">>", ">&", "<&", ">|", "&>", "|&", "<>",
    ";", "&", "|", "(", ")", "<", ">", "\n",
)  # fmt: skip
"""Longest first."""
REDIRECTIONS = frozenset((">", ">>", "<", "<<", "<<-", "<<<", "&>", "&>>", ">&", "<&", ">|", "<>"))
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=$")
_PAIRS = {"{": "}", "(": ")"}
MAX_DEPTH = 50
"""Quotes and substitutions within each other."""


class Token(NamedTuple):
    """An operator, or a word with its quotes and substitutions unexpanded. text: of ``<<``: the document."""

    kind: str
    text: str


def tokens(text: str, where: str) -> list[Token]:
    """Tokens of a script. Raises InputError naming ``where`` for quotes and brackets that are not closed."""
    out: list[Token] = []
    awaited: list[tuple[int, bool]] = []
    place = 0
    while place < len(text):
        char = text[place]
        if char in " \t\r" or text.startswith("\\\n", place):
            place += 2 if char == "\\" else 1
            continue
        if char == "#":
            place = _end_of(text, "\n", place)
            continue
        if text.startswith(("<(", ">("), place):  # a file that a program writes or reads
            place = skip_bracketed(text, place + 1, where, 0)
            out.append(Token("word", "/dev/null"))
            continue
        if out and out[-1].text == "=~":
            end = _end_of_pattern(text, place, where)
            out.append(Token("word", text[place:end]))
            place = end
            continue
        found = next((one for one in OPERATORS if text.startswith(one, place)), None)
        if found and not (found == "(" and text.startswith("((", place) and _opens_arithmetic(out)):
            place += len(found)
            out.append(Token(found, found))
            if found == "\n":
                for index, strip in awaited:
                    document, place = _document(text, place, out[index].text, strip)
                    out[index] = Token("document", document)
                awaited = []
            continue
        end = skip_word(text, place, where)
        word = text[place:end]
        if end < len(text) and text[end] in "<>" and word.isdigit():
            place = end
            continue
        if out and out[-1].kind in ("<<", "<<-"):
            awaited.append((len(out), out[-1].kind == "<<-"))
        out.append(Token("word", word))
        place = end
    return out


def _opens_arithmetic(before: list[Token]) -> bool:
    return (
        not before or before[-1].kind != "word" or before[-1].text in ("if", "while", "elif", "for", "then", "do", "!")
    )


def _end_of_pattern(text: str, start: int, where: str) -> int:
    place = start
    while place < len(text) and not text[place].isspace():
        char = text[place]
        place = skip_quoted(text, place, where, 0) if char in "'\"\\" or text.startswith("${", place) else place + 1
        if char == "(":
            place = skip_bracketed(text, place - 1, where, 0)
    return place


def _end_of(text: str, mark: str, start: int) -> int:
    found = text.find(mark, start)
    return len(text) if found < 0 else found


def _document(text: str, start: int, end: str, strip: bool) -> tuple[str, int]:
    """A here-document and the place behind it."""
    mark, lines, place = end.strip("'\"\\"), [], start
    while place < len(text):
        stop = _end_of(text, "\n", place)
        line = text[place:stop]
        place = min(len(text), stop + 1)
        line = line.lstrip("\t") if strip else line
        if line == mark:
            break
        lines.append(line)
    body = "\n".join(lines)
    raw = body.replace("'", "'\\''")
    quoted = body.replace('"', '\\"')
    return (f"'{raw}'" if end != mark else f'"{quoted}"'), place


def skip_word(text: str, start: int, where: str) -> int:
    """The place behind the word that begins at ``start``."""
    place = start
    if text.startswith("((", start):
        return skip_bracketed(text, start, where, 0)
    while place < len(text):
        char = text[place]
        if char == "(" and _ARRAY.search(text[start:place]):
            place = skip_bracketed(text, place, where, 0)
        elif char in "$`'\"\\":
            place = skip_quoted(text, place, where, 0)
        elif (char == "#" and place == start) or char in " \t\r\n;&|<>()":
            break
        else:
            place += 1
    return place


def skip_quoted(text: str, start: int, where: str, depth: int) -> int:
    """The place behind a quote, an escape or a substitution that begins at ``start``."""
    char, then = text[start], text[start + 1 : start + 2]
    if depth > MAX_DEPTH:
        raise InputError(f"{where}: is no launch script: more than {MAX_DEPTH} quotes within each other")
    if char == "\\":
        return start + 2
    if char == "'" or (char == "$" and then == "'"):
        place = start + (2 if char == "$" else 1)
        while place < len(text) and text[place] != "'":
            place += 2 if char == "$" and text[place] == "\\" else 1
        return _closed(text, place, "'", where)
    if char == "$":
        return skip_bracketed(text, start + 1, where, depth + 1) if then in _PAIRS and then else start + 1
    place = start + 1
    while place < len(text) and text[place] != char:
        inside = text[place] == "\\" or (text[place] == "$" and text[place + 1 : place + 2] in ("{", "("))
        place = skip_quoted(text, place, where, depth + 1) if inside else place + 1
    return _closed(text, place, char, where)


def skip_bracketed(text: str, start: int, where: str, depth: int) -> int:
    """The place behind the bracket that closes the one at ``start``."""
    opening = text[start]
    closing, place, level = _PAIRS[opening], start + 1, 1
    while place < len(text) and level:
        char = text[place]
        if char in "'\"`\\" or (char == "$" and text[place + 1 : place + 2] in ("{", "(")):
            place = skip_quoted(text, place, where, depth + 1)
            continue
        if char == "#" and opening == "(" and text[place - 1] in " \t\n(" and not text.startswith("((", start):
            place = _end_of(text, "\n", place)
            continue
        level += (char == opening) - (char == closing)
        place += 1
    if level:
        raise InputError(f"{where}: line {text.count(chr(10), 0, start) + 1}: '{opening}' is not closed")
    return place


def _closed(text: str, place: int, mark: str, where: str) -> int:
    if place >= len(text):
        raise InputError(f"{where}: a quote ({mark}) is not closed")
    return place + 1
