"""Compiles the kernels of the fused verification for sm_90, without a GPU; prints one line for each variant.

A program of its own: under TRITON_INTERPRET=1 functions are interpreted ones, which no compiler takes.
"""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from bench import verification_kernels as kernels

INTEGERS = {"vocabulary", "draft_vocabulary", "span", "k", "splits", "races"}
ALIGNED = {"vocabulary", "span"}
TYPES = {"partial_token": "*i32", "to_draft": "*i32", "winner": "*i32", "drafted": "*i64", "tokens": "*i64",
         "count": "*i64", "state": "*i64", "temperature": "fp32"}  # fmt: skip
VARIANTS = {
    kernels.row_statistics: [{}],
    kernels.row_maxima: [{}],
    kernels.greedy_decision: [{}],
    kernels.decide_and_race: [{"DRAFT": draft} for draft in range(4)],
    kernels.finish: [{}],
}


def compiled(kernel: triton.JITFunction, constants: dict[str, int], logits: str) -> str:
    """Summary of the compiled ``kernel``."""
    signature, attributes = {}, {}
    for place, name in enumerate(kernel.arg_names):
        given = "i32" if name in INTEGERS else TYPES.get(name, f"*{logits}" if name == "logits" else "*fp32")
        signature[name] = "constexpr" if name in constants else given
        if name in ALIGNED or signature[name].startswith("*"):
            # What the launcher finds for torch's tensors and for vocabularies that are multiples of 16.
            attributes[(place,)] = [["tt.divisibility", 16]]
    warps = 8 if kernel.__name__.startswith("row") else 4
    source = ASTSource(kernel, signature, constants, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    return f"{kernel.__name__} {logits} {constants}: {len(made.asm['cubin'])} bytes for sm_90"


for kernel, variants in VARIANTS.items():
    for constants in variants:
        print(compiled(kernel, constants, "bf16"))
print(compiled(kernels.row_statistics, {}, "fp32"))
print(compiled(kernels.decide_and_race, {"DRAFT": 2}, "fp32"))
