"""slime's options (train.py and train_async.py; slime/utils/arguments.py, Megatron's and SGLang's) at 624b824a8; vime
and miles have the same words."""

from collections.abc import Iterator

from rlsim.readers.frameworks.adapters.slime_options import Slime
from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.engine_groups import spelled_out
from rlsim.readers.frameworks.megatron import core_rules, optimizer_bytes, shared_experts
from rlsim.readers.frameworks.options import Change
from rlsim.readers.frameworks.pools import slime_teacher
from rlsim.readers.frameworks.rules import PACKED_INT4, Assumption, Case, Rules, spread
from rlsim.readers.frameworks.targets import Cluster, Engine, Loop, Speculation, Trainer, Workload


def set_max_sequence(c: Slime, value: int) -> Iterator[Change]:
    """A stated cap, else the prompts keep their tokens where the response has some left."""
    if c.rollout_max_context_len or c.max_seq_len:
        yield (Slime.rollout_max_context_len if c.rollout_max_context_len else Slime.max_seq_len).to(value)
    elif value > c.prompt_cap:
        yield Slime.rollout_max_response_len.to(value - c.prompt_cap)
    else:
        yield from (Slime.rollout_max_prompt_len.to(value // 2), Slime.rollout_max_response_len.to(-(-value // 2)))


def set_generation_gpus(c: Slime, value: int | None) -> Iterator[Change]:
    """GPUs for generation alone; on shared ones train_async.py stops (train_async.py:12)."""
    yield from (Slime.colocate.to(value is None), Slime.rollout_num_gpus.to(value))
    if value is None and c.overlapping:
        yield from set_mode(c, "sync")


def set_mode(_: Slime, value: str) -> Iterator[Change]:
    """The program that runs: no option says whether generation and training overlap."""
    yield Slime.entry.to("train_async.py" if value == "async" else "train.py")


def set_max_response(c: Slime, value: int) -> Iterator[Change]:
    """The prompts get what is left of the cap."""
    yield Slime.rollout_max_response_len.to(value)
    if not c.rollout_max_context_len:
        yield Slime.rollout_max_prompt_len.to(max(1, c.cap - value))


def max_running_sequences(c: Slime) -> int:
    """A request waits outside of the engines beyond sglang_server_concurrency of them for each (sglang_rollout.py:94,
    245); SGLang takes 48 where it drafts and nothing is stated (0.5.7, server_args.py:1994; 0.5.15,
    speculative_hook.py:329)."""
    return min(c.sglang_max_running_requests or (48 if c.drafting else 65536), c.sglang_server_concurrency)


def set_max_running_sequences(c: Slime, value: int) -> Iterator[Change]:
    """The limit of a server may not be below that of its engine."""
    yield Slime.sglang_max_running_requests.to(value)
    if value > c.sglang_server_concurrency:
        yield Slime.sglang_server_concurrency.to(value)


def max_batched_tokens(c: Slime) -> int | None:
    """-1: no chunks, then max_prefill_tokens (SGLang 0.5.6, srt/server_args.py:271, 724-803)."""
    chunk = c.sglang_chunked_prefill_size
    return c.sglang_max_prefill_tokens if chunk is not None and chunk < 0 else chunk


def max_captured_tokens(c: Slime) -> int | None:
    """In sequences, of one attention copy; a list of sizes (cuda_graph_bs) takes its place (server_args.py:893-896)."""
    listed = max(c.sglang_cuda_graph_bs_decode or c.sglang_cuda_graph_bs or [0])
    return (listed or c.sglang_cuda_graph_max_bs_decode or c.sglang_cuda_graph_max_bs or 0) * c.positions or None


def set_max_captured_tokens(c: Slime, value: int) -> Iterator[Change]:
    """The option that is read; a largest size takes the place of lists."""
    unsplit = c.sglang_cuda_graph_max_bs_decode is None
    option = Slime.sglang_cuda_graph_max_bs if unsplit else Slime.sglang_cuda_graph_max_bs_decode
    yield option.to(value // c.positions)
    if c.sglang_cuda_graph_bs:
        yield Slime.sglang_cuda_graph_bs.to(None)
    if c.sglang_cuda_graph_bs_decode:
        yield Slime.sglang_cuda_graph_bs_decode.to(None)


def set_stages(c: Slime, value: int) -> Iterator[Change]:
    """Stages, with the layers of the last where they do not divide those of the model: Megatron-Core stops unless the
    others have equally many (core/transformer/transformer_block.py, get_num_layers_to_build)."""
    yield Slime.pipeline_model_parallel_size.to(value)
    layers, uneven = c.num_layers, (c.decoder_first_pipeline_num_layers, c.decoder_last_pipeline_num_layers)
    if not layers or layers < value or c.virtual_pipeline_model_parallel_size > 1:
        return
    each = -(-layers // value)
    rest = layers - each * (value - 1)
    last = rest if rest > 0 else layers - layers // value * (value - 1)
    if any(uneven):
        yield from (Slime.decoder_first_pipeline_num_layers.to(None), Slime.decoder_last_pipeline_num_layers.to(None))
    if layers % value:
        yield Slime.decoder_last_pipeline_num_layers.to(last)


def global_batch_samples(c: Slime) -> int:
    """As stated, or a part of a step."""
    samples = c.global_batch_size
    return samples or (c.rollout_batch_size or 1) * c.n_samples_per_prompt // c.num_steps_per_rollout


def micro_batch_tokens(c: Slime, tokens: int | None) -> int:
    """Of the GPUs that share a sequence; a micro-batch has at least one sample."""
    return max((tokens or 0) * c.context_parallel_size, int(c.r.mean_tokens or 0) + 1)


BLOCK_FP8: tuple[str, ...] = (
    "DeepSeek-R1", "DeepSeek-R1-0528", "DeepSeek-V3", "DeepSeek-V3-0324", "DeepSeek-V3.1", "Kimi-K2-Instruct",
    "Kimi-K2-Instruct-0905",
)  # fmt: skip
"""Ends of names of checkpoints that are block FP8 by nature."""
of = Rules(Slime)
RULES = (
    of(Workload.prompts_per_step).same(Slime.rollout_batch_size),
    of(Loop.supervised).rule(lambda c: c.supervised or None),
    of(Workload.generations_per_prompt).same(Slime.n_samples_per_prompt),
    of(Workload.max_sequence_tokens).rule(lambda c: c.cap, set_max_sequence),
    of(Workload.max_response_tokens).rule(lambda c: c.rollout_max_response_len, set_max_response),
    of(
        # Never less than the batch, which it is where nothing is stated (slime/utils/arguments.py:1985-1991).
        Workload.generated_batch_factor,
        when=lambda c: bool((most := c.over_sampling_batch_size) and (least := c.rollout_batch_size) and most > least),
    ).by(Slime.over_sampling_batch_size, lambda c: (c.over_sampling_batch_size or 0) / (c.rollout_batch_size or 1)),
    of(Cluster.num_gpus).rule(
        lambda c: c.actor_num_nodes * c.node + c.generation_gpus,
        lambda c, value: spread(value - c.generation_gpus, c.node, Slime.actor_num_nodes, Slime.node),
    ),
    of(Cluster.generation_gpus, when=lambda c: c.split).rule(
        lambda c: c.rollout_num_gpus,
        set_generation_gpus,
    ),
    of(Loop.mode).rule(lambda c: "async" if c.asynchronous else "sync", set_mode),
    of.either(
        of(Loop.style, when=lambda c: c.fully and c.split).constant("slime_fully_async"),
        of(Loop.style, when=lambda c: not c.supervised).constant("slime"),
    ),
    # train_async.py:40, 66-67: the next rollout runs beside the training and is awaited before weights move.
    of(Loop.policy_lag, when=lambda c: c.asynchronous and not c.fully).constant(1),
    of(Loop.update_every, when=lambda c: c.asynchronous).same(Slime.update_weights_interval),
    of(Engine.name).constant("sglang"),
    of(Engine.tensor_parallel).by(
        Slime.rollout_num_gpus_per_engine, lambda c: c.rollout_num_gpus_per_engine // c.stages
    ),
    of(Engine.pipeline_parallel).rule(lambda c: c.stages),
    of(Engine.expert_parallel).by(Slime.sglang_ep_size, lambda c: c.sglang_ep_size or c.sglang_expert_parallel_size),
    of(Engine.attention_data_parallel).rule(
        lambda c: c.sglang_dp_size if c.sglang_enable_dp_attention else 1,
        lambda _, value: [Slime.sglang_dp_size.to(value), Slime.sglang_enable_dp_attention.to(value > 1)],
    ),
    # DeepSeek and Moonshot publish these in block FP8 alone (docs/en/examples/deepseek-r1.md:6, 105).
    of(Engine.weight_precision).words(
        Slime.hf_checkpoint,
        *((f"*{name}", "fp8_block") for name in BLOCK_FP8),
        ("*FP8*", "fp8_block"),
        ("*fp8*", "fp8_block"),
        ("*NVFP4*", "nvfp4"),
        *((f"*{word}*", "int4") for word in PACKED_INT4),
        other="bf16",
    ),
    # docs/en/advanced/low-precision.md:46-53, and of training 60-68.
    of(Engine.kv_precision).words(
        Slime.sglang_kv_cache_dtype, ("fp8_e4m3", "fp8"), ("fp8*", "fp8"), ("auto", "bf16"), other="bf16"
    ),
    of(Engine.dispatch).constant("round_robin"),
    of(Engine.max_running_sequences).rule(max_running_sequences, set_max_running_sequences),
    of(Engine.max_batched_tokens).by(Slime.sglang_chunked_prefill_size, max_batched_tokens),
    of(Engine.chunked_prefill).same(Slime.sglang_enable_mixed_chunk),
    of(Engine.max_captured_tokens).rule(max_captured_tokens, set_max_captured_tokens),
    of(Engine.gpu_memory_utilization).same(Slime.sglang_mem_fraction_static),
    of(Engine.cuda_graphs).opposite(Slime.sglang_disable_cuda_graph),
    of(Engine.prefix_caching).opposite(Slime.sglang_disable_radix_cache),
    of(Engine.overlap_scheduling).rule(
        lambda c: False if c.sglang_disable_overlap_schedule else None,
        lambda _, value: [Slime.sglang_disable_overlap_schedule.to(not value)],
    ),
    of(Speculation.method).words(
        Slime.sglang_speculative_algorithm,
        ("EAGLE3", "eagle3"),
        ("EAGLE", "mtp"),
        ("NEXTN", "mtp"),
        ("STANDALONE", "draft_model"),
        ("DFLASH", "dflash"),
        ("DSPARK", "dspark"),
        (None, "none"),
    ),
    of.either(
        # A block holds the verified position too (SGLang's server_args.py of 0.5.15).
        of(Speculation.draft_length, when=lambda c: c.block).by(
            Slime.sglang_speculative_num_draft_tokens, lambda c: (c.sglang_speculative_num_draft_tokens or 1) - 1
        ),
        of(Speculation.draft_length).same(Slime.sglang_speculative_num_steps),
    ),
    of(Speculation.tree_width, when=lambda c: c.tree).same(Slime.sglang_speculative_eagle_topk),
    of(Speculation.verified_positions, when=lambda c: c.tree).same(Slime.sglang_speculative_num_draft_tokens),
    of(Trainer.backend).words(Slime.train_backend, ("fsdp", "fsdp"), other="megatron"),
    of(Trainer.tensor_parallel).same(Slime.tensor_model_parallel_size),
    of(Trainer.pipeline_parallel).rule(lambda c: c.pipeline_model_parallel_size, set_stages),
    of(Trainer.context_parallel).same(Slime.context_parallel_size),
    of(Trainer.expert_parallel).same(Slime.expert_model_parallel_size),
    of(Trainer.expert_tensor_parallel).by(Slime.expert_tensor_parallel_size, shared_experts),
    of(Trainer.virtual_stages).rule(lambda c: c.virtual_pipeline_model_parallel_size),
    of(Trainer.lora_rank).rule(lambda c: c.lora_rank or None, lambda _, value: [Slime.lora_rank.to(value or 0)]),
    of(Trainer.precision).rule(
        lambda c: "fp8" if c.fp8_format else "bf16",
        lambda _, value: [
            Slime.fp8_format.to("e4m3" if value == "fp8" else None),
            Slime.fp8_recipe.to("blockwise" if value == "fp8" else None),
        ],
    ),
    of(Trainer.global_batch_samples).by(Slime.global_batch_size, global_batch_samples),
    # PPO's estimator alone has one (slime/utils/arguments.py:1909).
    of(Trainer.critic).rule(lambda c: c.advantage_estimator == "ppo"),
    of(Trainer.sequence_packing).same(Slime.use_dynamic_batch_size),
    of(Trainer.micro_batch_tokens, when=lambda c: c.dynamic_batches).by(
        Slime.max_tokens_per_gpu, lambda c: micro_batch_tokens(c, c.max_tokens_per_gpu)
    ),
    # So many engines of the same size prefill alone (miles 31f1ca961, sglang_config.py:170, as in slime).
    of(Engine.Prefill.gpus, when=lambda c: bool(c.prefill_num_servers)).by(
        Slime.prefill_num_servers, lambda c: (c.prefill_num_servers or 0) * c.rollout_num_gpus_per_engine
    ),
    # As in training where it is not stated (slime/utils/arguments.py:1869-1870).
    of(Trainer.logprob_micro_batch_tokens, when=lambda c: c.dynamic_batches).by(
        Slime.log_probs_max_tokens_per_gpu,
        lambda c: micro_batch_tokens(c, c.log_probs_max_tokens_per_gpu or c.max_tokens_per_gpu),
    ),
    of(Trainer.micro_batch_samples, when=lambda c: not c.dynamic_batches).same(Slime.micro_batch_size),
    # By FLOPs sets it by data too (slime/utils/arguments.py:1872-1874).
    of.either(
        of(Trainer.rank_balance, when=lambda c: c.balance_by_flops).constant("tokens"),
        of(Trainer.rank_balance).switched(Slime.balance_data, "tokens", "samples"),
    ),
    of.either(
        of(Trainer.recompute, when=lambda c: c.train_backend == "fsdp").switched(
            Slime.gradient_checkpointing, "full", "none"
        ),
        of(Trainer.recompute).words(
            Slime.recompute_granularity, ("full", "full"), ("selective", "selective"), (None, "none")
        ),
    ),
    of.under(Slime.enable_mtp_training, of(Trainer.mtp_layers).same(Slime.mtp_num_layers), otherwise=0),
    of(Trainer.optimizer).words(Slime.optimizer, ("muon", "muon"), ("adam", "adam"), ("*muon*", "muon"), other="adam"),
    *core_rules(
        of,
        lambda c: c.train_backend != "fsdp",
        tensor=Slime.tensor_model_parallel_size,
        granularity=Slime.recompute_granularity,
        modules=Slime.recompute_modules,
        loss=Slime.account_for_loss_in_pipeline_split,
        overlap=Slime.overlap_grad_reduce,
        sequence=Slime.sequence_parallel,
    ),
    of(Trainer.optimizer_bytes_per_parameter).by(
        Slime.use_precision_aware_optimizer,
        lambda c: optimizer_bytes(
            c.use_precision_aware_optimizer, c.optimizer_cpu_offload, (c.exp_avg_dtype, c.exp_avg_sq_dtype)
        ),
    ),
    of.either(
        of(Trainer.optimizer_on_host, when=lambda c: c.train_backend == "fsdp").same(Slime.fsdp_cpu_offload),
        of(Trainer.optimizer_on_host).same(Slime.optimizer_cpu_offload),
    ),
    of(Trainer.logits_chunk_tokens).rule(lambda c: most if (most := c.log_probs_chunk_size or -1) > 0 else None),
    of(Trainer.offload, when=lambda c: c.colocate).rule(
        lambda c: not c.no_offload_train, lambda c, value: [Slime.no_offload_train.to(not value)][: c.colocate]
    ),
    of(Trainer.policy_logprobs).rule(
        lambda c: c.policy_logprobs, lambda _, value: [] if value else [Slime.use_rollout_logprobs.to(True)]
    ),
    # Either kind of KL loads a reference (slime/utils/arguments.py:1775).
    of(Trainer.reference_logprobs).by(Slime.use_kl_loss, lambda c: c.use_kl_loss or c.kl_coef > 0),
    of(Trainer.moe_dispatcher).cases(
        Case("deepep", [Slime.moe_enable_deepep.holds(True)]),
        Case("alltoall", [Slime.moe_token_dispatcher_type.holds("alltoall", "allgather")]),
        Case(None),
    ),
    of(Loop.refit_method).words(
        Slime.update_weight_mode, ("delta", "delta_sharded"), ("full", "auto"), other="auto", readonly=True
    ),
)


def _facts(c: Slime) -> Facts:
    return Facts(
        pools=slime_teacher(c.r, c.hf_checkpoint),
        device=c.hardware,
        turns=1 if c.supervised else c.generate_max_turns,
        supervised=c.supervised,
        # Nodes have 8 GPUs unless stated (slime/utils/arguments.py:62-69); the actor's may be a part of one.
        gpus_per_node=c.num_gpus_per_node or (c.node if c.actor_num_nodes > 1 or c.colocate else 8),
        of_workers=not c.num_gpus_per_node,
        prompt_cap=c.prompt_cap,
        response_cap=c.rollout_max_response_len,
        dynamic=c.dynamic_sampling_filter_path is not None,
        drafter=c.sglang_speculative_draft_model_path,
    )


def _assumptions(c: Slime) -> Iterator[Assumption]:
    if not c.rollout_max_context_len and not c.rollout_max_prompt_len:
        yield Assumption(
            "No option caps prompts; 1,024 tokens are left for them beside the response.",
            [Workload.max_sequence_tokens],
        )
    if c.sglang_speculative_algorithm is not None and not c.drafting:
        yield Assumption(
            "SGLang chooses the length of drafts by the model where none is stated (auto_choose_speculative_params); "
            "none are simulated, state sglang_speculative_num_steps.",
            [Speculation.method, Speculation.draft_length],
        )


FRAMEWORK = of.framework(
    "slime",
    RULES,
    _facts,
    _assumptions,
    borrowed="slime",
    stack="slime",
    spelled_out=spelled_out,
    model=Slime.hf_checkpoint,
    node_size=Slime.node,
    # Without it rollout_num_gpus must be stated (slime/ray/placement_group.py:112-117).
    begin={Slime.colocate.key: True},
    shipped={"slime": ["slime"]},
    entry={r"(^|/)train(_async)?\.py$": {}},
    form="words",
    dashes=True,
    python=True,
    renamed={"sglang_data_parallel_size": "sglang_dp_size"},
    programs={
        "sync": "train.py",
        # slime/utils/arguments.py:430-466, slime/rollout/sglang_rollout.py:356-410
        "partial": "train.py with --partial-rollout and an --over-sampling-batch-size of twice the prompts",
        "slime": "train_async.py without --colocate",
        "slime_fully_async": "train_async.py without --colocate, with --rollout-function-path "
        "slime.rollout.fully_async_rollout.generate_rollout_fully_async",
    },
)
