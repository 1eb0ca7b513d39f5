"""Keys that do not go together are refused when a scenario is loaded, in one message that names them."""

import pytest

from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario

SYNC = ("loop.mode=sync", "loop.policy_lag=0")
STREAMING = "loop.streaming=true"
NO_OVERLAP = "loop.overlap=false"
RACING = "workload.tail_batching={prompts_factor: 1.25, samples_factor: 1}"
TREE = "speculation={method: eagle3, draft_length: 8, acceptance_length: 4, %s}"
REFERENCE = ("cluster.reference_gpus=2", "trainer.reference_logprobs=true")
LAGGED = {
    # asynchrony
    ("loop.staleness_fraction=0.5",): "give one of policy_lag, staleness_fraction",
    ("loop.stale=drop", "loop.membership=first_done"): "needs max_age",
    ("loop.stale=drop", "loop.max_age=1"): "needs membership first_done",
    ("loop.recompute_kv=true", "loop.restart_requests=true"): "give one of recompute_kv",
    ("loop.style=nemo",): "nemo_rl",
    ("loop.start_unit=batch", "loop.max_in_flight_groups=2"): "must hold the",
    ("loop={mode: async, style: slime_fully_async, max_in_flight_groups: 8}",): "groups of a batch, which wait",
    (*SYNC, "loop.update_every=2"): "update_every needs mode async",
    ("cluster={num_gpus: 64}",): "loop.overlap",
    ("cluster={num_gpus: 64}", NO_OVERLAP, "loop.refit_method=auto"): "KV cache",
    ("workload.usable_group_share=0.4",): "generated_batch_factor",
    (RACING,): "loop.mode sync",
    (STREAMING,): "streaming .* needs mode sync",
    (*SYNC, "workload.tail_batching={}", STREAMING): "one of both",
    ("cluster.num_gpus=2_000_000",): r"num_gpus.*1048576",
    (f"cluster.num_gpus={10**30}",): r"num_gpus.*1048576",  # whose split was once looked for one by one
    ("loop.refit_method=cuda_ipc",): "same GPUs",
}
QUICKSTART = {
    # rollouts
    (STREAMING,): "loop.streaming needs a trainer on GPUs of its own",
    (RACING, "engine.migration=cheaper"): "workload.tail_batching beside it",
    (RACING, "workload.usable_group_share=0.5"): "give no usable_group_share 0.5",
    (RACING, "workload.generated_batch_factor=2"): "give no generated_batch_factor 2",
    (RACING, "workload.agent={}"): "give no agent",
    ("engine.kv_offload.capacity_bytes=1e9",): "give workload.agent",
    ("engine.kv_offload.capacity_bytes=1e9", "workload.agent={}", "engine.prefix_caching=false"): "prefix_caching true",
    ("engine.kv_offload={capacity_bytes: 1e9, store_bytes_per_s: 1e9}", "workload.agent={}"): "shared true",
    ("engine.kv_offload={}", "workload.agent={}"): "capacity_bytes",
    ("engine.session_routing=random",): "sticky",
    (RACING, "workload.tail_batching.prompts_factor=0.5"): "at least 1",
    ("workload.usable_group_share=0.05",): "must be at least 1",
    ("workload.usable_group_share=0",): "must be above 0.0",
    ("workload.agent={max_trajectories: 4}", "engine.dispatch=static"): "static",
    # transfers and pools
    ("loop.refit_method=nccl_broadcast",): "split cluster",
    ("loop.refit_method=nccl_reshard",): "split cluster",
    ("loop.refit_method=rdma",): "split cluster",
    ("loop.refit_method=delta_sharded",): "split cluster",
    ("loop.refit_framework=nobodys",): "nemo_rl.*and other",
    (*REFERENCE, "cluster.reference_gpus=9"): "at least 1 of",
    (*REFERENCE, "trainer.reference_logprobs=false"): "nothing to do",
    ("trainer.local_batch_samples=8",): "local_batch_samples needs trainer.sequence_packing false",
    ("trainer.global_batch_samples=500",): r"global_batch_samples \(500\) must divide the 2048 samples of a step",
    # speculation
    (TREE % "verified_positions: 8",): "must exceed draft_length",
    (TREE % "tree_width: 4",): "tree_width above 1 needs verified_positions",
    (TREE % "verified_positions: 48, policy: by_batch",): "leave verified_positions out",
    ("speculation.drift={steps: [0, 5, 5], logit_shift: [0, 1, 2]}",): "must rise",
    ("speculation.drift={steps: [0, 5], logit_shift: [0, 1, 2]}",): "one value for each",
    ("speculation.drift={steps: [0, 5]}",): "needs logit_shift",
    ("speculation.drift={steps: [0, 5], logit_shift: [0, 99]}",): "between -10 and 10",
    ("speculation.variation.prompt_spred=1",): "prompt_spread",
    ("speculation.policy=by_batches",): "by_batch",
    ("speculation.variation={group_gain: 1}",): "needs method suffix",
    # engines, devices and models
    ("engine.overlap_scheduling=false",): "overlap_scheduling is a switch of SGLang's and says nothing of vllm",
    ("engine.kv_precision=nvfp4",): "engine.kv_precision nvfp4 is not supported by h100_sxm",
    ("trainer.mtp_layers=1",): "trainer.mtp_layers .1. needs a native MTP head",
    ("cluster.num_gpus=6", "engine.tensor_parallel=3"): r"\(3\) must divide the 32 attention heads",
    ("hardware.operator_tables=./absent",): r"operator_tables: no folder './absent' of measured tables",
    ("simulation.seed=null",): "simulation.seed",
    ("simulation.replications=0",): "simulation.replications",
    ("simulation.precision=null",): "simulation.precision",
}
CASES = [("qwen8b_async_lag1", *one) for one in LAGGED.items()] + [("quickstart", *one) for one in QUICKSTART.items()]


@pytest.mark.parametrize(("name", "overrides", "message"), CASES)
def test_keys_that_do_not_go_together_are_refused(name: str, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        load_scenario(name, overrides)
    assert "\n" not in str(error.value)
