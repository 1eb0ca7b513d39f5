"""How the parts of a script follow each other: lists, pipes, conditions, loops, subshells, and what ends them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rlsim.errors import InputError
from rlsim.readers.shell.arithmetic import NotKnown
from rlsim.readers.shell.expansion import Variables
from rlsim.readers.shell.patterns import matcher
from rlsim.readers.shell.setting import assigned, reckoned
from rlsim.readers.shell.store import Elements
from rlsim.readers.shell.syntax import Command, Node

MAX_STEPS = 20_000
"""Commands that one script may lead through."""
MOST_ROUNDS = 100
"""Rounds of a loop that starts programs and that nothing which is known ends."""


class Exited(Exception):  # noqa: N818 - no error
    """The script ended itself."""


class Returned(Exception):  # noqa: N818 - no error
    """A function, or a script that is read, ended."""

    def __init__(self, status: str | None) -> None:
        self.status = status


class Left(Exception):  # noqa: N818 - no error
    """Rounds of so many loops ended; again: the outermost goes on with its next one."""

    def __init__(self, levels: int, again: bool) -> None:
        self.levels, self.again = levels, again


class Control(ABC):
    """A shell's place: variables, working directory, what is printed, and whether what is followed is a condition or a
    substitution (asking)."""

    def __init__(self, cwd: str, variables: Variables) -> None:
        self.v, self.cwd = variables, cwd
        self.commands: list[list[str]] = []
        self.functions: dict[str, Node] = {}
        self.printed: list[str | None] = []
        self.steps, self.depth, self.asking, self.asked, self.loops, self.inside = 0, 0, False, 0, 0, 0
        self.frames: list[dict[str, tuple[str | None, Elements | None, list[bool]]]] = []
        self.status: str | None = ""

    @abstractmethod
    def _command(self, node: Command) -> bool:
        """Follow a simple command; whether it succeeded."""

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """A subshell: what it sets, where it goes and that it ends stay its own."""
        cwd, loops, functions = self.cwd, self.loops, dict(self.functions)
        try:
            with self.v.kept(), suppress(Exited, Returned, Left):
                yield
        finally:
            self.cwd, self.loops, self.functions = cwd, loops, functions

    def node(self, node: Node) -> bool:
        """Whether it succeeded."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise InputError(f"{self.v.where}: leads through more than {MAX_STEPS:,} commands")
        return bool(getattr(self, "_apart_node" if node.kind == "apart" else f"_{node.kind}")(node))

    def _list(self, node: Node) -> bool:
        done = True
        for before, part in node.parts:
            if (before == "&&" and not done) or (before == "||" and done):
                continue
            if before == "||":
                self._answered()
            done = self.node(part)
        return done

    def _answered(self, start: int = 0) -> None:
        """A program that counts as absent printed nothing either."""
        self.printed[start:] = [part for part in self.printed[start:] if part is not None]

    def _pipe(self, node: Node) -> bool:
        done = True
        for index, part in enumerate(node.parts):
            kept = len(self.printed)
            done = False
            with self._apart():
                done = self.node(part)
            if index < len(node.parts) - 1:
                # What an earlier part of a pipe prints is read by the next one.
                del self.printed[kept:]
        return done

    def _not(self, node: Node) -> bool:
        done = not self._ask(node.parts[0])
        self.v.status = None if self.v.status is None else str(int(not done))
        return done

    def _apart_node(self, node: Node) -> bool:
        done = True
        with self._apart():
            done = self.node(node.parts[0])
        return done

    def _ask(self, node: Node) -> bool:
        before, self.asking, start = self.asking, True, len(self.printed)
        try:
            return self.node(node)
        finally:
            self.asking = before
            self._answered(start)

    def _if(self, node: Node) -> bool:
        for condition, body in node.parts:
            if condition is None or self._ask(condition):
                return self.node(body)
        self.v.status = "0"
        return True

    def _round(self, body: Node) -> bool:
        """Follow a loop's body; whether the loop goes on."""
        self.loops += 1
        try:
            self.node(body)
        except Left as left:
            self.v.status = "0"
            if left.levels > 1 and self.loops > 1:
                raise Left(left.levels - 1, left.again) from None
            return left.again
        finally:
            self.loops -= 1
        return True

    def _forget(self, part: object) -> None:
        for name in assigned(part):
            self.v.forget(name)

    def _for(self, node: Node) -> bool:
        name, words, body = node.parts
        self.v.lost.clear()
        values = [part for word in words for part in self.v.fields(word)]
        if self.v.lost:  # nobody knows how many rounds there are
            self._forget(node)
        self.v.status = "0"
        for value in values:
            self.v.assign(name, value)
            if not self._round(body):
                break
        return True

    def _count(self, node: Node) -> bool:
        first, condition, step, body = node.parts
        try:
            self.v.arithmetic(first)
            while not condition.strip() or self.v.arithmetic(condition):
                if not self._round(body):
                    break
                self.v.arithmetic(step)
                self.steps += 1
        except NotKnown:
            self._forget(node)
        return True

    def _while(self, node: Node) -> bool:
        condition, body = node.parts
        rounds, asked = 0, self.asked
        status: str | None = "0"
        while True:
            before, started = self._state(), (len(self.commands), self.asked)
            if not self._ask(condition):
                self.v.status = status
                break
            goes_on = self._round(body)
            status = self.v.status
            rounds += 1
            if not goes_on:
                return True
            # Nothing changed: it waits for what programs do.
            waits = self._state() == before
            if waits or (rounds >= MOST_ROUNDS and (len(self.commands), self.asked) != started):
                asked = -1
                break
        if self.asked != asked:
            self._forget(node)
        return True

    def _state(self) -> tuple[object, ...]:
        return dict(self.v.texts), dict(self.v.arrays), self.v.words, self.cwd

    def _case(self, node: Node) -> bool:
        value, through, done = self.v.text(node.parts[0], empty=True), False, True
        self.v.status = "0"
        for patterns, body, end in node.parts[1]:
            if through or any(self._fits(value, pattern) for pattern in patterns):
                done = self.node(body)
                if end not in (";&", ";;&"):
                    break
                through = end == ";&"
        return done

    def _fits(self, value: str, pattern: str) -> bool:
        try:
            return bool(matcher(self.v.pattern(pattern))(value))
        except NotKnown as error:
            raise InputError(f"{self.v.where}: case: the pattern {pattern} is none that rlsim follows") from error

    def _function(self, node: Node) -> bool:
        self.functions[node.parts[0]] = node.parts[1]
        self.v.status = "0"
        return True

    def _arithmetic(self, node: Node) -> bool:
        done = reckoned(self.v, node.parts[0])
        self.v.status = str(int(not done))
        return done

    @contextmanager
    def _frame(self) -> Iterator[None]:
        """Names that are kept within have their values again behind it."""
        self.frames.append({})
        try:
            yield
        finally:
            for name, (text, array, kinds) in self.frames.pop().items():
                self.v.texts.pop(name, None)
                self.v.arrays.pop(name, None)
                if text is not None:
                    self.v.texts[name] = text
                if array is not None:
                    self.v.arrays[name] = array
                for kind, has in zip(self._kinds(), kinds, strict=True):
                    (kind.add if has else kind.discard)(name)

    def _keep(self, name: str) -> None:
        kinds = [name in kind for kind in self._kinds()]
        self.frames[-1].setdefault(name, (self.v.texts.get(name), self.v.arrays.get(name), kinds))

    def _kinds(self) -> tuple[set[str], ...]:
        return self.v.unknown, self.v.associative, self.v.integers

    def _run_exit(self, words: list[str], node: Command) -> bool:
        """An exit with a status is a check of the machine that is not run here."""
        if words in ([], ["0"]) and (not self.asking or self.inside):
            raise Exited
        return True

    def _run_return(self, words: list[str], node: Command) -> bool:
        if self.depth:
            status = words[0] if words else self.v.status
            raise Returned(status if status and status.isdigit() else None)
        return True

    def _run_break(self, words: list[str], node: Command, again: bool = False) -> bool:
        if self.loops:
            raise Left(int(words[0]) if words and words[0].isdigit() else 1, again)
        return True

    def _run_continue(self, words: list[str], node: Command) -> bool:
        return self._run_break(words, node, again=True)
