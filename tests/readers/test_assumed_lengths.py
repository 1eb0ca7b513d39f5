"""What an import assumes of lengths: what the caps tell, with a spread that reaches them, named in the verdict."""

import math
from pathlib import Path

import pytest

from rlsim import project, vary
from rlsim.errors import InputError
from rlsim.readers.frameworks.asked import PROMPT_TOKENS, Asked
from rlsim.readers.frameworks.importing import import_config
from rlsim.report.text.findings import headline
from rlsim.schema.scenario import Scenario
from rlsim.schema.workload import ConstantLength, LognormalLength

VERL = """
data: {{train_batch_size: 32, max_prompt_length: {prompt}, max_response_length: {response}}}
actor_rollout_ref:
  model: {{path: Qwen/Qwen2.5-7B-Instruct}}
  actor: {{ppo_mini_batch_size: 32, use_dynamic_bsz: true, ppo_max_token_len_per_gpu: 20000}}
  rollout: {{n: 8, name: vllm, tensor_model_parallel_size: 2, gpu_memory_utilization: 0.5}}
algorithm: {{adv_estimator: grpo}}
trainer: {{nnodes: 1, n_gpus_per_node: 8}}
"""


def imported(folder: Path, prompt: int = 512, response: int = 1024, asked: Asked | None = None) -> Scenario:
    (folder / "c.yaml").write_text(VERL.format(prompt=prompt, response=response))
    return import_config("verl", folder / "c.yaml", asked=asked).scenario


def prompt_tokens(scenario: Scenario) -> int:
    assert isinstance(scenario.workload.prompt_tokens, ConstantLength)
    return scenario.workload.prompt_tokens.tokens


def test_a_long_cap_says_that_prompts_are_long_and_the_spread_reaches_it(tmp_path: Path) -> None:
    assert [prompt_tokens(imported(tmp_path, cap)) for cap in (100, 512, 2048)] == [50, PROMPT_TOKENS, PROMPT_TOKENS]
    found = [prompt_tokens(imported(tmp_path, cap)) for cap in (4096, 16384)]
    assert found == [round(math.sqrt(PROMPT_TOKENS * cap)) for cap in (4096, 16384)]
    long = imported(tmp_path, 16384)
    (spread,) = [one.log_spread for one in long.assumptions if "workload.prompt_tokens" in one.keys]
    assert spread is not None and found[1] * math.exp(1.645 * spread) > 0.8 * 16384
    assert prompt_tokens(imported(tmp_path, 16384, asked=Asked(mean_prompt_tokens=9000))) == 9000


def test_the_interval_holds_what_long_prompts_make_of_a_step_and_the_verdict_says_what_decides(tmp_path: Path) -> None:
    long = imported(tmp_path, 16384)
    answer = project(long)
    for tokens in (200, 8000, 13500):  # draws of a mean stop short of its cap, and 5 % lie beyond the interval
        step_s = project(vary(long, f"workload.prompt_tokens.tokens={tokens}")).candidate.step_s.mean
        assert answer.candidate.step_s.low < step_s < answer.candidate.step_s.high
    assert "the prompts deciding (state workload.prompt_tokens)" in headline(answer)
    stated = vary(long, "workload.prompt_tokens.tokens=8000", "workload.response_tokens.mean_tokens=500")
    assert "deciding" not in headline(project(stated))


def test_samples_that_are_cut_can_be_stated(tmp_path: Path) -> None:
    cut = imported(tmp_path, asked=Asked(mean_response_tokens=800, response_cut_share=0.47))
    assert isinstance(cut.workload.response_tokens, LognormalLength)
    assert (cut.workload.response_tokens.mean_tokens, cut.workload.response_tokens.cut_share) == (800, 0.47)
    assert any(" of the responses are longer than" in text for text in project(cut).warnings)
    beyond = imported(tmp_path, asked=Asked(mean_response_tokens=1100))
    assert any(" of the responses are longer than" in text for text in project(beyond).warnings)
    with pytest.raises(InputError, match="give --mean-response-tokens beside it"):
        imported(tmp_path, asked=Asked(response_cut_share=0.4, refuse_idle=True))
