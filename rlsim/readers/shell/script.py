"""A launch script followed to the words of the programs it starts; the programs themselves are not run.

Assignments, arrays, conditions, loops over words, functions, ``case``, ``source`` and here-documents are followed as
bash does. Where a condition or ``$(...)`` asks for a program, it counts as absent, elsewhere as done; a word that it
would print stays as ``$(...)``, and a variable as if unset.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from rlsim.errors import InputError
from rlsim.files.reading import DOCUMENT_BYTES, read_text, shown_path
from rlsim.readers.shell.expansion import Variables
from rlsim.readers.shell.syntax import Command, Node, parse, tokens

WRITTEN = "cat >"
"""Begins what a script writes to a file, among its commands."""
MAX_STEPS = 20_000
"""Commands that one script may lead through."""
MOST_PATH = 1000
"""Characters of a path that is looked for."""
MAX_DEPTH = 30
"""Functions, scripts and substitutions within each other in which further scripts are followed."""
_QUANTIFIED_GROUP, _LOOPS = re.compile(r"\)\s*[*+{?]"), re.compile(r"[*+{]")
_ASSIGNMENT = re.compile(r"^([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=(.*)$", re.DOTALL)
_OPEN = r"\$(\w+|\(.*\))"
"""A variable that is not set, or what a program would print."""
_DECLARING = ("export", "declare", "local", "readonly", "typeset")
_NUMBERS = {"-eq": "__eq__", "-ne": "__ne__", "-lt": "__lt__", "-le": "__le__", "-gt": "__gt__", "-ge": "__ge__"}


def _joined(cwd: str, name: str) -> str:
    return posixpath.normpath(posixpath.join(cwd, name))


def _basename(words: list[str], cwd: str) -> str:
    plain = [word for word in words if word != "--"]
    name = posixpath.basename(plain[0].rstrip("/")) if plain else ""
    return name.removesuffix(plain[1] if len(plain) > 1 else "") + "\n"


def _sequence(words: list[str], cwd: str) -> str:
    """``seq [FIRST [STEP]] LAST``; nothing of what is no whole number."""
    numbers = [int(word) for word in words if re.fullmatch(r"-?\d{1,9}", word)]
    if len(numbers) != len(words) or not 1 <= len(numbers) <= 3 or (len(numbers) == 3 and not numbers[1]):
        return ""
    first, step, last = ((1, 1, *numbers), (numbers[0], 1, numbers[-1]), tuple(numbers))[len(numbers) - 1]
    return "".join(f"{number}\n" for number in islice(range(first, last + (1 if step > 0 else -1), step), MAX_STEPS))


_PRINTED: Mapping[str, Callable[[list[str], str], str]] = {
    "echo": lambda words, cwd: " ".join(word for word in words if word not in ("-n", "-e")) + "\n",
    "printf": lambda words, cwd: " ".join(words[1:] if "%" in "".join(words[:1]) else words),
    "seq": _sequence,
    "pwd": lambda words, cwd: f"{cwd}\n",
    "realpath": lambda words, cwd: f"{_joined(cwd, words[-1])}\n" if words else "",
    "dirname": lambda words, cwd: f"{posixpath.dirname(words[-1])}\n" if words else "",
    "basename": _basename,
}
"""What builtins and small programs print of their words, in a working directory."""


_READ_BY = dict.fromkeys(("swift", "megatron"), ("NPROC_PER_NODE", "NNODES", "CUDA_VISIBLE_DEVICES"))
"""Variables that programs read in place of options; they stand before the words of these."""


class _Exit(Exception):  # noqa: N818 - no error
    """The script ended itself."""


def commands_of(
    path: Path, words: Sequence[str] = (), given: Mapping[str, str] | None = None, root: Path | None = None
) -> list[list[str]]:
    """The words of every program that a script starts, in order, ``source NAME`` of what it reads and is not there, and
    ``WRITTEN NAME TEXT`` of a here-document that it writes to a file.

    words: parameters of the script. given: variables set before it. root: folder that scripts it reads must lie in.
    Raises InputError naming the file for what is no script or leads too far.
    """
    variables = Variables(shown_path(path), lambda text: "", {**(given or {})}, words=list(words),
                          given=frozenset(given or ()))  # fmt: skip
    run = _Run((root or path.parent).resolve(), variables)
    try:
        with suppress(_Exit):
            run.script(path)
    except RecursionError as error:
        raise InputError(f"{shown_path(path)}: is no launch script: its commands lie too deep") from error
    return run.commands


class _Run:
    """A shell and all that its script leads to: conditions and substitutions ask, the rest tells."""

    def __init__(self, root: Path, variables: Variables) -> None:
        self.root, self.v, self.cwd = root, variables, str(root)
        self.commands: list[list[str]] = []
        self.functions: dict[str, Node] = {}
        self.printed: list[str] = []
        self.steps, self.depth, self.asking, self.asked = 0, 0, False, 0
        variables.run = self.output

    def script(self, path: Path) -> bool:
        """Follow the commands of a file."""
        text = read_text(path, DOCUMENT_BYTES)
        name, self.v.where = self.v.where, shown_path(path)
        sources = self.v.arrays.get("BASH_SOURCE", [])
        self.v.arrays["BASH_SOURCE"] = [str(path.absolute())]
        self.v.texts["0"] = str(path.absolute())
        done = self.text(text)
        self.v.where, self.v.arrays["BASH_SOURCE"] = name, sources
        return done

    def text(self, text: str) -> bool:
        """Follow the commands of a text."""
        return self.node(parse(tokens(text, self.v.where), self.v.where))

    def output(self, text: str) -> str | None:
        """What ``$(...)`` prints; None where that is for a program to say."""
        before, asked = (self.asking, self.depth, self.printed, self.cwd, dict(self.v.texts)), self.asked
        self.asking, self.depth, self.printed = True, self.depth + 1, []
        try:
            with suppress(_Exit):
                self.text(text)
            printed = "".join(self.printed).rstrip("\n")
            # Nothing came because a program was asked, and none is run.
            return None if not printed and self.asked > asked else printed
        finally:
            self.asking, self.depth, self.printed, self.cwd, self.v.texts = before

    def node(self, node: Node) -> bool:
        """Whether it succeeded."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise InputError(f"{self.v.where}: leads through more than {MAX_STEPS:,} commands")
        return bool(getattr(self, f"_{node.kind}")(node))

    def _list(self, node: Node) -> bool:
        done = True
        for before, part in node.parts:
            if (before == "&&" and not done) or (before == "||" and done):
                continue
            done = self.node(part)
        return done

    def _pipe(self, node: Node) -> bool:
        done = True
        for index, part in enumerate(node.parts):
            kept = len(self.printed)
            done = self.node(part)
            if index < len(node.parts) - 1:
                # What an earlier part of a pipe prints is read by the next one.
                del self.printed[kept:]
        return done

    def _not(self, node: Node) -> bool:
        return not self._ask(node.parts[0])

    def _ask(self, node: Node) -> bool:
        before, self.asking = self.asking, True
        try:
            return self.node(node)
        finally:
            self.asking = before

    def _if(self, node: Node) -> bool:
        for condition, body in node.parts:
            if condition is None or self._ask(condition):
                return self.node(body)
        return True

    def _for(self, node: Node) -> bool:
        name, words, body = node.parts
        for value in [part for word in words for part in self.v.fields(word)]:
            self.v.assign(name, value)
            self.node(body)
        return True

    def _while(self, node: Node) -> bool:
        """Conditions of a loop are asked once: what its rounds would change, programs say."""
        condition, body = node.parts
        if self._ask(condition):
            self.node(body)
        return True

    def _case(self, node: Node) -> bool:
        value = self.v.text(node.parts[0], empty=True)
        for patterns, body in node.parts[1]:
            if any(fnmatchcase(value, self.v.text(pattern, empty=True)) for pattern in patterns):
                return self.node(body)
        return True

    def _function(self, node: Node) -> bool:
        self.functions[node.parts[0]] = node.parts[1]
        return True

    def _arithmetic(self, node: Node) -> bool:
        text = node.parts[0]
        found = re.match(r"\s*([A-Za-z_]\w*)\s*([-+*/]?)=(?!=)(.*)$", text, re.DOTALL)
        if found:
            held = f"{found[1]} {found[2]} ({found[3]})" if found[2] else found[3]
            self.v.assign(found[1], str(self.v.arithmetic(held)))
            return True
        return self.v.arithmetic(text) != 0

    def _command(self, node: Command) -> bool:
        words = list(node.words)
        while words and self._assign(words[0]):
            words.pop(0)
        argv = [field for word in words for field in ([word] if word[:2] == "[[" else self.v.fields(word))]
        if not argv:
            return True
        name, rest = argv[0], argv[1:]
        if name in _DECLARING:
            for word in words[1:]:
                if not word.startswith("-"):
                    self._assign(word)
            return True
        if name in ("[", "[[", "test"):
            return self._test([self.v.text(word, empty=True) for word in words[1 : None if name == "test" else -1]])
        if name in self.functions:
            with self._within(rest):
                return self.node(self.functions[name])
        if name in ("true", "false"):
            return name == "true"
        if name in _PRINTED:
            self.printed.append(_PRINTED[name](rest, self.cwd))
            return True
        method = getattr(self, f"_run_{name}", None) if name.isalpha() else None
        return method(rest, node) if method else self._program(argv)

    def _assign(self, word: str) -> bool:
        found = _ASSIGNMENT.match(word)
        if found is None:
            return False
        name, index, more, value = found.groups()
        if value.startswith("(") and value.endswith(")"):
            held = self.v.arrays.get(name, []) if more else []
            elements = [one for one in self.v.elements(value[1:-1]) if not one.startswith("$(")]
            self.v.arrays[name] = [*held, *elements]
            for element in elements:
                pair = re.match(r"\[([^\]]+)\]=(.*)$", element, re.DOTALL)
                if pair:
                    self.v.texts[f"{name}[{pair[1]}]"] = pair[2]
            return True
        text = self.v.text(value)
        if re.fullmatch(r"[\"']?(\$\(.*\)|`.*`)[\"']?", value, re.DOTALL) and text.startswith("$("):
            self.v.forget(name)
            return True
        if index is not None:
            self.v.texts[f"{name}[{self.v.text(index)}]"] = text
            return True
        if name in self.v.arrays:
            del self.v.arrays[name]
        self.v.assign(name, (self.v.texts.get(name, "") + text) if more else text)
        return True

    @contextmanager
    def _within(self, words: list[str] | None = None) -> Iterator[None]:
        """One level deeper, with parameters of its own where ``words`` are given."""
        before, self.depth = self.v.words, self.depth + 1
        self.v.words = before if words is None else words
        try:
            yield
        finally:
            # Without parameters of its own it shares the script's: what set and shift change there stays.
            self.v.words, self.depth = self.v.words if words is None else before, self.depth - 1

    def _program(self, argv: list[str]) -> bool:
        """A program: taken down, not run; ``bash FILE`` and ``bash -c TEXT`` are followed."""
        self.asked += self.asking
        if not self.asking:
            read = [f"{name}={self.v.texts[name]}" for name in _READ_BY.get(argv[0], ()) if self.v.texts.get(name)]
            self.commands.append([*read, *argv])
        shells = [at for at, word in enumerate(argv) if posixpath.basename(word) in ("bash", "sh")]
        for at in shells[:1]:
            rest = argv[at + 1 :]
            flags = [word for word in rest if re.fullmatch(r"-[a-z]*", word)]
            words = [word for word in rest if word not in flags]
            if not words or self.depth > MAX_DEPTH or self.asking:
                continue
            if any("c" in flag for flag in flags):
                with self._within():
                    self.text(words[0])
            elif words[0].endswith(".sh"):
                self._follow(words[0], words[1:])
        return not self.asking

    def _follow(self, name: str, words: list[str] | None) -> bool:
        """Read another script of the folder. words: its parameters; none: those of this one."""
        path = next((one for one in self._places(name) if one.is_file()), None)
        if path is None or not path.resolve().is_relative_to(self.root) or self.depth > MAX_DEPTH:
            return not self.asking
        with self._within(self.v.words if words is None else words), suppress(_Exit):
            return self.script(path)
        return True

    def _places(self, name: str) -> list[Path]:
        beside = Path(self.v.arrays.get("BASH_SOURCE", [""])[0]).parent
        return [Path(self.cwd) / name, beside / name, self.root / name] if len(name) < MOST_PATH else []

    def _run_expr(self, words: list[str], node: Node) -> bool:
        self.printed.append(str(self.v.arithmetic(" ".join(words))))
        return True

    def _run_source(self, words: list[str], node: Command) -> bool:
        if words and not any(place.is_file() for place in self._places(words[0])) and not self.asking:
            self.commands.append(["source", words[0]])
        return self._follow(words[0], words[1:] or None) if words else True

    def _run_cat(self, words: list[str], node: Command) -> bool:
        if node.target is None or node.document is None:
            self.printed.append(self._document(node))
        elif not self.asking:
            self.commands.append([WRITTEN, self.v.text(node.target), self._document(node)])
        return True

    def _run_read(self, words: list[str], node: Command) -> bool:
        if words and node.document is not None:
            text = self._document(node)
            if any(re.fullmatch(r"-\w*a", word) for word in words[:-1]):  # read -ra NAME
                # Of a list that a program would print nobody knows even how long it is.
                self.v.arrays[words[-1]] = [] if re.fullmatch(_OPEN, text.strip(), re.DOTALL) else text.split()
            else:
                self.v.assign(words[-1], text)
        return True

    def _document(self, node: Command) -> str:
        return "" if node.document is None else self.v.text(node.document)

    def _run_cd(self, words: list[str], node: Command) -> bool:
        target = next((word for word in words if not word.startswith("-")), "")
        self.cwd = _joined(self.cwd, target)
        return True

    def _run_set(self, words: list[str], node: Command) -> bool:
        if "--" in words:
            self.v.words = words[words.index("--") + 1 :]
        return True

    def _run_shift(self, words: list[str], node: Command) -> bool:
        self.v.words = self.v.words[int(words[0]) if words and words[0].isdigit() else 1 :]
        return True

    def _run_eval(self, words: list[str], node: Command) -> bool:
        with self._within():
            return self.text(" ".join(words))

    def _run_exit(self, words: list[str], node: Command) -> bool:
        """An exit with a status is a check of the machine that is not run here."""
        if words in ([], ["0"]) and not self.asking and self.depth == 0:
            raise _Exit
        return True

    def _test(self, words: Sequence[str]) -> bool:
        # Split first at what binds least: or before and.
        for joint, every in (("||", any), ("-o", any), ("&&", all), ("-a", all)):
            if joint in words:
                at = list(words).index(joint)
                return bool(every([self._test(words[:at]), self._test(words[at + 1 :])]))
        match list(words):
            case ["!", *rest]:
                return not self._test(rest)
            case ["(", *rest, ")"]:
                return self._test(rest)
            case [how, operand]:
                return self._tested(how, operand)
            case [text]:
                return bool(text)
            case [left, how, right]:
                return self._compared(left, how, right)
        return False

    def _tested(self, how: str, operand: str) -> bool:
        if how == "-v":
            return self.v.value(operand) is not None
        if how in ("-f", "-e", "-d", "-r", "-s"):
            return "\0" not in operand and any(one.exists() for one in self._places(operand)[:1])
        return (how == "-z") != bool(operand) if how in ("-z", "-n") else False

    def _compared(self, left: str, how: str, right: str) -> bool:
        if how in _NUMBERS:
            return bool(getattr(self.v.arithmetic(left), _NUMBERS[how])(self.v.arithmetic(right)))
        if how == "=~":
            if len(left) > 200 or len(right) > 100 or _QUANTIFIED_GROUP.search(right) or len(_LOOPS.findall(right)) > 2:
                return False  # a script must not choose how long matching takes: what is no plain pattern is no match
            with suppress(re.error):
                return re.search(right, left) is not None
            return False
        alike = fnmatchcase(left, right) or left == right
        return alike if how in ("=", "==") else not alike if how == "!=" else False
