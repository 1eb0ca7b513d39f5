"""The structure of a shell script: lists, pipes, conditions, loops, functions, and the words of commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.files.records import dataclass
from rlsim.readers.shell.lexer import REDIRECTIONS, Token

MAX_DEPTH = 60
"""Blocks within each other."""


@dataclass(frozen=True)
class Node:
    """A part of a script by its kind: list, pipe, not, if, for, while, case, group, function or arithmetic."""

    kind: str
    parts: Any


@dataclass(frozen=True)
class Command(Node):
    """A command: its words, unexpanded, and the here-document or here-string that it reads."""

    words: tuple[str, ...] = ()
    document: str | None = None


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
        self.given, self.where, self.place, self.depth = given, where, 0, 0

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

    def expect(self, text: str) -> None:
        if self.peek().text != text or self.peek().kind == "document":
            raise self.unexpected()
        self.place += 1

    def newlines(self) -> None:
        while self.peek().kind in ("\n", ";"):
            self.place += 1

    def list(self, ends: tuple[str, ...]) -> Node:
        """Commands up to a word or an operator of ``ends``."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InputError(f"{self.where}: more than {MAX_DEPTH} blocks within each other")
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
        self.depth -= 1
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
            compound = lambda: self.block("(", ")")  # noqa: E731 - one of several readers
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
        while self.peek().kind in REDIRECTIONS:
            self.place += 2
        return node

    def block(self, start: str, end: str) -> Node:
        self.expect(start)
        body = self.list((end,))
        self.expect(end)
        return Node("group", [body])

    def condition(self) -> Node:
        parts: list[tuple[Node | None, Node]] = []
        while self.word() in ("if", "elif"):
            self.place += 1
            asked = self.list(("then",))
            self.expect("then")
            parts.append((asked, self.list(("elif", "else", "fi"))))
        if self.word() == "else":
            self.place += 1
            parts.append((None, self.list(("fi",))))
        self.expect("fi")
        return Node("if", parts)

    def loop(self) -> Node:
        self.place += 1
        name, words = self.word(), []
        self.place += 1
        self.newlines()
        # A counting loop says nothing of its words: its body is left out.
        if self.word() == "in":
            self.place += 1
            while self.peek().kind == "word":
                words.append(self.peek().text)
                self.place += 1
        self.newlines()
        self.expect("do")
        body = self.list(("done",))
        self.expect("done")
        return Node("for", (name, words, body))

    def repeat(self) -> Node:
        negated = self.word() == "until"
        self.place += 1
        asked = self.list(("do",))
        self.expect("do")
        body = self.list(("done",))
        self.expect("done")
        return Node("while", (Node("not", [asked]) if negated else asked, body))

    def case(self) -> Node:
        self.place += 1
        value, arms = self.word(), []
        self.place += 1
        self.newlines()
        self.expect("in")
        self.newlines()
        while self.word() != "esac":
            if self.peek().kind == "(":
                self.place += 1
            patterns = [self.word()]
            self.place += 1
            while self.peek().kind == "|":
                patterns.append(self.given[self.place + 1].text)
                self.place += 2
            self.expect(")")
            arms.append((patterns, self.list((";;", ";;&", "esac"))))
            if self.peek().kind in (";;", ";;&"):
                self.place += 1
            self.newlines()
            if self.peek().kind == "end":
                raise self.unexpected()
        self.expect("esac")
        return Node("case", (value, arms))

    def function(self) -> Node:
        if self.word() == "function":
            self.place += 1
        name = self.word()
        self.place += 1
        if self.peek().kind == "(":
            self.expect("(")
            self.expect(")")
        self.newlines()
        return Node("function", (name, self.command()))

    def simple(self) -> Node:
        words: list[str] = []
        document: str | None = None
        inside = False
        while True:
            token = self.peek()
            if token.kind in REDIRECTIONS and not inside:
                self.place += 1
                held = self.peek()
                if token.kind in ("<<", "<<-", "<<<"):
                    document = held.text
                self.place += 1
            elif token.kind == "word" or (inside and token.kind in ("&&", "||", "(", ")", "<", ">", "|", "\n")):
                words.append(token.text)
                inside = (inside or words == ["[["]) and token.text != "]]"
                self.place += 1
            elif token.kind == "document":
                self.place += 1
            else:
                break
        if not words and document is None and self.peek().kind not in ("\n", ";", "end"):
            raise self.unexpected()
        return Command("command", (), tuple(words), document)
