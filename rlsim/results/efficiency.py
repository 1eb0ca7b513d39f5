"""How well a phase uses its GPUs, and what measured runs reached."""

from rlsim.results.record import Record, Rounded, Rounded6


class PhaseEfficiency(Record):
    """A phase. tokens_per_s_per_gpu: of the GPUs that work in it; response tokens in generation, prompts too elsewhere.

    mfu, hfu: model and hardware FLOP over what the GPUs could do at ``peak_flops`` of ``precision`` (docs/glossary.md).
    bandwidth_use: of generation, reads of weights and caches over memory bandwidth.
    """

    phase: str
    tokens_per_s_per_gpu: Rounded
    mfu: Rounded6
    hfu: Rounded6
    bandwidth_use: Rounded6 | None
    peak_flops: Rounded
    precision: str


class MeasuredEfficiency(Record):
    """What measured runs of a model on a device reached. phase: train (MFU) or decode (bandwidth use of iterations).

    model: any for all models together. best_run: id of the row.
    """

    phase: str
    model: str
    device: str
    precision: str
    runs: int
    median: Rounded6
    best: Rounded6
    best_run: str
