"""Synthetic projections with plausible shapes: what the report tests read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlsim.results import Arm, Curve, MemoryUse, PhasePart, Projection, Quantity, Span
from rlsim.units import GIB

SYNC_SECONDS = {"data": 4.2, "prepare": 21.5, "generation": 236.0, "logprob": 31.4, "train": 88.7, "refit": 9.8}
ASSUMPTIONS = (
    "workload.group_correlation = 0.3: share of the variance of log length common to the samples of one prompt; "
    "unpublished.",
    "engine.host_iteration_s = 0.0015: host work per engine iteration that the device waits for; measured values "
    "elsewhere lie between 1.5 and 2.5 ms.",
    "trainer layout TP4 PP8 EP16: the study does not publish it.",
)
WARNINGS = ("verification batches of 512 tokens and more lie outside the captured graphs and run eagerly.",)


def quantity(mean: float, spread: float = 0.02) -> Quantity:
    """A mean with a symmetric interval of relative half width ``spread``."""
    return Quantity(mean, mean * (1 - spread), mean * (1 + spread))


def running_curve(end_s: float, sequences: int = 4096, start_s: float = 0.0) -> Curve:
    """Sequences still running: lognormal lengths, the longest ends at ``end_s``."""
    finish = np.sort(np.random.default_rng(3).lognormal(0.0, 0.55, sequences))
    points = np.linspace(0, sequences - 1, 200).astype(int)
    times = start_s + finish[points] / finish[-1] * end_s
    return Curve(
        "running_sequences",
        (start_s, *(float(t) for t in times)),
        (float(sequences), *(float(sequences - 1 - p) for p in points)),
    )


def memory(speculative: bool) -> tuple[MemoryUse, ...]:
    """Two pools; a draft model only where something is drafted."""
    generation = {"weights": 29.4 * GIB, "kv_cache": 104.0 * GIB, "activations": 6.1 * GIB, "cuda_graphs": 2.0 * GIB}
    if speculative:
        generation |= {"draft_model": 1.3 * GIB}
    training = {"weights": 14.7 * GIB, "gradients": 29.4 * GIB, "optimizer": 44.0 * GIB, "activations": 60.2 * GIB}
    return MemoryUse("generation", generation, 165.9 * GIB), MemoryUse("training", training, 184.4 * GIB)


def shares(seconds: dict[str, float]) -> tuple[PhasePart, ...]:
    """Parts that add up to each phase."""
    generation, train = seconds["generation"], seconds["train"]
    return (
        PhasePart("generation", "MoE experts", 0.41 * generation, "memory", "measured"),
        PhasePart("generation", "attention over the cache", 0.27 * generation, "memory", "measured"),
        PhasePart("generation", "host work per iteration", 0.14 * generation, "host", "assumed"),
        PhasePart("generation", "all-reduce", 0.10 * generation, "network", "measured"),
        PhasePart("generation", "dense GEMM", 0.05 * generation, "memory", "measured"),
        PhasePart("generation", "sampler", 0.03 * generation, "launch", "modelled"),
        PhasePart("train", "expert GEMM", 0.55 * train, "compute", "measured"),
        PhasePart("train", "pipeline bubble", 0.25 * train, "compute", "modelled"),
        PhasePart("train", "expert all-to-all", 0.20 * train, "network", "modelled"),
        PhasePart("logprob", "forward", seconds["logprob"], "compute", "measured"),
        PhasePart("prepare", "optimizer to host and back", 0.54 * seconds["prepare"], "network", "modelled"),
        PhasePart("prepare", "refit", 0.46 * seconds["prepare"], "network", "modelled"),
        PhasePart("data", "driver", seconds["data"], "host", "assumed"),
    )


def sync_spans(seconds: dict[str, float]) -> tuple[Span, ...]:
    """One step, phases in turn; refit nests in prepare, the slowest replica ends generation."""
    data, prepare, generation = seconds["data"], seconds["prepare"], seconds["generation"]
    ready = data + prepare
    done = ready + generation
    return (
        Span("trainer", "data", 0, 0.0, data),
        Span("trainer", "prepare", 0, data, ready),
        Span("trainer", "refit", 0, data + 2.0, data + 2.0 + seconds["refit"], "full weights over NVLink"),
        Span("replica 0", "generation", 0, ready, ready + 0.9 * generation, "64 samples"),
        Span("replica 1", "generation", 0, ready, done, "64 samples"),
        Span("trainer", "logprob", 0, done, done + seconds["logprob"]),
        Span("trainer", "train", 0, done + seconds["logprob"], done + seconds["logprob"] + seconds["train"]),
    )


def sync_arm(method: str = "none", speedup: float = 1.0, draft_length: int = 0, acceptance: float = 1.0) -> Arm:
    """One side of a synchronous comparison: generation is ``speedup`` times shorter."""
    seconds = SYNC_SECONDS | {"generation": SYNC_SECONDS["generation"] / speedup}
    step = sum(seconds[name] for name in ("data", "prepare", "generation", "logprob", "train"))
    phases = {f"{name}_s": quantity(value) for name, value in seconds.items()}
    phases["exposed_generation_s"] = phases["generation_s"]
    return Arm(
        method=method,
        draft_length=draft_length,
        acceptance_length=quantity(acceptance, 0.004),
        step_s=quantity(step),
        phases=phases,
        tokens_per_s_per_gpu=quantity(4.6e7 / 512 / step),
        memory=memory(draft_length > 0),
        shares=shares(seconds),
        staleness={0: 1.0},
        facts={
            "replicas": 64.0,
            "running_sequences_per_replica": 64.0,
            "iteration_ms_full_batch": 18.4 * speedup**-0.4,
        },
        spans=sync_spans(seconds),
        curves=(running_curve(seconds["generation"], start_s=seconds["data"] + seconds["prepare"]),),
    )


def async_arm(method: str = "none", generation: float = 140.0, draft_length: int = 0, acceptance: float = 1.0) -> Arm:
    """One side of a lag-2 comparison over four steps: the trainer needs 62 s, one batch ``generation`` seconds."""
    data, logprob, train, refit = 2.0, 18.0, 42.0, 3.1
    exposed = max(0.4, generation / 2 - (data + logprob + train))
    phases = {
        "data": data,
        "prepare": 0.0,
        "generation": generation,
        "logprob": logprob,
        "train": train,
        "refit": refit,
    }
    phases["exposed_generation"] = exposed
    step = exposed + data + logprob + train + refit
    spans: list[Span] = []
    for index in range(4):
        clock = index * step
        for name, length in (
            ("exposed_generation", exposed),
            ("data", data),
            ("logprob", logprob),
            ("train", train),
            ("refit", refit),
        ):
            spans.append(Span("trainer", name, index, clock, clock + length))
            clock += length
        spans.append(
            Span(
                "generator",
                f"batch for step {index + 2}",
                index + 2,
                index * step,
                index * step + generation,
                "2048 samples",
            )
        )
        spans.append(Span("weights", "refit", index, clock - refit, clock, "broadcast"))
    times = np.arange(0.0, 4 * step, step / 40)
    wave = 6000 + 1800 * np.sin(2 * np.pi * times / step)
    return Arm(
        method=method,
        draft_length=draft_length,
        acceptance_length=quantity(acceptance, 0.004),
        step_s=quantity(step),
        phases={f"{name}_s": quantity(value) for name, value in phases.items()},
        tokens_per_s_per_gpu=quantity(2.3e7 / 2048 / step),
        memory=memory(draft_length > 0),
        shares=shares(phases | {"prepare": 0.0}),
        staleness={1: 0.18, 2: 0.82},
        facts={"replicas": 192.0, "preemptions": 0.0},
        spans=tuple(spans),
        curves=(Curve("running_sequences", tuple(map(float, times)), tuple(map(float, wave))),),
    )


def projection(baseline: Arm, candidate: Arm, **changes: object) -> Projection:
    """A projection around two arms; speedups follow from their means."""
    rollout = baseline.phases["generation_s"].mean / candidate.phases["generation_s"].mean
    made = Projection(
        scenario="qwen235b_512",
        question="What does EAGLE-3 with three drafted tokens bring a synchronous step of Qwen3-235B-A22B?",
        digest="0123456789abcdef",
        seed=0,
        mode="sync",
        num_gpus=512,
        model="Qwen3-235B-A22B",
        hardware="GB200",
        baseline=baseline,
        candidate=candidate,
        rollout_speedup=quantity(rollout, 0.025),
        end_to_end_speedup=quantity(baseline.step_s.mean / candidate.step_s.mean, 0.015),
        provenance={"measured": 0.64, "modelled": 0.27, "assumed": 0.09},
        assumptions=ASSUMPTIONS,
        warnings=WARNINGS,
        resolved_scenario="name: qwen235b_512\n",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def sync_sample() -> Projection:
    """Synchronous, EAGLE-3 k=3: rollout 2.41 times shorter."""
    return projection(sync_arm(), sync_arm("eagle3", 2.41, 3, 3.0))


def async_sample() -> Projection:
    """Asynchronous, lag 2: generation-bound without speculation, trainer-bound with it."""
    return projection(
        async_arm(),
        async_arm("eagle3", 58.0, 3, 3.0),
        question="How much does speculative decoding shorten a lag-2 step on 2,048 GPUs?",
        mode="async",
        scenario="qwen235b_2048",
        num_gpus=2048,
        warnings=(),
    )


def plain_sample() -> Projection:
    """Nothing is drafted: both arms are the same."""
    one = Quantity(1.0, 1.0, 1.0)
    return projection(
        sync_arm(), sync_arm(), rollout_speedup=one, end_to_end_speedup=one, num_gpus=8, hardware="H100 SXM"
    )


def slower_sample() -> Projection:
    """Speculation that does not pay: n-gram."""
    return projection(sync_arm(), sync_arm("ngram", 0.7, 5, 1.4))


def tiny_sample() -> Projection:
    """Phases of milliseconds beside a step of minutes, no curves and no memory."""
    arm = sync_arm()
    phases = arm.phases | {
        "data_s": quantity(0.004),
        "prepare_s": quantity(0.02),
        "logprob_s": quantity(0.9),
        "refit_s": quantity(0.0),
    }
    step = quantity(sum(phases[f"{n}_s"].mean for n in ("data", "prepare", "generation", "logprob", "train")))
    arm = replace(arm, phases=phases, step_s=step, spans=(), curves=(), memory=(), shares=(), facts={})
    return projection(
        arm, replace(arm, method="mtp", draft_length=1, acceptance_length=quantity(1.8)), warnings=(), assumptions=()
    )


def crowded_sample() -> Projection:
    """Asynchronous with every phase, an unexplained rest, five-digit seconds and as many replicas as rows."""

    def grown(arm: Arm) -> Arm:
        phases = {name: quantity(q.mean * 40 + 2.0) for name, q in arm.phases.items()}
        spans = tuple(replace(s, start_s=s.start_s * 40, end_s=s.end_s * 40) for s in arm.spans)
        spans += tuple(Span(f"replica {i}", "generation", 0, 10.0 * i, 2900.0, "requests") for i in range(12))
        return replace(arm, phases=phases, step_s=quantity(arm.step_s.mean * 44), spans=spans)

    made = async_sample()
    return replace(made, baseline=grown(made.baseline), candidate=grown(made.candidate), hardware="GB200 NVL72")
