"""What frameworks leave to Megatron-Core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol, TypeVar, get_args

from rlsim.readers.frameworks.framework import Rule
from rlsim.readers.frameworks.options import Change, Option, Options
from rlsim.readers.frameworks.rules import Assumption, Rules
from rlsim.readers.frameworks.targets import Trainer
from rlsim.schema.trainer import RecomputeModule

C = TypeVar("C", bound=Options)
GRANULARITIES: tuple[tuple[str, Literal["none", "selective", "full"]], ...] = (
    ("full", "full"), ("selective", "selective"), ("none", "none"),
)  # fmt: skip
"""Words of recompute_granularity with the scenario's."""
PRECISIONS: dict[bool | None, Literal["fp32", "bf16"]] = {True: "fp32", False: "bf16"}
"""Precision of gradients by grad_reduce_in_fp32."""


class Sizes(Protocol):
    """Parallel sizes as Megatron-Core calls them."""

    @property
    def tensor_model_parallel_size(self) -> int:
        """GPUs that share every layer."""

    @property
    def pipeline_model_parallel_size(self) -> int:
        """Stages of layers."""

    @property
    def expert_model_parallel_size(self) -> int:
        """GPUs over which experts are spread."""

    @property
    def expert_tensor_parallel_size(self) -> int | None:
        """GPUs that share an expert, where that is stated."""


def shared_experts(c: Sizes, gpus: int | None = None) -> int | None:
    """GPUs that share an expert: as stated, else where experts are spread those of a layer (Megatron-Core,
    model_parallel_config.py:506; SkyRL says so of its own default, skyrl/train/config/config.py:459).

    gpus: of the trainer, where they are known: Megatron-Core stops where the experts' sizes do not divide them
    (parallel_state.py: initialize_model_parallel), so that whoever runs it states another.
    """
    if c.expert_tensor_parallel_size or c.expert_model_parallel_size <= 1:
        return c.expert_tensor_parallel_size
    return c.tensor_model_parallel_size if gpus is None or _divides(c, gpus) else None


def whole_experts(c: Sizes, gpus: int) -> Iterator[Assumption]:
    """What is taken for granted where ``shared_experts`` finds none that divide the trainer's ``gpus``."""
    if c.expert_tensor_parallel_size is None and c.expert_model_parallel_size > 1 and not _divides(c, gpus):
        yield Assumption(
            f"No GPUs share an expert: expert_tensor_parallel_size is not stated, and with the "
            f"{c.tensor_model_parallel_size} that Megatron-Core would take the experts' sizes do not divide the "
            f"{gpus} GPUs of the trainer, where it stops; state the size that the run has.",
            [Trainer.expert_tensor_parallel],
        )


def _divides(c: Sizes, gpus: int) -> bool:
    """Whether experts shared by the GPUs of a layer divide so many GPUs."""
    return gpus % (c.tensor_model_parallel_size * c.expert_model_parallel_size * c.pipeline_model_parallel_size) == 0


def core_rules(
    of: Rules[C],
    when: Callable[[C], bool],
    *,
    tensor: Option[int],
    granularity: Option[str] | Option[str | None],
    modules: Option[list[str]],
    loss: Option[bool],
    overlap: Option[bool] | None = None,
    sharded: Option[bool] | None = None,
    sequence: Option[bool] | None = None,
    fp32_gradients: Option[bool | None] | None = None,
) -> tuple[Rule[C], ...]:
    """Rules of options that mean what Megatron-Core says they mean, beside its layout; they hold where ``when`` does.

    modules: recompute_modules, which count where granularity is selective. loss: account_for_loss_in_pipeline_split,
    the LM head in the place of a layer. overlap: overlap_grad_reduce. sharded: use_distributed_optimizer. sequence:
    sequence_parallel. fp32_gradients: grad_reduce_in_fp32. None where a framework has no such option.
    """

    def recomputed(c: C) -> tuple[RecomputeModule, ...] | None:
        return recomputed_modules(modules.read(c.r)) if granularity.read(c.r) == "selective" else None

    def dealt(_: C, value: str) -> list[Change | None]:
        return [loss.to(True) if value == "head" else None]

    rules = [
        of(Trainer.recompute_modules, when=when).rule(recomputed, lambda _, value: [modules.to(list(value))]),
        of(Trainer.pipeline_balance, when=when).rule(lambda c: "head" if loss.read(c.r) else None, dealt),
    ]
    if overlap is not None:
        rules.append(of(Trainer.gradient_overlap, when=when).same(overlap))
    if sharded is not None:
        rules.append(of(Trainer.zero_stage, when=when).rule(lambda c: None if sharded.read(c.r) else 0))
    if sequence is not None:
        rules.append(of(Trainer.sequence_parallel, when=lambda c: when(c) and tensor.read(c.r) > 1).same(sequence))
    if fp32_gradients is not None:
        rules.append(_gradient_precision(of, when, fp32_gradients))
    return tuple(rules)


def recomputed_modules(asked: Sequence[str]) -> tuple[RecomputeModule, ...] | None:
    """Of recompute_modules those whose memory is counted; None where it names none of them."""
    known: tuple[RecomputeModule, ...] = get_args(RecomputeModule)
    return tuple(name for name in known if name in asked) or None


def _gradient_precision(of: Rules[C], when: Callable[[C], bool], reduced: Option[bool | None]) -> Rule[C]:
    """The rule of grad_reduce_in_fp32."""

    def precision(c: C) -> Literal["fp32", "bf16"] | None:
        return PRECISIONS.get(reduced.read(c.r))

    def write(_: C, value: str) -> list[Change]:
        return [reduced.to(value == "fp32")]

    return of(Trainer.gradient_precision, when=when).rule(precision, write)


def optimizer_bytes(precision_aware: bool, on_host: bool, moments: Sequence[str | None] = ()) -> float:
    """Bytes of the optimizer's state for each parameter.

    precision_aware: use_precision_aware_optimizer, which holds of an FP32 weight the 16 bits that the BF16 one lacks
    (store_param_remainders, on by default: core/optimizer/optimizer_config.py of Megatron-LM) and moments of the types
    ``moments`` (FP32 unless stated). on_host: optimizer_cpu_offload, whose HybridDeviceOptimizer holds all in FP32
    whatever is asked for (param_update_in_fp32, core/optimizer/__init__.py).
    """
    if not precision_aware or on_host:
        return 12.0
    return 2.0 + moment_bytes(moments)


def moment_bytes(types: Sequence[str | None]) -> float:
    """Bytes of Adam's two moments of a parameter by the names of their types; FP32 where they are not stated."""
    names = (str(one or "fp32").rpartition(".")[2].lower() for one in types or (None, None))
    return sum(MOMENT_BYTES.get(one, 4.0) for one in names)


MOMENT_BYTES = {"bf16": 2.0, "bfloat16": 2.0, "fp16": 2.0, "float16": 2.0, "half": 2.0, "fp8": 1.0, "uint8": 1.0}
"""Bytes of a moment by the name of its type."""
