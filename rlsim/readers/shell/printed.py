"""What builtins and small programs print of their words, and how words are split and multiplied."""

import posixpath
import re
from collections.abc import Callable, Mapping
from itertools import islice, product

from rlsim.errors import InputError
from rlsim.readers.shell.syntax import skip_quoted

MOST_LINES = 20_000
"""Lines that seq prints, and words that braces make of one."""
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\\": "\\", "'": "'", '"': '"'}
_BLANK = " \t\n"


def joined(cwd: str, name: str) -> str:
    """A path as seen from a working directory."""
    return posixpath.normpath(posixpath.join(cwd, name))


def unescaped(text: str) -> str:
    """A text in which backslashes stand for line ends and tabs."""
    return re.sub(r"\\([ntrabfv\\'\"])", lambda found: _ESCAPES[found[1]], text)


def split_fields(text: str, marks: str, most: int = 0) -> list[str]:
    """Fields of a text between characters of IFS; blanks there count together. most: the last has all that is left."""
    blank = "".join(char for char in marks if char in _BLANK)
    other = "".join(char for char in marks if char not in _BLANK)
    text = text.strip(blank) if blank else text
    if not text or not marks:
        return [text] if text else []
    blanks = f"[{re.escape(blank)}]" if blank else ""
    around = f"{blanks}*[{re.escape(other)}]{blanks}*" if blank and other else f"[{re.escape(other)}]"
    cut = f"{around}|{blanks}+" if blank and other else around if other else f"{blanks}+"
    parts = re.split(cut, text, maxsplit=max(0, most - 1)) if most != 1 else [text]
    return parts[:-1] if not parts[-1] and len(parts) > 1 and len(parts) != most else parts


def braced(word: str, where: str) -> list[str]:
    """The words that ``{a,b}`` and ``{1..3}`` make of one, outside of quotes. Raises InputError for too many."""
    parts, place, plain = list[list[str]](), 0, ""
    while place < len(word):
        end = place + 1
        if word[place] in "'\"\\`" or word.startswith(("${", "$(", "$'"), place):
            end = skip_quoted(word, place, where)
        elif word[place] == "{" and (found := _choices(word, place, where)):
            choices, place = found
            parts += [[plain], choices]
            plain = ""
            continue
        plain += word[place:end]
        place = end
    size = 1
    for choices in parts:
        size *= len(choices)
    if size > MOST_LINES:
        raise InputError(f"{where}: braces make more than {MOST_LINES:,} words of one")
    return ["".join(one) + plain for one in product(*parts)]


def _choices(word: str, start: int, where: str) -> tuple[list[str], int] | None:
    """What stands between braces and the place behind them; None where they only group."""
    cuts, place, level = [start], start + 1, 1
    while place < len(word) and level:
        if word[place] in "'\"\\`" or word.startswith(("${", "$(", "$'"), place):
            place = skip_quoted(word, place, where)
            continue
        level += (word[place] == "{") - (word[place] == "}")
        if word[place] == "," and level == 1:
            cuts.append(place)
        place += 1
    if level:
        return None
    ends = [*cuts[1:], place - 1]
    if len(cuts) > 1:
        inner = [word[a + 1 : b] for a, b in zip(cuts, ends, strict=True)]
        return [one for part in inner for one in braced(part, where)], place
    found = re.fullmatch(
        r"(-?\d{1,9}|[A-Za-z])\.\.(-?\d{1,9}|[A-Za-z])(?:\.\.(-?\d{1,9}))?", word[start + 1 : place - 1]
    )
    if found is None or found[1].isalpha() != found[2].isalpha():
        return None
    first, last = (ord(one) if one.isalpha() else int(one) for one in found.groups()[:2])
    step = abs(int(found[3] or 1)) or 1
    if abs(last - first) // step >= MOST_LINES:
        raise InputError(f"{where}: braces make more than {MOST_LINES:,} words of one")
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    wide = max(map(len, found.groups()[:2])) if re.match(r"-?0\d", found[1]) or re.match(r"-?0\d", found[2]) else 0
    return [chr(one) if found[1].isalpha() else f"{one:0{wide}d}" for one in numbers], place


def _echo(words: list[str], cwd: str) -> str:
    flags = ""
    while words and re.fullmatch(r"-[neE]+", words[0]):
        flags, words = flags + words[0], words[1:]
    text = " ".join(words)
    return (unescaped(text) if "e" in flags else text) + ("" if "n" in flags else "\n")


def formatted(words: list[str], cwd: str = "") -> str | None:
    """What printf makes of its format, over and over until its words are used; None for a format not followed."""
    form, rest = (words or [""])[0], words[1:]
    pieces = re.split(r"(%(?:[-+ 0#]*\d*(?:\.\d+)?[sdifgexX]|%))", unescaped(form))
    used = sum(piece[:1] == "%" and piece != "%%" for piece in pieces[1::2])
    if any("%" in piece for piece in pieces[::2]) or "%b" in form:
        return None
    out, rounds = "", 0
    while not rounds or (used and rest):
        rounds += 1
        for at, piece in enumerate(pieces):
            if at % 2 == 0 or piece == "%%":
                out += piece if at % 2 == 0 else "%"
                continue
            value = rest.pop(0) if rest else ""
            if piece[-1] == "s":
                out += piece % value
            elif re.fullmatch(r"[-+]?\d{1,18}(\.\d+)?|", value):
                out += piece % (float(value or 0) if piece[-1] in "fge" else int(value or 0))
            else:
                return None
    return out


def _basename(words: list[str], cwd: str) -> str:
    plain = [word for word in words if word != "--"]
    name = posixpath.basename(plain[0].rstrip("/")) or plain[0][:1] if plain else ""
    return name.removesuffix(plain[1] if len(plain) > 1 else "") + "\n"


def _dirname(words: list[str], cwd: str) -> str:
    return "".join(
        f"{posixpath.dirname(word.rstrip('/')) or ('/' if word[:1] == '/' else '.')}\n"
        for word in words
        if word != "--"
    )


def _sequence(words: list[str], cwd: str) -> str | None:
    """``seq [FIRST [STEP]] LAST``; None for what is no whole number."""
    numbers = [int(word) for word in words if re.fullmatch(r"-?\d{1,9}", word)]
    if len(numbers) != len(words) or not 1 <= len(numbers) <= 3 or (len(numbers) == 3 and not numbers[1]):
        return None
    first, step, last = ((1, 1, *numbers), (numbers[0], 1, numbers[-1]), tuple(numbers))[len(numbers) - 1]
    return "".join(f"{number}\n" for number in islice(range(first, last + (1 if step > 0 else -1), step), MOST_LINES))


PRINTED: Mapping[str, Callable[[list[str], str], str | None]] = {
    "echo": _echo,
    "printf": formatted,
    "seq": _sequence,
    "pwd": lambda words, cwd: f"{cwd}\n",
    "realpath": lambda words, cwd: f"{joined(cwd, words[-1])}\n" if words else "",
    "dirname": _dirname,
    "basename": _basename,
}
"""What builtins and small programs print of their words, in a working directory; None: what is not known here."""
