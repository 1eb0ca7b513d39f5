"""What runs of users take beyond tuned ones: FSDP around Hugging Face's models, networks of nodes, experts, hosts."""

from typing import Any

import numpy as np
import pytest

from rlsim import load_scenario, project, vary
from rlsim.costs.engine.hosts import HostOverheads
from rlsim.costs.engine.prices import decode_points_s
from rlsim.costs.engine.releases import SCHEDULING_S
from rlsim.costs.links import NodeLink, node_link
from rlsim.costs.operators.device import device_of
from rlsim.costs.prices import PriceInputs
from rlsim.costs.stack_terms import fsdp_terms
from rlsim.costs.transfer.job import sent_tensors
from rlsim.costs.transfer.methods import Links
from rlsim.costs.users import families, user_deviation, user_host
from rlsim.parameters.users import load_user_runs
from rlsim.projection.uncertainty.user_inputs import host_curve, link_curve
from rlsim.projection.variant import SimulatedVariant, simulate_variant
from rlsim.schema.scenario import Scenario
from rlsim.schema.users import FABRICS
from rlsim.tables.profile import load_profile

RUN: dict[str, Any] = {
    "name": "user", "model": "qwen3-32b", "hardware": "h200_sxm", "stack": "verl",
    "cluster": {"num_gpus": 16},
    "workload": {
        "prompts_per_step": 8, "generations_per_prompt": 8, "max_sequence_tokens": 8192,
        "prompt_tokens": {"kind": "constant", "tokens": 192}, "response_tokens": {"kind": "constant", "tokens": 7900},
    },
    "engine": {"tensor_parallel": 2, "in_process": False, "dispatch": "least_loaded"},
    "trainer": {
        "backend": "fsdp", "recompute": "full", "micro_batch_tokens": 8192, "logprob_micro_batch_tokens": 8192,
        "policy_logprobs": True, "reference_logprobs": False,
    },
    "simulation": {"replications": 1, "user_runs": "none"},
}  # fmt: skip


def run_of(scenario: Scenario, **changes: object) -> SimulatedVariant:
    """``scenario`` with keys changed, double underscores for dots, simulated."""
    return simulate_variant(vary(scenario, {key.replace("__", "."): value for key, value in changes.items()}))


@pytest.fixture(scope="module")
def user() -> Scenario:
    """Two nodes of a user."""
    return load_scenario(RUN)


def test_log_probs_and_updates_run_at_one_speed(user: Scenario) -> None:
    # Full recomputation is four passes: users' updates take 3.6 to 4.3 log-prob passes on controlled sequences.
    one = run_of(user, cluster__num_gpus=8)
    terms = fsdp_terms(user)
    assert terms is not None
    ratio = one.phases_s["train_s"] / (one.phases_s["logprob_s"] - terms.pass_fixed_s)
    assert 3.6 < ratio < 4.4
    overheads = one.prices.overheads.training
    assert overheads.update_speed == 1.0 and overheads.of_update.dense_speed == overheads.dense_speed


def test_tuned_stacks_have_no_part_in_users_runs(user: Scenario) -> None:
    tuned = vary(user, {"stack": "nemo_rl-0.7", "simulation.user_runs": "wild"})
    assert fsdp_terms(tuned) is None and node_link(tuned).bytes_per_s is None and not node_link(tuned).log_spread
    assert user_host(tuned) is None
    assert all(user_deviation(tuned, phase) is None for phase in ("generation", "logprob", "train", "transfer"))
    assert simulate_variant(tuned).phases_s == run_of(tuned, simulation__user_runs="none").phases_s


def gathering_s(run: SimulatedVariant, phase: str) -> float:
    """Seconds that log-probs or the update wait for parameters and gradients."""
    cost = getattr(run.every_step[0].cost, phase)
    return sum(part.seconds for part in cost.parts if part.name == "parameter gathering")


def test_a_slow_link_takes_its_bytes_of_every_micro_batch(user: Scenario) -> None:
    slow = run_of(user, cluster__node_bandwidth_bytes_per_s=1e9)
    # Four samples a rank: parameters gathered in BF16 forward and backward, gradients reduced in FP32, half of each
    # over the link between two nodes, of which collectives reach 75 %.
    parameters, micro_batches = 32.8e9, 4
    update_s = micro_batches * parameters * (2 + 2 + 4) / 2 / 0.75e9
    assert gathering_s(slow, "train") == pytest.approx(update_s, rel=0.1)
    assert gathering_s(slow, "logprob") == pytest.approx(update_s / 4, rel=0.15)


def test_twice_the_link_halves_what_is_waited_for(user: Scenario) -> None:
    first, second = (run_of(user, cluster__node_bandwidth_bytes_per_s=rate) for rate in (5e8, 1e9))
    hidden_s = sum(part.seconds for part in second.every_step[0].cost.train.parts if part.bound == "compute")
    assert abs(gathering_s(first, "train") - 2 * gathering_s(second, "train")) < 2 * hidden_s


def test_more_tokens_in_a_micro_batch_gather_less_often(user: Scenario) -> None:
    slow = {"cluster__node_bandwidth_bytes_per_s": 1e9}
    few, many = (run_of(user, trainer__micro_batch_tokens=tokens, **slow) for tokens in (16384, 8192))
    assert gathering_s(many, "train") / gathering_s(few, "train") == pytest.approx(2.0, rel=0.1)


def test_a_link_of_the_profiles_rate_is_the_profiles_link(user: Scenario) -> None:
    device = user.hardware
    line = device.network_bandwidth_bytes_per_s.value * device.gpus_per_node.value
    stated, named = run_of(user, cluster__node_bandwidth_bytes_per_s=line), run_of(user, cluster__fabric="profile")
    assert stated.phases_s["train_s"] == pytest.approx(named.phases_s["train_s"])


def test_named_fabrics_are_ordered_by_their_rate(user: Scenario) -> None:
    names = ("tcp_10", "tcp_25", "ethernet_100", "ethernet_2x100", "efa_p4d", "infiniband_8x400")
    times = [run_of(user, cluster__fabric=name).phases_s["train_s"] for name in names]
    assert times == sorted(times, reverse=True) and times[0] > 10 * times[-1]


def test_one_rate_and_one_name_exclude_each_other(user: Scenario) -> None:
    with pytest.raises(Exception, match="give one of fabric and node_bandwidth_bytes_per_s"):
        vary(user, {"cluster.fabric": "tcp_10", "cluster.node_bandwidth_bytes_per_s": 1e9})


def test_a_port_has_all_of_a_shared_link_at_most() -> None:
    links = Links(450e9, 8, 8, 10e9, 50e9, node_bytes_per_s=10e9)
    assert links.ports(8) == 1.0 and Links(450e9, 8, 8, 10e9, 50e9).ports(8) == 8


def test_one_link_explains_log_probs_and_update_of_a_user(user: Scenario) -> None:
    # 32B on 16 H100 with FSDP2: the link that makes the log-probs 157 s makes the update 1,179 s.
    scenario = vary(load_scenario("calibration/published/wild/scenarios/S02_das_32b_A7.yaml"), {
        "simulation.user_runs": "none", "simulation.replications": 1,
    })  # fmt: skip
    low, high = 5e8, 4e11
    for _ in range(14):
        middle = (low * high) ** 0.5
        found = run_of(scenario, cluster__node_bandwidth_bytes_per_s=middle).phases_s
        low, high = (middle, high) if found["logprob_s"] > 156.7 else (low, middle)
    assert found["train_s"] == pytest.approx(1178.7, rel=0.15)


def test_loops_over_experts_take_longer_than_grouped_products(user: Scenario) -> None:
    experts = vary(user, {"model": "qwen3-30b-a3b", "cluster.num_gpus": 8})
    times = [run_of(experts, trainer__expert_products=how).phases_s["train_s"] for how in ("grouped", "loop")]
    terms = fsdp_terms(experts)
    assert terms is not None
    # Eight samples a rank, 48 layers, and a forward, a recomputed and two backward passes of each; 128 experts.
    launch_s = 8 * 48 * 4 * experts.trainer.host_launch_s
    looped_s = launch_s * (terms.layer_launches + 128 * terms.expert_launches)
    assert times[1] >= looped_s > times[0] >= launch_s * terms.grouped_launches


def test_the_trainers_offload_is_counted_within_its_phases(user: Scenario) -> None:
    one = run_of(user, cluster__num_gpus=8)
    around = {part.name for part in one.prices.prepare.parts if part.seconds}
    within = {part.name for part in one.every_step[0].cost.train.parts if part.seconds}
    assert not around & {"optimizer offload", "policy weights offload"} and "engine sleep" in around
    assert "weights and optimizer in and out" in within


def test_unnamed_software_with_servers_is_not_taken_for_the_default(user: Scenario) -> None:
    document = {key: value for key, value in RUN.items() if key != "stack"}
    served = load_scenario(document)
    assert served.stack is not None and served.stack.name == "servers" and not served.stack.tuned
    offline = load_scenario({**document, "engine": {"tensor_parallel": 2}})
    assert offline.stack is not None and offline.stack.tuned


def test_families_go_from_the_specific_to_all(user: Scenario) -> None:
    assert families(user, "train") == ("fsdp, dense, verl", "fsdp, dense", "fsdp", "all")
    assert families(user, "generation") == ("dense, vllm", "dense", "all")
    unknown = load_scenario({key: value for key, value in RUN.items() if key != "stack"})
    known = load_user_runs()
    assert known is not None and known.deviations
    wide, narrow = (user_deviation(vary(one, {"simulation.user_runs": "wild"}), "train") for one in (unknown, user))
    assert wide is not None and narrow is not None and wide.above > narrow.above


def test_a_stated_efficiency_or_host_is_not_moved(user: Scenario) -> None:
    own = vary(user, {"simulation.user_runs": "wild", "trainer.device_efficiency": 0.5, "engine.host_iteration_s": 0.0})
    assert user_deviation(own, "train") is None and user_host(own) is None


# -- exchanges of experts over a named fabric ------------------------------------------------------------------------


def exchanged_s(fabric: str | None, op: str, nodes: int) -> float:
    """Seconds of an exchange of 32 MB of tokens between H100 of so many nodes."""
    link = NodeLink(None if fabric is None else FABRICS[fabric]["bytes_per_s"], exchange=fabric and "efa")
    profile = load_profile("h100_sxm")
    found = device_of(profile, "vllm", network=link.of_gpu(profile)).fabric
    if op == "alltoall":
        return float(found.collective(op, 8 * nodes, 32e6).seconds)
    return float(found.token_exchange(8 * nodes, 4e6, 8).seconds)


@pytest.mark.parametrize("op", ["alltoall", "tokens"])
def test_exchanges_over_efa_wait_for_its_latency_and_only_between_nodes(op: str) -> None:
    # The line of a P5 node is that of the profile: what EFA adds is its latency.
    assert exchanged_s("efa_p5", op, 1) == exchanged_s(None, op, 1)
    added_s = [exchanged_s("efa_p5", op, nodes) - exchanged_s(None, op, nodes) for nodes in (2, 3, 5)]
    hops = {"alltoall": (1, 1, 1), "tokens": (1, 2, 4)}[op]
    assert added_s == pytest.approx([added_s[0] * hop for hop in hops]) and added_s[0] > 1e-3


def test_a_scenario_over_efa_is_less_sure_of_a_mixture_of_experts(user: Scenario) -> None:
    moe = vary(user, {"model": "qwen3-30b-a3b", "trainer.backend": "megatron", "trainer.expert_parallel": 16})
    curves = {name: link_curve(run_of(moe, cluster__fabric=name)) for name in ("infiniband_8x400", "efa_p5")}
    assert curves["infiniband_8x400"] == {}
    assert list(curves["efa_p5"]["train"]) == sorted(curves["efa_p5"]["train"]) and curves["efa_p5"]["train"][-1] > 0.05


# -- adapters in the engine --------------------------------------------------------------------------------------------


def adapted(stack: str, **changes: object) -> Scenario:
    """8B of a user with adapters of rank 32 under ``stack``."""
    keys = {"model": "qwen3-8b", "cluster.num_gpus": 8, "trainer.lora_rank": 32, "stack": stack, **changes}
    engine = "sglang" if stack == "miles" else "vllm"
    return vary(load_scenario(RUN), {**keys, "engine.name": engine})


@pytest.mark.parametrize(
    ("stack", "backend", "rank"),
    [("verl", "fsdp", 32), ("verl", "megatron", 32), ("skyrl", "fsdp", 32), ("skyrl", "megatron", None),
     ("miles", "megatron", 32), ("nemo_rl-0.7", "fsdp", None)],
)  # fmt: skip
def test_engines_apply_adapters_where_the_stack_loads_them(stack: str, backend: str, rank: int | None) -> None:
    assert adapted(stack, **{"trainer.backend": backend}).released_engine.lora_rank == rank
    assert adapted(stack, **{"trainer.backend": backend, "engine.lora_rank": 8}).released_engine.lora_rank == 8


def test_adapters_lengthen_each_iteration_by_their_kernels_whatever_the_batch() -> None:
    # Two kernels beside each of four products in 36 layers; merged ones are free.
    few, many = adapted("verl"), adapted("verl", **{"workload.prompts_per_step": 4})
    for scenario in (few, many):
        own, merged = run_of(scenario), run_of(scenario, engine__lora_rank=0)
        added_s = own.phases_s["generation_s"] - merged.phases_s["generation_s"]
        iterations = own.counters.iterations / 4  # of each of four replicas
        assert added_s / iterations == pytest.approx(36 * 4 * 2 * 12e-6, rel=0.2)
    plain = vary(few, {"trainer.lora_rank": None})
    assert run_of(few, engine__lora_rank=0).phases_s["generation_s"] == run_of(plain).phases_s["generation_s"]


def test_fused_experts_of_hugging_face_are_sent_as_one_tensor_of_each_kind(user: Scenario) -> None:
    moe = vary(user, {"model": "qwen3-30b-a3b"})
    looped, card = vary(moe, {"trainer.expert_products": "loop"}), moe.model
    assert card.moe is not None and card.num_moe_layers == 48
    # Of 128 experts of three matrices in each of 48 layers, three tensors a layer remain.
    assert sent_tensors(looped) - sent_tensors(moe) == 48 * 3 * 127
    assert sent_tensors(user) == sent_tensors(vary(user, {"trainer.expert_products": "loop"}))
    assert sent_tensors(vary(moe, {"trainer.backend": "megatron"})) == sent_tensors(looped)


def test_a_users_stack_is_told_beside_a_tuned_one(user: Scenario) -> None:
    stated = vary(user, {"simulation.user_runs": None, "simulation.replications": 2, "cluster.fabric": "profile"})
    own, tuned = project(stated), project(vary(stated, {"simulation.user_runs": "none"}))
    assert own.tuned_step_s is not None and tuned.tuned_step_s is None
    assert own.tuned_step_s.mean == pytest.approx(tuned.candidate.step_s.mean, rel=0.03)
    assert own.tuned_step_s.high / own.tuned_step_s.low < own.candidate.step_s.high / own.candidate.step_s.low
    assert project(vary(stated, {"stack": "nemo_rl-0.7"})).tuned_step_s is None


# -- hosts of engines ------------------------------------------------------------------------------------------------


def test_a_class_of_host_adds_what_its_entry_says_to_any_stack(user: Scenario) -> None:
    known = load_user_runs()
    assert known is not None
    for stack in ("verl", "nemo_rl-0.7"):
        stated = vary(user, {"stack": stack, "engine.host": "shared"})
        assert user_host(stated) == known.host_classes["shared"]
        assert user_host(vary(stated, {"engine.host": "server"})) is None
        assert user_host(vary(stated, {"engine.host_slowdown": 2.0})) is None
    host_s = [
        run_of(user, **changes).prices.overheads.engine.iteration_s
        for changes in ({"engine__host": "server"}, {"engine__host": "few_cores"}, {})
    ]
    assert host_s[1] - host_s[0] == pytest.approx(known.host_classes["few_cores"].iteration_s)
    assert host_s[0] == host_s[2]  # without runs of users, as a tuned stack


@pytest.mark.parametrize("slowdown", [0.5, 1.0, 3.0])
def test_a_slowdown_multiplies_what_the_fit_says_of_the_host_and_no_stated_time(
    user: Scenario, slowdown: float
) -> None:
    def host(**changes: object) -> HostOverheads:
        varied = vary(user, {key.replace("__", "."): value for key, value in changes.items()})
        return PriceInputs(varied).overheads.engine

    before, after = host(), host(engine__host_slowdown=slowdown)
    for name in ("iteration_s", "sequence_s", "drafting_iteration_s", "drafting_sequence_s", "prefill_s"):
        assert getattr(after, name) == pytest.approx(slowdown * getattr(before, name))
    # What scheduling ahead hides is what waiting for it was measured to cost.
    assert after.ahead_s == pytest.approx(slowdown * SCHEDULING_S if slowdown > 1 else 0.0)
    assert host(engine__host_slowdown=slowdown, engine__async_scheduling=False).ahead_s == 0.0
    stated = host(engine__host_slowdown=slowdown, engine__host_iteration_s=2e-3)
    assert (stated.iteration_s, stated.ahead_s) == (2e-3, 0.0)


def test_work_ahead_comes_out_where_it_outlasts_the_device() -> None:
    host = HostOverheads(iteration_s=1e-3, sequence_s=1e-5, ahead_s=6e-3)
    device_s = np.array([2e-3, 6e-3, 9e-3])
    assert host.seconds(np.full(3, 10.0), False, device_s) == pytest.approx([5.1e-3, 1.1e-3, 1.1e-3])


def test_a_slow_host_is_priced_alike_in_tables_and_at_points(user: Scenario) -> None:
    slow = run_of(user, engine__host_slowdown=40.0)
    inputs, table = slow.inputs.engine, slow.prices.engine.table
    points_s = decode_points_s(inputs, np.array([1.0, 8.0]), np.zeros(2))
    assert points_s == pytest.approx(table.step_s[[1, 8]] + table.attention_s[[1, 8], 0], rel=1e-6)
    assert slow.prices.overheads.engine.ahead_s > 0.01


def test_the_interval_holds_what_servers_differ_by_until_a_time_is_stated(user: Scenario) -> None:
    assert not host_curve(run_of(user))
    (low, *_, high) = host_curve(run_of(user, engine__host_slowdown=1.0))["generation"]
    assert -2.5 * 0.31 < low < 0 < high < 2.5 * 0.31
    assert not host_curve(run_of(user, engine__host_slowdown=1.0, engine__host_iteration_s=1e-3))
    assert host_curve(run_of(user, engine__host="shared"))["generation"][-1] > 0
