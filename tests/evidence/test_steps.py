"""One row of a table becomes one scenario, or a reason."""

import pytest
from measured_tables import row

from rlsim.evidence.steps import PROMPT_TOKENS, scenario_of
from rlsim.evidence.tables import SkippedRow


def test_the_needed_columns_make_a_scenario_and_recipes_of_v07_skip_log_probs() -> None:
    scenario = scenario_of(row())
    assert (scenario.model.name, scenario.hardware.name) == ("Llama-3.1-8B", "h100_sxm")
    assert scenario.cluster.colocated
    assert scenario.loop.mode == "sync"
    assert scenario.engine.dispatch == "static"
    assert scenario.workload.samples_per_step == 64
    assert scenario.workload.prompt_tokens.model_dump() == {"kind": "constant", "tokens": PROMPT_TOKENS}
    # NeMo-RL v0.7 sets force_on_policy_ratio in its recipes with one optimizer step per batch.
    release = {"framework_version": "NeMo-RL v0.7.0", "prompts_per_step": "16", "generations_per_prompt": "4"}
    assert not scenario_of(row(**release, train_gbs="64")).trainer.policy_logprobs
    assert scenario_of(row(**release, train_gbs="32")).trainer.policy_logprobs
    assert scenario_of(row(**release, train_gbs="64", prev_logprobs_recomputed="true")).trainer.policy_logprobs


@pytest.mark.parametrize(("changes", "policy", "reference"), [
    ({}, True, True),
    ({"prev_logprobs_recomputed": "false (force_on_policy_ratio)"}, False, True),
    ({"reference_policy_kl": "kl=0.01; ref logprobs recomputed every step"}, True, True),
    ({"reference_policy_kl": "kl=0.0; ref logprobs recomputed every step"}, True, True),
    ({"reference_policy_kl": "kl=0.0; skipped"}, True, False),
    ({"reference_policy_kl": "0.01", "reference_logprobs": "false"}, True, False),
])  # fmt: skip
def test_number_of_log_prob_passes(changes: dict[str, str], policy: bool, reference: bool) -> None:
    trainer = scenario_of(row(**changes)).trainer
    assert (trainer.policy_logprobs, trainer.reference_logprobs) == (policy, reference)


@pytest.mark.parametrize(("release", "stack", "version", "aligned"), [
    ("NeMo-RL v0.3.0", "nemo_rl-0.4", "0.10.0", False),
    ("NeMo-RL v0.4.0", "nemo_rl-0.4", "0.10.0", False),
    ("NeMo-RL v0.5.0", "nemo_rl-0.5", "0.11.2", False),
    ("NeMo-RL v0.6.0", "nemo_rl-0.6", "0.17.1", False),
    ("NeMo-RL v0.7.0", "nemo_rl-0.7", "0.20.0", True),
    ("NeMo-RL v0.9.1", "nemo_rl-0.8", "0.25.1", True),
    ("NeMo-RL main 2026-08", "nemo_rl-0.7", "0.20.0", True),
    ("", "nemo_rl-0.7", "0.20.0", True),
])  # fmt: skip
def test_the_release_of_the_framework_names_the_stack(release: str, stack: str, version: str, aligned: bool) -> None:
    """Engine and placement come with it; jobs within one NVLink domain are aligned anyhow."""
    found = scenario_of(row(framework_version=release, gpu="gb200", num_gpus="144"))
    assert (found.stack.name, found.engine_version, found.rack_aligned) == (stack, version, aligned)
    assert scenario_of(row(framework_version=release, gpu="gb200", num_gpus="72")).rack_aligned


@pytest.mark.parametrize(("changes", "reason"), [
    ({"avg_seq_len": ""}, "avg_seq_len is not given"),
    ({"total_step_time_s": ""}, "total_step_time_s is not given"),
    ({"avg_seq_len": "4k"}, "avg_seq_len is not a number: '4k'"),
    ({"avg_seq_len": "nan"}, "avg_seq_len must be finite"),
    ({"avg_seq_len": "inf"}, "avg_seq_len must be finite"),
    ({"avg_seq_len": "-3"}, "avg_seq_len must be finite and not negative"),
    ({"avg_seq_len": "2000"}, "reaches max_seq_len 2048"),
    ({"avg_seq_len": "0"}, "mean_tokens"),
    ({"num_gpus": "8.5"}, "num_gpus must be a whole number"),
    ({"num_gpus": "0"}, "num_gpus must be a whole number"),
    ({"num_gpus": "1e99"}, "num_gpus"),
    ({"prompts_per_step": "1e6", "generations_per_prompt": "1e6"}, "samples in one step"),
    ({"model": "gpt-17"}, "no model card for 'gpt-17'"),
    ({"gpu": "potato"}, "no hardware profile for 'potato'"),
    ({"on_off_policy": "maybe"}, "on_off_policy must be"),
    ({"gen_tp": "7"}, "tensor_parallel"),
    ({"gen_precision": "fp2"}, "gen_precision must be"),
    ({"spec_decode_method": "telepathy"}, "spec_decode_method 'telepathy'"),
    ({"spec_decode_method": "eagle3", "spec_k": "3"}, "acceptance_length is not given"),
    ({"spec_decode_method": "eagle3", "spec_k": "3", "acceptance_length": "9"}, "acceptance_length"),
    ({"train_backend": "abacus"}, "train_backend must be"),
    ({"on_off_policy": "async lag 1", "gen_gpus": "6", "train_gpus": "6"}, "must equal num_gpus"),
])  # fmt: skip
def test_rows_that_say_too_little_or_nonsense_are_skipped_with_a_reason(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(SkippedRow) as caught:
        scenario_of(row(**changes))
    assert reason in str(caught.value)


@pytest.mark.parametrize(("text", "lag"), [
    ("sync", 0), ("on-policy", 0), ("async", 1), ("async lag 2", 2), ("async1", 1), ("8-step off-policy", 8),
    ("1-step off", 1), ("one-step off-policy", 1), ("on policy", 0),
])  # fmt: skip
def test_the_lag_in_the_words_that_tables_use(text: str, lag: int) -> None:
    split = {"gen_gpus": "4", "train_gpus": "4"} if lag else {}
    assert scenario_of(row(on_off_policy=text, **split)).loop.policy_lag == lag
