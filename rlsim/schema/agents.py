"""Parts of ``workload.agent``: the CPU nodes of its sandboxes, and trajectories of a file."""

from typing import Literal

from pydantic import Field

from rlsim.schema.base import Strict


class Nodes(Strict):
    """CPU nodes beside the cluster that hold the sandboxes of trajectories, each from its start to its last turn."""

    count: int = Field(ge=1, le=1_000_000)
    """CPU nodes."""
    places: int = Field(ge=1, le=100_000)
    """Sandboxes that a node holds at once, by its cores and memory."""
    price_per_hour_usd: float = Field(0.0, ge=0, le=1e6)
    """Price of a node for an hour; in the USD of a step, for as long as it lasts. Default: nobody pays for them."""

    @property
    def sandboxes(self) -> int:
        """Sandboxes on all nodes."""
        return self.count * self.places

    @property
    def hourly_usd(self) -> float:
        """Price of all nodes for an hour."""
        return self.count * self.price_per_hour_usd


class Replay(Strict):
    """Trajectories of a file, taken as they are."""

    kind: Literal["trace"] = "trace"
    path: str = Field(min_length=1)
    """CSV with a row for each turn, as rlsim traces writes it: prompt, trajectory, prompt_tokens, response_tokens,
    observation_tokens, environment_s."""
