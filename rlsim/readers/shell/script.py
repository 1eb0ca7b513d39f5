"""A launch script followed to the words of the programs it starts; the programs themselves are not run.

Assignments, arrays, arithmetic, conditions, loops, functions, ``case``, ``source``, subshells and here-documents are
followed as bash does. Where a condition or ``$(...)`` asks for a program, it counts as absent, elsewhere as done; what
it would print, or what is not followed, stays as ``$(...)`` in a word, and a variable that holds it as if unset. A loop
that waits for a program is left after one round, and what it counts is not known.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from rlsim.errors import InputError
from rlsim.files.reading import DOCUMENT_BYTES, read_text, shown_path
from rlsim.readers.shell.arithmetic import NotKnown
from rlsim.readers.shell.conditions import holds
from rlsim.readers.shell.control import Control, Exited, Returned
from rlsim.readers.shell.expansion import Variables
from rlsim.readers.shell.printed import PRINTED, joined
from rlsim.readers.shell.setting import (
    ASSIGNMENT,
    DECLARING,
    SETTING,
    assign,
    declare,
    print_to,
)
from rlsim.readers.shell.syntax import Command, parse, tokens

WRITTEN = "cat >"
"""Begins what a script writes to a file, among its commands."""
LOST = "lost"
"""Begins, in front of a command, the names of lists in it that programs print, whose words it lacks."""
MOST_PATH = 1000
"""Characters of a path that is looked for."""
MAX_DEPTH = 30
"""Functions, scripts and substitutions within each other in which further scripts are followed."""
_READ_BY = dict.fromkeys(("swift", "megatron"), ("NPROC_PER_NODE", "NNODES", "CUDA_VISIBLE_DEVICES"))
"""Variables that programs read in place of options; they stand before the words of these."""


def commands_of(
    path: Path, words: Sequence[str] = (), given: Mapping[str, str] | None = None, root: Path | None = None
) -> list[list[str]]:
    """The words of every program that a script starts, in order, ``source NAME`` of what it reads and is not there,
    ``WRITTEN NAME TEXT`` of a here-document that it writes to a file, and ``LOST NAME..`` before a command that lacks
    the words of a list.

    words: parameters of the script. given: variables set before it. root: folder that scripts it reads must lie in.
    Raises InputError naming the file for what is no script or leads too far.
    """
    variables = Variables(shown_path(path), lambda text: "", {**(given or {})}, words=list(words),
                          given=frozenset(given or ()))  # fmt: skip
    run = _Run((root or path.parent).resolve(), variables)
    try:
        with suppress(Exited, Returned):
            run.script(path)
    except RecursionError as error:
        raise InputError(f"{shown_path(path)}: is no launch script: its commands lie too deep") from error
    return run.commands


class _Run(Control):
    """A shell and all that its script leads to: conditions and substitutions ask, the rest tells."""

    def __init__(self, root: Path, variables: Variables) -> None:
        super().__init__(str(root), variables)
        self.root = root
        variables.run = self.output

    def script(self, path: Path) -> bool:
        """Follow the commands of a file."""
        text = read_text(path, DOCUMENT_BYTES)
        name, self.v.where = self.v.where, shown_path(path)
        sources = self.v.arrays.get("BASH_SOURCE", {})
        self.v.arrays["BASH_SOURCE"] = {0: str(path.absolute())}
        self.v.texts["0"] = str(path.absolute())
        try:
            return self.text(text)
        finally:
            self.v.where, self.v.arrays["BASH_SOURCE"] = name, sources

    def text(self, text: str) -> bool:
        """Follow the commands of a text."""
        return self.node(parse(tokens(text, self.v.where), self.v.where))

    def output(self, text: str) -> str | None:
        """What ``$(...)`` prints; None where that is for a program to say."""
        before, asked = (self.asking, self.depth, self.printed), self.asked
        self.asking, self.depth, self.printed = True, self.depth + 1, []
        self.inside += 1
        try:
            with self._apart():
                self.text(text)
            printed = "".join(part or "" for part in self.printed).rstrip("\n")
            # A program was asked for a part of it or for all, and none is run.
            return None if None in self.printed or (not printed and self.asked > asked) else printed
        finally:
            self.inside -= 1
            self.asking, self.depth, self.printed = before

    def _command(self, node: Command) -> bool:
        self.status = ""
        done = self._commanded(node)
        self.v.status = str(int(not done)) if self.status == "" else self.status
        return done

    def _commanded(self, node: Command) -> bool:
        count = next((at for at, word in enumerate(node.words) if not ASSIGNMENT.match(word)), len(node.words))
        leading, words = node.words[:count], list(node.words[count:])
        if not words:
            self.status, self.v.status, before = None, "0", self.v.status
            for word in leading:
                self.v.status = before if "$?" in word else self.v.status
                assign(self.v, word)
            self.status = "0" if any("$?" in word for word in leading) else self.v.status
            return self.status in ("0", None)
        if words[0] in ("[", "[[", "test"):
            inner = words[1 : None if words[0] == "test" else -1]
            return holds(inner, words[0] == "[[", self.v, self._is_there)
        if words[0] in DECLARING:
            declare(self.v, words, self._keep if self.frames else None)
            return True
        self.v.lost.clear()
        argv = [field for word in words for field in self.v.fields(word)]
        if not argv:
            return True
        lost = sorted(self.v.lost)
        self.status = ""
        # Set before a command, a variable is the command's alone.
        with self._frame() if leading else nullcontext():
            for word in leading:
                self._keep(ASSIGNMENT.match(word)[1])  # type: ignore[index]
                assign(self.v, word)
            return self._called(argv, node, lost)

    def _called(self, argv: list[str], node: Command, lost: list[str]) -> bool:
        name, rest = argv[0], argv[1:]
        if name in self.functions:
            return self._call(name, rest)
        if name in ("true", "false", ":"):
            return name != "false"
        if name == "printf" and rest[:1] == ["-v"]:
            print_to(self.v, rest[1:])
            return True
        if name in PRINTED:
            self._print(PRINTED[name](rest, self.cwd), node)
            return True
        if name in SETTING:
            return SETTING[name](self.v, rest, None if node.document is None else self._document(node))
        name = "source" if name == "." else name
        method = getattr(self, f"_run_{name}", None) if name.isalpha() else None
        return method(rest, node) if method else self._program(argv, node, lost)

    def _print(self, text: str | None, node: Command) -> None:
        if not node.elsewhere:
            self.asked += text is None
            self.printed.append(text)

    def _call(self, name: str, words: list[str]) -> bool:
        loops, self.loops = self.loops, 0
        try:
            with self._within(words), self._frame():
                done = self.node(self.functions[name])
        except Returned as returned:
            self.v.status = returned.status
            done = not self.asking if returned.status is None else returned.status == "0"
        finally:
            self.loops = loops
        self.status = self.v.status
        return done

    def _is_there(self, name: str) -> bool:
        return "\0" not in name and any(one.exists() for one in self._places(name)[:1])

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

    def _program(self, argv: list[str], node: Command, lost: list[str]) -> bool:
        """A program: taken down, not run; ``bash FILE`` and ``bash -c TEXT`` are followed."""
        self.status = None
        if self.asking:
            self.asked += 1
            self.printed += [] if node.elsewhere else [None]
        # Within a substitution, what prints elsewhere is started for what it does: id=$(start_server ...).
        if not self.asking or (self.inside and node.elsewhere):
            self.commands += [[LOST, *lost]] if lost else []
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
                with self._within(), self._apart():
                    self.text(words[0])
            elif words[0].endswith(".sh"):
                with self._apart():
                    self._follow(words[0], words[1:])
        return not self.asking

    def _follow(self, name: str, words: list[str] | None) -> bool:
        """Read another script of the folder. words: its parameters; none: those of this one."""
        path = next((one for one in self._places(name) if one.is_file()), None)
        if path is None or not path.resolve().is_relative_to(self.root) or self.depth > MAX_DEPTH:
            return not self.asking
        try:
            # Without parameters of its own it shares the script's: what set and shift change there stays.
            with self._within(words):
                return self.script(path)
        except Returned as returned:
            self.status = returned.status
            return returned.status in ("0", None)

    def _places(self, name: str) -> list[Path]:
        beside = Path(self.v.arrays.get("BASH_SOURCE", {}).get(0, "")).parent
        return [Path(self.cwd) / name, beside / name, self.root / name] if len(name) < MOST_PATH else []

    def _run_expr(self, words: list[str], node: Command) -> bool:
        try:
            self._print(f"{self.v.arithmetic(' '.join(words))}\n", node)
        except NotKnown:
            self._print(None, node)
        return True

    def _run_source(self, words: list[str], node: Command) -> bool:
        if words and not any(place.is_file() for place in self._places(words[0])) and not self.asking:
            self.commands.append(["source", words[0]])
        return self._follow(words[0], words[1:] or None) if words else True

    def _run_cat(self, words: list[str], node: Command) -> bool:
        if node.document is None or set(words) - {"-"}:
            return self._program(["cat", *words], node, [])
        if node.target is None:
            self._print(self._document(node), node)
        elif not self.asking:
            self.commands.append([WRITTEN, self.v.text(node.target), self._document(node)])
        return True

    def _document(self, node: Command) -> str:
        return "" if node.document is None else self.v.text(node.document)

    def _run_cd(self, words: list[str], node: Command) -> bool:
        target = next((word for word in words if not word.startswith("-")), "")
        self.cwd = joined(self.cwd, target)
        return True

    def _run_set(self, words: list[str], node: Command) -> bool:
        if "--" in words:
            self.v.words = words[words.index("--") + 1 :]
        return True

    def _run_eval(self, words: list[str], node: Command) -> bool:
        with self._within():
            return self.text(" ".join(words))
