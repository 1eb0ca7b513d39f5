"""What the site shows, one task on many clusters beside what was measured; and the score of a benchmark."""

from rlsim.results.record import Interval, Number, Record


class GridCell(Record):
    """A step of one task on so many GPUs of a device.

    words: overrides of the task's scenario that give it again. mode: sync or async. framework: a stack, whose times it
    takes. memory_share: of the fuller pool, of a GPU. step_s and what follows it: None where nothing fits, for
    ``reason``.
    """

    model: str
    device: str
    gpus: int
    mode: str
    framework: str
    words: tuple[str, ...] = ()
    step_s: Interval | None = None
    tokens_per_s_per_gpu: Number | None = None
    usd_per_step: Number | None = None
    memory_share: Number | None = None
    reason: str = ""


class Anchor(Record):
    """A measured step beside its prediction, in seconds. release: of the framework; low, high: of 90 %."""

    id: str
    model: str
    device: str
    mode: str
    release: str
    measured_s: Number
    predicted_s: Number
    low_s: Number | None
    high_s: Number | None


class PastScore(Record):
    """Errors in per cent that a release had, of so many rows of a kind. inside_pct: of 90 % intervals."""

    release: str
    date: str
    kind: str
    rows: int
    median_error_pct: Number
    p90_error_pct: Number
    inside_pct: Number


class BenchmarkScore(Record):
    """Errors of predicted steps as shares of the measured ones, of ``rows`` of ``of`` steps. bias: median.

    coverage: share inside 90 % intervals, half_width: their median as a share of the prediction; None without any.
    crps: of ln(measured / predicted). regret: how much longer the step that looks fastest takes than the fastest
    measured one, mean over ``questions`` with several answers.
    """

    rows: int
    of: int
    median_abs_error: Number
    p90_abs_error: Number
    bias: Number
    coverage: Number | None
    half_width: Number | None
    crps: Number
    regret: Number
    questions: int

    @property
    def lines(self) -> list[str]:
        """The score in words."""
        errors = f"median error {self.median_abs_error:.1%}, p90 {self.p90_abs_error:.1%}, median bias {self.bias:+.1%}"
        inside = []
        if self.coverage is not None and self.half_width is not None:
            width = f"half width {self.half_width:.0%} in the median"
            inside = [f"coverage {self.coverage:.0%} of 90 % intervals, {width}"]
        return [
            f"{self.rows} of {self.of} steps", errors, *inside, f"CRPS of the logarithm {self.crps:.3f}",
            f"regret {self.regret:.1%} over {self.questions} questions with more than one measured answer",
        ]  # fmt: skip
