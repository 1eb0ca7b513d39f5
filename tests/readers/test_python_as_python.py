"""A Python launcher means what Python makes of it: scripts are run by both, and the calls compared."""

import os
from pathlib import Path
from typing import Any

import pytest

from rlsim.errors import InputError
from rlsim.readers.python import expressions, script, values
from rlsim.readers.python.script import Options, calls_of

SCRIPTS = r'''
prog(7 + 2, 7 - 2, 7 * 2, 7 // 2, 7 % 4, 7 / 2, 2 ** 10, 6 | 1, 6 & 3, -3, +3, not 3, 1 + 2 * 3)
---
a = 1; prog(a < 1, a <= 1, a > 1, a >= 1, a == 1, a != 1, 0 < a < 3, 0 < a > 3, None is None, a is not None, a is None)
---
prog("a" in "abc", "x" in ["x", "y"], "z" not in ["x"], "x" not in ("x",), "k" in {"k": 1}, 3 in range(3), "x" in [])
---
prog(1 and 0, 1 and 2, 0 or 3, 2 or 3, None or "", not (1 and 0), "a" if 0 else "b", "a" if [1] else "b")
---
x = 5; prog(f"{x} {x + 1:>4} {x:.2f} {'a' * 3!s}", "a" + "b", "ab" * 3, 2 * "ab", [1, 2] + [3], [0] * 3, 3 * [1])
---
prog("A b".lower(), "a".upper(), " a ".strip(), " a ".lstrip(), " a ".rstrip(), "a,b".split(","), "-".join(["a", "b"]))
---
prog("a.b".replace(".", "_"), "abc".startswith("ab"), "abc".startswith("b"), [3, 1].index(1), [1, 1, 2].count(1))
---
a = [1]; a.append(2); a.extend([3]); a.insert(0, 9); b = a.copy(); b.append(0); prog(a, b, len(a), a[-1], a[1:3], a[:2])
---
d = {"a": 1, **{"b": 2}}; d["c"] = 3; d.update({"a": 5}); prog(d, d.get("z", 4), d.get("a"), d.pop("b"), d, len(d))
---
d = {"a": 1, "b": 2}
prog(list(d.items()), list(d.keys()), list(d.values()), d.setdefault("c", 7), d["c"], [k for k in d])
---
prog(min(3, 1), max([1, 4]), sum([1, 2]), abs(-4), round(2.6), any([0, 1]), all([0, 1]), all([]), bool(""),
     str(3), int("4"))
---
prog(list("ab"), list(range(1, 6, 2)), sorted([2, 1]), list(zip([1, 2], "ab")), list(enumerate("ab")),
     list(), dict(a=1))
---
prog([n * n for n in range(5) if n % 2], {k: 1 for k in []} or "none", *[1, 2], **{"named": 3}, other=4)
---
a, (b, c) = 1, (2, 3); [e, f] = "x", "y"; g = h = 4; g += 2; prog(a, b, c, e, f, g, h)
---
total = 0
for n in range(4):
    total += n
    if n == 2:
        prog("two", n)
    elif n > 2:
        prog("more", n)
    else:
        prog("less", n)
prog(total)
---
for i, (k, v) in enumerate({"a": 1, "b": 2}.items()):
    prog(i, k, v)
---
def f(a, b=2, *rest, key="k", **more):
    return a, b, rest, key, more
prog(*f(1)); prog(*f(1, 3, 4, 5, key="z", other=6)); prog(*f(b=1, a=0))
---
def f(n):
    if n <= 0:
        return "end"
    prog(n)
    return f(n - 1)
prog(f(3)); prog((lambda x, y=2: x * y)(4))
---
def f(n):
    prog(n)
prog(f(1))
---
outer = 1
def f():
    outer = 2
    def g():
        return outer
    return g()
prog(f(), outer)
---
class Base:
    size = 4
    name = "base"
    def twice(self):
        return 2 * self.size
class Own(Base):
    name = "own"
    def __init__(self, more):
        self.more = more
        self.size = self.size + more
    @property
    def text(self):
        return f"{self.name}-{self.size}"
o = Own(3)
prog(o.size, o.name, o.more, o.twice(), o.text, Own.name, Base.size); o.size = 1; prog(o.twice(), o.text)
---
from dataclasses import dataclass, field
@dataclass
class Args:
    lr: float = 0.1
    tags: list = field(default_factory=list)
    table: dict = field(default_factory=lambda: {"a": 1})
    steps: int = field(default=7)
    def __post_init__(self):
        self.lr = self.lr * 2
a = Args(); b = Args(lr=1.0, steps=3); c = Args(4.0, ["x"])
prog(a.lr, a.tags, a.table, a.steps, b.lr, b.steps, c.lr, c.tags)
---
for pair in [("h100", 1), ("h200", 2), ("b200", 9), (None, 0), "other"]:
    match pair:
        case ("h100" | "h200", 1):
            prog("one")
        case ("h200", n):
            prog("nodes", n)
        case (None, _):
            prog("none")
        case (_, 9 as nine):
            prog("nine", nine)
        case _:
            prog("rest")
---
try:
    prog("before")
    raise ValueError("x")
    prog("never")
except ValueError:
    prog("handled")
finally:
    prog("last")
---
for x in [1, 2, 3]:
    try:
        if x == 2: continue
        prog(x)
    finally:
        prog("always", x)
---
try:
    prog(1)
except ValueError:
    prog("never")
assert 1 < 2
prog("after")
---
if (n := 4) > 3: prog(n)
a, b = [*range(2)]; c = [*[1, 2], 3]; prog(a, b, c, {1: "a"}[1], "abc"[1], (1, 2)[0])
---
import os
prog(os.environ.get("GIVEN"), os.environ["GIVEN"], os.getenv("GIVEN", "d"), os.environ.get("ABSENT", "d"),
     int(os.getenv("N")))
---
if __name__ == "__main__": prog("main")
prog(list(map(lambda x: x + 1, [1, 2])), True, None, 1.5)
---
prog(1); assert 1 > 2; prog("never")
---
for n in range(5):
    if n == 1:
        continue
    for m in "xyz":
        if m == "y":
            break
        prog(n, m)
    else:
        prog("never")
    if n == 3:
        break
for n in range(2):
    if n > 5:
        break
else:
    prog("all", n)
a = [1, 2, 3]; a[0] = 9; a[-1] += 4; prog(a, "abcd"[::2], a[::-1], a[2:0:-1], f"{'q'!r} {'q'!s} {'q'!r:>5}")
match 5:
    case 4 | 5 if a[0] > 10: prog("never")
    case 4 | 5 if a[0] > 1: prog("guarded")
try:
    prog("fine")
except ValueError:
    prog("never")
else:
    prog("else")
finally:
    prog("last")
'''.strip().split("\n---\n")  # fmt: skip
SET = {"GIVEN": "value", "N": "12"}


def plain(value: Any) -> Any:
    """Tuples and sets count as lists, which is all that a command line can tell of them."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple | set | range) else value


def read(folder: Path, text: str) -> tuple[list[Any], str]:
    (folder / "run.py").write_text(text)
    calls, stop = calls_of(folder / "run.py", Options({}, []), SET, folder)
    return [(plain(one.given), plain(one.named)) for one in calls if one.name == "prog"], stop


@pytest.mark.parametrize("text", SCRIPTS, ids=lambda text: text[:40])
def test_a_call_has_the_values_that_python_hands_it(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", SET)
    monkeypatch.setattr(os, "getenv", SET.get)
    wanted: list[Any] = []
    stops = False
    names = {"__name__": "__main__", "prog": lambda *given, **named: wanted.append((plain(given), plain(named)))}
    try:
        exec(compile(text, "run.py", "exec", dont_inherit=True), names)
    except AssertionError:
        stops = True
    monkeypatch.undo()
    assert wanted
    found, stop = read(tmp_path, text)
    assert found == wanted and bool(stop) == stops


BOUNDS: list[tuple[Any, str, int, str, str]] = [
    (values, "MOST_BITS", 10, "prog(512 * 1 + 511)", "prog(512 * 2)"),
    (values, "MOST_CHARACTERS", 6, "prog('abc' + 'def')", "prog('abc' + 'defg')"),
    (values, "MOST_ITEMS", 4, "prog([1, 2, 3, 4])", "prog([1, 2, 3, 4, 5])"),
    (expressions, "MAX_STEPS", 5, "prog(1, 2)", "prog(1, 2, 3)"),
    (expressions, "MAX_DEPTH", 2, "def f(n): return g(n)\ndef g(n): return n\nprog(f(1))",
     "def f(n): return g(n)\ndef g(n): return h(n)\ndef h(n): return n\nh(1)\nh(1)\nprog(f(1))"),
    (expressions, "MOST_BUILT", 6, "prog('abc', 'def')", "prog('abc', 'def', 'g')"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "name", "most", "fits", "beyond"), BOUNDS, ids=[one[1] for one in BOUNDS])
def test_a_bound_is_met_from_both_sides(
    module: Any, name: str, most: int, fits: str, beyond: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, most)
    assert read(tmp_path, fits)[0]
    with pytest.raises(InputError, match=r"run\.py"):
        read(tmp_path, beyond)


def test_a_launcher_leads_to_so_many_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "MAX_MODULES", 2)
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text("n = 1")
    assert read(tmp_path, "import a\nprog(a.n)")[0] == [([1], {})]
    with pytest.raises(InputError, match="more than 2 modules"):
        read(tmp_path, "import a, b\nprog(a.n, b.n)")


def test_what_cannot_be_told_is_told_so_and_too_deep_a_script_is_none(tmp_path: Path) -> None:
    text = "import torch\nx = torch.size()\nprog(x + 1, x.y, x > 1, not x, [x][0:x], f'{x}', o.z, 'a' % 3, 10 ** 99999)"
    ((given, _),), stop = read(tmp_path, f"class O: pass\no = O()\n{text}")
    assert all(isinstance(one, values.Unknown) or values.OPEN in one for one in given) and not stop
    d = "d = {}\nd[torch.x] = 1\nx = [1]\nx[0] = 5\nprog(d, len(d))"
    assert read(tmp_path, f"import torch\n{d}")[0] == [([{}, 0], {})]
    with pytest.raises(InputError, match="too deep"):
        read(tmp_path, f"prog({'-' * 90}{'(' * 20}1{'+1)' * 20}" + "+1" * 900 + ")")


@pytest.mark.parametrize("text", ["break", "def f():\n    continue\nprog(f())", "return 1"])
def test_what_the_grammar_takes_and_python_refuses_is_no_python(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"^[^:]*run.py: is no Python \(a "):
        read(tmp_path, text)


def test_what_may_raise_ends_a_module_with_what_came_before(tmp_path: Path) -> None:
    text = "import torch\nprog(1)\nif torch.known(): pass\nraise ValueError()\nprog(2)"
    assert read(tmp_path, text) == ([([1], {})], "")
