"""A Python launcher followed to the calls that it makes: defaults of its options, texts and conditions are told as
Python tells them, and of the calls of anything else the words are noted; nothing is executed.

What only running it would show (the network, the disk, other packages) is not known: a condition on it does not hold.
"""

import ast
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.files.reading import DOCUMENT_BYTES, read_text, shown_path
from rlsim.files.yaml import parse_value
from rlsim.readers.python.expressions import LOOSE, Expressions, Left, Raised, Returned
from rlsim.readers.python.values import Class, Function, Record, Scope, Unknown, known

MAX_MODULES = 20
"""Files of the repository that one launcher may lead to."""


@dataclass(frozen=True)
class Call:
    """A call that a script makes. name: the last of its dotted name; line: where."""

    name: str
    given: tuple[Any, ...]
    named: Mapping[str, Any]
    line: int


@dataclass
class Options:
    """Words of a launcher's command line: ``held`` of ``--name value``, the commands among them, and those read."""

    held: dict[str, Any]
    commands: list[str]
    read: set[str] = field(default_factory=set)


def calls_of(path: Path, options: Options, environment: Mapping[str, str], root: Path) -> tuple[list[Call], str]:
    """The calls of functions that a script does not define itself, in order, and where it stops, if it does.

    options: of its command line, by which the fields of its dataclasses are set. environment: variables set before it.
    root: the repository whose modules it may import. Raises InputError naming the file for what is no Python or leads
    too far.
    """
    run, stop = _Script(root.resolve(), path.parent, options, environment), ""
    try:
        run.module(path, "__main__")
        run.typer_commands()
    except RecursionError as error:
        raise InputError(f"{shown_path(path)}: is no launcher: its calls lie too deep") from error
    except Raised as error:
        stop = f"line {error.line} of it stops with {shortened(error.text)} for what is given"
    except InputError as error:
        where = f"{shown_path(path)}: "
        raise InputError(f"{where}{str(error).removeprefix(where)}") from error
    return run.calls, stop


def parsed(path: Path) -> ast.Module:
    """The syntax of a script or of the code of a notebook. Raises InputError where it is none."""
    text = read_text(path, DOCUMENT_BYTES)
    try:
        if path.suffix.lower() == ".ipynb":
            cells = [cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
            lines = [line for cell in cells for line in "".join(cell).splitlines()]
            text = "\n".join(re.sub(r"^(\s*)[%!].*", r"\1pass", line) for line in lines)  # of the notebook, not Python
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a text that is not ours
            return ast.parse(text)
    except (SyntaxError, ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise InputError(f"{shown_path(path)}: is no Python ({shortened(str(error), 80)})") from error


class _Script(Expressions):
    """One launcher and the modules of its repository that it leads to."""

    def __init__(self, root: Path, beside: Path, options: Options, environment: Mapping[str, str]) -> None:
        super().__init__(environment)
        self.root, self.places, self.options = root, (root, beside), options
        self.calls: list[Call] = []
        self.commands: dict[str, Function] = {}
        self.modules: dict[Path, Scope] = {}

    def module(self, path: Path, name: str) -> Scope:
        """The names of a module once it is followed."""
        # Entered before it is followed, since modules may import each other.
        scope = self.modules[path] = Scope({"__name__": name, "__file__": str(path)})
        if len(self.modules) > MAX_MODULES:
            raise InputError(f"leads to more than {MAX_MODULES} modules")
        try:
            self.body(parsed(path).body, scope)
        except Left as left:
            raise InputError(f"{shown_path(path)}: {LOOSE}") from left
        except Returned:  # what it raises where a condition that is not known may prevent it
            return scope
        return scope

    def imported(self, dotted: str) -> Any:
        """What an imported name stands for: of a module of the repository its value, else Unknown."""
        parts = dotted.split(".")
        for length in range(len(parts), 0, -1):
            for place in self.places:
                path = place.joinpath(*parts[:length]).with_suffix(".py")
                # Links out of the repository are not followed: a foreign script must not show what lies there.
                if not path.is_file() or not path.resolve().is_relative_to(self.root):
                    continue
                scope = self.modules.get(path) or self.module(path, ".".join(parts[:length]))
                return scope.find(parts[length]) if length < len(parts) else Unknown(dotted)
        return Unknown(dotted)

    def noted(self, name: str, given: list[Any], named: dict[str, Any], line: int) -> Any:
        """The outcome of a call of what is not defined here: typer's and tyro's entries are followed."""
        last = name.rpartition(".")[2]
        first = given[0] if given else None
        if last in ("run", "cli") and isinstance(first, Function):
            return self.entered(first)
        if isinstance(first, Class) and last in ("cli", "parse", "HfArgumentParser", "TrlParser"):
            return self.record(first, [], {})
        if last == "parse_args":
            return self.namespace()
        self.calls.append(Call(last, tuple(given), named, line))
        return Unknown(last)

    def namespace(self) -> Record:
        """What argparse gives of the arguments that were added before."""
        made = Record(Class(ast.ClassDef("Namespace", [], [], [], []), Scope({}), ()))
        for call in self.calls:
            named = [name for name in call.given if isinstance(name, str) and name.startswith("--")]
            if call.name == "add_argument" and named:
                name = str(call.named.get("dest", named[-1].removeprefix("--").replace("-", "_")))
                switch = False if call.named.get("action") == "store_true" else None
                made.held[name] = self.option(name, call.named.get("default", switch))
        return made

    def typer_commands(self) -> None:
        """Follow the commands of a script that registers some: those asked for, else one after the other until one
        calls what the script does not define."""
        asked = [name for name in self.commands if name.replace("_", "-") in self.options.commands]
        self.options.read.update(name.replace("_", "-") for name in asked)
        # Commands named after training first: others may convert or prepare, and call as much.
        for name in asked or sorted(self.commands, key=lambda one: "train" not in one):
            before = len(self.calls)
            self.entered(self.commands[name])
            if len(self.calls) > before and any("train" in call.name for call in self.calls[before:]):
                return

    def entered(self, entry: Function) -> Any:
        """The outcome of a function that a command line calls, its parameters set by the options."""
        args = entry.node.args
        given: dict[str, Any] = {}
        offset = len(args.args) - len(args.defaults)
        for at, argument in enumerate(args.args):
            kind = None if argument.annotation is None else self.value(argument.annotation, entry.scope)
            if isinstance(kind, Class):
                given[argument.arg] = self.record(kind, [], {})
            else:
                default = None if at < offset else self.value(args.defaults[at - offset], entry.scope)
                given[argument.arg] = self.option(argument.arg, default)
        return self.entered_function(entry, [], given)

    def option(self, name: str, default: Any) -> Any:
        """The value of an option of the command line, as ``default`` is one."""
        stated = self.environment.get(f"MILES_SCRIPT_{name.upper()}")  # miles/utils/typer_utils.py at 31f1ca961
        default = default if stated is None else stated if isinstance(default, str) else parse_value(stated, name)
        for word, value in ((name, True), (f"no_{name}", False)):
            if word in self.options.held:
                self.options.read.add(word)
                held = self.options.held[word]
                if not value or held is True:
                    return value
                return str(held) if isinstance(default, str) else held
        return default

    def record(self, of: Class, given: list[Any], named: dict[str, Any]) -> Record:
        """An object of a class of the script: a dataclass's fields as given, as options, or as they default to."""
        made = Record(of)
        initial = self.attribute_of_class(of, "__init__")
        fields = dict(self.fields(of))
        made.held.update({name: self.option(name, value) for name, value in fields.items()})
        if isinstance(initial, Function):
            self.entered_function(Function(initial.node, initial.scope, made), given, named)
            return made
        # What the script itself hands to the class counts before options and defaults.
        made.held.update(dict(zip(fields, given, strict=False)) | named)
        after = self.attribute_of_class(of, "__post_init__")
        if isinstance(after, Function):
            self.entered_function(Function(after.node, after.scope, made), [], {})
        return made

    def fields(self, of: Class) -> Iterator[tuple[str, Any]]:
        """Fields of a dataclass with their defaults, those of its bases first."""
        for base in of.bases:
            if isinstance(base, Class):
                yield from self.fields(base)
        for node in of.node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id, self.field(node.value, of.scope)

    def field(self, node: ast.expr | None, scope: Scope) -> Any:
        """The default of a field, also of ``field(default=...)`` and ``field(default_factory=...)``."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "field":
            held = {word.arg: word.value for word in node.keywords}
            if "default" in held:
                return self.value(held["default"], scope)
            factory = self.value(held["default_factory"], scope) if "default_factory" in held else None
            if isinstance(factory, Function):
                return self.entered_function(factory, [], {})
            made: dict[str, Any] = {"list": [], "dict": {}}
            return made.get(factory.name, factory) if isinstance(factory, Unknown) else factory
        return None if node is None else self.value(node, scope)

    def body(self, nodes: Sequence[ast.stmt], scope: Scope) -> None:
        """Follow statements."""
        for node in nodes:
            self.step(node)
            getattr(self, f"_{type(node).__name__.lower()}", self._passed)(node, scope)

    def _passed(self, node: ast.stmt, scope: Scope) -> None:
        """Nothing of the launch is said by statements of other kinds."""

    def _expr(self, node: ast.Expr, scope: Scope) -> None:
        self.value(node.value, scope)

    def _assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.value(node.value, scope)
        for target in node.targets:
            self.bind(target, value, scope)

    def _annassign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.bind(node.target, self.value(node.value, scope), scope)

    def _augassign(self, node: ast.AugAssign, scope: Scope) -> None:
        left = ast.BinOp(node.target, node.op, node.value)
        self.bind(node.target, self.value(ast.copy_location(left, node), scope), scope)

    def _if(self, node: ast.If, scope: Scope) -> None:
        condition = self.value(node.test, scope)
        scope.doubtful |= not known(condition)
        self.body(node.body if known(condition) and condition else node.orelse, scope)

    def _for(self, node: ast.For, scope: Scope) -> None:
        for value in self.items(self.value(node.iter, scope)):
            self.bind(node.target, value, scope)
            try:
                self.body(node.body, scope)
            except Left as left:
                if not left.again:
                    return
        self.body(node.orelse, scope)

    def _break(self, node: ast.Break, scope: Scope) -> None:
        raise Left(again=False)

    def _continue(self, node: ast.Continue, scope: Scope) -> None:
        raise Left(again=True)

    def _with(self, node: ast.With, scope: Scope) -> None:
        for item in node.items:
            self.value(item.context_expr, scope)
        self.body(node.body, scope)

    def _try(self, node: ast.Try, scope: Scope) -> None:
        try:
            try:
                self.body(node.body, scope)
            except Raised:
                self.body(node.handlers[0].body if node.handlers else [], scope)
            else:
                self.body(node.orelse, scope)
        finally:
            self.body(node.finalbody, scope)

    def _match(self, node: ast.Match, scope: Scope) -> None:
        subject = self.value(node.subject, scope)
        for case in node.cases:
            if self.fits(case.pattern, subject, scope):
                held = True if case.guard is None else self.value(case.guard, scope)
                if known(held) and held:
                    return self.body(case.body, scope)
        return None

    def _raise(self, node: ast.Raise, scope: Scope) -> None:
        if scope.doubtful:  # a condition that is not known may have been there to prevent it
            raise Returned(Unknown("what raises"))
        raise Raised(node.lineno, "an error" if node.exc is None else ast.unparse(node.exc))

    def _assert(self, node: ast.Assert, scope: Scope) -> None:
        held = self.value(node.test, scope)
        if known(held) and not held:
            raise Raised(node.lineno, f"assert {ast.unparse(node.test)}")

    def _return(self, node: ast.Return, scope: Scope) -> None:
        if scope.above is None:  # of a module: the grammar lets it through, Python refuses it
            raise InputError(LOOSE)
        raise Returned(None if node.value is None else self.value(node.value, scope))

    def _functiondef(self, node: ast.FunctionDef, scope: Scope) -> None:
        scope.names[node.name] = Function(node, scope)
        for one in node.decorator_list:
            call = one.func if isinstance(one, ast.Call) else one
            if isinstance(call, ast.Attribute) and call.attr == "command" and scope.find("__name__") == "__main__":
                self.commands[node.name] = scope.names[node.name]

    def _classdef(self, node: ast.ClassDef, scope: Scope) -> None:
        scope.names[node.name] = Class(node, scope, tuple(self.value(base, scope) for base in node.bases))

    def _import(self, node: ast.Import, scope: Scope) -> None:
        for one in node.names:
            first = one.name.partition(".")[0]
            scope.names[one.asname or first] = Unknown(one.name if one.asname else first)

    def _importfrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        for one in node.names:
            scope.names[one.asname or one.name] = Unknown(f"{node.module or ''}.{one.name}".lstrip("."))
