"""What tests of runs share: small scenarios."""

from typing import Any

from rlsim.loading.scenario import load_scenario, vary
from rlsim.schema.scenario import Scenario

SPLIT: dict[str, Any] = {"cluster": {"num_gpus": 8, "generation_gpus": 4, "training_gpus": 4},
                         "loop": {"mode": "async", "policy_lag": 2}}  # fmt: skip
BASE: dict[str, Any] = {
    "hardware": "h100_sxm", "cluster": {"num_gpus": 8}, "loop": {},
    "workload": {"prompts_per_step": 8, "generations_per_prompt": 4,
                 "response_tokens": {"kind": "lognormal", "mean_tokens": 300}, "max_sequence_tokens": 1024},
    "engine": {}, "trainer": {}, "speculation": {"method": "eagle3", "draft_length": 3, "acceptance_length": 2.5},
    "assumptions": (),
}  # fmt: skip
CONSTANT = {"workload.response_tokens": {"kind": "constant", "tokens": 200}, "speculation": {"method": "none"}}


def small(*overrides: dict[str, Any]) -> Scenario:
    """Synchronous on 8 GPUs, unless overridden."""
    return vary(vary(load_scenario("quickstart"), BASE), *overrides)
