"""Clusters for a model in a terminal."""

from __future__ import annotations

from rlsim.report import format as fmt
from rlsim.report.table import DEFAULT_STYLE, Cell, Row, Style, Table, cell, sections
from rlsim.results.size import ClusterSize, DeviceSize, Sizing


def render_size(sizing: Sizing, style: Style = DEFAULT_STYLE) -> str:
    """The recommendation, and for each device its clusters."""
    return sections(
        style.opening(recommendation(sizing), task_words(sizing)),
        *(_device(one, style) for one in sorted(sizing.devices, key=lambda one: one.device != sizing.best)),
        [line for text in assumed_words(sizing) for line in style.wrapped(text, "- ")],
    )


def task_words(sizing: Sizing) -> str:
    """What the clusters are for."""
    trained = "all weights" if sizing.lora_rank is None else f"LoRA of rank {sizing.lora_rank}"
    prompts, samples = sizing.batch
    return (
        f"{sizing.model}, {trained}; {prompts} prompts x {samples} samples, mean response "
        f"{sizing.response_tokens:,} tokens, cap {sizing.max_sequence_tokens:,}"
    )


def assumed_words(sizing: Sizing) -> tuple[str, ...]:
    """What is taken for granted, prices too."""
    return *sizing.assumptions, fmt.price_remark([one.usd_per_gpu_hour for one in sizing.devices])


def recommendation(sizing: Sizing) -> str:
    """One sentence: which cluster to take and why."""
    one = next((one for one in sizing.devices if one.device == sizing.best), None)
    chosen = None if one is None else one.at(one.chosen)
    if one is None or chosen is None:
        return f"Nothing fits: {'; '.join(f'{each.device}: {each.reason}' for each in sizing.devices)}."
    why = "the knee: beyond it a doubling of GPUs brings less than 1.4x"
    if sizing.deadline_s is not None:
        why = f"the cheapest that keeps to {sizing.deadline_s:g} s with 90 %"
    elif sizing.budget_usd is not None:
        why = f"the fastest within {sizing.budget_usd:g} USD a step"
    elif len(sizing.devices) > 1:
        why = "the cheapest step of all devices at their knees"
    step = f"{chosen.step_s.mean:.1f} s [{chosen.step_s.low:.1f}, {chosen.step_s.high:.1f}]"
    return f"Take {chosen.gpus:,} {one.device}: {step} and {chosen.usd_per_step:.2f} USD a step ({why})."


def _device(one: DeviceSize, style: Style) -> list[str]:
    lines = clusters_table(one).lines(style) if one.sizes else [style.bold(one.device)]
    return [*lines, *style.paragraphs([text for text in (one.reason, share_words(one)) if text])]


def clusters_table(one: DeviceSize) -> Table:
    """The clusters of a device, the fewest GPUs first."""
    told = "" if one.least is None else f"fits from {one.least:,} GPU{'s' if one.least > 1 else ''}"
    rows = [Row(_row(size, one), strong=size.gpus == one.chosen) for size in one.sizes]
    heads = ("GPUs", "", "layout", "memory", "USD/step", "over half", "step (s)")
    return Table(one.device, told, heads, rows, "><<>>>>")


def share_words(one: DeviceSize) -> str:
    """How much of a GPU the engine may take; empty where nothing fits."""
    share = one.memory_share
    return (
        ""
        if share is None
        else (
            f"engine.gpu_memory_utilization: at most {share.safe:.2f} while the trainer's weights lie beside the "
            f"engine, {share.after_offload:.2f} where the cache is taken after they are gone, at least "
            f"{share.least:.2f} ({fmt.percent(share.headroom)} of the GPU stays free)"
        )
    )


def _row(size: ClusterSize, one: DeviceSize) -> tuple[Cell | str, ...]:
    marks = (one.least, "least"), (one.knee, "knee"), (one.chosen, "take this")
    named = ", ".join(word for gpus, word in marks if gpus == size.gpus)
    gain = "" if size.speedup is None else f"{size.speedup:.2f}x"
    used = fmt.percent(max(size.generation_share, size.training_share))
    return f"{size.gpus:,}", named, size.layout, used, f"{size.usd_per_step:.2f}", gain, cell(size.step_s, 1)
