"""Configuration files with what they inherit: NeMo-RL's ``defaults`` paths, Hydra's ``defaults`` lists."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.files.reading import DOCUMENT_BYTES, read_text, shown_path
from rlsim.files.yaml import parse_value, read_value
from rlsim.readers.frameworks.framework import Framework
from rlsim.readers.frameworks.trees import ConfigTree, Layer, Mappings, check_bounds, nested, stacked

SHIPPED = Path(__file__).parent / "defaults"
MAX_FILES = 64
"""Files that one configuration may consist of."""
_PLAIN_NAME = r"[\w.-]{1,200}"
"""Of a file that is looked for in a repository."""
_SUFFIXES = (".yaml", ".yml", ".toml")
_ROOT_MARKS = (".git", "pyproject.toml")
_PACKAGE = re.compile(
    r"^(?P<words>(?:override\s+|optional\s+)*)(?P<absolute>/?)(?P<group>[\w./-]+?)(?:@(?P<package>[\w.]*))?$"
)

_HEADER = re.compile(r"(?:[ \t]*(?:#(?![ \t]*@package).*)?\r?\n)*[ \t]*#[ \t]*@package[ \t]+([\w.]+)")
"""The package that a file of Hydra's says itself to belong in, in a comment at its top."""


def read_tree(
    path: Path,
    framework: Framework,
    root: Path | None = None,
    start: Sequence[str] | None = None,
    choices: Mapping[str, str] | None = None,
) -> ConfigTree:
    """The configuration of ``path`` with everything that it inherits.

    root: folder that inherited files must lie in; default: the nearest folder above with a .git or pyproject.toml,
    else the file's own. start: shipped trees under a file that names none. A Hydra ``overrides.yaml`` (a list of
    overrides) gives the shipped trees alone; its words are for :func:`override_list`. choices: options of Hydra's
    groups that the command line chooses. Raises InputError naming the
    file for what cannot be read, for circles, and for inherited files outside ``root``.
    """
    reading = _Reading(framework, root, path, choices or {})
    layers = [] if override_list(path) else reading.layers(path, ())
    if not any(layer.own for layer in layers):
        layers = [*map(shipped_layer, start or framework.start), *layers]
    return stacked(layers, shown_path(path), tuple(dict.fromkeys(reading.notes)))


def override_list(path: Path) -> list[str]:
    """Overrides of a file that is a list of them, as Hydra writes into ``.hydra/overrides.yaml``; else none."""
    value = document_in(path)
    return [str(item) for item in value] if isinstance(value, list) and all(isinstance(i, str) for i in value) else []


def shipped_layer(name: str) -> Layer:
    """One of rlsim's trees of documented defaults."""
    path = SHIPPED / f"{name}.yaml"
    return Layer(f"rlsim's defaults ({name})", read_value(path), own=True)


def document_in(path: Path) -> Any:
    """The value of a configuration file. Raises InputError where it is none, or too large."""
    if path.suffix.lower() not in _SUFFIXES:
        raise InputError(f"{shown_path(path)}: is no .yaml file, .toml file or launch script (.sh)")
    text, where, toml = read_text(path, DOCUMENT_BYTES), shown_path(path), path.suffix.lower() == ".toml"
    try:
        value = tomllib.loads(text) if toml else parse_value(text, where, numbered=True)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{where}: is no TOML ({shortened(str(error))})") from error
    check_bounds(value, where)
    return value


def _there(path: Path) -> bool:
    try:
        # A copied configuration may name what no file system can: a name too long, or with a NUL byte.
        return path.exists()
    except (OSError, ValueError):
        return False


def _root_of(path: Path) -> Path:
    folder = path.absolute().parent
    marked = (above for above in (folder, *folder.parents) if any((above / mark).exists() for mark in _ROOT_MARKS))
    return next(marked, folder)


class _Reading:
    """One reading of a file: what it may read, and what stood in for what."""

    def __init__(self, framework: Framework, root: Path | None, path: Path, choices: Mapping[str, str]) -> None:
        self._framework, self._given, self._top = framework, root is not None, path.parent
        self._root, top = (root or _root_of(path)).resolve(), path.parent
        self._choices, self._search = dict(choices), [top]
        self._count = 0
        self.notes: list[str] = []

    def layers(self, path: Path, above: tuple[Path, ...]) -> list[Layer]:
        """The file's layers, what it inherits first. above: files that inherit from it."""
        where, real = shown_path(path), path.resolve()
        self._count += 1
        if real in above:
            raise InputError(f"{where}: inherits from itself (defaults)")
        if self._count > MAX_FILES:
            raise InputError(f"{where}: more than {MAX_FILES} files are inherited (defaults)")
        document = document_in(path)
        if document is None and above:  # Hydra inherits nothing from an empty file
            document = {}
        if not isinstance(document, dict):
            raise InputError(f"{where}: expected a mapping of keys to values")
        parents = document.get("defaults")
        # Section hydra configures Hydra itself (folders of runs, sweeps); the program never sees it.
        own = Layer(where, {key: value for key, value in document.items() if key not in ("defaults", "hydra")})
        entries = parents if isinstance(parents, list) else [] if parents is None else [parents]
        chain = (*above, real)
        if not self._framework.hydra:
            # NeMo-RL knows no _self_: a file lies over what it inherits (nemo_rl/utils/config.py at 7ea279abf).
            below = [layer for entry in entries for layer in self._path_entry(entry, path, chain)]
            return [*below, own]
        self._look_ahead(document, entries)
        chosen: dict[str, str] = {}
        out: list[Layer] = []
        for entry in entries:
            out += [own] if entry == "_self_" else self._group_entry(entry, chosen, path, chain)
        # Since Hydra 1.1 a file without _self_ lies over its defaults; 1.0 had it below them.
        return out if "_self_" in entries else [*out, own]

    def _look_ahead(self, document: Mappings, entries: list[Any]) -> None:
        """What a document says of those that it inherits: options of their groups, and further folders of files."""
        for entry in entries:
            for group, option in entry.items() if isinstance(entry, dict) else ():
                if isinstance(group, str) and group.startswith("override ") and isinstance(option, str):
                    # What the command line and the files above chose came before and stays.
                    self._choices.setdefault(group.split()[-1], option)
        hydra = document.get("hydra")
        folders = hydra.get("searchpath") if isinstance(hydra, dict) else None
        for folder in folders if isinstance(folders, list) else ():
            # pkg:// names a Python package by dots, file:// a folder.
            kind, _, name = str(folder).partition("://")
            self._search.append(self._root / (name.replace(".", "/") if kind == "pkg" else name))

    def _path_entry(self, entry: Any, path: Path, chain: tuple[Path, ...]) -> list[Layer]:
        if not isinstance(entry, str) or (path.parent / entry).is_dir():
            raise InputError(f"{shown_path(path)}: defaults: {shortened(repr(entry))} is no path of a file")
        target = self._elsewhere(path.parent / entry) or self._inside(path.parent / entry, path, entry)
        if not target.exists():
            if target.name in self._framework.shipped:
                return self._stand_in(target.name, target.name)
            where, name = shown_path(path), shortened(target.name)
            raise InputError(f"{where}: defaults: no such file as {name}{self._framework.whereabouts}")
        return self.layers(target, chain)

    def _elsewhere(self, target: Path) -> Path | None:
        """A file that a copied one inherits, as the folder given for inherited files has it; None where it has none."""
        if not self._given or _there(target) or not re.fullmatch(_PLAIN_NAME, target.name):
            return None
        asked = [part for part in target.parts if part not in (".", "..")]
        folder = asked[-2] if len(asked) > 1 else ""
        # In order, since file systems list differently, and one configuration gives one scenario.
        found = sorted(self._root.rglob(target.name))
        return next((one for one in found if one.parent.name == folder), found[0] if found else None)

    def _group_entry(self, entry: Any, chosen: dict[str, str], path: Path, chain: tuple[Path, ...]) -> list[Layer]:
        """Layers of one entry of a Hydra list: a file, or a file of a group laid into its package.

        chosen: options of the groups before it, which the names of later ones may refer to.
        """
        group, option = next(iter(entry.items())) if isinstance(entry, dict) and len(entry) == 1 else (entry, None)
        found = _PACKAGE.match(group) if isinstance(group, str) else None
        if found is None or not isinstance(option, str | None):
            raise InputError(f"{shown_path(path)}: defaults: {shortened(repr(entry))} is no entry of a list of Hydra's")
        # null leaves a group out; those of hydra/ choose Hydra's own launchers, sweepers and loggers.
        if isinstance(entry, dict) and (option is None or found["group"].startswith("hydra/")):
            return []
        if "override" in found["words"]:
            return []
        option = self._choices.get(found["group"], option) if isinstance(entry, dict) else option
        for name, choice in chosen.items():
            option = option and option.replace(f"${{{name}}}", choice)
        chosen[found["group"]] = option or ""
        name = (found["group"] if option is None else f"{found['group']}/{option}").removesuffix(".yaml")
        # A leading slash counts from the top, any other name from the folder of the file that lists it.
        folders = [self._top if found["absolute"] else path.parent, *self._search]
        places = [folder / f"{name}.yaml" for folder in folders]
        target = self._inside(next((place for place in places if place.exists()), places[0]), path, name)
        if not target.exists():
            return self._absent(name, option, found["words"], path)
        package = found["package"]
        # Hydra's order: the package of the entry, then that of the file's own header, then the group.
        if package is None:
            header = _HEADER.match(read_text(target, DOCUMENT_BYTES))
            package = header[1] if header else "" if option is None else found["group"]
        layers = self.layers(target, chain)
        if package in ("", "_global_", "_here_"):  # the root; _here_ in files at the top
            return layers
        return [Layer(layer.where, nested({package: layer.values}), layer.own) for layer in layers]

    def _absent(self, name: str, option: str | None, words: str, path: Path) -> list[Layer]:
        """What stands for a file of Hydra's that is not there: a shipped tree holds the groups of its framework too."""
        stem = Path(name).name
        if stem in self._framework.shipped:
            return self._stand_in(stem, f"{stem}.yaml")
        if option is None and "optional" not in words:
            raise InputError(f"{shown_path(path)}: defaults: there is no {shortened(name)}.yaml beside it")
        self.notes.append(f"{shortened(name)}.yaml is not there: rlsim's own tree of documented defaults stands in")
        return []

    def _stand_in(self, name: str, shown: str) -> list[Layer]:
        self.notes.append(f"{shortened(shown)} is not there: rlsim's own tree of documented defaults stands in")
        return [shipped_layer(tree) for tree in self._framework.shipped[name]]

    def _inside(self, target: Path, path: Path, entry: str) -> Path:
        try:
            real = target.resolve()
        # Links in a circle are a RuntimeError before Python 3.13.
        except (OSError, RuntimeError, ValueError) as error:
            raise InputError(
                f"{shown_path(path)}: defaults: {shortened(repr(entry))} cannot be a path ({shortened(str(error))})"
            ) from error
        stands_in = not real.exists() and (
            target.name in self._framework.shipped or target.stem in self._framework.shipped
        )
        if not real.is_relative_to(self._root) and not stands_in:
            raise InputError(
                f"{shown_path(path)}: defaults: '{shortened(entry)}' lies outside {shown_path(self._root)}; "
                f"give --root DIR to read it, of {self._framework.name}'s own files a clone of {self._framework.home}"
            )
        return target
