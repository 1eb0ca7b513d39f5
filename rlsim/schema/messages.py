"""From a pydantic validation error to the one line that a user can act on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rlsim.errors import MESSAGE_CHARACTERS, InputError, shortened
from rlsim.files.reading import DOCUMENT_BYTES, read_text, shown_path
from rlsim.files.yaml import lists_beside, read_yaml
from rlsim.files.yaml_rules import place_finder

MAX_LISTED = 8
"""Valid keys listed where none is near."""
MAX_SHOWN = 3
"""Problems in one message; the rest are counted."""
FAULT_CHARACTERS = 240
"""Longest text of one problem."""
_LISTED = ("expected", "expected_tags")
"""What pydantic lists of our own choices; everything else in its context comes from the input."""

Record = TypeVar("Record", bound=BaseModel)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Records that a value can be, those inside lists included."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


def _walk(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[str, list[type[BaseModel]]]:
    """Dotted key of ``loc`` and the models that hold its last part; parts that name a union branch are left out."""
    models, holders, dotted = [model], [model], ""
    for position, part in enumerate(loc):
        if isinstance(part, int):  # an entry of a list
            dotted += f"[{part}]"
            continue
        fields = [holder.model_fields[part] for holder in models if part in holder.model_fields]
        if not fields and position < len(loc) - 1:
            # pydantic names the branch of a union within the place: by its class, or by its tag.
            named = [holder for holder in models if part in (holder.__name__, _tag(holder, part))]
            models = named or models
            continue
        if not fields and any(part == _tag(holder, part) for holder in models):
            continue
        dotted += f".{part}" if dotted else part
        holders = models
        models = [inner for field in fields for inner in models_in(field.annotation)]
    return dotted, holders


def _tag(model: type[BaseModel], part: str) -> str | None:
    """``part`` where some field of ``model`` is fixed to that literal, so that it names a branch of a tagged union."""
    return next((part for field in model.model_fields.values() if get_args(field.annotation) == (part,)), None)


def _all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        for inner in models_in(field.annotation):
            yield from _all_keys(inner, f"{prefix}{name}.")


def _keys(model: type[BaseModel]) -> dict[str, None]:
    """Every dotted key of ``model`` in the order of its fields."""
    return dict.fromkeys(_all_keys(model))


def is_key(dotted: str, model: type[BaseModel]) -> bool:
    """Whether ``dotted`` is a key of ``model``, in any branch of its unions."""
    name, dot, rest = dotted.partition(".")
    field = model.model_fields.get(name)
    return field is not None and (not dot or any(is_key(rest, inner) for inner in models_in(field.annotation)))


def unknown_key(dotted: str, model: type[BaseModel]) -> str:
    """A message on the unknown key ``dotted``, with the nearest valid key of ``model``."""
    near = nearest_key(dotted, model)
    return f"unknown key '{shortened(dotted)}'" + (f"; did you mean '{near}'?" if near else "")


def nearest_key(dotted: str, model: type[BaseModel]) -> str | None:
    """The valid dotted key of ``model`` closest to ``dotted``: a neighbour, a longer one, then that elsewhere.

    ``dotted`` itself, valid in another branch of a union, is never the answer.
    """
    parent, _, leaf = dotted.rpartition(".")
    keys = [key for key in _keys(model) if key != dotted]
    siblings = {key.rpartition(".")[2]: key for key in keys if key.rpartition(".")[0] == parent}
    import difflib  # for mistakes alone

    close = difflib.get_close_matches(leaf, siblings, n=1)
    if close:
        return siblings[close[0]]
    longer = [name for name in siblings if name.startswith(f"{leaf}_")]
    if leaf and longer:
        return siblings[min(longer, key=len)]
    leaves: dict[str, str] = {}
    for key in keys:
        leaves.setdefault(key.rpartition(".")[2], key)
    close = difflib.get_close_matches(leaf, leaves, n=1)
    return leaves[close[0]] if close else None


def _unknown_key(dotted: str, holders: list[type[BaseModel]], model: type[BaseModel]) -> str:
    shown = shortened(dotted)
    here = {name for holder in holders for name in holder.model_fields}
    # A key of another kind of the same section: the nearest name would be itself.
    branch = dotted in _keys(model) and dotted.rpartition(".")[2] not in here
    near = None if branch else nearest_key(dotted, model)
    if near is not None:
        return f"unknown key '{shown}'; did you mean '{near}'?"
    valid = list(dict.fromkeys(name for holder in holders for name in holder.model_fields))
    more = f" and {len(valid) - MAX_LISTED} more (rlsim schema)" if len(valid) > MAX_LISTED else ""
    return f"unknown key '{shown}'; valid here: {', '.join(valid[:MAX_LISTED])}{more}"


def _problem(error: ErrorDetails, model: type[BaseModel]) -> str:
    dotted, holders = _walk(model, error["loc"])
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(dotted, holders, model)
    key = f"{shortened(dotted, 100)}: " if dotted else ""
    if kind == "value_error":
        return key + shortened(error["msg"].removeprefix("Value error, "), FAULT_CHARACTERS)
    texts = lists_beside(__file__, "messages.yaml")
    # Input may be of any length, our own lists of choices may not be cut.
    values = {name: value if name in _LISTED else shortened(str(value)) for name, value in context.items()}
    if isinstance(error["input"], dict):
        values["keys"] = shortened(", ".join(map(str, error["input"])) or "none")
    if kind in texts["without_value"]:
        return key + str(texts["without_value"][kind]).format(**values)
    text = str(texts["with_value"][kind]).format(**values) if kind in texts["with_value"] else error["msg"]
    return f"{key}{text}, got {shortened(repr(error['input']))}"


def as_input_error(
    error: ValidationError,
    where: str,
    model: type[BaseModel],
    place_of: Callable[[str], object] = lambda key: None,
) -> InputError:
    """One InputError line for ``error`` of ``model``: origin, place and dotted key, violated bound, nearest valid key.

    where: file or option that the values came from. place_of: place of a dotted key there, None where it is not known.
    Unknown keys come first, since a misspelt key also leaves a required one missing; at most three problems are
    printed, fewer where they are long, the rest counted.
    """
    # False before true, and sorted() keeps the order of the schema within both.
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
    missing = [_walk(model, detail["loc"])[0] for detail in details if detail["type"] == "missing"]
    if len(missing) > 1:  # named together, so that none of them is only counted
        details = [detail for detail in details if detail["type"] != "missing"]
    problems = list(dict.fromkeys(_at_place(place_of, detail, model) + _problem(detail, model) for detail in details))
    if len(missing) > 1:
        problems.append(f"{', '.join(shortened(key, 100) for key in missing)}: are required")
    for count in range(MAX_SHOWN, 0, -1):
        more = f" (and {len(problems) - count} more)" if len(problems) > count else ""
        text = f"{where}: {'; '.join(problems[:count])}{more}"
        if len(text) <= MESSAGE_CHARACTERS:
            break
    return InputError(text)


def _at_place(place_of: Callable[[str], object], error: ErrorDetails, model: type[BaseModel]) -> str:
    place = place_of(_walk(model, error["loc"])[0]) if error["loc"] else None
    return "" if place is None else f"{place}: "


class InOurWords(type(BaseModel)):  # type: ignore[misc]
    """``Scenario(...)`` raises InputError; validation within, which knows the file, raises pydantic's error as ever."""

    def __call__(cls, *args: Any, **values: Any) -> Any:
        try:
            return super().__call__(*args, **values)
        except ValidationError as error:
            name = cls.__name__
            where = f"{name}(...), which looks no name up (rlsim.load_scenario takes such a mapping and does)"
            raise as_input_error(error, where, cls) from None


def read_record(path: Path, model: type[Record]) -> Record:
    """``model`` from a YAML file. Raises InputError naming file, place and key of whatever is wrong."""
    values = read_yaml(path)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        text = read_text(path, DOCUMENT_BYTES)
        raise as_input_error(error, shown_path(path), model, place_finder(text)) from error
