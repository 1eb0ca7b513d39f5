"""A shell script's tokens (words as they are written, operators, here-documents) and structure: lists, pipes,
conditions, loops, functions, and the words of commands."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlsim.errors import InputError, shortened


@dataclass(frozen=True)
class Node:
    """A part of a script by its kind: list, pipe, not, if, for, count, while, case, function, apart or arithmetic."""

    kind: str
    parts: Any


@dataclass(frozen=True)
class Command(Node):
    """A command: its words, unexpanded, the here-document or here-string that it reads, the file it writes anew, and
    whether what it prints goes elsewhere."""

    words: tuple[str, ...] = ()
    document: str | None = None
    target: str | None = None
    elsewhere: bool = False


def parse(given: list[Token], where: str) -> Node:
    """The structure of the tokens of a script. Raises InputError naming ``where`` for what is none."""
    parser = _Parser(given, where)
    found = parser.list(())
    if parser.place < len(given):
        raise parser.unexpected()
    return found


class _Parser:
    """A place among tokens."""

    def __init__(self, given: list[Token], where: str) -> None:
        self.given, self.where, self.place = given, where, 0

    def unexpected(self) -> InputError:
        found = self.given[self.place].text if self.place < len(self.given) else "the end"
        return InputError(
            f"{self.where}: is no shell script that rlsim can follow: unexpected {shortened(repr(found))}"
        )

    def peek(self) -> Token:
        return self.given[self.place] if self.place < len(self.given) else Token("end", "")

    def word(self) -> str:
        token = self.peek()
        return token.text if token.kind == "word" else ""

    def take(self) -> str:
        """The next token's text, and on."""
        self.place += 1
        return self.given[self.place - 1].text if self.place <= len(self.given) else ""

    def expect(self, text: str) -> None:
        if self.peek().text != text or self.peek().kind == "document":
            raise self.unexpected()
        self.take()

    def newlines(self) -> None:
        while self.peek().kind in ("\n", ";"):
            self.take()

    def list(self, ends: tuple[str, ...]) -> Node:
        """Commands up to a word or an operator of ``ends``."""
        parts: list[tuple[str, Node]] = []
        before = ";"
        while True:
            self.newlines()
            token = self.peek()
            if token.kind == "end" or token.kind in ends or (token.kind == "word" and token.text in ends):
                break
            parts.append((before, self.pipe()))
            before = self.peek().kind
            if before in ("&&", "||", ";", "&", "\n"):
                self.place += 1
            elif before not in ends and before != "end" and self.word() not in ends:
                raise self.unexpected()
        return Node("list", parts)

    def pipe(self) -> Node:
        if self.word() == "!":
            self.place += 1
            return Node("not", [self.pipe()])
        parts = [self.command()]
        while self.peek().kind in ("|", "|&"):
            self.place += 1
            self.newlines()
            parts.append(self.command())
        return parts[0] if len(parts) == 1 else Node("pipe", parts)

    def command(self) -> Node:
        token = self.peek()
        compound: Callable[[], Node] | None = None
        if token.kind == "(":
            compound = lambda: Node("apart", [self.block("(", ")")])  # noqa: E731 - one of several readers
        elif token.kind == "word":
            compound = {
                "if": self.condition, "for": self.loop, "while": self.repeat, "until": self.repeat, "case": self.case,
                "{": lambda: self.block("{", "}"), "function": self.function,
            }.get(token.text)  # fmt: skip
            if token.text.startswith("((") and token.text.endswith("))"):
                self.place += 1
                return self.redirected(Node("arithmetic", [token.text[2:-2]]))
            following = self.given[self.place + 1 : self.place + 3]
            if [one.kind for one in following] == ["(", ")"]:
                compound = self.function
        return self.simple() if compound is None else self.redirected(compound())

    def redirected(self, node: Node) -> Node:
        # Where the output of a block goes says nothing of what it launches.
        while self.peek().kind in REDIRECTIONS:
            self.place += 2
        return node

    def block(self, start: str, end: str) -> Node:
        self.expect(start)
        body = self.list((end,))
        self.expect(end)
        return body

    def condition(self) -> Node:
        parts: list[tuple[Node | None, Node]] = []
        while self.word() in ("if", "elif"):
            self.take()
            asked = self.list(("then",))
            self.expect("then")
            parts.append((asked, self.list(("elif", "else", "fi"))))
        if self.word() == "else":
            self.take()
            parts.append((None, self.list(("fi",))))
        self.expect("fi")
        return Node("if", parts)

    def loop(self) -> Node:
        self.take()
        name, words = self.take(), ['"$@"']
        self.newlines()
        if name.startswith("(("):
            parts = name[2:-2].split(";")
            if len(parts) != 3:
                raise self.unexpected()
            return Node("count", (*parts, self.block("{", "}") if self.word() == "{" else self.block("do", "done")))
        if self.word() == "in":
            self.take()
            words = []
            while self.peek().kind == "word":
                words.append(self.take())
        self.newlines()
        return Node("for", (name, words, self.block("do", "done")))

    def repeat(self) -> Node:
        negated = self.take() == "until"
        asked = self.list(("do",))
        return Node("while", (Node("not", [asked]) if negated else asked, self.block("do", "done")))

    def case(self) -> Node:
        self.take()
        value, arms = self.take(), []
        self.newlines()
        self.expect("in")
        self.newlines()
        while self.word() != "esac":
            if self.peek().kind == "(":
                self.take()
            patterns = [self.take()]
            while self.peek().kind == "|":
                self.take()
                patterns.append(self.take())
            self.expect(")")
            body = self.list((";;", ";;&", ";&", "esac"))
            arms.append((patterns, body, self.peek().kind))
            if self.peek().kind in (";;", ";;&", ";&"):
                self.take()
            self.newlines()
            if self.peek().kind == "end":
                raise self.unexpected()
        self.expect("esac")
        return Node("case", (value, arms))

    def function(self) -> Node:
        if self.word() == "function":
            self.take()
        name = self.take()
        if self.peek().kind == "(":
            self.expect("(")
            self.expect(")")
        self.newlines()
        return Node("function", (name, self.command()))

    def simple(self) -> Node:
        words, document, target, inside, elsewhere = list[str](), None, None, False, False
        while True:
            token = self.peek()
            if token.kind in REDIRECTIONS and not inside:
                self.take()
                held = self.take()
                document = held if token.kind in ("<<", "<<-", "<<<") else document
                target = held if token.kind == ">" else target
                elsewhere |= token.kind in (">", ">>", ">|", "&>", "&>>", ">&")
            # Within [[ these compare and group; they neither redirect nor end the command.
            elif token.kind == "word" or (inside and token.kind in ("&&", "||", "(", ")", "<", ">", "|", "\n")):
                words.append(self.take())
                inside = (inside or words == ["[["]) and token.text != "]]"
            elif token.kind == "document":
                self.take()
            else:
                break
        if not words and document is None and self.peek().kind not in ("\n", ";", "end"):
            raise self.unexpected()
        return Command("command", (), tuple(words), document, target, elsewhere)


OPERATORS = (
    ";;&", "<<<", ";&", "&>>", "<<-", "&&", "||", ";;", "<<", ">>", ">&", "<&", ">|", "&>", "|&", "<>",
    ";", "&", "|", "(", ")", "<", ">", "\n",
)  # fmt: skip
"""Longest first."""
REDIRECTIONS = frozenset((">", ">>", "<", "<<", "<<-", "<<<", "&>", "&>>", ">&", "<&", ">|", "<>"))
_BEFORE_COMMANDS = ("if", "while", "until", "elif", "else", "for", "then", "do", "{", "!")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=$")
_SUBSCRIPT = re.compile(r"(?:[A-Za-z_]\w*)?\[[\w $+*%-]{1,100}\](?=\+?=)")
"""Of an assignment to one element: blanks in it end no word."""
_PAIRS = {"{": "}", "(": ")"}
_RAW = re.compile(r"'[^']*'|\$'(?:[^'\\]|\\.)*'", re.DOTALL)
"""Single quotes, in which nothing is expanded."""


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
            place = skip_bracketed(text, place + 1, where)
            out.append(Token("word", "/dev/null"))
            continue
        # A regular expression goes up to the next blank, with whatever brackets and bars it holds.
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
        # The 2 of 2>file names a descriptor and is no word: what goes there is not what the command prints or reads.
        if end < len(text) and text[end] in "<>" and word.isdigit():
            found = next(one for one in OPERATORS if text.startswith(one, end)) if int(word) > 1 else ""
            place = end + len(found)
            out += [Token("<>", found)] if found else []
            continue
        if out and out[-1].kind in ("<<", "<<-"):
            # The document begins on the line below, behind whatever else stands on this one.
            awaited.append((len(out), out[-1].kind == "<<-"))
        out.append(Token("word", word))
        place = end
    return out


def _opens_arithmetic(before: list[Token]) -> bool:
    return not before or before[-1].kind != "word" or before[-1].text in _BEFORE_COMMANDS


def _end_of_pattern(text: str, start: int, where: str) -> int:
    place = start
    while place < len(text) and not text[place].isspace():
        char = text[place]
        place = skip_quoted(text, place, where) if char in "'\"\\" or text.startswith("${", place) else place + 1
        if char == "(":
            place = skip_bracketed(text, place - 1, where)
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
        # <<- strips tabs alone: blanks stay (POSIX, Shell Command Language, 2.7.4).
        line = line.lstrip("\t") if strip else line
        if line == mark:
            break
        lines.append(line)
    body = "\n".join(lines)
    # A mark in quotes: nothing of the document is expanded (POSIX, 2.7.4), as in single quotes.
    raw = body.replace("'", "'\\''")
    quoted = body.replace('"', '\\"')
    return (f"'{raw}'" if end != mark else f'"{quoted}"'), place


def skip_word(text: str, start: int, where: str) -> int:
    """The place behind the word that begins at ``start``."""
    place = start
    if text.startswith("((", start):
        return skip_bracketed(text, start, where)
    if found := _SUBSCRIPT.match(text, start):
        place = found.end()
    while place < len(text):
        char = text[place]
        if char == "(" and _ARRAY.search(text[start:place]):
            place = skip_bracketed(text, place, where)
        elif char in "$`'\"\\":
            place = skip_quoted(text, place, where)
        elif (char == "#" and place == start) or char in " \t\r\n;&|<>()":
            break
        else:
            place += 1
    return place


def skip_quoted(text: str, start: int, where: str) -> int:
    """The place behind a quote, an escape or a substitution that begins at ``start``."""
    char, then = text[start], text[start + 1 : start + 2]
    if char == "\\":
        return start + 2
    if char == "$" and then != "'":
        return skip_bracketed(text, start + 1, where) if then in ("{", "(") else start + 1
    if char in "$'":
        char, raw = "'", _RAW.match(text, start)
        place = len(text) if raw is None else raw.end() - 1
    else:
        place = start + 1
        while place < len(text) and text[place] != char:
            inside = text[place] == "\\" or text.startswith(("${", "$("), place)
            place = skip_quoted(text, place, where) if inside else place + 1
    if place >= len(text):
        raise InputError(f"{where}: a quote ({char}) is not closed")
    return place + 1


def skip_bracketed(text: str, start: int, where: str) -> int:
    """The place behind the bracket that closes the one at ``start``."""
    opening = text[start]
    closing, place, level = _PAIRS[opening], start + 1, 1
    while place < len(text) and level:
        char = text[place]
        if char in "'\"`\\" or text.startswith(("${", "$("), place):
            place = skip_quoted(text, place, where)
            continue
        # A comment within $(...) may hold a bracket; in ((...)) and ${...} the sign is an operator.
        if char == "#" and opening == "(" and text[place - 1] in " \t\n(" and not text.startswith("((", start):
            place = _end_of(text, "\n", place)
            continue
        level += (char == opening) - (char == closing)
        place += 1
    if level:
        raise InputError(f"{where}: line {text.count(chr(10), 0, start) + 1}: '{opening}' is not closed")
    return place
