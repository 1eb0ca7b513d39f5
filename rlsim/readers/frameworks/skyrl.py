"""What of SkyRL's configurations no table can say (keys/skyrl.yaml), at a9564572e."""

from __future__ import annotations

from collections.abc import Mapping

from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.framework import framework_of
from rlsim.readers.frameworks.reader import Reader
from rlsim.readers.frameworks.rows import Changes, Functions

TRAINER, GENERATOR, PLACEMENT = "trainer.", "generator.", "trainer.placement."
NODES, NODE = f"{PLACEMENT}policy_num_nodes", f"{PLACEMENT}policy_num_gpus_per_node"
TEXTS = (f"{TRAINER}max_prompt_length", f"{GENERATOR}sampling_params.max_generate_length")


def megatron(r: Reader) -> bool:
    """Whether Megatron-Core trains; else FSDP."""
    return r.text(f"{TRAINER}strategy", "fsdp2") == "megatron"


def asynchronous(r: Reader) -> bool:
    """Whether the fully asynchronous trainer runs: split pools, and its section among the keys."""
    return _generation(r) is not None and isinstance(r.value("trainer.fully_async"), dict)


def _stage_gpus(r: Reader) -> int:
    """GPUs of a stage of a replica."""
    return r.integer(f"{GENERATOR}inference_engine_tensor_parallel_size", 1) * r.integer(
        f"{GENERATOR}inference_engine_data_parallel_size", 1
    )


def _generation(r: Reader) -> int | None:
    if r.flag(f"{PLACEMENT}colocate_all", True):
        return None
    stages = r.integer(f"{GENERATOR}inference_engine_pipeline_parallel_size", 1)
    return r.integer(f"{GENERATOR}num_inference_engines", 1) * _stage_gpus(r) * stages


def _write_generation(value: int | None, r: Reader) -> Changes:
    if value is None:
        return {}
    return {f"{PLACEMENT}colocate_all": False, f"{GENERATOR}num_inference_engines": value // _stage_gpus(r)}


def _write_gpus(value: int, r: Reader) -> Changes:
    rest, per_node = value - (_generation(r) or 0), r.integer(NODE, 4)
    size = per_node if rest % per_node == 0 else rest
    return {} if rest < 1 else {NODES: rest // size, NODE: size}


def _samples(name: str) -> Functions:
    """Packed samples of a micro-batch count as the longest ones."""

    def cap(r: Reader) -> int:
        return sum(r.integer(key, 1) for key in TEXTS)

    def read(r: Reader) -> int | None:
        return r.integer(f"{TRAINER}{name}", 1) * cap(r) if r.flag(f"{TRAINER}use_sample_packing") else None

    return read, lambda value, r: {f"{TRAINER}{name}": value // cap(r)}


FUNCTIONS: Mapping[str, Functions] = {
    "cluster.num_gpus": (lambda r: r.integer(NODES, 1) * r.integer(NODE, 4) + (_generation(r) or 0), _write_gpus),
    "cluster.generation_gpus": (_generation, _write_generation),
    "engine.dispatch": (
        lambda r: (
            "round_robin"
            if r.flag(f"{GENERATOR}async_engine", True) and not r.flag(f"{GENERATOR}batched")
            else "static"
        ),
        lambda value, r: {f"{GENERATOR}batched": value == "static"},
    ),
    "trainer.micro_batch_tokens": _samples("micro_train_batch_size_per_gpu"),
    "trainer.logprob_micro_batch_tokens": _samples("micro_forward_batch_size_per_gpu"),
}


def skyrl_facts(r: Reader) -> Facts:
    """What a configuration says beside its rows."""
    return Facts(
        model=r.text(f"{TRAINER}policy.model.path"),
        model_key=f"{TRAINER}policy.model.path",
        gpus_per_node=r.integer(NODE, 4) if _generation(r) is None else 8,
        prompt_cap=r.integer(TEXTS[0], 1),
        response_cap=r.integer(TEXTS[1], 1),
        turns=r.integer(f"{GENERATOR}max_turns", 1),
        dynamic=r.text(f"{TRAINER}algorithm.dynamic_sampling.type") == "filter",
        settings=(("stack", "verl"), ("loop.refit_framework", "skyrl")),
    )


SKYRL = framework_of(
    "skyrl",
    skyrl_facts,
    FUNCTIONS,
    {
        "megatron": megatron,
        "asynchronous": asynchronous,
        "unpacked": lambda r: not r.flag(f"{TRAINER}use_sample_packing"),
    },
)
