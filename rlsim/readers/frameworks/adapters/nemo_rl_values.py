"""What several keys of NeMo-RL's configurations say together, and what to set so that they say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

from rlsim.errors import InputError
from rlsim.readers.frameworks.adapters.nemo_rl_options import (
    AsyncGrpo,
    AsyncRl,
    Cluster,
    Data,
    Drafts,
    Dtensor,
    Dynamic,
    Env,
    Generation,
    Grpo,
    Kwargs,
    Loss,
    Mcore,
    Megatron,
    Packing,
    Policy,
    Sglang,
    Trtllm,
    Vllm,
    sought,
    teacher_nodes,
)
from rlsim.readers.frameworks.megatron import moment_bytes
from rlsim.readers.frameworks.options import Change, Option, Options, Part, anything, aside, flag, section, switch
from rlsim.readers.frameworks.rules import spread
from rlsim.schema.speculation import Method


class NemoRl(Options):
    """A whole configuration."""

    grpo, async_grpo, async_rl, loss = Part(Grpo), Part(AsyncGrpo), Part(AsyncRl), Part(Loss)
    data = Part(Data)
    cluster, env, policy, packing = Part(Cluster), Part(Env), Part(Policy), Part(Packing)
    dynamic, mcore, dtensor, generation = Part(Dynamic), Part(Megatron), Part(Dtensor), Part(Generation)
    vllm, kwargs, drafts, trt = Part(Vllm), Part(Kwargs), Part(Drafts), Part(Trtllm)
    mgen, sgl = Part(Mcore), Part(Sglang)

    async_grpo_section = section(name="grpo.async_grpo")
    async_rl_section = section(name="async_rl")
    value = aside(section())
    value_megatron = aside(switch(name="value.megatron_cfg.enabled"))
    data_section = aside(anything(name="data", resolved=False))
    gym_section = aside(anything(name="env.nemo_gym", resolved=False))
    distillation = aside(flag(False, name="on_policy_distillation.enabled"))
    sft, dpo = aside(section()), aside(section())

    @property
    def supervised(self) -> bool:
        """Whether examples/run_sft.py or run_dpo.py trains on a data set."""
        return self.sft is not None or self.pair == 2

    @property
    def pair(self) -> int:
        """Samples of a row of the data set: chosen and rejected under DPO."""
        return 1 if self.dpo is None else 2

    @property
    def megatron(self) -> bool:
        """Whether Megatron-Core trains."""
        return self.mcore.enabled

    @property
    def controller(self) -> bool:
        """Whether the single controller runs the loop: its section is there and the older one is null."""
        return self.async_rl_section is not None and self.async_grpo_section is None

    @property
    def in_order(self) -> bool:
        """Whether the sampler is gated by versions ahead."""
        return self.async_rl.sampler == "in_order"

    @property
    def staleness(self) -> int:
        """Most versions that a sample may be old."""
        most = self.async_rl.max_staleness_versions
        return 1 if most is None else most

    @property
    def ahead(self) -> int:
        """Versions that generation may be ahead. A gated sampler that may look no version ahead starts a batch after
        the update (async_utils/staleness_sampler.py:321)."""
        return self.async_rl.max_lookahead_versions if self.in_order else self.staleness

    @property
    def windowed(self) -> bool:
        """Whether the sampler takes from a window of versions."""
        return self.controller and self.async_rl.sampler == "windowed"

    @property
    def lagged(self) -> bool:
        """Whether the single controller overlaps generation and training."""
        return self.controller and (self.windowed or self.ahead > 0)

    @property
    def asynchronous(self) -> bool:
        """Whether generation and training overlap."""
        return self.lagged or self.async_grpo.enabled

    @property
    def asynchronous_grpo(self) -> bool:
        """Whether the older loop overlaps them."""
        return self.asynchronous and not self.controller

    @property
    def packed(self) -> bool:
        """Whether micro-batches have no padding."""
        return self.packing.enabled

    @property
    def dynamic_batches(self) -> bool:
        """Whether micro-batches are padded to their longest sample."""
        return self.dynamic.enabled and not self.packed

    @property
    def unpacked(self) -> bool:
        """Whether micro-batches are a fixed number of samples."""
        return not self.packed and not self.dynamic_batches

    @property
    def logprob_samples(self) -> int:
        """Samples of a micro-batch of log-probs."""
        samples = self.policy.logprob_batch_size
        return 1 if samples is None else samples

    @property
    def gym_turns(self) -> int | None:
        """Most turns of NeMo-Gym's environments, which bound them themselves."""
        if not self.env.should_use_nemo_gym:
            return None
        return sought(self.gym_section, "max_steps", "max_turns", "agent_max_turns", "max_iterations")

    @property
    def turns(self) -> int:
        """Most turns of a sample."""
        return self.gym_turns or self.grpo.max_rollout_turns or 1

    @property
    def together(self) -> bool:
        """Whether generation and training share their GPUs."""
        return self.generation.colocated

    @property
    def async_colocated(self) -> bool:
        """Whether generation and training take turns."""
        return self.asynchronous and self.together

    @property
    def cap(self) -> int:
        """Most tokens of a sample."""
        return self.policy.max_total_sequence_length or 1

    @property
    def node(self) -> int:
        """GPUs of a node."""
        return self.cluster.gpus_per_node

    @property
    def elsewhere_gpus(self) -> int:
        """GPUs that a reward model or teachers have (algorithms/grpo.py:729-815 at 7ea279abf): of the one node, or
        whole nodes."""
        rewarding = "'env_name': 'reward_model'" in str(self.data_section)
        gpus = 0
        if rewarding and self.cluster.num_nodes == 1:
            gpus = self.env.reward_model_gpus_per_node
        elif rewarding:
            gpus = self.env.reward_model_nodes * self.node
        return gpus + teacher_nodes(self.r) * self.node

    @property
    def batch_drafts(self) -> Any:
        """Drafted tokens by live batch, None where none are stated."""
        return self.drafts.num_speculative_tokens_per_batch_size or None

    @property
    def method(self) -> Method | None:
        """Method of speculation; of vLLM's section, where it generates."""
        if not self.on_vllm:
            return None
        method = self.drafts.method
        if method is None:
            return "draft_model" if self.drafts.model else None
        return cast(Method, "eagle3" if method == "eagle" else "mtp" if method.endswith("_mtp") else method)

    @property
    def on_trtllm(self) -> bool:
        """Whether TensorRT-LLM generates."""
        return self.generation.backend == "trtllm"

    @property
    def on_megatron(self) -> bool:
        """Whether Megatron-Core generates."""
        return self.generation.backend == "megatron"

    @property
    def on_sglang(self) -> bool:
        """Whether SGLang generates."""
        return self.generation.backend == "sglang"

    @property
    def on_vllm(self) -> bool:
        """Whether vLLM generates, by itself or under Dynamo."""
        return self.generation.backend in ("vllm", "dynamo")

    def of_engine(
        self, trtllm: Option[int], megatron: Option[int | None], sglang: Option[int], vllm: Option[int]
    ) -> Option[int] | Option[int | None]:
        """The option of the engine that generates."""
        return trtllm if self.on_trtllm else megatron if self.on_megatron else sglang if self.on_sglang else vllm

    @property
    def engine_tensor(self) -> int:
        """GPUs that share attention."""
        if self.on_trtllm:
            return self.trt.tensor_parallel_size
        if self.on_megatron:
            return self.mgen.tensor_model_parallel_size or self.mcore.tensor_model_parallel_size
        return self.sgl.tp_size if self.on_sglang else self.vllm.tensor_parallel_size

    @property
    def engine_cap(self) -> int | None:
        """Most tokens of a sequence in the engine."""
        if self.on_trtllm:
            return self.trt.max_model_len
        if self.on_megatron:
            return self.mgen.max_model_len
        return self.sgl.context_length if self.on_sglang else self.vllm.max_model_len

    @property
    def engine_expert(self) -> int:
        """GPUs that share the experts."""
        if self.on_trtllm:
            return self.trt.moe_expert_parallel_size
        if self.on_megatron:
            return self.mgen.expert_model_parallel_size or self.mcore.expert_model_parallel_size
        return self.sgl.ep_size if self.on_sglang else self.vllm.expert_parallel_size

    @property
    def copies(self) -> int:
        """Copies of attention in an engine."""
        tensor, expert = self.engine_tensor, self.engine_expert
        if expert > tensor and expert % tensor == 0:
            return expert // tensor
        return self.sgl.dp_size if self.on_sglang else 1

    @property
    def async_engine(self) -> bool:
        """Whether requests come one by one."""
        return self.trt.async_engine if self.on_trtllm else self.vllm.async_engine

    @property
    def nvfp4(self) -> bool:
        """Whether weights are quantised to NVFP4."""
        return self.generation.real_quant and "nvfp4" in self.generation.quant_cfg.lower()

    @property
    def weights_only(self) -> bool:
        """Whether weights alone are."""
        return self.nvfp4 and any(word in self.generation.quant_cfg for word in ("a16", "weightonly"))


def of_vllm(c: NemoRl) -> bool:
    """Keys of vllm_cfg and vllm_kwargs count where vLLM generates, not where a recipe inherits them for another."""
    return c.on_vllm


def set_num_gpus(c: NemoRl, value: int) -> list[Change]:
    """With those of reward models and teachers."""
    return spread(value + c.elsewhere_gpus, c.node, Cluster.num_nodes, Cluster.gpus_per_node)


def generation_gpus(c: NemoRl) -> int | None:
    """GPUs of engines that have their own: of one node a part, of several whole ones."""
    if c.together:
        return None
    nodes, each = c.generation.num_nodes or 1, c.generation.gpus_per_node or c.node
    if c.cluster.num_nodes * c.node - c.elsewhere_gpus > c.node != each:
        raise InputError(
            f"{c.r.where}: cluster.generation_gpus: engines beside a trainer have whole nodes where there are several "
            f"(algorithms/grpo.py:902-909 at 7ea279abf), got {nodes} x {each} GPUs of nodes of {c.node}"
        )
    return nodes * each


def set_generation_gpus(c: NemoRl, value: int | None) -> Iterator[Change]:
    """Whole nodes, or a part of one."""
    yield Generation.colocated.to(value is None)
    if value is not None:
        whole = value % c.node == 0
        yield Generation.num_nodes.to(value // c.node if whole else 1)
        yield Generation.gpus_per_node.to(c.node if whole else value)


def set_mode(c: NemoRl, value: str) -> Iterator[Change]:
    """The switch of the older loop, which stops without an engine that takes requests one by one
    (algorithms/grpo.py:4119 at 7ea279abf), or what the single controller's sampler may look ahead."""
    if c.lagged and value == "sync":
        yield NemoRl.async_rl_section.to(None)
    if not c.controller:
        yield AsyncGrpo.enabled.to(value == "async")
        if value == "async" and (c.on_vllm or c.on_trtllm):
            yield (Vllm if c.on_vllm else Trtllm).async_engine.to(True)
    elif c.in_order and not c.ahead and value == "async":
        yield AsyncRl.max_lookahead_versions.to(1)


def set_method(c: NemoRl, value: Method) -> list[Change]:
    """Without speculation the section is null."""
    return [Kwargs.speculative_config.to(None) if value == "none" else Drafts.method.to(value)]


def logits_chunk_tokens(c: NemoRl) -> int | None:
    """Of the fused loss, else of the fused log-probs."""
    if c.mcore.use_linear_ce_fusion_loss:
        return c.mcore.linear_ce_fusion_chunk_size
    return c.mcore.fused_linear_logprobs_chunk_size if c.mcore.use_fused_linear_logprobs else None


def set_reference_logprobs(c: NemoRl, value: bool) -> Iterator[Change]:
    """Without a penalty no reference is loaded (algorithms/grpo.py:1145-1160 at 7ea279abf)."""
    yield Grpo.skip_reference_policy_logprobs_calculation.to(not value)
    if value != (c.loss.reference_policy_kl_penalty > 0):
        yield Loss.reference_policy_kl_penalty.to(0.01 if value else 0)


def unused(c: NemoRl, scenario: Mapping[str, Any]) -> Iterator[str]:
    """Sections of other engines, trainers and loops."""
    engine = "policy.generation"
    if not c.on_vllm:
        yield from (f"{engine}.vllm_cfg", f"{engine}.vllm_kwargs")
    if not c.on_trtllm:
        yield from (f"{engine}.trtllm_cfg", f"{engine}.trtllm_kwargs")
    if not c.on_megatron:
        yield f"{engine}.mcore_generation_config"
    if not c.on_sglang:
        yield f"{engine}.sglang_cfg"
    if c.generation.refit_transport is None:
        yield f"{engine}.refit_cfg"
    yield "policy.dtensor_cfg" if c.megatron else "policy.megatron_cfg"
    if not c.distillation:
        yield "on_policy_distillation"
    yield "value.dtensor_cfg" if c.value_megatron else "value.megatron_cfg"
    if not c.controller:
        yield "async_rl"


def set_tensor(c: NemoRl, value: int) -> Change:
    """GPUs that share attention."""
    options = Trtllm.tensor_parallel_size, Mcore.tensor_model_parallel_size, Sglang.tp_size, Vllm.tensor_parallel_size
    return c.of_engine(*options).to(value)


def set_copies(c: NemoRl, value: int) -> list[Change]:
    """Experts lie over as many times the GPUs that share attention."""
    return [] if c.on_sglang else [set_tensor(c, max(1, c.engine_tensor * c.copies // value))]


def recompute(c: NemoRl) -> Literal["none", "selective", "full"]:
    """What is computed again."""
    if not (c.mcore if c.megatron else c.dtensor).activation_checkpointing:
        return "none"
    return "selective" if c.megatron and c.mcore.recompute_granularity == "selective" else "full"


def set_recompute(c: NemoRl, value: str) -> Iterator[Change]:
    """What already holds stays in the user's own words."""
    kind: type[Megatron] | type[Dtensor] = Megatron if c.megatron else Dtensor
    yield kind.activation_checkpointing.to(value != "none")
    if c.megatron and value not in ("none", c.mcore.recompute_granularity or "full"):
        yield Megatron.recompute_granularity.to(value)


def optimizer_bytes(c: NemoRl) -> float:
    """With the precision-aware optimizer 8, to which offloads of measured runs were fitted (10 by its source). Of FSDP
    FP32 weights and the moments (models/automodel/setup.py:330 at 7ea279abf), of Transformer Engine's FusedAdam in
    types of their own."""
    if c.megatron:
        return 8.0 if c.mcore.use_precision_aware_optimizer and not c.mcore.optimizer_cpu_offload else 12.0
    own = (c.policy.exp_avg_dtype, c.policy.exp_avg_sq_dtype) if "FusedAdam" in c.policy.optimizer else ()
    return 4.0 + moment_bytes(own)
