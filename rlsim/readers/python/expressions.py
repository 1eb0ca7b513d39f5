"""Expressions of a script and the functions that it defines, told without executing anything."""

import ast
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlsim.errors import InputError
from rlsim.readers.python.values import (
    BUILTINS,
    UNFIT,
    Class,
    Function,
    Record,
    Scope,
    Unknown,
    binary,
    bounded,
    builtin,
    compared,
    known,
    method,
    plain,
)

MAX_STEPS = 200_000
"""Expressions and statements that one launcher may lead through. Launchers have below 5,000."""
MAX_DEPTH = 40
"""Calls of a script's functions within each other."""
MOST_BUILT = 20_000_000
"""Characters and entries of all that a script builds."""
_SPECIFICATION = 6
"""Characters of a format specification; longer ones could hold a width of any length."""
LOOSE = "is no Python (a break, continue or return that leaves nothing)"
"""What the grammar lets through and Python refuses."""


class Raised(Exception):  # noqa: N818 - what the script raises
    """The script stops there."""

    def __init__(self, line: int, text: str) -> None:
        self.line, self.text = line, text


class Returned(Exception):  # noqa: N818 - no error
    """A function of the script returns."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Left(Exception):  # noqa: N818 - no error
    """A round of a loop ends. again: the next one begins."""

    def __init__(self, again: bool) -> None:
        self.again = again


class Expressions(ABC):
    """Values of expressions within scopes. What statements mean, and what calls of others do, is said below."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment, self.steps, self.depth, self.built = dict(environment), 0, 0, 0

    @abstractmethod
    def imported(self, dotted: str) -> Any:
        """What an imported name stands for."""

    @abstractmethod
    def noted(self, name: str, given: list[Any], named: dict[str, Any], line: int) -> Any:
        """The outcome of a call of what the script does not define."""

    @abstractmethod
    def record(self, of: Class, given: list[Any], named: dict[str, Any]) -> Record:
        """An object of a class of the script."""

    @abstractmethod
    def body(self, nodes: Sequence[ast.stmt], scope: Scope) -> None:
        """Follow statements."""

    def step(self, node: ast.AST) -> None:
        """Count one more step. Raises InputError beyond MAX_STEPS."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise InputError(f"leads through more than {MAX_STEPS:,} steps")

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """The value of an expression; Unknown where it cannot be told."""
        self.step(node)
        reading = getattr(self, f"_{type(node).__name__.lower()}", None)
        if reading is None:
            return Unknown(type(node).__name__)
        try:
            found = reading(node, scope)
        except UNFIT:
            return Unknown(ast.unparse(node)[:80])
        if isinstance(found, str | list | dict):
            self.built += len(found)
            if self.built > MOST_BUILT:
                raise InputError(f"builds more than {MOST_BUILT:,} characters")
        return found

    def items(self, value: Any) -> Iterable[Any]:
        """What a loop goes through; nothing where it is not known."""
        return value if isinstance(value, list | tuple | set | dict | range | str) else ()

    def bind(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Assign a value to a target."""
        if isinstance(target, ast.Name):
            scope.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            values = [*value] if isinstance(value, list | tuple) and len(value) == len(target.elts) else None
            for at, part in enumerate(target.elts):
                self.bind(part, Unknown("part") if values is None else values[at], scope)
        elif isinstance(target, ast.Attribute):
            holder = self.value(target.value, scope)
            if isinstance(holder, Record):
                holder.held[target.attr] = value
        elif isinstance(target, ast.Subscript):
            holder, key = self.value(target.value, scope), self.value(target.slice, scope)
            if (isinstance(holder, dict) and plain(key)) or (
                isinstance(holder, list) and isinstance(key, int) and -len(holder) <= key < len(holder)
            ):
                holder[key] = value

    def fits(self, pattern: ast.pattern, subject: Any, scope: Scope) -> bool:
        """Whether a pattern of ``match`` takes a subject, whose parts get the names in it."""
        if isinstance(pattern, ast.MatchOr):
            return any(self.fits(one, subject, scope) for one in pattern.patterns)
        if isinstance(pattern, ast.MatchValue):
            return compared(ast.Eq, self.value(pattern.value, scope), subject) is True
        if isinstance(pattern, ast.MatchSequence):
            parts = [*subject] if isinstance(subject, tuple | list) else []
            return len(parts) == len(pattern.patterns) and all(
                self.fits(one, part, scope) for one, part in zip(pattern.patterns, parts, strict=True)
            )
        if isinstance(pattern, ast.MatchAs):
            taken = pattern.pattern is None or self.fits(pattern.pattern, subject, scope)
            if taken and pattern.name:
                scope.names[pattern.name] = subject
            return taken
        return isinstance(pattern, ast.MatchSingleton) and pattern.value is subject

    def attribute_of_class(self, of: Class, name: str) -> Any:
        """A member of a class or of its bases; None without one."""
        for node in of.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return Function(node, of.scope)
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                return self.value(node.value, of.scope)
        above = (self.attribute_of_class(base, name) for base in of.bases if isinstance(base, Class))
        return next((found for found in above if found is not None), None)

    def entered_function(self, of: Function, given: list[Any], named: dict[str, Any]) -> Any:
        """What a function of the script returns."""
        args = of.node.args
        values = [*([] if of.record is None else [of.record]), *given]
        names = [one.arg for one in (*args.posonlyargs, *args.args)]
        held = dict(zip(names, values, strict=False))
        every = [*zip(reversed(names), reversed(args.defaults), strict=False)]
        every += [(one.arg, default) for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default]
        if args.vararg:
            held[args.vararg.arg] = tuple(values[len(names) :])
        if args.kwarg:
            own = {*names, *(one.arg for one in args.kwonlyargs)}
            held[args.kwarg.arg] = {key: value for key, value in named.items() if key not in own}
        held |= named
        held |= {name: self.value(default, of.scope) for name, default in every if name not in held}
        scope = Scope(held, of.scope)
        if isinstance(of.node, ast.Lambda):
            return self.value(of.node.body, scope)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InputError(f"calls more than {MAX_DEPTH} functions within each other")
        try:
            self.body(of.node.body, scope)
        except Returned as done:
            return done.value
        except Left as left:
            raise InputError(LOOSE) from left
        finally:
            self.depth -= 1
        return None

    def _constant(self, node: ast.Constant, scope: Scope) -> Any:
        return bounded(node.value) if plain(node.value) else Unknown("constant")

    def _name(self, node: ast.Name, scope: Scope) -> Any:
        found = scope.find(node.id)
        if isinstance(found, Unknown) and found.name != node.id and "." in found.name:
            inner = self.imported(found.name)
            if not isinstance(inner, Unknown):
                return inner
        return found

    def _joinedstr(self, node: ast.JoinedStr, scope: Scope) -> Any:
        return bounded("".join(str(self.value(part, scope)) for part in node.values))

    def _formattedvalue(self, node: ast.FormattedValue, scope: Scope) -> Any:
        value = self.value(node.value, scope)
        form = "" if node.format_spec is None else str(self.value(node.format_spec, scope))
        if not plain(value) or len(form) > _SPECIFICATION:
            return str(value) if isinstance(value, Unknown) else str(Unknown(ast.unparse(node.value)[:80]))
        return format(repr(value) if node.conversion == ord("r") else value, form)

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        of = self.value(node.value, scope)
        if isinstance(of, Record):
            if node.attr in of.held:
                return of.held[node.attr]
            found = self.attribute_of_class(of.of, node.attr)
            if isinstance(found, Function) and isinstance(found.node, ast.FunctionDef):
                bound = Function(found.node, found.scope, of)
                read = any(isinstance(one, ast.Name) and "property" in one.id for one in found.node.decorator_list)
                return self.entered_function(bound, [], {}) if read else bound
            return Unknown(node.attr) if found is None else found
        if isinstance(of, Class):
            found = self.attribute_of_class(of, node.attr)
            return Unknown(node.attr) if found is None else found
        if isinstance(of, Unknown):
            dotted = f"{of.name}.{node.attr}"
            return Unknown(dotted) if len(dotted) > 200 else self.imported(dotted)
        return Unknown(node.attr)

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        of = self.value(node.value, scope)
        if isinstance(node.slice, ast.Slice):
            parts = (node.slice.lower, node.slice.upper, node.slice.step)
            ends = [None if one is None else self.value(one, scope) for one in parts]
            return of[slice(*ends)] if isinstance(of, str | list | tuple) and known(*ends) else Unknown("part")
        key = self.value(node.slice, scope)
        if isinstance(of, Unknown) and of.name == "os.environ":
            return self.variable(key)
        return of[key] if isinstance(of, str | list | tuple | dict) and plain(key) else Unknown("part")

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        given: list[Any] = []
        for one in node.args:
            value = self.value(one.value if isinstance(one, ast.Starred) else one, scope)
            given += [*self.items(value)] if isinstance(one, ast.Starred) else [value]
        named: dict[str, Any] = {}
        for word in node.keywords:
            value = self.value(word.value, scope)
            named |= {word.arg: value} if word.arg else value if isinstance(value, dict) else {}
        if isinstance(node.func, ast.Attribute):
            of = self.value(node.func.value, scope)
            if not isinstance(of, Unknown | Record | Class | Function):
                return method(of, node.func.attr, given, named)
            if isinstance(of, Unknown) and of.name == "os.environ" and node.func.attr == "get":
                return self.variable(*given)
        called = self.value(node.func, scope)
        return self.called(called, given, named, node.lineno)

    def called(self, of: Any, given: list[Any], named: dict[str, Any], line: int) -> Any:
        """The outcome of a call."""
        if isinstance(of, Function):
            if getattr(of.node, "name", "").startswith("execute_train"):
                return self.noted("execute_train", given, named, line)
            return self.entered_function(of, given, named)
        if isinstance(of, Class):
            return self.record(of, given, named)
        if not isinstance(of, Unknown):
            return Unknown("call")
        if of.name == "os.getenv":
            return self.variable(*given)
        last = of.name.rpartition(".")[2]
        if last == "map" and len(given) == 2:
            return [self.called(given[0], [one], {}, line) for one in self.items(given[1])]
        if last in BUILTINS:
            return builtin(last, given, named)
        return self.noted(of.name, given, named, line)

    def variable(self, name: Any, *default: Any) -> Any:
        """An environment variable as given; else its default: what a shell holds is not read."""
        return self.environment.get(str(name), default[0] if default else Unknown(f"${name}"))

    def _binop(self, node: ast.BinOp, scope: Scope) -> Any:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        return binary(type(node.op), left, right, "sum")

    def _unaryop(self, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self.value(node.operand, scope)
        if not known(value):
            return value
        return not value if isinstance(node.op, ast.Not) else -value if isinstance(node.op, ast.USub) else value

    def _boolop(self, node: ast.BoolOp, scope: Scope) -> Any:
        """As Python's, where what is not known does not hold unless it decides."""
        either, value, open_ = isinstance(node.op, ast.Or), None, None
        for part in node.values:
            value = self.value(part, scope)
            if not known(value):
                open_ = value
            elif bool(value) == either:
                return value
        return value if open_ is None or (either and known(value)) else open_

    def _compare(self, node: ast.Compare, scope: Scope) -> Any:
        left = self.value(node.left, scope)
        for kind, part in zip(node.ops, node.comparators, strict=True):
            right = self.value(part, scope)
            if not known(left, right):
                return Unknown("comparison")
            held = compared(type(kind), left, right)
            if held is not True:
                return held
            left = right
        return True

    def _ifexp(self, node: ast.IfExp, scope: Scope) -> Any:
        condition = self.value(node.test, scope)
        return self.value(node.body if known(condition) and condition else node.orelse, scope)

    def _namedexpr(self, node: ast.NamedExpr, scope: Scope) -> Any:
        value = self.value(node.value, scope)
        self.bind(node.target, value, scope)
        return value

    def _lambda(self, node: ast.Lambda, scope: Scope) -> Any:
        return Function(node, scope)

    def _list(self, node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> Any:
        out: list[Any] = []
        for one in node.elts:
            value = self.value(one.value if isinstance(one, ast.Starred) else one, scope)
            out += [*self.items(value)] if isinstance(one, ast.Starred) else [value]
        return bounded(out)

    _tuple = _set = _list

    def _dict(self, node: ast.Dict, scope: Scope) -> Any:
        out: dict[Any, Any] = {}
        for key, part in zip(node.keys, node.values, strict=True):
            value, name = self.value(part, scope), None if key is None else self.value(key, scope)
            if key is None:
                out |= value if isinstance(value, dict) else {}
            elif plain(name):
                out[name] = value
        return bounded(out)

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, scope: Scope) -> Any:
        out: list[Any] = []
        loop, inner = node.generators[0], Scope({}, scope)
        source = self.value(loop.iter, scope)
        if len(node.generators) > 1 or not known(source):
            return Unknown("comprehension")
        for value in self.items(source):
            self.bind(loop.target, value, inner)
            conditions = [self.value(one, inner) for one in loop.ifs]
            if all(known(one) and one for one in conditions):
                out.append(self.value(node.elt, inner))
        return bounded(out)

    _generatorexp = _setcomp = _listcomp
