"""Golden answers: ``python -m tests.golden.answers`` writes answers.csv anew, from the root of the checkout.

Two nets over the rooms that no formula of a paper holds. Of commands (commands.py) and calls of the library
(library.py) every number of the answer is compared, with its place. Of what reads other people's files, many inputs are
derived from a few (a number doubled, a flag turned, a word or a line left out) and a digest of each answer is compared:
a line per input would be megabytes.
``python -m tests.golden.answers CASE NUMBER`` prints such an input and its answer, here or in an earlier checkout.
"""

import contextlib
import copy
import csv
import hashlib
import io
import json
import random
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / name) for name in ("readers", "evidence", "line", "golden"))]

from commands import COMMANDS, TABLES  # noqa: E402
from corpus_files import CORPUS  # noqa: E402
from golden_tables import PUBLISHED, some_rows  # noqa: E402
from library import LIBRARY, plain  # noqa: E402
from log_forms import FORMS  # noqa: E402
from test_import_adapters import RUNS  # noqa: E402
from test_launch_scripts import RECIPES  # noqa: E402
from test_shell_as_bash import scripts  # noqa: E402

from rlsim.cli.main import main  # noqa: E402
from rlsim.errors import InputError  # noqa: E402
from rlsim.loading.scenario import load_scenario, vary  # noqa: E402
from rlsim.readers.frameworks.accounting import Accounting  # noqa: E402
from rlsim.readers.frameworks.asked import Asked  # noqa: E402
from rlsim.readers.frameworks.exporting import export_scenario  # noqa: E402
from rlsim.readers.frameworks.importing import document_of, import_config, keys_of, read_config  # noqa: E402
from rlsim.readers.frameworks.reader import Reader  # noqa: E402
from rlsim.readers.frameworks.registry import framework_of  # noqa: E402
from rlsim.readers.frameworks.trees import ConfigTree, lookup  # noqa: E402
from tests.golden.texts import exported, followed, further, logged, recipes  # noqa: E402
from tests.readers.damage import damaged  # noqa: E402

ANSWERS = Path(__file__).with_name("answers.csv")
AWAY = ("trainer.offload=false", "engine.max_running_sequences=77", "engine.prefix_caching=false")
"""Changes of scenarios that come with rlsim, whose values differ from what frameworks take by themselves."""
OPTIONS = Path(__file__).with_name("options")
"""A run of every framework, and beside it words that are laid over it: a line for each rule that it does not show."""
FOLDERS = Path(__file__).with_name("folders.yaml")
"""Files of one import each: what inherits from what, and what scripts start."""
TRACES = (
    "response_tokens,prompt_tokens\n" + "".join(f"{100 + 7 * (n * n % 31)},{n + 5}\n" for n in range(60)),
    "".join(json.dumps({"output_length": 90 + n * n % 37, "input_length": 9 + n % 3, "timestamp": n,
                        "hash_ids": [n % 4, n]}) + "\n" for n in range(60)),
    'vllm:spec_decode_num_drafts_total{engine="0"} 1000\n'
    + "".join(f'vllm:spec_decode_num_accepted_tokens_per_pos{{position="{n}"}} {700 - 200 * n}\n' for n in range(3)),
)  # fmt: skip
CHANGES = (
    {"trainer.tensor_parallel": 2, "engine.max_running_sequences": 96, "trainer.micro_batch_tokens": 8192},
    {"engine.tensor_parallel": 2, "trainer.pipeline_parallel": 2, "workload.prompts_per_step": 128},
)
FURTHER = (
    {"engine.max_captured_tokens": 64},
    {"workload.max_response_tokens": 1500, "workload.max_sequence_tokens": 2500},
    {"cluster.num_gpus": 32},
    {"trainer.micro_batch_samples": 1, "trainer.sequence_packing": False},
    {"engine.gpu_memory_utilization": 0.71, "trainer.recompute": "full"},
)
"""What is written back of runs that are told by words of a command line."""
DERIVED = {"shell,": 60, "shell": 30, "log, run": 6, "log of": 30, "log": 30, "trace": 16, "table": 5,
           "python,": 60, "python": 16, "agents of": 8, "agents": 3, "requests": 16, "damaged": 40}  # fmt: skip
"""Inputs derived from one, by kind; of a configuration in the corpus, which costs most, 2, of other runs 20."""
SWEPT = ("nemo-rl/async", "nemo-rl/controller", "skyrl/fully_async", "skyrl/skyrl", "verl/fully_async", "verl/megatron",
         "verl/one_step_off")  # fmt: skip
"""Configurations of the corpus whose keys are set one at a time."""
APART = {"model", "hardware", "name", "parameters"}
"""Of a scenario, what imports look up; defaults are left out too, so that a new key of the schema moves nothing."""
UNSTABLE = re.compile(r"digest|version|path|file|seconds_taken|wall")
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")
Answer = dict[str, Any]
Changes = Sequence[Mapping[str, Any]]


def leaves(tree: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value below ``tree`` with its place; of sentences the numbers, for their wording is free."""
    if isinstance(tree, dict):
        for key in tree:
            if not UNSTABLE.search(str(key)):
                yield from leaves(tree[key], f"{place}.{key}")
    elif isinstance(tree, (list, tuple)):
        for number, value in enumerate(tree):
            yield from leaves(value, f"{place}.{number}")
    elif isinstance(tree, str) and " " in tree:
        words = (word for word in tree.split() if "/" not in word)
        yield place, "|".join(found for word in words for found in NUMBER.findall(word))
    elif not (isinstance(tree, str) and "/" in tree):
        yield place, f"{tree:.6g}" if isinstance(tree, float) else tree


def derived(text: str, case: str, number: int) -> str:
    """The ``number``-th input from ``text``: itself, then with a number, a flag, a word or a line changed, or damaged
    as records are."""
    rnd = random.Random(f"{case} {number}")
    if case.startswith("damaged"):
        return damaged(text, rnd)[1]
    for _ in range(min(number, 1 + number // 6)):
        numbers = list(re.finditer(r"(?<![\w.])\d+(?![\w.])", text))
        flags = list(re.finditer(r"\b(?:[Tt]rue|[Ff]alse)\b", text))
        words = list(re.finditer(r"\S+", text))
        lines = text.split("\n")
        kind = rnd.randrange(6)
        if kind < 3 and numbers:
            one = rnd.choice(numbers)
            text = text[: one.start()] + str([2 * int(one[0]), int(one[0]) + 1, 0][kind]) + text[one.end() :]
        elif kind == 3 and flags:
            one = rnd.choice(flags)
            text = text[: one.start()] + ("false" if one[0].lower() == "true" else "true") + text[one.end() :]
        elif kind == 4 and len(lines) > 2:
            lines.pop(rnd.randrange(len(lines)))
            text = "\n".join(lines)
        elif words:
            one = rnd.choice(words)
            text = text[: one.start()] + text[one.end() :]
    return text


def imported(
    framework: str,
    path: Path,
    words: Sequence[str] = (),
    lenient: bool = True,
    changes: Changes = CHANGES,
    **stated: Any,
) -> Answer:
    """What became of a configuration under words of its command line, and of changes written back. stated: options."""
    got = import_config(framework, path, words, Asked(**{"hardware": "gb200_nvl72", **stated}), lenient=lenient)
    answer = {"scenario": got.scenario.model_dump(mode="json", exclude=APART, exclude_defaults=True)}
    answer["found"] = [got.scenario.model.name, got.scenario.hardware.name, got.text.count("\n#")]
    answer["keys"] = became(got.accounting)
    answer["notes"] = ["_".join(named_keys(note)) for note in got.accounting.notes]
    answer["summary"] = got.accounting.summary().split("\n")
    for number, change in enumerate(changes):
        with contextlib.suppress(InputError):
            wanted = vary(got.scenario, change)
            base = read_config(framework, path, words)
            found = export_scenario(wanted, framework, base)
            answer[f"export {number}"] = [*found.overrides, *found.left]
    return answer


def became(accounting: Accounting) -> Answer:
    """Status and detail of every key, and of the defaults beside them."""
    every = {"given": accounting.keys, "default": accounting.defaults}
    return {kind: {one.key: f"{one.status}:{one.detail}".replace(" ", "_") for one in keys}
            for kind, keys in every.items()}  # fmt: skip


def laid_over(framework: str, path: Path) -> dict[str, str]:
    """Digests of what a run becomes under each line of the file of words beside it, by the line; first with none."""
    name, text, found = f"run{path.suffix}", path.read_text(encoding="utf-8"), dict[str, str]()
    for line in ("", *path.with_suffix(".txt").read_text(encoding="utf-8").splitlines()):
        words = [f"++{word}" if path.suffix == ".yaml" else word for word in shlex.split(line)]
        read = partial(imported, framework, words=words, changes=(*CHANGES, *FURTHER))
        (found[line],) = digested([answer_of(line, name, text, read, 0)])
    return found


def together(folders: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Digests of what comes of each of some folders of files, of which one is imported."""
    found = dict[str, str]()
    for case, one in folders.items():
        with tempfile.TemporaryDirectory() as folder:
            for name, text in one["files"].items():
                Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
                Path(folder, name).write_text(text, encoding="utf-8")
            path = Path(folder, one.get("start", next(iter(one["files"]))))
            read = partial(imported, one["framework"], words=one.get("words", ()), lenient=one.get("lenient", True),
                           **one.get("asked", {}))  # fmt: skip
            (found[case],) = digested([told(read, path)])
    return found


def alone() -> dict[str, str]:
    """Digests of what every framework is told of a scenario without a configuration."""
    found = dict[str, str]()
    for framework in sorted(path.stem.replace("_", "-") for path in OPTIONS.glob("*.txt")):
        for name in ("quickstart", "qwen8b_async_lag1", "qwen235b_512", "search_agent_16"):
            try:
                answer = export_scenario(load_scenario(name, AWAY), framework)
                shown = [*answer.overrides, *answer.left, answer.config]
            except InputError as error:
                shown = named_keys(str(error))
            (found[f"{framework}, {name}"],) = digested([" ".join(shown)])
    return found


def swept(framework: str, path: Path) -> Iterator[tuple[str, Answer]]:
    """What a configuration becomes with each key that its framework's rules ask for set to another value."""
    tree = read_config(framework, path)
    reader = Reader(tree)
    with contextlib.suppress(InputError):
        keys_of(framework_of(framework), reader)
    for key in sorted(reader.read):
        old = lookup(tree.values, key)
        kinds = (not old,) if isinstance(old, bool) else (2 * old, 1, 0) if isinstance(old, int) else (True, 4, 1024)
        # Unset, what a rule takes by default shows.
        for value in (*kinds, *([] if old is None or framework == "nemo-rl" else [None])):
            values, (*sections, name) = copy.deepcopy(dict(tree.values)), key.split(".")
            at: Any = values
            for section in sections:
                at = at.setdefault(section, {}) if isinstance(at, dict) else {}
            if isinstance(at, dict):
                at[name] = value
                one = ConfigTree("here", values, {**tree.given, key: "here"})
                try:
                    document, accounting = document_of(framework, one, Asked(hardware="gb200_nvl72"))
                    yield key, {**document, "keys": became(accounting)}
                except InputError as error:
                    yield key, {"refused": "_".join(named_keys(str(error)))}


def named_keys(message: str) -> list[str]:
    """The keys, the quoted words and the numbers that a message names."""
    found = re.findall(r"\b[a-z_]+\.[a-z_.]*[a-z]|\b[a-z]+_[a-z_]+[a-z]|--[a-z-]+|'[^' /]+'|\b\d[\d.]*", message)
    return sorted(set(found))


def asked(*words: str) -> Answer:
    """The JSON answer of a command. Raises InputError where it ends in a message."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main([*words, "--json"])
        except SystemExit as end:
            if end.code:
                raise InputError(err.getvalue()) from None
    return json.loads(out.getvalue())


def configurations() -> Iterator[tuple[str, str, str, str]]:
    """Case, framework, name of its file and text."""
    for framework, path in CORPUS:
        yield f"{framework}/{path.stem}", framework, path.name, path.read_text(encoding="utf-8")
    for framework, (text, _) in RUNS.items():
        ending = {"prime-rl": "toml", "roll": "yaml", "areal": "yaml", "easyr1": "yaml"}.get(framework, "sh")
        yield f"{framework}, run", framework, f"run.{ending}", text
    for framework, (name, text, _) in RECIPES.items():
        yield f"{framework}, script", framework, name, text
    yield from recipes()


def inputs() -> Iterator[tuple[str, str, str, Callable[[Path], Answer]]]:
    """Case, name of its file, text, and what reads it."""
    for case, framework, name, text in configurations():
        yield case, name, text, lambda at, framework=framework: imported(framework, at)
    for form, made in FORMS.items():
        yield f"log, {form}", "run.log", "".join(made(step)[0] for step in range(1, 12)), logged
    with tempfile.TemporaryDirectory() as folder:
        yield from further(Path(folder))
    for number, text in enumerate(TRACES):
        yield f"trace {number}", "t.txt", text, lambda at: asked("traces", str(at))
    for name in TABLES:
        yield f"table {name}, derived", "t.csv", some_rows(name), lambda at: asked("validate", str(at))
    for number, text in enumerate(scripts()):
        yield f"shell {number}", "run.sh", text, followed


@contextlib.contextmanager
def beside(name: str, text: str) -> Iterator[Path]:
    """A file of its own, beside what others of the corpus begin from."""
    with tempfile.TemporaryDirectory() as folder:
        for parent in (path for _, path in CORPUS if path.name in ("base.yaml", "nemo_rl_parent.yaml")):
            shutil.copy(parent, folder)
        Path(folder, name).write_text(text, encoding="utf-8")
        yield Path(folder, name)


def answer_of(case: str, name: str, text: str, read: Callable[[Path], Answer], number: int) -> str:
    """The answer to a derived input, or the keys that its message names."""
    with beside(name, derived(text, case, number)) as at:
        return told(read, at)


def told(read: Callable[[Path], Answer], at: Path) -> str:
    """The plain values of an answer with their places, or the keys that a message in its place names."""
    try:
        return "\n".join(f"{place} {value}" for place, value in leaves(read(at)))
    except InputError as error:
        return "refused: " + " ".join(named_keys(str(error).replace(str(at.parent), "")))


def digested(answers: Iterable[str]) -> list[str]:
    """A digest of each answer."""
    return [hashlib.sha256(answer.encode()).hexdigest()[:6] for answer in answers]


def digests(case: str, name: str, text: str, read: Callable[[Path], Answer]) -> list[str]:
    """Digests of the answers to each input derived from one."""
    count = next((DERIVED[kind] for kind in DERIVED if case.startswith(kind)), 2 if "/" in case else 20)
    return digested(answer_of(case, name, text, read, number) for number in range(count))


def sweep(
    answers: Callable[[str, Path], Iterator[tuple[str, Answer]]], framework: str, name: str, text: str
) -> list[str]:
    """Digests of what becomes of a configuration, its keys or its scenario's set one at a time."""
    with beside(name, text) as at:
        return digested([f"{key} {list(leaves(answer))}" for key, answer in answers(framework, at)])


def numbers(words: Sequence[str]) -> dict[str, str]:
    """The plain values of a command's JSON answer by place."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [written(word, Path(folder)) for word in words]
        try:
            answer = asked(*paths)
        except InputError as error:
            answer = {"refused": str(error)[:200] if not ANSWERS.exists() else ""}
        return {place: str(value) for place, value in leaves(answer)}


def found_by(library: Callable[[], Any]) -> dict[str, str]:
    """The plain values of what a call of the library returns, by place."""
    return {place: str(value) for place, value in leaves(plain(library()))}


def written(word: str, folder: Path) -> str:
    """A word of a command, with the file that it stands for."""
    kind, _, name = word.partition(" ")
    if kind == "LOG":
        made = list(FORMS.values())[int(name)]
        (folder / "run.log").write_text("".join(made(step)[0] for step in range(1, 16)), encoding="utf-8")
        return str(folder / "run.log")
    if kind == "TABLE":
        (folder / "t.csv").write_text(some_rows(name), encoding="utf-8")
        return str(folder / "t.csv")
    if kind == "WILD":
        return str(PUBLISHED / "wild" / "scenarios" / f"{name}.yaml")
    return word


@cache
def every() -> dict[str, Callable[[], Mapping[str, str] | list[str]]]:
    """What finds the answers of every case: by place those of commands, digests the others."""
    tables = {f"table {name}": ("validate", f"TABLE {name}") for name in TABLES}
    found: dict[str, Callable[[], Mapping[str, str] | list[str]]] = {
        case: partial(numbers, words) for case, words in (COMMANDS | tables).items()
    }
    found |= {case: partial(found_by, call) for case, call in LIBRARY.items()}
    found |= {one[0]: partial(digests, *one) for one in inputs()}
    for case, framework, name, text in configurations():
        found[f"{case}, changes"] = partial(sweep, exported, framework, name, text)
        if case in SWEPT or "/" not in case:
            found[f"{case}, keys"] = partial(sweep, swept, framework, name, text)
    for path in sorted(one for one in OPTIONS.iterdir() if one.suffix != ".txt"):
        framework = path.stem.replace("_", "-")
        found[f"{framework}, options"] = partial(laid_over, framework, path)
    found["exports alone"] = alone
    found["folders of files"] = partial(together, yaml.safe_load(FOLDERS.read_text(encoding="utf-8")))
    return found


def read_answers() -> dict[str, list[str]]:
    """What the golden file holds."""
    with ANSWERS.open(newline="", encoding="utf-8") as file:
        return {case: values.split(" ") for case, values in csv.reader(file)}


def write_all() -> None:
    """The golden file, anew; all are found before it is opened."""
    found = {case: answers() for case, answers in every().items()}
    with ANSWERS.open("w", newline="", encoding="utf-8") as file:
        rows = ((case, " ".join(one.values() if isinstance(one, dict) else one)) for case, one in found.items())
        csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        write_all()
    for one in inputs() if len(sys.argv) == 3 else ():
        if one[0] == sys.argv[1]:
            print(derived(one[2], one[0], int(sys.argv[2])), answer_of(*one, int(sys.argv[2])), sep="\n----\n")
