"""Options of AReaL's configurations (areal/api/cli_args.py) and the texts of its backends (areal/api/alloc_mode.py) at
4aef98d8d, as are the lines named below."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlsim.readers.frameworks.options import (
    Options,
    Part,
    anything,
    aside,
    flag,
    integer,
    integers,
    number,
    section,
    size,
    text,
    words,
)


@dataclass(frozen=True)
class Half:
    """A half of an allocation, and its text as AReaL writes it. x: GPUs that share an expert, 1 where none is stated
    (alloc_mode.py:970)."""

    backend: str
    d: int = 1
    t: int = 1
    p: int = 1
    c: int = 1
    e: int = 1
    x: int = 1

    def __str__(self) -> str:
        sizes = {"d": self.d, "t": self.t, "p": self.p, "c": self.c, "e": 1 if self.x > 1 else self.e}
        dims = "".join(f"{letter}{size}" for letter, size in sizes.items() if letter in "dtp" or size > 1)
        if self.x > 1:
            dims = f"(attn:{dims}|ffn:t{self.x}e{self.e})"
        return f"{self.backend}:{dims}" if self.backend else dims


def halves(given: str) -> list[Half]:
    """Generation and training of ``sglang:d4p1t1+fsdp:d4``."""
    # Of the layers of experts their own sizes alone: pipeline stages are those of attention, copies follow.
    plain = re.sub(
        r"\((?:attn:)?([^|)]*)\|(?:ffn:)?([^)]*)\)",
        lambda f: f[1] + "".join(re.findall(r"e\d+", f[2])) + re.sub(r".*?t(\d+).*|.*", r"x\1", f[2], count=1),
        given,
    )
    out = []
    for one in re.split(r"[+|]", plain):
        found = re.match(r"(?P<backend>[a-z_]+(?=[:(.]))?(?:\.\w+)?:?(?P<dims>(?:[dtpcegx]\d*)+)?", one.strip())
        dims = re.findall(r"([dtpcex])(\d+)", (found and found["dims"]) or "")
        out.append(Half((found and found["backend"]) or "", **{letter: int(number) for letter, number in dims}))
    return out


class Rollout(Options, section="rollout"):
    """Of generation."""

    backend = text()
    strategy = text("", name="scheduling_strategy.type")
    max_head_offpolicyness = integer(0)
    max_concurrent_rollouts, consumer_batch_size = integer(), integer()
    agent = aside(anything())
    agent_tokens = integer(name="agent.engine_max_tokens")
    agent_turns = integer(name="agent.max_turns")


class Generation(Options, section="gconfig"):
    """Of a sample."""

    n_samples = size()
    max_new_tokens = integer(16384)
    max_tokens = integer(32768)


class Sglang(Options, section="sglang"):
    """Of SGLang."""

    max_running_requests = integer()
    mem_fraction_static = number()
    disable_cuda_graph = flag(False)
    disable_radix_cache = flag(True)
    disable_overlap_schedule, enable_mixed_chunk, enable_dp_attention = flag(False), flag(False), flag(False)
    dp_size, ep_size = size(), size()
    chunked_prefill_size, max_prefill_tokens = integer(-1), integer(32768)
    cuda_graph_max_bs, cuda_graph_bs = integer(), integers()
    kv_cache_dtype, quantization = text("auto"), text()


class Vllm(Options, section="vllm"):
    """Of vLLM."""

    max_num_seqs = integer()
    gpu_memory_utilization = number()
    enforce_eager = flag(False)
    no_enable_prefix_caching = flag(True)
    quantization = text()


class Actor(Options, section="actor"):
    """Of training."""

    path = text("")
    backend = text()
    ppo_n_minibatches = integer(4)
    max_tokens_per_mb = integer(name="mb_spec.max_tokens_per_mb")
    n_mbs = size(name="mb_spec.n_mbs")
    use_lora = flag(False)
    lora_rank = integer(32)
    attn_impl = text()
    gradient_checkpointing = flag(False)
    dtype, grad_reduce_dtype, weight_update_mode = text("bfloat16"), text("float32"), text("xccl")
    optimizer = text("adam", name="optimizer.type")
    fsdp_on_host, step_on_device = (
        flag(False, name="fsdp.offload_params"),
        flag(False, name="fsdp.per_layer_optim_step"),
    )
    use_decoupled_loss = flag(False)
    prox_logp_method = text("recompute")
    recompute_logprob = flag(False)
    kl_ctl = number(0.1)


class Megatron(Options, section="actor.megatron"):
    """Of Megatron-Core."""

    fp8, fp8_mode = section(name="fp8_config"), text(name="fp8_config.mode")
    bridge_type = text("mbridge")
    virtual_pipeline_parallel_size = integer(1)
    # What a file may set to null has no default here but in defaults/areal.yaml.
    recompute_granularity, recompute_modules = text(), words()
    use_precision_aware_optimizer = flag(False)
    exp_avg_dtype, exp_avg_sq_dtype = text("float32"), text("float32")
    grad_reduce_in_fp32 = flag(True, name="ddp.grad_reduce_in_fp32")
    overlap_grad_reduce = flag(False, name="ddp.overlap_grad_reduce")
    use_distributed_optimizer = flag(True, name="ddp.use_distributed_optimizer")
    fp8_param_gather = flag(False, name="ddp.fp8_param_gather")


class Archon(Options, section="actor.archon"):
    """Of AReaL's trainer after torchtitan."""

    fp8 = text("disabled", name="fp8_config.mode")
    ac_mode = text("selective")
    pp_schedule = text("Interleaved1F1B")
    offload_params = flag(False)


class Areal(Options):
    """A whole configuration."""

    rollout, gconfig, actor = Part(Rollout), Part(Generation), Part(Actor)
    mcore, archon = Part(Megatron), Part(Archon)
    sglang, vllm = Part(Sglang), Part(Vllm)
    allocation_mode = text("")
    n_gpus_per_node = integer(8, name="cluster.n_gpus_per_node")
    batch_size = integer(name="train_dataset.batch_size")
    prompt = integer(name="train_dataset.max_length")
    trajectory_tokens = integer(name="max_tokens_per_trajectory")
    agent_run_turns = integer(name="agent_run_args.max_turns")
    environment_steps = integer(name="econfig.max_steps")
    max_llm_calls_per_run = integer()
    tir_turns, tir_tokens = integer(name="tir.max_turns"), integer(name="tir.max_length")
    max_turns = integer(1)
    critic = anything(name="critic.path")
    reference = anything(name="ref.path")

    @property
    def gen(self) -> Half:
        """The layout of generation."""
        return halves(self.rollout.backend or self.allocation_mode)[0]

    @property
    def train(self) -> Half:
        """The layout of training."""
        stated = self.actor.backend
        return halves(stated)[0] if stated else halves(self.allocation_mode)[1]

    @property
    def taught(self) -> Half:
        """The layout of a teacher."""
        return halves(self.r.text("teacher.backend"))[0]

    @property
    def megatron(self) -> bool:
        """Whether Megatron-Core trains."""
        return self.train.backend == "megatron"

    @property
    def on_archon(self) -> bool:
        """Whether Archon trains."""
        return self.train.backend == "archon"

    @property
    def saves_some(self) -> bool:
        """Whether Archon saves some outputs of a layer and computes the others again."""
        return self.on_archon and self.actor.gradient_checkpointing and self.archon.ac_mode not in ("full", "none")

    @property
    def bridged(self) -> bool:
        """Whether Megatron-Bridge builds the model, which takes recompute_granularity whatever gradient_checkpointing
        says (models/mcore/registry.py:214; with mbridge engine/megatron_engine.py:520 asks for it first)."""
        return self.megatron and self.mcore.bridge_type == "megatron-bridge"

    @property
    def fp8(self) -> bool:
        """Whether products are in FP8: Megatron-Core's where the section is there (cli_args.py:914)."""
        if self.on_archon:
            return self.archon.fp8 != "disabled"
        return self.megatron and (self.mcore.fp8 is not None or self.mcore.fp8_mode is not None)

    @property
    def on_vllm(self) -> bool:
        """Whether vLLM generates."""
        return self.gen.backend == "vllm"

    @property
    def served_fp8(self) -> bool:
        """Whether the checkpoint is one of FP8 by its name, and no other quantisation is stated."""
        stated = self.vllm.quantization if self.on_vllm else self.sglang.quantization
        return not stated and re.search("fp8", self.actor.path, re.IGNORECASE) is not None

    @property
    def gen_gpus(self) -> int:
        """GPUs that generate."""
        return self.gen.d * self.gen.t * self.gen.p

    @property
    def shared(self) -> bool:
        """Whether generation shares the trainer's GPUs."""
        return self.rollout.strategy.startswith("colocat")

    @property
    def apart(self) -> int:
        """GPUs beside the trainer's."""
        return 0 if self.shared else self.gen_gpus

    @property
    def ranks(self) -> int:
        """GPUs that share a sample while it is trained on."""
        return self.train.t * self.train.p * self.train.c

    @property
    def agent(self) -> bool:
        """Agents take many turns within one bound of prompts and outputs: rollout.agent
        (experimental/openai/client.py:1047-1050) and the recipes' own max_tokens_per_trajectory
        (examples/camel/train.py:119), tir.max_length (examples/tir/tir_workflow.py)."""
        return self.rollout.agent is not None or (self.trajectory_tokens or self.tir_tokens) is not None

    @property
    def total(self) -> int:
        """gconfig.max_tokens bounds prompt and output together (infra/remote_inf_engine.py:749-751;
        cli_args.py:176)."""
        return self.trajectory_tokens or self.tir_tokens or self.rollout.agent_tokens or self.gconfig.max_tokens

    @property
    def prompt_cap(self) -> int:
        """Most tokens of a prompt."""
        return self.prompt or 1024

    @property
    def cap(self) -> int:
        """Most tokens of a sample."""
        return self.total if self.agent else min(self.total, self.gconfig.max_new_tokens + self.prompt_cap)

    @property
    def turns(self) -> int:
        """Most turns."""
        stated = self.rollout.agent_turns or self.agent_run_turns or self.environment_steps
        return stated or self.max_llm_calls_per_run or self.tir_turns or self.max_turns

    @property
    def prompts(self) -> int | None:
        """Prompts of a step."""
        return self.batch_size or self.rollout.consumer_batch_size

    @property
    def samples(self) -> int:
        """Samples of a step."""
        return (self.prompts or 0) * self.gconfig.n_samples

    @property
    def minibatch(self) -> int:
        """Samples of an update."""
        return self.samples // self.actor.ppo_n_minibatches

    @property
    def asynchronous(self) -> bool:
        """Whether generation overlaps with training."""
        return not self.shared and self.rollout.max_head_offpolicyness > 0
