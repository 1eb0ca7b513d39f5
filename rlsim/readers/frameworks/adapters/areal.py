"""AReaL's configurations (areal/api/cli_args.py) at 4aef98d8d, as are the lines named below."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.options import Change, Options, Part, anything, aside, flag, integer, number, size, text
from rlsim.readers.frameworks.pools import areal_teacher
from rlsim.readers.frameworks.rules import INT4, Assumption, Rules
from rlsim.readers.frameworks.targets import Cluster, Engine, Loop, Trainer, Workload


@dataclass(frozen=True)
class Half:
    """A half of an allocation, and its text as AReaL writes it."""

    backend: str
    d: int = 1
    t: int = 1
    p: int = 1
    c: int = 1
    e: int = 1

    def __str__(self) -> str:
        sizes = {"d": self.d, "t": self.t, "p": self.p, "c": self.c, "e": self.e}
        dims = "".join(f"{letter}{size}" for letter, size in sizes.items() if letter in "dtp" or size > 1)
        return f"{self.backend}:{dims}" if self.backend else dims


def halves(given: str) -> list[Half]:
    """Generation and training of ``sglang:d4p1t1+fsdp:d4``."""
    plain = re.sub(
        r"\((?:attn:)?([^|)]*)\|(?:ffn:)?([^)]*)\)", lambda f: f[1] + "".join(re.findall(r"e\d+", f[2])), given
    )
    out = []
    for one in re.split(r"[+|]", plain):
        found = re.match(r"(?P<backend>[a-z_]+(?=[:(.]))?(?:\.\w+)?:?(?P<dims>(?:[dtpceg]\d+)+)?", one.strip())
        dims = re.findall(r"([dtpce])(\d+)", (found and found["dims"]) or "")
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
    disable_overlap_schedule = flag(False)
    quantization = text()


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
    megatron_fp8 = text(name="megatron.fp8_config.mode")
    archon_fp8 = text(name="archon.fp8_config.mode")
    use_decoupled_loss = flag(False)
    prox_logp_method = text("recompute")
    recompute_logprob = flag(False)
    kl_ctl = number(0.1)


class Areal(Options):
    """A whole configuration."""

    rollout, gconfig, actor = Part(Rollout), Part(Generation), Part(Actor)
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
    def on_vllm(self) -> bool:
        """Whether vLLM generates."""
        return self.gen.backend == "vllm"

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


def _set_max_sequence(c: Areal, value: int) -> Iterator[Change]:
    if not c.agent:
        yield Generation.max_new_tokens.to(value - c.prompt_cap)
    if c.agent or value > c.total:
        yield Generation.max_tokens.to(value)
    if c.rollout.agent_tokens is not None:
        yield Rollout.agent_tokens.to(value)
    if c.trajectory_tokens is not None:
        yield Areal.trajectory_tokens.to(value)


def _micro_batch_tokens(c: Areal) -> int:
    """Without a bound one micro-batch, or n_mbs (utils/data.py:693, 714-716, 465-470), two a stage of Megatron's
    pipeline (engine/megatron_engine.py:1953-1965)."""
    if bound := c.actor.max_tokens_per_mb:
        return bound * c.train.c
    count = max(c.actor.n_mbs, 2 * c.train.p if c.train.p > 1 else 1)
    return c.r.real_tokens(max(1, c.minibatch // (c.train.d * count)), c.cap)


def _policy_logprobs(c: Areal) -> bool:
    """should_compute_prox_logp (cli_args.py:1534-1545; utils/constants.py:49-51)."""
    return c.actor.prox_logp_method != "loglinear" if c.actor.use_decoupled_loss else c.actor.recompute_logprob


def _generating(half: Half) -> list[Change]:
    return [Rollout.backend.to(str(half))]


def _training(half: Half) -> list[Change]:
    return [Actor.backend.to(str(half))]


of = Rules(Areal)
RULES = (
    of(Workload.prompts_per_step).by(Areal.batch_size, lambda c: c.prompts),
    of(Workload.generations_per_prompt).same(Generation.n_samples),
    of(Workload.max_sequence_tokens).rule(lambda c: c.cap, _set_max_sequence),
    of(Workload.max_response_tokens).rule(
        lambda c: c.gconfig.max_new_tokens,
        lambda c, value: [
            Generation.max_new_tokens.to(value),
            None if c.agent else Areal.prompt.to(max(1, c.cap - value)),
        ],
    ),
    of(Cluster.num_gpus).rule(
        lambda c: c.train.d * c.ranks + c.apart,
        lambda c, value: _training(replace(c.train, d=max(1, (value - c.apart) // c.ranks))),
    ),
    of(Cluster.generation_gpus, when=lambda c: not c.shared).rule(
        lambda c: c.gen_gpus,
        lambda c, value: _generating(replace(c.gen, d=max(1, (value or 1) // (c.gen.t * c.gen.p)))),
    ),
    of(Loop.mode, when=lambda c: c.asynchronous, otherwise="sync").constant("async"),
    of(Loop.style, when=lambda c: c.asynchronous).constant("areal"),
    # infra/staleness_manager.py:106-109: so many batches may be accepted or running beyond that of the version.
    of(Loop.policy_lag, when=lambda c: c.asynchronous).by(
        Rollout.max_head_offpolicyness, lambda c: c.rollout.max_head_offpolicyness
    ),
    of(Loop.max_in_flight_groups, when=lambda c: c.asynchronous).same(Rollout.max_concurrent_rollouts),
    of(Engine.name).rule(
        lambda c: "vllm" if c.on_vllm else "sglang", lambda c, value: _generating(replace(c.gen, backend=value))
    ),
    of(Engine.tensor_parallel).rule(lambda c: c.gen.t, lambda c, value: _generating(replace(c.gen, t=value))),
    of(Engine.pipeline_parallel).rule(lambda c: c.gen.p, lambda c, value: _generating(replace(c.gen, p=value))),
    of(Engine.expert_parallel).rule(lambda c: c.gen.e, lambda c, value: _generating(replace(c.gen, e=value))),
    of(Engine.dispatch).constant("round_robin"),
    of.either(
        of(Engine.max_running_sequences, when=lambda c: c.on_vllm).same(Vllm.max_num_seqs),
        of(Engine.max_running_sequences).same(Sglang.max_running_requests),
    ),
    of.either(
        of(Engine.gpu_memory_utilization, when=lambda c: c.on_vllm).same(Vllm.gpu_memory_utilization),
        of(Engine.gpu_memory_utilization).same(Sglang.mem_fraction_static),
    ),
    of.either(
        of(Engine.cuda_graphs, when=lambda c: c.on_vllm).opposite(Vllm.enforce_eager),
        of(Engine.cuda_graphs).opposite(Sglang.disable_cuda_graph),
    ),
    # Off unless asked for: cli_args.py:1656, 1746.
    of.either(
        of(Engine.prefix_caching, when=lambda c: c.on_vllm).opposite(Vllm.no_enable_prefix_caching),
        of(Engine.prefix_caching).opposite(Sglang.disable_radix_cache),
    ),
    of(Engine.overlap_scheduling, when=lambda c: not c.on_vllm).rule(
        lambda c: False if c.sglang.disable_overlap_schedule else None,
        lambda _, value: [Sglang.disable_overlap_schedule.to(not value)],
    ),
    of.either(
        of(Engine.weight_precision, when=lambda c: c.on_vllm).words(
            Vllm.quantization, ("fp8*", "fp8_block"), *INT4, other="bf16"
        ),
        of(Engine.weight_precision).words(Sglang.quantization, ("fp8*", "fp8_block"), *INT4, other="bf16"),
    ),
    of(Trainer.backend).rule(
        lambda c: "megatron" if c.megatron else "fsdp", lambda c, value: _training(replace(c.train, backend=value))
    ),
    of(Trainer.tensor_parallel).rule(lambda c: c.train.t, lambda c, value: _training(replace(c.train, t=value))),
    of(Trainer.pipeline_parallel).rule(lambda c: c.train.p, lambda c, value: _training(replace(c.train, p=value))),
    of(Trainer.context_parallel).rule(lambda c: c.train.c, lambda c, value: _training(replace(c.train, c=value))),
    of(Trainer.expert_parallel).rule(lambda c: c.train.e, lambda c, value: _training(replace(c.train, e=value))),
    of(Trainer.precision).rule(
        lambda c: "fp8" if c.actor.megatron_fp8 or c.actor.archon_fp8 not in (None, "disabled") else "bf16"
    ),
    of(Trainer.global_batch_samples).rule(
        lambda c: c.minibatch, lambda c, value: [Actor.ppo_n_minibatches.to(c.samples // value)]
    ),
    of.under(Actor.use_lora, of(Trainer.lora_rank).same(Actor.lora_rank)),
    of(Trainer.flash_attention_2).words(
        Actor.attn_impl, ("*flash_attention_[34]*", False), ("*flash-attn[34]*", False), ("*", None)
    ),
    of(Trainer.critic).rule(lambda c: c.critic is not None),
    of(Trainer.sequence_packing).constant(True),
    of(Trainer.micro_batch_tokens).by(Actor.max_tokens_per_mb, _micro_batch_tokens),
    of(Trainer.recompute).switched(Actor.gradient_checkpointing, "full", "none"),
    of(Trainer.logits_bytes, when=lambda c: not c.megatron).constant(4.0),
    of(Trainer.policy_logprobs).rule(_policy_logprobs),
    of(Trainer.reference_logprobs).rule(lambda c: c.reference is not None and c.actor.kl_ctl > 0),
)


def _facts(c: Areal) -> Facts:
    return Facts(
        gpus_per_node=c.n_gpus_per_node,
        prompt_cap=c.prompt_cap,
        response_cap=min(c.cap, c.gconfig.max_new_tokens),
        turns=c.turns,
        pools=areal_teacher(c.r, c.taught.d, c.taught.t, c.taught.p, c.taught.c),
    )


def _assumptions(c: Areal) -> Iterator[Assumption]:
    if not c.agent and not c.prompt:
        yield Assumption(
            "No key caps prompts; 1,024 tokens are left for them beside the response.", [Workload.max_sequence_tokens]
        )
    if c.r.text("teacher.path") and c.asynchronous:
        yield Assumption(
            "The teacher works beside the step before; AReaL's trainer waits for its log-probs instead.", ["pools"]
        )


FRAMEWORK = of.framework(
    "areal",
    RULES,
    _facts,
    _assumptions,
    borrowed="AReaL",
    model=Actor.path,
    node_size=Areal.n_gpus_per_node,
    shipped={"areal": ["areal"]},
    entry={r"(^|/)(?!.*(sft|dpo|rw|eval))\w+\.py$": {}},
    begin={Rollout.backend.key: "sglang:d1t1p1", Actor.backend.key: "fsdp:d1t1p1"},
)
