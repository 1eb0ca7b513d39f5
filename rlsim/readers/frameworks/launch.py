"""What a launch script or a command line starts: the framework's program, its configuration file and its words; and
whose a file is, by the keys or the programs that no other framework has, for messages about the wrong command."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.files.reading import DOCUMENT_BYTES, read_text, shown_path
from rlsim.files.yaml import lists_beside, parse_value
from rlsim.readers.frameworks.files import document_in
from rlsim.readers.frameworks.framework import Framework
from rlsim.readers.frameworks.launchers import PYTHON, configured_words, python_commands
from rlsim.readers.frameworks.trees import Layer, Mappings, nested, present
from rlsim.readers.shell.script import LOST, WRITTEN, commands_of

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".sub")
"""Endings of launch scripts."""
_VARIABLE = re.compile(r"^([A-Z][A-Z0-9_]*)=(.*)$", re.DOTALL)
_KNOWN = lists_beside(__file__, "launch.yaml")


@dataclass(frozen=True)
class Launch:
    """One run that is started.

    entry: the program's word. config: its configuration file; None: none is named. name: that of a Hydra
    configuration. words: what follows the program, without the names of configurations. before: options of the
    launcher in front of it, such as accelerate's. note: what a reader of the answer should know.
    """

    entry: str
    config: Path | None
    name: str | None
    words: tuple[str, ...]
    before: Mapping[str, Any]
    note: str = ""

    def facts(self) -> Layer:
        """What the launcher says beside the words: section ``launcher``."""
        return Layer("launcher", {"launcher": {"entry": self.entry, **self.before}}, own=True)


def starts_run(path: Path, words: Sequence[str]) -> bool:
    """Whether ``path`` with ``words`` behind it is a launch script or a command line, not a configuration."""
    # A command's first word (python3, torchrun) has no ending and is no file here.
    return path.suffix.lower() in (*SCRIPTS, *PYTHON) or (not path.suffix and not path.exists() and bool(words))


def starts_supervised(words: Sequence[str]) -> bool:
    """Whether a command line starts a trainer of supervised fine-tuning."""
    return any(re.search(r"(^|[./_])sft_trainer", word) for word in words)


def launcher_of(framework: Framework, path: Path, words: Sequence[str]) -> tuple[Path, Sequence[str]]:
    """The Python launcher that a command line starts and what is behind it; else the command line as it is."""
    if framework.python and path.stem in ("python", "python3") and words and Path(words[0]).suffix in PYTHON:
        return Path(words[0]), words[1:]
    return path, words


def launch_of(framework: Framework, path: Path, words: Sequence[str], root: Path | None) -> Launch:
    """The run of ``framework`` that a script or a command line starts.

    words: of a script its parameters, with NAME=VALUE in capitals for its variables; of a command line what follows.
    Raises InputError where it starts none, telling what it starts.
    """
    given = {found[1]: found[2] for word in words if (found := _VARIABLE.match(word))}
    rest = [word for word in words if not _VARIABLE.match(word)]
    if path.suffix.lower() in PYTHON:
        folder = root or repository_of(path)
        commands, rest = python_commands(path, rest, given, flags(rest), folder)
    elif path.suffix.lower() in SCRIPTS:
        text = read_text(path, DOCUMENT_BYTES)
        for pattern, names in _KNOWN["slurm"].items():
            for number in re.findall(rf"^#SBATCH\s.*?{pattern}", text, re.MULTILINE)[:1]:
                # What the user gives counts before what the header asks Slurm for.
                given = {**dict.fromkeys(names, number), **given}
        folder = root or repository_of(path)
        commands = commands_of(path, rest, given, folder)
    else:
        folder, rest, commands = root or Path(), [], [[str(path), *words]]
    written = {argv[1]: argv[2] for argv in commands if argv[0] == WRITTEN}
    commands = [argv for argv in commands if argv[0] != WRITTEN]
    runs = [run for argv in commands if argv[0] != LOST for run in _runs(framework, argv, folder, path)]
    if not runs:
        if path.suffix.lower() in PYTHON and not commands:
            raise InputError(f"{shown_path(path)}: calls nothing that starts a training of {framework.name}")
        programs = [
            word
            for argv in commands
            if argv[0] != LOST
            for word in argv
            if re.search(r"(\.py$|^[a-z_]+(\.\w+)+$)", word)
        ]
        shown = f"; it starts {', '.join(map(shortened, dict.fromkeys(programs[:4])))}" if programs else ""
        if any(re.search(r"(^|[._/])(sft|dpo|reward_model)([._]|_trainer|$)", word) for word in programs):
            shown += f", which generates nothing: of {framework.name} rlsim reads steps of RL"
        raise InputError(f"{shown_path(path)}: starts no training of {framework.name} that rlsim knows{shown}")
    first = runs[0]
    extra = _not_handed_on(rest, first.words)
    whole: Sequence[str] = first.words
    if framework.spelled_out is not None:
        whole = framework.spelled_out(whole, written, lambda name: _at(folder, path, Path(name)))
    several = f"{len(runs)} runs are started; this is the first" if len({run.words for run in runs}) > 1 else ""
    note = "; ".join(
        part for part in (first.note, several, *_absent(commands, folder), *_lost(commands, first)) if part
    )
    servers = list(_servers(commands))
    before = {**first.before, "servers": servers} if servers else first.before
    return Launch(first.entry, first.config, first.name, (*whole, *extra), before, note)


SERVER = r"^(sglang\.launch_server|vllm\.entrypoints\.(openai\.)?api_server|serve|deploy|rollout)$"
"""Programs that serve a model: SGLang's, vLLM's (vllm serve MODEL), ms-swift's (swift deploy; swift rollout, which
generates for a run)."""
NAMED = {
    "model": ("model_path", "model"),
    "port": ("port",),
    "tensor_parallel": ("tp", "tp_size", "tensor_parallel_size", "vllm_tensor_parallel_size"),
    "copies": ("dp", "dp_size", "data_parallel_size", "vllm_data_parallel_size"),
}
"""What these call the same."""


def _servers(commands: Sequence[Sequence[str]]) -> Iterator[dict[str, Any]]:
    """Servers of models that a script starts beside its run: port, model, GPUs, how many of them share each layer, and
    of those that generate the most turns."""
    for argv in commands:
        at = next((at for at, word in enumerate(argv[:-1]) if at and re.search(SERVER, word)), None)
        if at is None:
            continue
        given = {"model": argv[at + 1], **flags(argv[at + 1 :])}
        held: dict[str, Any] = {
            name: next((given[key] for key in keys if key in given), None) for name, keys in NAMED.items()
        }
        model, port = held["model"], held["port"] or (30000 if "sglang" in argv[at] else 8000)
        tensor, copies = ((1 if held[name] is None else held[name]) for name in ("tensor_parallel", "copies"))
        # Not isinstance: true is an int to Python. What only running would show is no server that is known.
        sizes = all(type(one) is int and one > 0 for one in (tensor, copies))
        if isinstance(model, str) and not model.startswith(("$", "-")) and sizes:
            found = {"port": port, "model": model, "gpus": tensor * copies, "tensor_parallel": tensor}
            turns = given.get("max_turns") if "multi_turn_scheduler" in given else 1
            yield {**found, "turns": turns if type(turns) is int else 1} if argv[at] == "rollout" else found


def repository_of(path: Path) -> Path:
    """The folder above that is a repository or a package, folders of packages within aside; else the current one
    where it holds the file, else the file's own."""
    folder = path.absolute().parent
    marked = [above for above in (folder, *folder.parents) if (above / "pyproject.toml").exists()]
    git = [above for above in (folder, *folder.parents) if (above / ".git").exists()]
    current = [Path.cwd()] if folder.is_relative_to(Path.cwd()) else []  # where its commands would run
    return (git[:1] or marked[-1:] or current or [folder])[0]


def _not_handed_on(given: Sequence[str], words: Sequence[str]) -> tuple[str, ...]:
    """Parameters of a script that it does not hand to its program; an option with its value is none that it holds."""
    if any(list(words[at : at + len(given)]) == list(given) for at in range(len(words))):
        return ()
    out, option = list[str](), False
    for word in given:
        option = word.startswith("--") or (option and "=" not in word)
        if option or word not in words:
            out.append(word)
    return tuple(out)


def _absent(commands: Sequence[Sequence[str]], folder: Path) -> Iterator[str]:
    """What is said of the repository's own scripts that a script reads and that are not there; activations of
    environments set nothing of a run."""
    for name in dict.fromkeys(words[1] for words in commands if words[0] == "source"):
        if name.endswith(".sh") and (folder / name).absolute().is_relative_to(folder.absolute()):
            yield f"{shortened(Path(name).name)}, which the script reads, is not there: what it sets is left out"


def _lost(commands: Sequence[Sequence[str]], first: Launch) -> Iterator[str]:
    """What is said of lists in the run's own words that only programs know."""
    for before, argv in pairwise(commands):
        if before[0] == LOST and first.entry in argv:
            yield f"{', '.join(before[1:])}, which a program prints, is left out of the words"
            return


def _programs(
    framework: Framework, argv: list[str], folder: Path, path: Path
) -> Iterator[tuple[int, Mapping[str, str], str]]:
    """Places of programs that launch the framework, what they read unasked, and a note; last those that another
    project wrote in its language, and scripts that configure its trainer."""
    for at, word in enumerate(argv):
        found = next((options for pattern, options in framework.entry.items() if re.search(pattern, word)), None)
        # Behind a bare option a file is its value, as that of --train-script; accelerate's switches take none.
        option = at and re.match(r"--(?!(use|multi)_)[^=]+$", argv[at - 1])
        if found is not None and not (word.endswith(".py") and option):
            yield at, found, ""
    spoken = [at for at, word in enumerate(argv) if framework.language and re.match(framework.language, word)]
    before = [at for at in range(min(spoken, default=0)) if re.search(r"\.py$|^[A-Za-z_]\w*(\.\w+)+$", argv[at])]
    # The last program before the words takes them; those before it launch it (torchrun, accelerate).
    for at in before[-1:]:
        note = f"{shortened(argv[at])} has {framework.name}'s words and is read as its trainer"
        yield at, next(iter(framework.entry.values())), note
    for at, word in enumerate(argv) if framework.python else ():
        file = _at(folder, path, Path(word)) if word.endswith(".py") else None
        if file is not None and configured_words(file, folder):
            yield at, {}, ""


def _runs(framework: Framework, argv: list[str], folder: Path, path: Path) -> Iterator[Launch]:
    for at, entry, foreign in _programs(framework, argv, folder, path):
        word = argv[at]
        words, named = _named(argv[at + 1 :])
        stated = {one[1].lower(): plain(one[2]) for one in map(_VARIABLE.match, argv[:at]) if one}
        # torchrun's -m is of the program behind it, no second value of the option before: --nproc_per_node=4 -m verl.x
        options = argv[: at - 1] if at and argv[at - 1] == "-m" else argv[:at]
        before = _launcher({**stated, **flags(options), "program": argv[at - 1] if at else ""}, folder, path)
        if framework.python and word.endswith(".py") and (file := _at(folder, path, Path(word))) is not None:
            words = [*configured_words(file, folder), *words]
        config = named.get("config", entry.get("config"))
        beside = Path(word).parent if word.endswith(".py") else Path(*word.split(".")[:-1])
        name = named.get("config_name") or entry.get("name")
        if name is not None:
            place = named.get("config_path", entry.get("folder", "."))
            # A repository may lie elsewhere or be the package itself, as verl-recipe is: ends of both paths count.
            tails = [Path(*whole.parts[at:]) for whole in (beside / place, Path(place)) for at in (1, 2, 3)]
            ends = [tail for tail in tails if len(tail.parts) > 1]
            places = [beside / place, Path(place), Path(entry.get("folder", ".")), *ends]
            name = name.removesuffix(".yaml")
            near = difflib.get_close_matches(name, framework.shipped, n=1)
            files = [one / f"{stem}.yaml" for stem in (name, *near) for one in places]
            config = next((str(file) for file in files if _at(folder, path, file)), None)
            other = near and "config_path" not in named and (config is None or Path(config).stem != name)
            name = near[0] if other else name
        own = name is not None and name not in framework.shipped and (not near or "config_path" in named)
        if own and config is None and len(held := _configurations(folder, path, places)) == 1:
            foreign = f"{shortened(name or '')}.yaml is not there: {held[0].name}, alone in its folder, stands in"
            config = str(held[0])
        target = None if config is None else _at(folder, path, Path(config))
        if own and target is None:
            raise InputError(f"{shown_path(path)}: {shortened(name or '')}.yaml is not there{framework.whereabouts}")
        if config is not None and target is None and name is None:
            raise InputError(f"{shown_path(path)}: {shortened(config)} is not there{framework.whereabouts}")
        asked = named.get("config_name", name or "").removesuffix(".yaml")
        stands_in = f"{shortened(asked)}.yaml is not there: {name}.yaml stands in"
        note = foreign if name is None or asked == name else stands_in
        yield Launch(word, target, name, tuple(words), before, note)
        return


def _configurations(folder: Path, path: Path, places: Sequence[Path]) -> list[Path]:
    """Configurations of the first of ``places`` that is a folder, as :func:`_at` finds it."""
    every = (one for place in places for one in (folder / place, path.parent / place) if one.is_dir())
    return sorted(next(every, path).glob("*.yaml"))


def _launcher(given: Mappings, folder: Path, path: Path) -> dict[str, Any]:
    """Options of a launcher, over the file of accelerate's that they name; InputError where that is not there."""
    name, held = given.get("config_file"), dict[str, Any]()
    if isinstance(name, str):
        file = _at(folder, path, Path(name))
        found = None if file is None else parse_value(read_text(file, DOCUMENT_BYTES), shown_path(file))
        if not isinstance(found, dict):
            raise InputError(
                f"{shown_path(path)}: --config_file {shortened(name)} is not there; give --root with its folder"
            )
        # accelerate nests what it hands to DeepSpeed in a section; its options have no prefix on a command line.
        held = {**found, **(found.get("deepspeed_config") or {})}
    stated = {key: value for key, value in {**held, **given}.items() if isinstance(value, int | str)}
    # Ray hands a run's processes these variables: ray job submit --runtime-env-json.
    environment = given.get("runtime_env_json")
    if isinstance(environment, list):  # the program's words follow it: --runtime-env-json={..} -- python3 train.py
        environment = environment[0]
    variables = environment.get("env_vars") if isinstance(environment, dict) else None
    return {**stated, "env_vars": variables} if isinstance(variables, dict) else stated


def _at(folder: Path, path: Path, name: Path) -> Path | None:
    """A file as the working directory, the repository, or the script's own folder has it."""
    places = (name, folder / name, path.parent / name)
    try:
        return next((one for one in places if one.is_file()), None)
    except (OSError, ValueError):
        return None


def _named(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Words without the names of configurations, and those names."""
    rest, named, given = [], {}, iter(words)
    for word in given:
        word = re.sub(r"^config=(?=.+\.ya?ml$)", "--config=", word)  # EasyR1's
        found = re.match(r"^(?:--(config|config[-_]name|config[-_]path)(?:=(.*))?|@)$", word)
        if found is None:
            rest.append(word)
        else:
            value = next(given, "") if found[2] is None else found[2]
            named[(found[1] or "config").replace("-", "_")] = value.strip("'\"")
    return rest, named


def flags(words: Sequence[str]) -> Mappings:
    """Options as argparse takes them: ``--a-b 3`` is ``a_b: 3``, ``--flag`` true, several values a list."""
    out: Mappings = {}
    key = None
    for word in words:
        if re.match(r"--[A-Za-z][^\s=]*(=|$)", word):
            name, equals, value = word[2:].partition("=")
            key = name.replace("-", "_")
            out[key] = plain(value) if equals else True
        elif key is not None:
            held = out[key]
            out[key] = plain(word) if held is True else [*(held if isinstance(held, list) else [held]), plain(word)]
    return out


def flag_layer(words: Sequence[str]) -> Mappings:
    """Nested sections of options whose names hold dots."""
    given = flags(words)
    return nested(
        {key: value for key, value in given.items() if not any(other.startswith(f"{key}.") for other in given)}
    )


def plain(text: str) -> Any:
    """The value of a word; a text where it is no YAML."""
    try:
        return parse_value(text, "word")
    except InputError:
        return text


def framework_of_file(path: Path) -> str | None:
    """Name of the framework that a configuration or a launch script is of; None where nothing says it."""
    try:
        if path.suffix.lower() in SCRIPTS:
            text = read_text(path, DOCUMENT_BYTES)
            return next((name for name, one in _KNOWN["programs"].items() if re.search(one, text)), None)
        value = document_in(path)
    except InputError:
        return None
    if not isinstance(value, dict):
        return None
    return next((name for name, keys in _KNOWN["keys"].items() if any(present(value, key) for key in keys)), None)
