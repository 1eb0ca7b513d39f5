"""A projection as its folder tells it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from rlsim.errors import InputError
from rlsim.files.reading import DOCUMENT_BYTES
from rlsim.files.yaml import read_yaml
from rlsim.report.findings import NOTABLE_SHARE, SYNC_PHASES
from rlsim.report.format import METHODS
from rlsim.report.page.folder import file_in, needed_file
from rlsim.report.page.reading import Node, read_json
from rlsim.results import (
    PHASES,
    SCHEMA,
    Difference,
    EngineStatistics,
    HalfSupport,
    Interval,
    Leaning,
    MemoryParts,
    MemoryUse,
    Neighbour,
    PhasePart,
    Provenance,
    Sampling,
    StepPhases,
    Support,
    TokenLedger,
    Variant,
)

SCENARIO_BYTES = 2**18
"""Largest scenario.yaml that is looked into; a resolved scenario has 18 KiB."""

LARGEST_DISTANCE = 20.0
"""Distances (in logarithms) beyond this one are as good as infinite."""


@dataclass(frozen=True)
class Told:
    """What scenario.yaml says beside the numbers; empty where it does not."""

    question: str = ""
    model: str = ""
    hardware: str = ""
    num_gpus: int = 0
    mode: str = ""

    @property
    def where(self) -> str:
        """``2,048 gb200_nvl72``."""
        return f"{self.num_gpus:,} {self.hardware}" if self.num_gpus and self.hardware else ""


@dataclass(frozen=True)
class ProjectionData:
    """projection.json, and what scenario.yaml adds. provenance, support: None in files without them."""

    scenario: str
    digest: str
    seed: int
    told: Told
    baseline: Variant
    candidate: Variant
    rollout_speedup: Interval
    end_to_end_speedup: Interval
    provenance: Provenance | None
    support: Support | None
    assumptions: Sequence[str]
    warnings: Sequence[str]

    @property
    def asynchronous(self) -> bool:
        """Whether generation runs beside the trainer: as scenario.yaml says, else where phases exceed their step."""
        if self.told.mode:
            return self.told.mode == "async"
        arm = self.candidate
        total = sum(arm.phases[name].mean for name in SYNC_PHASES)
        return abs(total - arm.step_s.mean) > 2 * NOTABLE_SHARE * arm.step_s.mean

    @property
    def arms(self) -> dict[str, Variant]:
        """The sides to show."""
        if not self.candidate.speculates:
            return {"autoregressive": self.candidate}
        return {"baseline": self.baseline, "candidate": self.candidate}


def read_projection(folder: Path, notes: list[str]) -> ProjectionData:
    """The projection in ``folder``; what is wrong with files that it can do without goes into ``notes``."""
    root = read_json(needed_file(folder, "projection.json"), DOCUMENT_BYTES)
    root.check_schema(SCHEMA)
    shares, support = root.get("provenance"), root.get("support")
    return ProjectionData(
        root.at("scenario").text(),
        root.at("digest").text(),
        root.at("seed").integer(),
        read_told(folder, notes),
        _variant(root.at("baseline")),
        _variant(root.at("candidate")),
        root.at("rollout_speedup").interval(),
        root.at("end_to_end_speedup").interval(),
        None if shares is None else Provenance(*(shares.at(f.name).number() for f in fields(Provenance))),
        None if support is None else _support(support),
        root.at("assumptions").texts(),
        root.at("warnings").texts(),
    )


def read_told(folder: Path, notes: list[str]) -> Told:
    """What scenario.yaml says; nothing where there is none, or where it cannot be read, which ``notes`` then tells."""
    try:
        path = file_in(folder, "scenario.yaml")
        if path is None:
            return Told()
        if path.stat().st_size > SCENARIO_BYTES:
            raise InputError(f"{path.name}: is larger than {SCENARIO_BYTES // 2**10} KiB")
        root = Node(read_yaml(path), path.name)
        cluster, loop, model, hardware = (root.get(name) for name in ("cluster", "loop", "model", "hardware"))
        return Told(
            root.text_at("question"),
            "" if model is None else model.text_at("name"),
            "" if hardware is None else hardware.text_at("name"),
            0 if cluster is None else cluster.at("num_gpus").integer(),
            "" if loop is None else loop.text_at("mode"),
        )
    except InputError as error:
        notes.append(str(error))
        return Told()


def _variant(node: Node) -> Variant:
    ledger, sampling, ages = node.get("tokens"), node.get("sampling"), node.get("staleness")
    return Variant(
        method=node.at("method").choice(METHODS),
        draft_length=node.at("draft_length").integer(),
        acceptance_length=node.at("acceptance_length").interval(),
        step_s=node.at("step_s").positive_interval(),
        phases=StepPhases(*(node.at("phases").at(name).interval() for name in PHASES)),
        tokens_per_s_per_gpu=node.at("tokens_per_s_per_gpu").interval(),
        memory=tuple(_memory(name, use) for name, use in node.at("memory").items()),
        parts=tuple(_part(part) for part in node.at("bounds").elements()),
        staleness={} if ages is None else {_age(age): share.number() for age, share in ages.items()},
        statistics=_statistics(node.at("facts")),
        sampling=Sampling(
            None if sampling is None else sampling.number_at("step_error_s"),
            0.0 if sampling is None else sampling.at("step_deviation_s").number(),
        ),
        ledger=None if ledger is None else TokenLedger(*(ledger.at(f.name).number() for f in fields(TokenLedger))),
    )


def _age(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InputError(f"projection.json: an age of 'staleness' must be a whole number, got '{text}'")
    return int(text)


def _memory(pool: str, node: Node) -> MemoryUse:
    known = {"KV cache" if f.name == "kv_cache" else f.name: f.name for f in fields(MemoryParts)}
    sizes = {known[name]: size.number() for name, size in node.at("parts_bytes").items() if name in known}
    needed = {name: sizes.pop(name, 0.0) for name in ("weights", "runtime", "activations")}
    return MemoryUse(pool, MemoryParts(**needed, **sizes), node.at("available_bytes").number())


def _part(node: Node) -> PhasePart:
    root = node.at("root").text()
    return PhasePart(
        node.at("phase").text(),
        node.at("part").text(),
        node.at("seconds").number(),
        node.at("bound").text(),
        root,
        1.0 if root == "measured" else 0.0,
    )


def _statistics(node: Node) -> EngineStatistics:
    known = {f.name: node.number_at(f.name) for f in fields(EngineStatistics) if f.default is None}
    known |= {f.name: node.at(f.name).number() for f in fields(EngineStatistics) if f.default is not None}
    return EngineStatistics(**known)  # type: ignore[arg-type]  # what must not be None is not


def _support(node: Node) -> Support:
    return Support(
        node.at("grade").text(),
        node.at("meaning").text(),
        node.at("half_width").number(),
        _distance(node),
        tuple(
            HalfSupport(
                half.at("half").text(),
                half.at("share").number(),
                _distance(half),
                tuple(_neighbour(one) for one in half.at("nearest").elements()),
            )
            for half in node.at("halves").elements()
        ),
        tuple(
            Leaning(
                one.at("source").text(),
                one.at("kind").text(),
                one.at("share").number(),
                one.at("assumed").boolean(),
                one.at("settle").text(),
                one.at("command").text(),
            )
            for one in node.at("leaning").elements()
        ),
    )


def _neighbour(node: Node) -> Neighbour:
    differences = (
        Difference(
            each.at("feature").text(),
            each.at("asked").text(),
            each.at("measured").text(),
            each.at("squared").number(),
        )
        for each in node.at("differences").elements()
    )
    return Neighbour(node.at("id").text(), _distance(node), tuple(differences))


def _distance(node: Node) -> float:
    value = node.number_at("distance")
    return math.inf if value is None or value > LARGEST_DISTANCE else value
