"""What a machine is as the host of rollout engines."""

from rlsim.results.record import Record, Rounded6


class HostSpeed(Record):
    """Measured without a GPU (rlsim calibrate host).

    host: class, with its ``reason``. slowdown: of an engine's host work over the reference, the product of ``single``
    (one thread alone), ``busy`` (that thread beside as many others as engines run, at most one a core) and ``share``
    (processes a core, at least 1). round_s: median of a round of scheduling alone; jitter: p99 over it. waited_share:
    of the time alone, without a core. cores: that may be used, by affinity and quota. processes: that engines keep
    busy; beside: of them ran at once.
    """

    host: str
    reason: str
    slowdown: Rounded6
    single: Rounded6
    busy: Rounded6
    share: Rounded6
    round_s: Rounded6
    jitter: Rounded6
    waited_share: Rounded6
    cores: Rounded6
    processes: int
    beside: int
    processor: str
    python: str
