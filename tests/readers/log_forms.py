"""Records of runs as each framework prints or writes them, made by hand in the format of its source, and what they say.

The files and commits of the formats stand in ``rlsim/readers/logs/names.yaml``. Numbers are made up.
"""

import json
from collections.abc import Callable, Mapping

Made = tuple[str, Mapping[str, float]]


def nemo(n: int) -> Made:
    text = (
        f"{'=' * 25} Step {n}/100 {'=' * 25}\n  • Loss: 0.0123\n  • Mean Generation Length: 812.5000\n"
        f"  • Total step time: {60 + n}.00s\n  • generation: 30.25s (50.0%)\n  • policy_training: 20.00s (33.3%)\n"
        "  • training_prep: 1.00s (1.7%)\n  • policy_and_reference_logprobs: 6.00s (10.0%)\n  • weight_sync: 2.00s\n"
    )
    return text, {"step": 60 + n, "generation": 30.25, "train": 21, "logprob": 6, "refit": 2, "response_tokens": 812.5}


def verl(n: int) -> Made:
    text = (
        f"(TaskRunner pid=7) step:{n} - actor/loss:0.1 - response_length/mean:700.5 - prompt_length/mean:107.0 - "
        f"timing_s/gen:12.5 - timing_s/old_log_prob:3.0 - timing_s/ref:3.5 - timing_s/update_actor:14.0 - "
        f"timing_s/adv:0.5 - timing_s/step:{37 + n}.25\n"
    )
    return text, {"step": 37.25 + n, "generation": 12.5, "logprob": 6.5, "train": 14, "data": 0.5, "prompt_tokens": 107,
                  "response_tokens": 700.5}  # fmt: skip


def verl_dictionary(n: int) -> Made:
    text = (
        f"{{'actor/loss': np.float64(0.1),\n 'timing_s/gen': 12.5,\n 'timing_s/step': {37 + n}.25,\n"
        " 'timing_s/update_actor': np.float64(14.0)}\n"
    )
    return text, {"step": 37.25 + n, "generation": 12.5, "train": 14}


def verl_pairs(n: int) -> Made:
    return f"timing_s/gen:          12.50\ntiming_s/step:         {37 + n}.25\n", {
        "step": 37.25 + n,
        "generation": 12.5,
    }


def slime(n: int) -> Made:
    times = {"sleep": 4.0, "update_weights": 0.5, "wake_up": 1.9, "data_preprocess": 0.1, "train_wait": 11.5 + n,
             "ref_log_probs": 0.4, "log_probs": 0.3, "actor_train": 2.0, "train": 2.7, "step": 14.2 + n}  # fmt: skip
    rollout = {"rollout/response_len/mean": 700.5, "perf/rollout_time": 5.0 + n}
    text = f"(RolloutManager pid=3) metrics.py:89 - perf {n}: {rollout}\n"
    text += f"(Actor pid=4) utils.py:56 - perf {n}: { {f'perf/{name}_time': value for name, value in times.items()} }\n"
    return text, {"step": 14.2 + n, "generation": 5 + n, "logprob": 0.7, "train": 2, "refit": 6.4, "data": 0.1,
                  "response_tokens": 700.5}  # fmt: skip


def skyrl(n: int) -> Made:
    times = {"generate": 12.5, "fwd_logprobs_values_reward": 3, "train_critic_and_policy": 7, "sync_weights": 1}
    lines = [f"INFO | trainer - Finished: '{name}', time cost: {value:.2f}s" for name, value in times.items()]
    text = "\n".join(["INFO | Started: 'step'", *lines, f"INFO | Finished: 'step', time cost: {24 + n:.2f}s", ""])
    return text, {"step": 24 + n, "generation": 12.5, "logprob": 3, "train": 7, "refit": 1}


def openrlhf(n: int) -> Made:
    status = {"policy_loss": 0.1, "timing/make_experience": 5.0, "timing/ppo_train": 20.0, "timing/broadcast": 1.5,
              "rollout/response_length_mean": 512.0, "timing/generation": 30.0,
              "timing/step_total": 56.5 + n}  # fmt: skip
    return f"\u2728 Global step {n}: {status}\n", {"step": 56.5 + n, "generation": 30, "logprob": 5, "train": 20,
                                                   "refit": 1.5, "response_tokens": 512}  # fmt: skip


def roll(n: int) -> Made:
    times = {"time/step_generate": 30.0, "time/step_train": 10.0, "time/step_total": 55.5 + n,
             "time/old_log_probs": 4.0, "time/ref_log_probs_values": 3.5, "time/step_model_update": 2.0}  # fmt: skip
    text = f"metrics_tag: {json.dumps({'step': n, 'metrics': times})}\n"
    return text, {"step": 55.5 + n, "generation": 30, "logprob": 7.5, "train": 10, "refit": 2}


def areal(n: int) -> Made:
    text = (
        f"StatsLogger INFO: Epoch 1/10 Step {n}/100 Train step {n}/1000 done.\n"
        "│ ppo_actor/seq_len/avg    │ 9.0000e+02 │ timeperf/rollout        │ 3.0000e+01 │\n"
        f"│ ppo_actor/prompt_len/avg │ 1.0000e+02 │ timeperf/train_step     │ {12 + n:.4e} │\n"
        "│ timeperf/recompute_logp  │ 4.0000e+00 │ timeperf/update_weights │ 2.0000e+00 │\n"
    )
    return text, {"step": 48 + n, "generation": 30, "logprob": 4, "train": 12 + n, "refit": 2, "prompt_tokens": 100,
                  "response_tokens": 800}  # fmt: skip


def prime_rl(n: int) -> Made:
    return f"SUCCESS Step {n} | {10 + n}.5s | Loss 0.0010 | Peak Mem. 30.0 GiB\n", {"step": 10.5 + n}


def trl(n: int) -> Made:
    text = f"{{'loss': 0.0, 'step_time': {20 + n}.5, 'completions/mean_length': 300.0, 'epoch': 0.01}}\n"
    return text, {"step": 20.5 + n, "response_tokens": 300}


def swift(n: int) -> Made:
    text = (
        f"{{'completions/mean_length': 300.0, 'train_speed(s/it)': {24 + n}.3, 'global_step/max_steps': '{n}/262'}}\n"
    )
    return text, {"step": 24.3 + n, "response_tokens": 300}


def lines_of(metrics: Mapping[str, float]) -> Callable[[int], Made]:
    """JSON lines with a step and the same metrics, the first of which is the step's time."""

    def made(n: int) -> Made:
        first = next(iter(metrics))
        row = {"step": n} | metrics | {first: metrics[first] + n}
        return json.dumps(row) + "\n", {"step": metrics[first] + n}

    return made


FORMS: Mapping[str, Callable[[int], Made]] = {
    "NeMo-RL": nemo, "verl": verl, "verl's dictionary": verl_dictionary, "verl's pairs": verl_pairs, "slime": slime,
    "SkyRL": skyrl, "OpenRLHF": openrlhf, "ROLL": roll, "AReaL": areal, "prime-rl": prime_rl, "trl": trl,
    "ms-swift": swift,
    "JSON of slime": lines_of({"perf/step_time": 40, "perf/train_wait_time": 20, "perf/actor_train_time": 15}),
    "JSON of SkyRL": lines_of({"timing/step": 40, "timing/generate": 20, "timing/sync_weights": 1}),
    "JSON of prime-rl": lines_of({"time/step": 40, "time/wait_for_batch": 20, "time/forward_backward": 15}),
    "JSON of trl": lines_of({"train/step_time": 40, "train/completions/mean_length": 20}),
    "JSON of OpenRLHF": lines_of({"train/timing/step_total": 40, "train/timing/generation": 20}),
    "JSON of ROLL": lines_of({"time/step_total": 40, "time/step_generate": 20}),
}  # fmt: skip
