"""A second reading of recipes, for ``scripts/corpus --check``: it shares no code with rlsim's importer.

Scripts are followed by bash itself (scripts/corpus_words.py), configurations are merged by OmegaConf; what they mean is
written down here a second time, framework by framework.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from corpus_words import View, dotted, launched, nemo_tree, options, precision
from omegaconf import OmegaConf

from rlsim.errors import InputError


def _verl(checkout: Path, path: Path, entry: str, words: list[str]) -> dict[str, Any] | None:
    given = {word.split("=")[0]: word.partition("=")[2].strip("'") for word in words if word.startswith("--config-")}
    folder, theirs = checkout / "verl/trainer/config", OmegaConf.create({})
    file = checkout / given.get("--config-path", ".") / f"{given.get('--config-name')}.yaml"
    if file.exists():
        theirs = OmegaConf.create(yaml.safe_load(file.read_text()))
        words = [*words, *(str(one) for one in theirs.pop("defaults", ()))]
        theirs.pop("hydra", None)
    mega = "model_engine=megatron" in words or "megatron_trainer" in " ".join(words)
    kind = "_megatron" if mega else "_veomni" if "model_engine=veomni" in words else ""
    config = OmegaConf.create(yaml.safe_load((folder / f"_generated_ppo{kind}_trainer.yaml").read_text()))
    if "fully_async" in entry or "one_step" in entry:
        place = checkout / Path(*entry.split(".")[:-1]) / "config"
        for file in place.glob("*ppo_megatron_trainer.yaml" if mega else "*ppo_trainer.yaml"):
            own = yaml.safe_load(file.read_text())
            own.pop("defaults", None), own.pop("hydra", None)
            config = OmegaConf.merge(config, own)
    v = View(dotted(words, OmegaConf.merge(config, theirs)))
    a, r = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
    mega = v(a + "strategy") == "megatron"
    fully = "fully_async" in entry
    v1 = v("trainer.v1.trainer_mode", "sync") if v("trainer.use_v1") else "sync"
    split = fully or v("actor_rollout_ref.hybrid_engine") is False or v1 == "separate_async"
    overlap = split or v1 == "colocate_async"
    pool = "rollout." if v("rollout.nnodes") is not None else r
    gen = v(pool + "nnodes", 1) * v(pool + "n_gpus_per_node", v("trainer.n_gpus_per_node", 8)) if split else None
    prompts = (
        v("async_training.require_batches", 1) * v(a + "ppo_mini_batch_size") if fully else v("data.train_batch_size")
    )
    m = a + "megatron."
    copies = max(
        v(r + "data_parallel_size", 1), v(r + "expert_parallel_size", 1) // v(r + "tensor_model_parallel_size", 1)
    )
    answers, asked = v(r + "multi_turn.max_assistant_turns"), v(r + "multi_turn.max_user_turns")
    cp = v(m + "context_parallel_size", 1) if mega else max(
        v(a + "ulysses_sequence_parallel_size", 1), v(a + "fsdp_config.ulysses_sequence_parallel_size", 1),
        v(a + "veomni.ulysses_parallel_size", 1) if v(a + "strategy") == "veomni" else 1)  # fmt: skip
    return {
        "gpus": v("trainer.nnodes") * v("trainer.n_gpus_per_node") + (gen or 0), "generation": gen, "prompts": prompts,
        "n": v(r + "n"), "cap": v("data.max_prompt_length") + v("data.max_response_length"),
        "batch": v(a + "ppo_mini_batch_size") * v(r + "n"), "tp": v(m + "tensor_model_parallel_size", 1) if mega else 1,
        "pp": v(m + "pipeline_model_parallel_size", 1) if mega else 1, "cp": cp,
        "engine_tp": v(r + "tensor_model_parallel_size") * copies, "memory": v(r + "gpu_memory_utilization"),
        "async": overlap, "sequences": v(r + "max_num_seqs"),
        "precision": precision(v(r + "quantization")), "turns": min(answers or 8, asked + 1 if asked else 8)
        if v(r + "multi_turn.enable") or answers or asked else 1,
        "lora": v("actor_rollout_ref.model.lora.rank", 0) if mega else v("actor_rollout_ref.model.lora_rank", 0),
        "publish": v("async_training.trigger_parameter_sync_step", 4) if fully else 1 if overlap else None,
        "training": v("trainer.nnodes") * v("trainer.n_gpus_per_node"),
        "pool": v("distillation.n_gpus_per_node", 0) * v("distillation.nnodes", 0) if v("distillation.enabled") else 0,
    }  # fmt: skip


def _skyrl(checkout: Path, path: Path, entry: str, words: list[str]) -> dict[str, Any] | None:
    v = View(dotted(words, OmegaConf.create({})))
    flat = v("generator.num_inference_engines") is not None
    old = {"num_engines": "num_inference_engines", "tensor_parallel_size": "inference_engine_tensor_parallel_size"}

    def e(name: str, default: Any) -> Any:
        former = v(f"generator.{old.get(name, name)}") if flat else None
        return v(f"generator.inference_engine.{name}", default) if former is None else former

    mega = v("trainer.strategy", "fsdp") == "megatron"
    split = v("trainer.placement.colocate_all", True) is False and not v("trainer.arctic_rl.colocate")
    fully = split and (v("trainer.fully_async.enabled", False) or "fully_async" in entry)
    tp = e("tensor_parallel_size", 1) * e("data_parallel_size", 1)
    gen = e("num_engines", 1) * tp * e("pipeline_parallel_size", 1) if split else None
    n = v("generator.n_samples_per_prompt", 5)
    m, place = "trainer.policy.megatron_config.", "trainer.placement."
    harbor = v("harbor_trial_config.agent.kwargs.max_turns", 1)
    if "main_generate" in entry:
        gen = e("num_engines", 1) * tp * e("pipeline_parallel_size", 1)
        return {
            "gpus": gen, "generation": None, "training": gen, "prompts": v("trainer.eval_batch_size", 1024),
            "n": v("generator.eval_n_samples_per_prompt", 1), "engine_tp": tp,
            "memory": e("gpu_memory_utilization", 0.8),
        }  # fmt: skip
    several = v("generator.max_turns", 1) > 1
    context = (v("generator.max_input_length") if several else None) or v("trainer.max_prompt_length", 512)
    return {
        "gpus": v(place + "policy_num_nodes", 1) * v(place + "policy_num_gpus_per_node", 1) + (gen or 0),
        "generation": gen, "n": n, "batch": v("trainer.policy_mini_batch_size", 256) * n,
        "prompts": v("trainer.policy_mini_batch_size", 256) if fully else v("trainer.train_batch_size", 1024),
        "cap": context + v("generator.sampling_params.max_generate_length", 1024),
        "tp": v(m + "tensor_model_parallel_size", 1) if mega else 1,
        "pp": v(m + "pipeline_model_parallel_size", 1) if mega else 1,
        "cp": v(m + "context_parallel_size", 1) if mega else v("trainer.policy.sequence_parallel_size", 1),
        "ep": v(m + "expert_model_parallel_size", 1) if mega else 1, "engine_tp": tp,
        "memory": e("gpu_memory_utilization", 0.8), "async": fully or (split and "async" in entry),
        "lag": v("trainer.fully_async.max_staleness_steps", 4) if fully else None,
        "sequences": e("max_num_seqs", 1024), "graphs": not e("enforce_eager", False),
        "drafts": v("trainer.mtp.num_speculative_tokens", 1) if v("trainer.mtp.enabled") else None,
        "turns": max(v("generator.max_turns", 1), harbor), "lora": v("trainer.policy.model.lora.rank", 0),
        "precision": precision(e("engine_init_kwargs.quantization", None) or v("trainer.policy.model.path")),
        "training": v(place + "policy_num_nodes", 1) * v(place + "policy_num_gpus_per_node", 1),
    }  # fmt: skip


def _nemo(checkout: Path, path: Path) -> dict[str, Any] | None:
    for name, function in (("mul", lambda a, b: a * b), ("max", max), ("min", min), ("div", lambda a, b: a // b)):
        OmegaConf.register_new_resolver(name, function, replace=True)
    v = View(nemo_tree(path))
    g = "ppo" if v("ppo") is not None else "grpo"
    mega, engine = bool(v("policy.megatron_cfg.enabled")), v("policy.generation.backend", "vllm")
    split = v("policy.generation.colocated.enabled", True) is False
    per_node = v("cluster.gpus_per_node")
    section = {"trtllm": "trtllm_cfg", "megatron": "mcore_generation_config", "sglang": "sglang_cfg"}.get(
        engine, "vllm_cfg"
    )
    e = f"policy.generation.{section}."
    if engine == "megatron":
        tp = v(e + "tensor_model_parallel_size") or v("policy.megatron_cfg.tensor_model_parallel_size", 1)
        ep = v(e + "expert_model_parallel_size") or v("policy.megatron_cfg.expert_model_parallel_size", 1)
    elif engine == "sglang":
        tp, ep = v(e + "tp_size", 1), v(e + "ep_size", 1)
    else:
        tp = v(e + "tensor_parallel_size", 1)
        ep = v(e + ("moe_expert_parallel_size" if engine == "trtllm" else "expert_parallel_size"), 1)
    m, d = "policy.megatron_cfg.", "policy.dtensor_cfg."
    old = v(f"{g}.async_{g}")
    single = v("async_rl") is not None and old is None
    sampler = "async_rl.sampler."
    name = v(sampler + "name", "in_order")
    ahead = "max_lookahead_versions" if name == "in_order" else "max_staleness_versions"
    lag = v(sampler + ahead, 1) if single else v(f"{g}.async_{g}.max_trajectory_age_steps", 1)
    overlap = (single and (lag > 0 or name == "windowed")) or bool(old is not None and v(f"{g}.async_{g}.enabled"))
    gen = (v("policy.generation.colocated.resources.num_nodes") or 1) * (
        v("policy.generation.colocated.resources.gpus_per_node") or per_node)  # fmt: skip
    scored = v("data.default.env_name") == "reward_model"  # by a model on GPUs of the one node, or on nodes of its own
    rewards = v("env.reward_model.resources.gpus_per_node") if scored and v("cluster.num_nodes") == 1 else (
        v("env.reward_model.resources.num_nodes") * per_node if scored else 0)  # fmt: skip
    return {
        "gpus": v("cluster.num_nodes") * per_node - rewards, "generation": gen if split else None,
        "prompts": v(f"{g}.num_prompts_per_step"), "n": v(f"{g}.num_generations_per_prompt"),
        "cap": v("policy.max_total_sequence_length"), "batch": v("policy.train_global_batch_size"),
        "tp": v(m + "tensor_model_parallel_size", 1) if mega else v(d + "tensor_parallel_size", 1),
        "pp": v(m + "pipeline_model_parallel_size", 1) if mega else 1,
        "cp": v(m + "context_parallel_size", 1) if mega else v(d + "context_parallel_size", 1),
        "ep": v(m + "expert_model_parallel_size", 1) if mega else v(d + "expert_parallel_size", 1),
        "engine_tp": ep if ep > tp and ep % tp == 0 else tp, "engine_ep": ep, "async": overlap,
        "lag": lag if overlap else None, "fp8_train": mega and bool(v(m + "fp8_cfg.enabled")),
        "memory": None if engine in ("megatron", "sglang") else v(e + "gpu_memory_utilization"),
        "precision": {"fp8": "fp8", "bfloat16": "bf16"}.get(v(e + "precision"))
        if section == "vllm_cfg" and not v("policy.generation.real_quant") else None,
        "drafts": v("policy.generation.vllm_kwargs.speculative_config.num_speculative_tokens")
        if section == "vllm_cfg" else None,
        "sequences": v(f"policy.generation.{section[:4]}_kwargs.max_num_seqs")
        if section == "vllm_cfg" else v(e + "max_batch_size"),
        "turns": v(f"{g}.max_rollout_turns", 1) if not v("env.should_use_nemo_gym") else None,
        "lora": (v(m + "peft.dim", 8) if v(m + "peft.enabled") else 0)
        if mega else (v(d + "lora_cfg.dim", 8) if v(d + "lora_cfg.enabled") else 0),
        "kv": "fp8" if section == "vllm_cfg" and "fp8" in str(v(e + "kv_cache_dtype")) else None,
        "training": None if split else v("cluster.num_nodes") * per_node - rewards,
        "epochs": v(f"{g}.ppo_epochs"), "critic": v("value") is not None,
    }  # fmt: skip


def _slime(checkout: Path, path: Path, entry: str, words: list[str]) -> dict[str, Any] | None:
    o = options(words)
    split = not o.get("colocate")
    n, prompts = o.get("n_samples_per_prompt", 1), o["rollout_batch_size"]
    return {
        "gpus": o.get("actor_num_nodes", 1) * o.get("actor_num_gpus_per_node", 8)
        + (o.get("rollout_num_gpus", 0) if split else 0),
        "generation": o.get("rollout_num_gpus") if split else None, "prompts": prompts, "n": n,
        "batch": o.get("global_batch_size") or prompts * n // o.get("num_steps_per_rollout", 1),
        "tp": o.get("tensor_model_parallel_size", 1), "pp": o.get("pipeline_model_parallel_size", 1),
        "cp": o.get("context_parallel_size", 1), "ep": o.get("expert_model_parallel_size", 1),
        "engine_tp": o.get("rollout_num_gpus_per_engine", 1), "memory": o.get("sglang_mem_fraction_static"),
        "async": split and "async" in entry, "drafts": o.get("sglang_speculative_num_steps"),
        "sequences": o.get("sglang_max_running_requests"), "lora": o.get("lora_rank", 0),
        "precision": precision(o.get("hf_checkpoint")), "turns": o.get("generate_max_turns"),
        "publish": o.get("update_weights_interval", 1) if split and "async" in entry else None,
        "training": o.get("actor_num_nodes", 1) * o.get("actor_num_gpus_per_node", 8),
        "fp8_train": o.get("fp8_format") is not None,
    }  # fmt: skip


def _openrlhf(checkout: Path, path: Path, entry: str, words: list[str]) -> dict[str, Any] | None:
    o = options(words)
    split = not o.get("train.colocate_all") or bool(o.get("train.async_enable"))
    engines = o.get("vllm.num_engines", 1) * o.get("vllm.tensor_parallel_size", 1)
    each = {
        one: o.get(f"{one}.num_nodes", 1) * o.get(f"{one}.num_gpus_per_node", 8) for one in ("actor", "reward", "ref")
    }
    apart = (
        not o.get("train.colocate_all") and not o.get("train.colocate_actor_ref") and o.get("algo.kl.init_coef", 0.01)
    )
    scored = bool(o.get("reward.model_name_or_path")) and not o.get("reward.remote_url")
    return {
        "gpus": each["actor"] + (each["ref"] if apart else 0) + (engines if split else 0), "training": each["actor"],
        "reference": each["ref"] if apart else 0, "lora": o.get("ds.lora.rank", 0),
        "pool": each["reward"] if scored and not o.get("train.colocate_all") else 0,
        "generation": engines if split else None, "prompts": o.get("rollout.batch_size", 1024),
        "n": o.get("rollout.n_samples_per_prompt", 1), "cap": o.get("data.max_len", 2048),
        "batch": o.get("train.batch_size", 128), "cp": o.get("ds.ring_attn_size", 1),
        "engine_tp": o.get("vllm.tensor_parallel_size", 1), "memory": o.get("vllm.gpu_memory_utilization", 0.95),
        "async": bool(o.get("train.async_enable")) and split,
    }  # fmt: skip


def _areal(checkout: Path, path: Path) -> dict[str, Any] | None:
    v = View(yaml.safe_load(path.read_text()))

    def sizes(text: str) -> dict[str, int]:
        attention = re.search(r"attn:([a-z0-9]+)", text)
        experts = re.search(r"ffn:[a-z0-9]*e(\d+)", text)
        plain = attention[1] if attention else text.split(":")[-1]
        out = {"d": 1, "t": 1, "p": 1, "c": 1, "e": int(experts[1]) if experts else 1}
        return out | {k: int(x) for k, x in re.findall(r"([dtpce])(\d+)", plain)}

    both = re.split(r"\+", v("allocation_mode", "") or "")
    gen = sizes(v("rollout.backend") or both[0])
    train = sizes(v("actor.backend") or both[-1])
    asynchronous = v("rollout.max_head_offpolicyness", 0) > 0
    generation = gen["d"] * gen["t"] * gen["p"]
    prompts, n = v("train_dataset.batch_size"), v("gconfig.n_samples", 1)
    teacher = sizes(v("teacher.backend")) if v("teacher.path") else {"d": 0}
    return {
        "pool": math.prod(teacher[one] for one in "dtpc" if one in teacher),
        "gpus": train["d"] * train["t"] * train["p"] * train["c"] + generation, "generation": generation,
        "prompts": prompts, "n": n, "batch": prompts * n // v("actor.ppo_n_minibatches", 4), "tp": train["t"],
        "pp": train["p"], "cp": train["c"], "ep": train["e"], "engine_tp": gen["t"], "async": asynchronous,
        "lag": v("rollout.max_head_offpolicyness") if asynchronous else None,
        "lora": v("actor.lora_rank", 32) if v("actor.use_lora") else 0, "publish": 1,
        "training": train["d"] * train["t"] * train["p"] * train["c"],
    }  # fmt: skip


def _prime(checkout: Path, path: Path) -> dict[str, Any] | None:
    v = View(tomllib.loads(path.read_text()))
    node, group = v("deployment.gpus_per_node", 8), v("orchestrator.group_size", 1)
    if v("deployment.type") == "multi_node":
        d = "inference.deployment."
        nodes = v("deployment.num_infer_nodes") or v(d + "num_nodes") or (
            v(d + "prefill_nodes_per_replica", 0) * v(d + "num_prefill_replicas", 1)
            + v(d + "decode_nodes_per_replica", 0) * v(d + "num_decode_replicas", 1))  # fmt: skip
        gen, train = nodes * v("deployment.num_infer_replicas", 1) * node, v("deployment.num_train_nodes") * node
    else:
        gen, train = v("deployment.num_infer_gpus", 1), v("deployment.num_train_gpus", 1)
    source = v("orchestrator.train.source")
    group = (source[0].get("group_size") if source else None) or group
    tasks = [((one.get("env") or {}).get("taskset") or {}) for one in source or ()]
    turns = [one["max_turns"] for one in tasks if one.get("max_turns")]
    ep = v("trainer.model.ep", "auto")
    # auto: up to 8 GPUs where the checkpoint is a mixture of experts, which its name tells here
    experts = re.search(r"-a\d+b|moe|glm-4\.5-air|glm-5", str(v("model.name") or v("trainer.model.name")).lower())
    auto = math.gcd(8, train // v("trainer.model.dp_replicate", 1)) if experts else 1
    algorithms = [one.get("algo") or v("orchestrator.algo") or {} for one in source or [{}]]
    teachers = {one["teacher"]["name"] for one in algorithms if "teacher" in one}
    return {
        "pool": len(teachers),  # one GPU each, as nobody says how many
        "gpus": gen + train, "generation": gen, "n": group, "cp": v("trainer.model.cp", 1),
        "prompts": v("orchestrator.batch_size", 128) // group if v("orchestrator.token_batch_size") is None else None,
        "ep": auto if ep == "auto" else ep, "memory": v("inference.vllm.gpu_memory_utilization", 0.9), "async": True,
        "lora": v("trainer.model.lora.rank", 16) if v("trainer.model.lora") is not None else 0, "publish": 1,
        "precision": precision(v("inference.vllm.quantization") or v("inference.vllm.model") or v("model.name")),
        "training": train, "turns": max(turns, default=1),
    }  # fmt: skip


def _roll(checkout: Path, path: Path, entry: str, words: list[str]) -> dict[str, Any] | None:
    o = options(words)
    place = checkout / "examples" / str(o.get("config_path", ""))
    file = next((f for f in (place, path.parent) if (f / f"{o.get('config_name')}.yaml").exists()), None)
    if file is None:
        return None
    v = View(yaml.safe_load((file / f"{o['config_name']}.yaml").read_text()))

    def cards(name: str) -> set[int]:
        ranges = re.findall(r"range\(([\d, ]+)\)", str(v(name)))
        listed = re.findall(r"\d+", "" if ranges else str(v(name)))
        return {int(one) for one in listed} | {one for given in ranges for one in range(*map(int, given.split(",")))}

    train, gen = cards("actor_train.device_mapping"), cards("actor_infer.device_mapping")
    apart = not train & gen
    c = "actor_train.strategy_args.strategy_config."
    mega = "megatron" in v("actor_train.strategy_args.strategy_name", "")
    tp, pp, cp = (v(c + f"{x}_parallel_size", 1) if mega else 1 for x in ("tensor_model", "pipeline_model", "context"))
    cp = cp if mega else v(c + "ulysses_size", 1)
    group = v("train_env_manager.group_size")
    t = "actor_train.training_args."
    ranks = len(train) // (tp * pp * cp)
    turns = v("max_actions_per_traj") or (10 if group else 1)
    judging = [name for name in v("rewards") or {} if v(f"rewards.{name}.judge_model_type") == "inference"]
    judges = set().union(*(cards(f"rewards.{name}.device_mapping") for name in judging))
    engine = "actor_infer.strategy_args.strategy_config."
    if "rollout_pipeline" in entry or not train:
        return {"gpus": len(gen), "n": group or v("validation.generating_args.num_return_sequences"), "turns": turns,
                "pool": len(judges - gen), "memory": v(engine + "gpu_memory_utilization")}  # fmt: skip
    return {
        "turns": turns, "pool": len(judges - train - gen), "lora": v("actor_train.model_args.lora_rank", 0),
        "precision": precision(v(engine + "quantization")), "training": len(train | gen) if not apart else len(train),
        "gpus": len(train | gen), "generation": len(gen) if apart else None,
        "prompts": v("rollout_batch_size") // (group or 1), "n": group or v("num_return_sequences_in_group"),
        "batch": v(t + "per_device_train_batch_size") * v(t + "gradient_accumulation_steps") * ranks,
        "tp": tp, "pp": pp, "cp": cp, "async": apart and v("async_generation_ratio", 0) > 0,
        "memory": v(engine + "gpu_memory_utilization"),
    }  # fmt: skip


LAUNCHED: dict[str, tuple[str, Callable[[Path, Path, str, list[str]], dict[str, Any] | None]]] = {
    "verl": (r"verl\.(trainer\.main_ppo|experimental\.\w+\.\w*main)|recipe\.dapo|verl_mlite", _verl),
    "skyrl": (r"skyrl\.train\.entrypoints|^examples\.[\w.]*main_|entrypoint\.py$|integrations[\w.]*main", _skyrl),
    "slime": (r"(^|/)train(_async)?\.py$", _slime),
    "openrlhf": (r"train_ppo_ray$", _openrlhf),
    "roll": (r"start_\w+_pipeline\.py$", _roll),
}  # fmt: skip
"""Frameworks whose recipes are launch scripts: what the program's name matches, and the reading of its words."""
CONFIGURED: dict[str, Callable[[Path, Path], dict[str, Any] | None]] = {
    "nemo-rl": _nemo, "areal": _areal, "prime-rl": _prime,
}  # fmt: skip
SAME_WORDS = {"vime": "slime", "miles": "slime"}


def read(framework: str, checkout: Path, path: Path) -> dict[str, Any] | None:
    """What a recipe says; None where bash reaches no launch."""
    if framework in CONFIGURED:
        return CONFIGURED[framework](checkout, path)
    entry, reading = LAUNCHED[framework]
    found = launched(checkout, path, entry)
    return None if found is None else reading(checkout, path, *found)


def said(scenario: Any) -> dict[str, Any]:
    """The same facts of a scenario."""
    t, e, w, loop = scenario.trainer, scenario.engine, scenario.workload, scenario.loop
    overlapping = loop.mode == "async"
    return {
        "gpus": scenario.cluster.num_gpus - scenario.cluster.pool_gpus, "pool": scenario.cluster.pool_gpus,
        "training": scenario.cluster.training, "reference": scenario.cluster.reference_gpus,
        "generation": scenario.cluster.generation_gpus,
        "prompts": w.prompts_per_step, "n": w.generations_per_prompt, "cap": w.max_sequence_tokens,
        "batch": t.global_batch_samples,
        "tp": t.tensor_parallel, "pp": t.pipeline_parallel, "cp": t.context_parallel, "ep": t.expert_parallel,
        "engine_tp": e.tensor_parallel, "engine_ep": e.expert_parallel, "memory": e.gpu_memory_utilization,
        "async": overlapping, "lag": loop.policy_lag if overlapping else None, "sequences": e.max_running_sequences,
        "graphs": e.cuda_graphs, "precision": e.weight_precision.split("_")[0], "fp8_train": t.precision == "fp8",
        "kv": e.kv_precision, "turns": 1 if w.agent is None else w.agent.max_turns, "lora": t.lora_rank or 0,
        "publish": loop.update_every if overlapping else None,
        "drafts": scenario.speculation.draft_length if scenario.speculation.active else None, "epochs": t.epochs,
        "critic": t.critic,
    }  # fmt: skip


def compare(framework: str, checkout: Path, path: Path, importer: Callable[..., Any]) -> Iterator[str]:
    """Values of one recipe that differ between both readings; what this one does not know is None."""
    os.environ.setdefault("HF_HOME", "/home/user/hf")
    like = SAME_WORDS.get(framework, framework)
    if like not in LAUNCHED and like not in CONFIGURED:
        return
    try:
        scenario = importer(framework, checkout, path).scenario
    except InputError:
        return
    name = path.relative_to(checkout)
    try:
        expected = read(like, checkout, path)
    except (KeyError, TypeError, AttributeError) as error:
        yield f"not checked: {name}: {error!r}"
        return
    if expected is None:
        yield f"not checked: {name}: bash reaches no launch here"
        return
    got = said(scenario)
    for key, value in expected.items():
        if value is not None and got[key] != value and not (key == "generation" and value == 0):
            yield f"{name}: {key} is {got[key]}, the check reads {value}"
