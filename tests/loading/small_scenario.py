"""A small scenario file and the message about what is wrong with it."""

from pathlib import Path

import pytest

from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario

SMALL = """\
name: small
model: qwen3-8b
hardware: h100_sxm
cluster: {num_gpus: 8}
workload:
  prompts_per_step: 4
  generations_per_prompt: 4
  response_tokens: {kind: lognormal, mean_tokens: 400}
  max_sequence_tokens: 2048
speculation: {method: eagle3, draft_length: 3, acceptance_length: 2.5}
"""


def message(path: Path | str, *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        load_scenario(path, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text
