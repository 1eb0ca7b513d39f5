"""Measure passes of trainers around transformers: ``python -m bench.passes --device cuda --out passes.jsonl``."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import torch
import transformers

from bench.metadata import describe
from bench.passes.measure import Shape, offloads, passes
from bench.passes.models import MODULES

_GIB = 2**30
_DENSE = {
    "qwen2.5-0.5b": (24, ((16, 512), (4, 4096))),
    "qwen3-1.7b": (28, ((2, 1024), (8, 2048), (1, 16384))),
    "qwen3-8b": (12, ((2, 1024), (8, 2048), (1, 16384))),
    "qwen2.5-32b": (4, ((2, 1024), (8, 2048), (1, 16384))),
}
"""Layers and batches (sequences, tokens of each) by model; FP32 weights and both moments of each fit 80 GB."""
_EXPERTS = ((2, 512), (4, 2048), (1, 16384))
_LINEAR = ((4, 2048), (1, 16384))
_WAYS = ("grouped_mm", MODULES, "eager")
_TINY = [
    Shape("tiny-dense", 2, 2, 64, fsdp=True), *(Shape("tiny-experts", 1, 1, 64, experts=way) for way in _WAYS),
    Shape("tiny-linear", 4, 1, 64),
]  # fmt: skip


def further() -> list[Shape]:
    """Shapes that need PEFT and Liger's kernels: adapters, fused kernels, both."""
    found = []
    for lora_rank, liger in ((32, False), (0, True), (32, True)):
        for model in ("qwen3-1.7b", "qwen3-8b", "qwen2.5-0.5b"):
            layers, batches = _DENSE[model]
            found += [Shape(model, layers, *batch, True, "", lora_rank, liger) for batch in batches[-2:]]
    return found


def shapes() -> list[Shape]:
    """What is measured, the most telling first: a run that ends early has lost the least."""
    found = [
        Shape(model, layers, *batch, fsdp=True) for model, (layers, batches) in _DENSE.items() for batch in batches
    ]
    for experts in _WAYS:
        found += [Shape("qwen3-30b-a3b", 4, *batch, experts=experts) for batch in _EXPERTS]
    found += [Shape("qwen3.5-9b", 4, *batch) for batch in _LINEAR]
    found += [Shape(model, layers, *batch) for model, (layers, batches) in _DENSE.items() for batch in batches]
    for experts in _WAYS[:2]:
        found += [Shape("qwen3-30b-a3b", 4, *batch, fsdp=True, experts=experts) for batch in _EXPERTS]
    return found


def main() -> None:
    """Write one line of JSON a pass, the first with the machine and its rates of offloading."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--device", default="cuda")
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--budget", type=float, default=400.0, help="seconds after which no further pass begins")
    words.add_argument("--tiny", action="store_true", help="a few passes of the smallest shapes, for a CPU")
    words.add_argument("--further", action="store_true", help="adapters and fused kernels (needs peft, liger-kernel)")
    given = words.parse_args()
    wanted = _TINY if given.tiny else further() if given.further else shapes()
    device, started = torch.device(given.device), time.monotonic()
    with given.out.open("w", encoding="utf-8") as lines:
        copied = (_GIB // 16, 1) if given.tiny else (_GIB // 4, 16)
        machine = {**asdict(describe(device, "passes")), "transformers": transformers.__version__}
        print(json.dumps({"machine": machine, **offloads(device, *copied)}), file=lines, flush=True)
        for one in passes(wanted, device):
            print(json.dumps(one.record()), file=lines, flush=True)
            told = f"{one.seconds * 1e3:9.1f} ms" if one.seconds is not None else one.failed
            print(f"{time.monotonic() - started:6.1f} s  {one.kind:9} {told}  {one.shape}", flush=True)
            if time.monotonic() - started > given.budget:
                print("out of time")
                return


if __name__ == "__main__":
    main()
