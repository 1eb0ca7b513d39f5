"""Records of a step as each framework prints or writes it, from the seconds of its phases: the format of its source.

The files and commits of the formats stand in ``rlsim/readers/logs/names.yaml``. A step is a mapping of quantities
(``step``, ``generation`` or ``exposed_generation``, ``logprob``, ``train``, ``refit``, ``data`` in seconds,
``response_tokens`` and ``prompt_tokens`` in tokens); a writer leaves out what its format has no name for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

Step = Mapping[str, float]
Writer = Callable[[int, Step], str]
PHASES = frozenset({"step", "generation", "logprob", "train", "refit", "data"})
LENGTHS = frozenset({"response_tokens", "prompt_tokens"})


def _waited(step: Step) -> float:
    """Seconds that the loop waits for generation."""
    return step["exposed_generation"] if "exposed_generation" in step else step["generation"]


def nemo(n: int, step: Step) -> str:
    """NeMo-RL's block of bullets."""
    waited = "exposed_generation" if "exposed_generation" in step else "generation"
    times = {waited: _waited(step), "policy_training": 0.95 * step["train"], "training_prep": 0.05 * step["train"],
             "policy_and_reference_logprobs": step["logprob"], "weight_sync": step["refit"],
             "data_processing": 0.5 * step["data"], "reward_calculation": 0.5 * step["data"]}  # fmt: skip
    bullets = "".join(
        f"  • {name}: {value:.2f}s ({100 * value / step['step']:.1f}%)\n" for name, value in times.items()
    )
    return (
        f"{'=' * 25} Step {n}/100 {'=' * 25}\n  • Loss: 0.0123\n"
        f"  • Mean Generation Length: {step['response_tokens']:.4f}\n"
        f"  • Total step time: {step['step']:.2f}s\n{bullets}"
    )


def _verl(step: Step) -> dict[str, float]:
    return {"response_length/mean": step["response_tokens"], "prompt_length/mean": step["prompt_tokens"],
            "timing_s/gen": _waited(step), "timing_s/old_log_prob": 0.5 * step["logprob"],
            "timing_s/ref": 0.5 * step["logprob"], "timing_s/update_actor": step["train"],
            "timing_s/update_weights": step["refit"], "timing_s/adv": step["data"],
            "timing_s/step": step["step"]}  # fmt: skip


def verl(n: int, step: Step) -> str:
    """verl's one line of a step."""
    return f"(TaskRunner pid=7) step:{n} - actor/loss:0.1 - " + " - ".join(
        f"{name}:{value}" for name, value in _verl(step).items()
    ) + "\n"  # fmt: skip


def verl_dictionary(n: int, step: Step) -> str:
    """verl's metrics as the dictionary that Python prints, over several lines."""
    return "{'actor/loss': np.float64(0.1),\n" + ",\n".join(f" {k!r}: {v}" for k, v in _verl(step).items()) + "}\n"


def verl_pairs(n: int, step: Step) -> str:
    """A metric and its value on each line, padded, as pasted into threads."""
    return "".join(f"{name + ':':30} {value}\n" for name, value in _verl(step).items())


def slime(n: int, step: Step) -> str:
    """slime's, miles' and vime's two ``perf`` lines: of the rollout and of the trainer."""
    trained = step["logprob"] + step["train"]
    times = {"sleep": 0.5 * step["refit"], "update_weights": 0.25 * step["refit"], "wake_up": 0.25 * step["refit"],
             "data_preprocess": step["data"], "ref_log_probs": 0.5 * step["logprob"],
             "train_wait": _waited(step) + step["refit"] + step["data"],
             "log_probs": 0.5 * step["logprob"], "actor_train": step["train"], "train": trained,
             "step": step["step"]}  # fmt: skip
    rollout = {"rollout/response_len/mean": step["response_tokens"], "perf/rollout_time": _waited(step)}
    named = {f"perf/{name}_time": value for name, value in times.items()}
    return (
        f"(RolloutManager pid=3) metrics.py:89 - perf {n}: {rollout}\n(Actor pid=4) utils.py:56 - perf {n}: {named}\n"
    )


def skyrl(n: int, step: Step) -> str:
    """SkyRL's timers in its console."""
    times = {"generate": _waited(step), "fwd_logprobs_values_reward": step["logprob"],
             "train_critic_and_policy": step["train"], "sync_weights": step["refit"],
             "convert_to_training_input": step["data"], "step": step["step"]}  # fmt: skip
    lines = [f"INFO | trainer - Finished: '{name}', time cost: {value:.2f}s\n" for name, value in times.items()]
    return "INFO | Started: 'step'\n" + "".join(lines)


def openrlhf(n: int, step: Step) -> str:
    """OpenRLHF's line of a global step."""
    status = {"policy_loss": 0.1, "timing/make_experience": step["logprob"], "timing/ppo_train": step["train"],
              "timing/broadcast": step["refit"], "rollout/response_length_mean": step["response_tokens"],
              "timing/generation": _waited(step), "timing/step_total": step["step"]}  # fmt: skip
    return f"\u2728 Global step {n}: {status}\n"


def roll(n: int, step: Step) -> str:
    """ROLL's metrics of its tracker."""
    times = {"time/step_generate": _waited(step), "time/step_train": step["train"], "time/step_total": step["step"],
             "time/old_log_probs": 0.5 * step["logprob"], "time/ref_log_probs_values": 0.5 * step["logprob"],
             "time/step_model_update": step["refit"], "time/step_adv": step["data"],
             "tokens/response_length/mean": step["response_tokens"],
             "tokens/prompt_length/mean": step["prompt_tokens"]}  # fmt: skip
    return f"metrics_tag: {json.dumps({'step': n, 'metrics': times})}\n"


def areal(n: int, step: Step) -> str:
    """AReaL's grid; no timer spans its step, what lies between the others is clearing of batches."""
    parts = {"timeperf/rollout": _waited(step), "timeperf/recompute_logp": step["logprob"],
             "timeperf/train_step": step["train"], "timeperf/update_weights": step["refit"],
             "timeperf/compute_advantage": step["data"]}  # fmt: skip
    cells = {"ppo_actor/seq_len/avg": step["response_tokens"] + step["prompt_tokens"],
             "ppo_actor/prompt_len/avg": step["prompt_tokens"], **parts,
             "timeperf/clear_batches": max(0.0, step["step"] - sum(parts.values()))}  # fmt: skip
    rows = "".join(f"│ {name:26} │ {value:.4e} │\n" for name, value in cells.items())
    return f"StatsLogger INFO: Epoch 1/10 Step {n}/100 Train step {n}/1000 done.\n{rows}"


def prime_rl(n: int, step: Step) -> str:
    """prime-rl's line of a step, which has no phases."""
    return f"SUCCESS Step {n} | {step['step']:.2f}s | Loss 0.0010 | Peak Mem. 30.0 GiB\n"


def prime_rl_rows(n: int, step: Step) -> str:
    """prime-rl's metrics as wandb exports them: its trainer's and its orchestrator's."""
    return json.dumps({"step": n, "time/step": step["step"], "time/wait_for_batch": _waited(step),
                       "time/forward_backward": step["train"], "time/broadcast_weights": step["refit"],
                       "time/load_data": step["data"],
                       "train/agg/effective/num_output_tokens/mean": step["response_tokens"]}) + "\n"  # fmt: skip


def skyrl_rows(n: int, step: Step) -> str:
    """SkyRL's metrics as wandb exports them."""
    return json.dumps({"_step": n, "timing/step": step["step"], "timing/generate": _waited(step),
                       "timing/fwd_logprobs_values_reward": step["logprob"], "timing/sync_weights": step["refit"],
                       "timing/train_critic_and_policy": step["train"],
                       "timing/convert_to_training_input": step["data"],
                       "generate/avg_num_tokens": step["response_tokens"]}) + "\n"  # fmt: skip


def trl(n: int, step: Step) -> str:
    """trl's and Unsloth's dictionary, which has no phases."""
    return f"{{'loss': 0.0, 'step_time': {step['step']}, 'completions/mean_length': {step['response_tokens']}}}\n"


def trl_rows(n: int, step: Step) -> str:
    """trl's history of wandb: a row for each timer that it profiles, which wandb counts as a step of its own, and one
    for what the trainer logs."""
    timed = {"sync_weights": step["refit"], "vLLM.generate": _waited(step), "_calculate_rewards": step["data"]}
    rows: list[dict[str, float]] = [
        {f"profiling/Time taken: GRPOTrainer.{name}": value} for name, value in timed.items()
    ]
    rows.append({"train/step_time": step["step"], "train/completions/mean_length": step["response_tokens"],
                 "train/global_step": n})  # fmt: skip
    first = (n - 1) * len(rows)
    return "".join(json.dumps(row | {"_step": first + place}) + "\n" for place, row in enumerate(rows))


def swift(n: int, step: Step) -> str:
    """ms-swift's logging.jsonl, which has no phases; its speed is the mean over all steps so far."""
    return (
        f"{{'completions/mean_length': {step['response_tokens']}, 'step_time': {step['step']}, "
        f"'train_speed(s/it)': {1.07 * step['step']:.6f}, "
        f"'global_step/max_steps': '{n}/262'}}\n"
    )


def swift_rows(n: int, step: Step) -> str:
    """ms-swift's history of wandb: its timers in the row of the step."""
    named = {"_move_model_to_vllm": step["refit"], "generate": _waited(step), "_score_completions": step["data"]}
    timers = {f"profiling/Time taken: GRPOTrainer.{name}": value for name, value in named.items()}
    return json.dumps({"_step": n, "train/global_step": n, "train/step_time": step["step"],
                       "train/completions/mean_length": step["response_tokens"], **timers}) + "\n"  # fmt: skip


ONE_STEP, THREE = frozenset({"step"}), frozenset({"step", "generation", "refit", "data", "response_tokens"})
CONSOLES: Mapping[str, tuple[Writer, frozenset[str]]] = {
    "NeMo-RL": (nemo, PHASES | {"response_tokens"}),
    "verl": (verl, PHASES | LENGTHS),
    "verl's dictionary": (verl_dictionary, PHASES | LENGTHS),
    "verl's pairs": (verl_pairs, PHASES | LENGTHS),
    "slime": (slime, PHASES | {"response_tokens"}),
    "SkyRL": (skyrl, PHASES),
    "OpenRLHF": (openrlhf, PHASES - {"data"} | {"response_tokens"}),
    "ROLL": (roll, PHASES | LENGTHS),
    "AReaL": (areal, PHASES | LENGTHS),
    "prime-rl": (prime_rl, ONE_STEP),
    "trl": (trl, ONE_STEP | {"response_tokens"}),
    "ms-swift": (swift, ONE_STEP | {"response_tokens"}),
}
"""Writers of what frameworks print, by name, and the quantities that each tells."""
ROWS: Mapping[str, tuple[Writer, frozenset[str]]] = {
    "rows of SkyRL": (skyrl_rows, PHASES | {"response_tokens"}),
    "rows of prime-rl": (prime_rl_rows, PHASES - {"logprob"} | {"response_tokens"}),
    "rows of trl": (trl_rows, THREE),
    "rows of ms-swift": (swift_rows, THREE),
}
"""Writers of their metrics as exported, of those whose consoles tell less."""
