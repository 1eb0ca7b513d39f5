"""What to measure: cases and the dimensions of their models, and the file that carries them (standard library only)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from bench import BenchError

SCHEMA = "rlsim.cases/1"
Value = int | str
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
TRAINING_STEP = "training_step"
"""Operator of a whole optimizer step: the device's memory is to hold nothing else."""
COMPILED = "compiled"
"""Mode of a case that torch.compile makes."""
HANDED_OVER = "ipc_weight_copy"
"""Operator whose weights pass from one process to another."""
MOST_BYTES = 256 * 2**20
"""Largest file that is read."""
CPU_CACHE_BYTES = 32 * 2**20
"""Assumed share of a CPU's last-level cache where the device does not tell."""
ENQUEUE_CONTEXT = 128
"""Cached tokens at which the host work of an eager step is measured: so few that the device has next to nothing to
do.
"""


@dataclass(frozen=True)
class Case:
    """Operator ``op`` at ``params``, with the work that it must do: FLOPs, and bytes read and written at least once."""

    op: str
    params: Mapping[str, Value]
    flops: float = 0.0
    bytes: float = 0.0

    @property
    def key(self) -> str:
        """Identity of the case in a journal."""
        return f"{self.op} {json.dumps(dict(sorted(self.params.items())), separators=(',', ':'))}"

    def number(self, name: str) -> int:
        """Integer parameter ``name``."""
        return int(self.params[name])

    def text(self, name: str) -> str:
        """Parameter ``name`` as text; empty without."""
        return str(self.params.get(name, ""))


@dataclass(frozen=True)
class ModelDims:
    """One decoder's dimensions; ``experts`` = 0 means a dense feed-forward, ``qk_norm`` a norm on queries and keys.

    width: inner width of the feed-forward, or of one expert. draft_width, draft_vocabulary: of its EAGLE-3 draft layer.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocabulary: int
    layers: int = 1
    qk_norm: int = 0
    experts: int = 0
    top_k: int = 0
    draft_width: int = 0
    draft_vocabulary: int = 0

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.kv_heads

    @property
    def qkv_width(self) -> int:
        """Output columns of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def draft_layer(self) -> ModelDims:
        """The EAGLE-3 draft layer of this target: dense, of the draft's width, without a norm on queries and keys."""
        width, vocabulary = self.draft_width or self.width, self.draft_vocabulary or self.vocabulary
        return ModelDims(self.hidden, self.heads, self.kv_heads, self.head_dim, width, vocabulary)

    def with_layers(self, layers: int) -> ModelDims:
        """The same model, ``layers`` layers deep."""
        return replace(self, layers=layers)


@dataclass(frozen=True)
class CaseList:
    """Everything that one run measures. name: of the list; budget_s: seconds that the run aims at."""

    name: str
    budget_s: float
    target_spread: float
    models: Mapping[str, ModelDims]
    cases: Sequence[Case]


def write_cases(path: Path, wanted: CaseList) -> None:
    """Write ``wanted`` as JSON. BenchError where the file cannot be written."""
    content = {
        "schema": SCHEMA,
        **{name: getattr(wanted, name) for name in ("name", "budget_s", "target_spread")},
        "models": {name: asdict(dims) for name, dims in wanted.models.items()},
        "cases": [case_record(case) for case in wanted.cases],
    }
    write_whole(path, json.dumps(content, indent=1) + "\n", f"cannot write {path}")


def case_record(case: Case) -> dict[str, object]:
    """A case as JSON holds it."""
    return {"op": case.op, "params": dict(case.params), "flops": case.flops, "bytes": case.bytes}


def read_cases(path: Path) -> CaseList:
    """What ``rlsim calibrate cases`` wrote. BenchError where the file is missing or is none."""
    content = read_json(path, SCHEMA, "list of cases; rlsim calibrate cases writes one")
    try:
        return CaseList(
            str(content["name"]),
            float(content["budget_s"]),
            float(content["target_spread"]),
            models_from(content["models"]),
            [known_fields(Case, case) for case in content["cases"]],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BenchError(f"{path} is damaged: {str(error)[:60]}") from error


def models_from(content: Mapping[str, Mapping[str, int]]) -> dict[str, ModelDims]:
    """Dimensions by model name, out of JSON."""
    return {name: known_fields(ModelDims, dims) for name, dims in content.items()}


def is_isolated(case: Case) -> bool:
    """Whether a process of its own takes part in measuring ``case``, because it may hang or fail there."""
    return case.op == HANDED_OVER or case.text("mode") == COMPILED


Record = TypeVar("Record")


def known_fields(kind: type[Record], content: Mapping[str, Any]) -> Record:
    """``kind`` (a dataclass) from the keys of ``content`` that it knows; TypeError where one is missing or no value of
    its type.
    """
    hints = get_type_hints(kind)
    values = {name: value for name, value in content.items() if name in hints}
    for name, value in values.items():
        accepted = [get_origin(hint) or hint for hint in get_args(hints[name]) or (hints[name],)]
        if get_origin(hints[name]) is Mapping:
            accepted = [dict]
        fits = any(isinstance(value, (int, float) if one is float else one) for one in accepted)
        if not fits or (isinstance(value, float) and not math.isfinite(value)):
            raise TypeError(f"{name} is {str(value)[:30]!r}")
    return kind(**values)


def read_json(path: Path, schema: str, what: str) -> dict[str, Any]:
    """The JSON object of ``schema`` in ``path``. BenchError that says ``what`` the file is not."""
    try:
        if path.exists() and (not path.is_file() or path.stat().st_size > MOST_BYTES):
            raise BenchError(f"{path} is no regular file of at most {MOST_BYTES >> 20} MiB")
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BenchError(f"{path} is no JSON: {str(error)[:60]}") from error
    if not isinstance(content, dict) or content.get("schema") != schema:
        raise BenchError(f"{path} (schema {schema} wanted) is no {what}")
    return content


def write_whole(path: Path, text: str, failed: str) -> None:
    """Replace ``path`` by ``text`` in one step, so that a reader finds the old file or the new one.

    Raises BenchError, whose message begins with ``failed``.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BenchError(f"{failed}: {error.strerror or error}") from error
