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
    signature, divisible = {}, {}
    for place, name in enumerate(kernel.arg_names):
        given = "i32" if name in INTEGERS else TYPES.get(name, f"*{logits}" if name == "logits" else "*fp32")
        signature[name] = "constexpr" if name in constants else given
        if name in ALIGNED or signature[name].startswith("*"):
            # What the launcher finds for torch's tensors and for vocabularies that are multiples of 16.
            divisible[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, {name: value for name, value in constants.items()}, divisible)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8 if "row" in kernel.__name__ else 4})
    shared = made.metadata.shared
    wide = max((word for word in ("v4", "v2") if f"ld.global.{word}" in made.asm["ptx"]), default="narrow")
    return f"{kernel.__name__} {logits} {constants}: {len(made.asm['cubin'])} bytes, {shared} shared, loads {wide}"


for kernel, variants in VARIANTS.items():
    for constants in variants:
        for logits in ("bf16", "fp32"):
            print(compiled(kernel, constants, logits))
