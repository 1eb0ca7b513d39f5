"""Sections of ROLL's configurations (roll/configs) at 8eb27cc2."""

from __future__ import annotations

import re
from typing import Any

from rlsim.readers.frameworks.options import (
    Change,
    Options,
    anything,
    aside,
    flag,
    integer,
    number,
    size,
    switch,
    text,
    words,
)
from rlsim.readers.frameworks.reader import Reader

MAX_DEVICES = 100_000
"""Largest number of a GPU in a mapping."""
_RANGE = re.compile(r"range\(\s*(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?\s*\)")


def devices(given: Any) -> frozenset[int]:
    """GPUs of a mapping: ``list(range(0,8))``, joined by ``+``, or numbers."""
    words = str(given or "")
    ranges = [[int(part) for part in found if part] for found in _RANGE.findall(words)]
    if any(max(found) > MAX_DEVICES for found in ranges):
        raise ValueError(f"more than {MAX_DEVICES} GPUs")
    listed = [int(number) for number in re.findall(r"\d+", "" if ranges else words)]
    return frozenset(listed).union(*(range(*found) for found in ranges))


class Train(Options, section="actor_train"):
    """Of the trainer."""

    strategy = text("megatron_train", name="strategy_args.strategy_name")
    device_mapping = anything()
    use_sequence_packing, use_dynamic_batching_in_train, use_remove_padding = switch(), switch(), switch()
    use_dynamic_batching_in_infer = switch()
    max_tokens_per_microbatch_in_train = integer()
    max_tokens_per_microbatch_in_infer = size()
    packed_train = integer(name="sequence_packing_args.max_packed_sequence_length_train")
    packed_forward = integer(name="sequence_packing_args.max_packed_sequence_length_forward")
    infer_batch_size = integer(16)
    batch_size = integer(8, name="training_args.per_device_train_batch_size")
    accumulation = size(name="training_args.gradient_accumulation_steps")
    ulysses_size = integer(name="model_args.ulysses_size")
    lora_rank = integer(name="model_args.lora_rank")
    disable_gradient_checkpointing = switch(name="model_args.disable_gradient_checkpointing")


class Strategy(Options, section="actor_train.strategy_args.strategy_config"):
    """Of the trainer's engine."""

    tensor_model_parallel_size, pipeline_model_parallel_size, context_parallel_size = size(), size(), size()
    expert_model_parallel_size, virtual_pipeline_model_parallel_size = integer(1), integer(1)
    expert_tensor_parallel_size = integer()
    ulysses_size = size()
    ep_size = integer(1)
    recompute_granularity, recompute_modules = text(), words()
    account_for_loss_in_pipeline_split = switch()
    # mcore_adapter/src/mcore_adapter/training_args.py:338 of 8eb27cc2.
    overlap_grad_reduce, use_distributed_optimizer = switch(), switch(True)
    sequence_parallel = switch()
    moe_layer_recompute, optimizer_cpu_offload, offload_policy = switch(), switch(), switch()
    moe_token_dispatcher_type = text()

    @property
    def in_sequence(self) -> bool:
        """Whether GPUs of a layer share the tokens between its products; with experts apart they do whatever is stated
        (mcore_adapter/models/model_config.py:368-370 of 8eb27cc2)."""
        return self.sequence_parallel or self.expert_model_parallel_size > 1


class Infer(Options, section="actor_infer"):
    """Of generation."""

    strategy = text("vllm", name="strategy_args.strategy_name")
    device_mapping = anything()
    num_gpus_per_worker = size()
    max_new_tokens = integer(name="generating_args.max_new_tokens")


class Inference(Options, section="actor_infer.strategy_args.strategy_config"):
    """Of the inference engines."""

    tensor_parallel_size, tp_size = integer(), integer()
    pipeline_parallel_size = integer(1)
    enable_expert_parallel = switch()
    ep_size = size()
    quantization = text()
    max_running_requests, max_num_seqs, max_num_batched_tokens = integer(), integer(), integer()
    mem_fraction_static, gpu_memory_utilization = number(), number()
    enforce_eager = flag(False)
    enable_prefix_caching = flag()


class Beside(Options):
    """GPUs of the models beside the policy."""

    reference = aside(anything(name="reference.device_mapping"))
    critic = aside(anything(name="critic.device_mapping"))


def mapped(r: Reader, training: tuple[int, int], generating: tuple[int, int]) -> list[Change]:
    """The options of the GPUs that train and of those that generate, each as the first and the one behind the last.

    The reference has those that train, else the agentic pipeline stops (pipeline/agentic/agentic_pipeline.py:806 of
    8eb27cc2), and so has the critic, as it is simulated.
    """
    beside = [option for option in (Beside.reference, Beside.critic) if option.read(r)]
    return [
        option.to("list(range({},{}))".format(*ends))
        for option, ends in (
            (Train.device_mapping, training),
            *((option, training) for option in beside),
            (Infer.device_mapping, generating),
        )
    ]
