"""What several keys of verl's configurations say together, and what to set so that they say it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, cast

from rlsim.readers.frameworks.adapters.verl_options import (
    Actor,
    Algorithm,
    Async,
    Data,
    Fsdp,
    Kin,
    Megatron,
    Model,
    Mtp,
    Pool,
    Rollout,
    Run,
    Sglang,
    Transformer,
    Veomni,
    Vllm,
)
from rlsim.readers.frameworks.options import Change, Options, Part, aside, flag, section, text
from rlsim.readers.frameworks.rules import spread
from rlsim.schema.speculation import Method

Mode = Literal["sync", "fully_async", "one_step_off", "separate_async", "colocate_async"]


class Verl(Options):
    """A whole configuration."""

    trainer, data, algorithm, asynchronous_training = Part(Run), Part(Data), Part(Algorithm), Part(Async)
    kin, pool, model, mtp, actor = Part(Kin), Part(Pool), Part(Model), Part(Mtp), Part(Actor)
    mcore, transformer, fsdp, veomni = Part(Megatron), Part(Transformer), Part(Fsdp), Part(Veomni)
    rollout, vllm, sglang = Part(Rollout), Part(Vllm), Part(Sglang)

    # What TensorRT-LLM takes over it (workers/rollout/trtllm_rollout/trtllm_async_server.py:193-290).
    trtllm_kv_dtype = text(name="actor_rollout_ref.rollout.engine_kwargs.trtllm.kv_cache_config.dtype")
    async_section = aside(section(name="async_training"))
    pool_section = aside(section(name="rollout"))
    hybrid_engine = flag(True, name="actor_rollout_ref.hybrid_engine")
    model_engine = text("dp")
    critic = flag(name="critic.enable")
    legacy_reward_model = aside(flag(False, name="reward_model.enable"))
    reward_model = aside(flag(False, name="reward.reward_model.enable"))

    @property
    def by_veomni(self) -> bool:
        """Whether veOmni trains, which shards as FSDP2 does, as TorchTitan does."""
        return self.actor.strategy == "veomni" or self.model_engine == "veomni"

    @property
    def megatron(self) -> bool:
        """Whether Megatron-Core trains. The option of the group that chooses the strategy stands for it where verl's
        own files are not there (verl/trainer/config/model_engine/megatron.yaml)."""
        return self.actor.strategy == "megatron" or self.model_engine == "megatron"

    @property
    def cap(self) -> int:
        """Most tokens of a sample."""
        if self.kin.env_groups and self.rollout.max_model_len:
            return self.rollout.max_model_len
        return self.data.max_prompt_length + self.data.max_response_length

    @property
    def padless(self) -> bool:
        """Whether micro-batches have no padding."""
        return self.model.use_remove_padding

    @property
    def unpacked(self) -> bool:
        """Whether micro-batches are padded samples."""
        return not self.padless and not self.actor.use_dynamic_bsz

    @property
    def fixed_samples(self) -> bool:
        """Whether micro-batches are a fixed number of samples without padding."""
        return self.padless and not self.actor.use_dynamic_bsz

    @property
    def sharing(self) -> int:
        """GPUs that share a sequence without Megatron-Core. The older of both counts where it is above 1
        (verl/workers/config/actor.py:330)."""
        if self.by_veomni:
            return self.veomni.ulysses_parallel_size
        return max(self.actor.ulysses_sequence_parallel_size, self.fsdp.ulysses_sequence_parallel_size)

    @property
    def sharers(self) -> int:
        """GPUs that share a sequence."""
        return self.mcore.context_parallel_size if self.megatron else self.sharing

    @property
    def ranks(self) -> int:
        """Data-parallel ranks, by which sizes over all of them are divided (workers/fsdp_workers.py:260-281,
        megatron_workers.py:376 at 044bbba27^)."""
        layers = 1
        if self.megatron:
            layers = self.mcore.tensor_model_parallel_size * self.mcore.pipeline_model_parallel_size
        return max(1, self.trainer.nnodes * self.node // (self.sharers * layers))

    @property
    def train_samples(self) -> int:
        """Samples of a micro-batch."""
        return self.actor.ppo_micro_batch_size_per_gpu or max(1, self.actor.ppo_micro_batch_size // self.ranks)

    @property
    def logprob_samples(self) -> int:
        """Samples of a micro-batch of log-probs."""
        stated = self.rollout.log_prob_micro_batch_size_per_gpu
        return stated or max(1, self.rollout.log_prob_micro_batch_size // self.ranks)

    @property
    def global_samples(self) -> bool:
        """Whether sizes of micro-batches count over all ranks."""
        return not self.actor.use_dynamic_bsz and bool(
            self.actor.ppo_micro_batch_size or self.rollout.log_prob_micro_batch_size
        )

    @property
    def fully_async(self) -> bool:
        """Whether the fully asynchronous trainer runs, by its section."""
        return self.async_section is not None

    @property
    def v1_mode(self) -> str:
        """Mode of the V1 trainer; "" without it."""
        return self.trainer.trainer_mode if self.trainer.use_v1 else ""

    @property
    def pool_by(self) -> Literal["own", "actor"] | None:
        """Section of a rollout pool of its own; None: generation has the trainer's GPUs."""
        if self.hybrid_engine and not self.fully_async and self.v1_mode != "separate_async":
            return None
        return "actor" if self.pool_section is None else "own"

    @property
    def mode(self) -> Mode:
        """How generation and training overlap."""
        if self.fully_async:
            return "fully_async"
        v1 = self.v1_mode
        if v1 == "separate_async" or v1 == "colocate_async":
            return "separate_async" if v1 == "separate_async" else "colocate_async"
        return "sync" if self.pool_by is None else "one_step_off"

    @property
    def v1(self) -> bool:
        """Whether the V1 trainer overlaps both."""
        return self.mode in ("separate_async", "colocate_async")

    @property
    def node(self) -> int:
        """GPUs of a node."""
        return self.trainer.n_gpus_per_node

    @property
    def pool_node(self) -> int:
        """GPUs of a node of the rollout pool."""
        return (self.pool if self.pool_by == "own" else self.rollout).n_gpus_per_node or self.node

    @property
    def generating(self) -> int:
        """GPUs of the rollout pool."""
        if self.pool_by is None:
            return 0
        return ((self.pool if self.pool_by == "own" else self.rollout).nnodes or 1) * self.pool_node

    @property
    def every_gpu(self) -> int:
        """GPUs of the run."""
        return self.trainer.nnodes * self.node + self.generating

    @property
    def replicas(self) -> int:
        """Engines of the rollout pool."""
        r = self.rollout
        gpus = r.tensor_model_parallel_size * (r.pipeline_model_parallel_size or 1) * r.data_parallel_size
        return max(1, (self.generating or 1) // gpus)

    @property
    def copies(self) -> int:
        """Copies of attention in an engine. Experts over more GPUs than tensor parallelism come with data-parallel
        attention (verl asks for EP = TP x DP)."""
        r = self.rollout
        return max(r.data_parallel_size, (r.expert_parallel_size or 1) // r.tensor_model_parallel_size, 1)

    @property
    def drafts_itself(self) -> bool:
        """Whether the model drafts."""
        return self.mtp.enable and self.mtp.enable_rollout

    @property
    def on_sglang(self) -> bool:
        """Whether SGLang generates."""
        return self.rollout.name == "sglang"

    @property
    def on_trtllm(self) -> bool:
        """Whether TensorRT-LLM generates."""
        return self.rollout.name == "trtllm"

    @property
    def sglang_method(self) -> str | None:
        """Method of speculation by SGLang's algorithm."""
        algorithm = self.sglang.speculative_algorithm
        known = {"EAGLE3": "eagle3", "EAGLE": "mtp", "NEXTN": "mtp", "STANDALONE": "draft_model"}
        return known.get(algorithm.upper(), algorithm.lower() or None)

    @property
    def vllm_method(self) -> str | None:
        """Method of speculation by vLLM's section."""
        method = self.vllm.draft_method
        known = {"eagle": "eagle3", "deepseek_mtp": "mtp", "qwen3_next_mtp": "mtp"}
        return known.get(method, method) or ("draft_model" if self.vllm.draft_model else None)

    @property
    def turns(self) -> int:
        """Most turns of a sample."""
        if self.kin.max_turns:  # Search-R1: so many searches at the most, and an answer
            return 1 + (self.kin.max_turns if self.kin.do_search else 0)
        if self.kin.max_steps or self.kin.max_turn:
            return self.kin.max_steps or self.kin.max_turn
        answers, asked = self.rollout.max_assistant_turns, self.rollout.max_user_turns
        # The loop obeys both whatever enable says (experimental/agent_loop/tool_agent_loop.py:108-109, 280-282).
        if not (self.rollout.multi_turn or answers or asked):
            return 1
        if answers and asked:
            return min(answers, asked + 1)
        return answers or (asked + 1 if asked else 8)

    @property
    def samples(self) -> int:
        """Samples of a prompt; Search-R1 repeats prompts itself, and counts a mini-batch in samples then."""
        return self.kin.n_agent or self.kin.group_size or self.rollout.n or 1

    @property
    def batch(self) -> int:
        """Samples of a mini-batch. rllm trains on all of a step where it asks for more."""
        prompts = self.actor.ppo_mini_batch_size
        if self.kin.rllm is not None:
            prompts = min(prompts, self.data.train_batch_size)
        return prompts * (self.rollout.n or 1)

    @property
    def positions(self) -> int:
        """Positions that a sequence has in an iteration of SGLang's, whose graphs are counted in sequences."""
        if self.drafts_itself:
            return 1 + (self.mtp.speculative_num_steps or 0)
        return 1 + ((self.sglang.speculative_num_steps or 0) if self.sglang_method else 0)


def set_max_sequence(c: Verl, value: int) -> Iterator[Change]:
    """The prompts keep their tokens where the response has some left."""
    prompt = c.data.max_prompt_length
    if value > prompt:
        yield Data.max_response_length.to(value - prompt)
    else:
        yield from (Data.max_prompt_length.to(value // 2), Data.max_response_length.to(-(-value // 2)))


def set_trainer_gpus(c: Verl, gpus: int) -> list[Change]:
    """Nodes of the trainer."""
    return spread(gpus, c.node, Run.nnodes, Run.n_gpus_per_node)


def set_generation_gpus(c: Verl, value: int | None) -> Iterator[Change]:
    """The trainer keeps what the rollout pool leaves of all GPUs."""
    if value is None or c.pool_by is None:
        return
    pool: type[Pool] | type[Rollout] = Pool if c.pool_by == "own" else Rollout
    yield Verl.hybrid_engine.to(False)
    yield from spread(value, min(c.pool_node, c.node), pool.nnodes, pool.n_gpus_per_node)
    yield from set_trainer_gpus(c, c.every_gpu - value)


def max_captured_tokens(c: Verl) -> int | None:
    """SGLang and TensorRT-LLM count sequences, vLLM tokens."""
    if c.on_sglang:
        return (max(c.sglang.cuda_graph_bs or [0]) or c.sglang.cuda_graph_max_bs) * c.positions or None
    if c.on_trtllm:
        return max(c.rollout.cudagraph_capture_sizes or [0]) or c.rollout.max_num_seqs or None
    sizes = c.rollout.cudagraph_capture_sizes or c.vllm.cudagraph_capture_sizes
    return max(sizes or [0]) or c.vllm.max_cudagraph_capture_size or None


def set_max_captured_tokens(c: Verl, value: int) -> Iterator[Change]:
    """A largest size takes the place of lists."""
    if c.on_sglang:
        yield Sglang.cuda_graph_max_bs.to(value // c.positions)
        if c.sglang.cuda_graph_bs:
            yield Sglang.cuda_graph_bs.to(None)
    elif not c.on_trtllm:
        yield Vllm.max_cudagraph_capture_size.to(value)
        if c.rollout.cudagraph_capture_sizes:
            yield Rollout.cudagraph_capture_sizes.to(None)
        if c.vllm.cudagraph_capture_sizes:
            yield Vllm.cudagraph_capture_sizes.to(None)


def max_batched_tokens(c: Verl) -> int:
    """-1: no chunks, then max_prefill_tokens (SGLang 0.5.6, srt/server_args.py:271, 724-803)."""
    chunk = c.sglang.chunked_prefill_size
    return (chunk or 8192) if chunk >= 0 else c.sglang.max_prefill_tokens


def method(c: Verl) -> Method | None:
    """Method of speculation."""
    return cast(Method | None, "mtp" if c.drafts_itself else c.sglang_method if c.on_sglang else c.vllm_method)


def set_method(c: Verl, value: Method) -> Iterator[Change]:
    """The section of the engine, or the model itself."""
    if value == "mtp":
        yield Mtp.enable.to(True)
    if not c.on_sglang or value in ("none", "mtp", "eagle3", "draft_model"):
        yield Mtp.enable_rollout.to(value == "mtp")
    if c.on_sglang and value in ("eagle3", "draft_model"):
        yield Sglang.speculative_algorithm.to("EAGLE3" if value == "eagle3" else "STANDALONE")
    if value == "none":
        yield from (Vllm.draft_method.to(None), Vllm.draft_model.to(None))
    elif not c.on_sglang and value != "mtp":
        yield Vllm.draft_method.to(value)


def set_context_parallel(c: Verl, value: int) -> list[Change]:
    """Both of FSDP, of which the larger counts."""
    if c.by_veomni:
        return [Veomni.ulysses_parallel_size.to(value)]
    return [Actor.ulysses_sequence_parallel_size.to(value), Fsdp.ulysses_sequence_parallel_size.to(value)]


def micro_batch_tokens(c: Verl) -> int | None:
    """The stated limit of a GPU, times the GPUs that share a sequence; or samples of it. A fixed number of samples
    without padding has mean ones, and at least one of the longest."""
    if c.actor.use_dynamic_bsz:
        return max(c.actor.ppo_max_token_len_per_gpu * c.sharers, int(c.r.mean_tokens or 0) + 1)
    return c.r.real_tokens(c.train_samples, c.cap) if c.padless else None


def set_micro_batch_tokens(c: Verl, value: int) -> Iterator[Change]:
    """Samples where a number of them fits, else a limit."""
    samples = c.r.fitting(value, c.cap) if c.fixed_samples else None
    if samples:
        yield Actor.ppo_micro_batch_size_per_gpu.to(samples)
        if c.actor.ppo_micro_batch_size:
            yield Actor.ppo_micro_batch_size.to(None)
    elif c.actor.use_dynamic_bsz or c.padless:
        yield from (Actor.use_dynamic_bsz.to(True), Actor.ppo_max_token_len_per_gpu.to(-(-value // c.sharers)))


def logprob_micro_batch_tokens(c: Verl) -> int | None:
    """As those of training."""
    if c.rollout.log_prob_use_dynamic_bsz:
        return max(c.rollout.log_prob_max_token_len_per_gpu * c.sharers, int(c.r.mean_tokens or 0) + 1)
    return c.r.real_tokens(c.logprob_samples, c.cap) if c.padless else None


def set_logprob_micro_batch_tokens(c: Verl, value: int) -> Iterator[Change]:
    """As those of training."""
    dynamic = c.rollout.log_prob_use_dynamic_bsz
    samples = c.r.fitting(value, c.cap) if c.padless and not dynamic else None
    if samples:
        yield Rollout.log_prob_micro_batch_size_per_gpu.to(samples)
        if c.rollout.log_prob_micro_batch_size:
            yield Rollout.log_prob_micro_batch_size.to(None)
    elif dynamic or c.padless:
        yield Rollout.log_prob_use_dynamic_bsz.to(True)
        yield Rollout.log_prob_max_token_len_per_gpu.to(-(-value // c.sharers))


def offload(c: Verl) -> bool:
    """Whether the trainer leaves the device while others generate."""
    if c.megatron:
        return any((c.mcore.param_offload, c.mcore.grad_offload, c.mcore.optimizer_offload))
    kind = c.veomni if c.by_veomni else c.fsdp
    return any((kind.param_offload, kind.optimizer_offload))


def set_offload(c: Verl, value: bool) -> Iterator[Change]:
    """Everything or nothing."""
    if c.megatron:
        yield Megatron.grad_offload.to(value)
    kind: type[Megatron] | type[Veomni] | type[Fsdp] = Veomni if c.by_veomni else Fsdp
    kind = Megatron if c.megatron else kind
    yield from (kind.param_offload.to(value), kind.optimizer_offload.to(value))


def logits_bytes(c: Verl) -> float:
    """BF16 logits, whose gradient takes their place (verl/utils/torch_functional.py:73-120) unless the update computes
    their entropy (workers/actor/dp_actor.py:263-265, 573)."""
    return 10.0 if c.actor.calculate_entropy or c.actor.entropy_coeff else 4.0
