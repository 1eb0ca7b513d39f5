"""Find a catalogue entry by its name, or say which names come near."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlsim.errors import InputError, shortened
from rlsim.files.reading import data_folder

YAML_SUFFIXES = (".yaml", ".yml")


def catalogue(folder: str, subfolder: str = "") -> dict[str, Path]:
    """Files of a data folder by name without suffix, sorted."""
    where = data_folder(folder) / subfolder  # by plain names: a glob takes four times as long
    names = sorted(name for name in os.listdir(where) if name.endswith(".yaml"))  # noqa: PTH208
    return {name.removesuffix(".yaml"): where / name for name in names}


def _normal(name: str) -> str:
    return name.strip().casefold().replace("_", "-")


def find_entry(name: str, entries: dict[str, Path], what: str, otherwise: str = "") -> Path:
    """Path of entry ``name``: case does not matter, nor whether words are joined by - or _.

    Raises InputError that lists the nearest names, or all where none is near; ``what`` says what is looked for,
    ``otherwise`` what can be given instead of a name.
    """
    by_normal = {_normal(key): key for key in entries}
    key = by_normal.get(_normal(name))
    if key is not None:
        return entries[key]
    import difflib  # for mistakes alone

    alike = difflib.get_close_matches(_normal(name), by_normal, n=3, cutoff=0.5)
    # By likeness a family's short name is far from its long members.
    family = [one for one in by_normal if _normal(name) and f"{one}-".startswith(f"{_normal(name)}-")]
    near = [by_normal[match] for match in dict.fromkeys((*family, *alike))]
    hint = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(entries)}"
    raise InputError(f"unknown {what} '{shortened(name)}'; {hint}{otherwise}")


def as_path(name: str, suffixes: tuple[str, ...], base: Path | None) -> Path | None:
    """The file or folder that ``name`` means, or None where it can only be a catalogue name.

    A relative path counts from ``base`` (the folder of the file that refers to it) where it exists there.
    """
    with _possible(name):
        given = Path(name).expanduser()
        candidates = [given] if base is None else [base / given, given]
        looks_like_path = given.suffix.lower() in suffixes or name.startswith((".", "/", "~"))
        if looks_like_path or len(given.parts) > 1:
            found = next((candidate for candidate in candidates if candidate.exists()), None)
            return found or (candidates[0] if looks_like_path else None)
        return None


def length_file(path: str, base: Path | None = None) -> Path | None:
    """The file of request lengths that ``path`` means: counted from ``base``, from here, or a delivered one by name.

    None where there is none of them. A device or pipe counts as found; reading it is then refused with the reason.
    """
    with _possible(path):
        given = Path(path).expanduser()
        candidates = [given] if base is None else [base / given, given]
        if given.name == path:
            candidates.append(delivered_lengths() / path)
        return next((candidate for candidate in candidates if candidate.exists()), None)


@contextmanager
def _possible(name: str) -> Iterator[None]:
    """A name that cannot be a path raises InputError."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{shortened(repr(name))} cannot be a path ({shortened(str(error))})") from None


def delivered_lengths() -> Path:
    """Folder of the length tables that come with rlsim."""
    return data_folder("scenarios") / "lengths"
