"""What no operator table holds of an engine: by family and release, fitted to measured iterations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Literal, Self, TypeVar

from pydantic import Field, model_validator

from rlsim.schema.base import Fraction01, NonNegativeFloat, Strict

Record = TypeVar("Record")
EngineName = Literal["vllm", "sglang", "trtllm"]


@lru_cache(maxsize=1024)
def version_order(version: str) -> tuple[int, ...]:
    """Numbers of a release, for comparing two of them.

    >>> version_order("0.5.10.post1") > version_order("0.5.9")
    True
    """
    return tuple(int(number) for number in re.findall(r"\d+", version))


def standing_for(version: str, known: Iterable[Record], release: Callable[[Record], str]) -> Record:
    """Of ``known`` the newest one that is not newer than ``version``, the oldest where all are newer.

    release: of one of them. Raises IndexError where none is known.

    >>> [standing_for(version, ["0.6", "0.4"], str) for version in ("0.5.1", "0.6", "0.3")]
    ['0.4', '0.6', '0.4']
    """
    ordered = sorted(known, key=lambda one: version_order(release(one)))
    older = [one for one in ordered if version_order(release(one)) <= version_order(version)]
    return older[-1] if older else ordered[0]


class ReleaseHost(Strict):
    """Host time of one release, drawn towards that of its family the fewer rows there are."""

    version: str = Field(min_length=1, description="Release, without its corrections.")
    iteration_s: NonNegativeFloat = Field(description="Host time per iteration that the device waits for.")
    rows: int = Field(ge=1, description="Measured iterations of this release.")


class EngineFamily(Strict):
    """One engine over its releases."""

    engine: EngineName = Field(description="Engine.")
    rows: int = Field(ge=0, description="Measured iterations without speculation behind the values.")
    overlap_s: NonNegativeFloat = Field(
        description="Of each kernel's measured time, what overlaps with its neighbours in a replayed graph: start and "
        "end, which a measurement of one kernel holds and a chain of them hides."
    )
    iteration_s: NonNegativeFloat = Field(
        description="Host time per iteration that the device waits for, of a release without measurements."
    )
    sequence_s: NonNegativeFloat = Field(description="The same per running sequence of one attention copy.")
    drafting_iteration_s: NonNegativeFloat = Field(
        description="Host time that an iteration takes longer where it speculates: drafts are handed over and verdicts "
        "read before the next can be scheduled."
    )
    drafting_sequence_s: NonNegativeFloat = Field(description="The same per running sequence of one attention copy.")
    drafting_rows: int = Field(ge=0, description="Speculating iterations behind these two; 0: assumed.")
    releases: tuple[ReleaseHost, ...] = Field(default=(), description="Releases that were measured, oldest first.")
    error: Fraction01 = Field(
        description="Standard deviation of ln(predicted / measured) of iterations on pairs of GPU and engine that were "
        "left out of the fit."
    )

    def measured_release(self, version: str | None) -> ReleaseHost | None:
        """The newest measured release that is not newer than ``version``, the oldest where all are newer.

        None for no version, or where none was measured.
        """
        if version is None or not self.releases:
            return None
        return standing_for(version, self.releases, lambda one: one.version)

    def host_s(self, version: str | None) -> float:
        """Host seconds per iteration of the measured release nearest to ``version``, or of the family without one."""
        release = self.measured_release(version)
        return self.iteration_s if release is None else release.iteration_s


class IterationFit(Strict):
    """How the parameters came about and how well they do; errors as shares of the measured time."""

    command: str = Field(description="Command that makes this file anew.")
    rows: int = Field(ge=0, description="Measured iterations used.")
    data_digest: str = Field(description="SHA-256 (first 16 hex digits) of the table of iterations.")
    median_error: NonNegativeFloat = Field(description="Median absolute error on the rows used.")
    p90_error: NonNegativeFloat = Field(description="90th percentile of the same.")
    held_out_median_error: NonNegativeFloat = Field(
        description="Median absolute error on pairs of GPU and engine, each left out of the fit in turn."
    )


class EngineParameters(Strict):
    """Engine families and what several nodes cost them."""

    name: str = Field(min_length=1, description="Name of the set.")
    description: str = Field(description="What it was fitted to.")
    fit: IterationFit
    network_hop_s: NonNegativeFloat = Field(
        description="Time of one hop of an engine's collective between nodes beyond the latency of the link: NCCL's "
        "proxy and its synchronisation with the device."
    )
    families: tuple[EngineFamily, ...] = Field(min_length=1, description="Engines.")

    def __hash__(self) -> int:
        """Equal sets have equal names and families."""
        return hash((self.name, self.network_hop_s, self.families))

    @model_validator(mode="after")
    def _each_engine_once(self) -> Self:
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"families names an engine twice: {', '.join(self.names)}")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Engines of the set."""
        return tuple(one.engine for one in self.families)

    def family(self, engine: str) -> EngineFamily:
        """Parameters of ``engine``. Raises KeyError for one that the set does not hold."""
        for one in self.families:
            if one.engine == engine:
                return one
        raise KeyError(engine)
