"""All that is known of an answer, for the golden net: one small scenario for each trait that rules ask for."""

import hashlib
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from msgspec.structs import astuple
from test_sentences import CHANGES, LAG, PLAIN
from test_sentences import SMALL as SMALL_STEP

from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection import assumptions, model_assumptions, scale, verdict
from rlsim.projection.agent_moves import capped_turns, faster_calls
from rlsim.projection.assumptions import assumptions_of, caveats_of, deciding_guess, doubtful_memory, warnings_of
from rlsim.projection.efficiency import measured_beside
from rlsim.projection.idle import idle_of
from rlsim.projection.precision import anchor, answered, precise
from rlsim.projection.project import about, project, projected_step
from rlsim.projection.summary import energy_j, phase_estimate, phase_parts, provenance_of, variant_of
from rlsim.projection.tuned import tuned_step_s
from rlsim.projection.uncertainty.nearest import support_of
from rlsim.projection.uncertainty.predictive import open_draws, posterior_of, prediction_of
from rlsim.projection.uncertainty.response import step_response
from rlsim.projection.uncertainty.slopes import phase_slopes
from rlsim.projection.uncertainty.sources import sources_of
from rlsim.projection.variant import SimulatedVariant, simulate_variant, so_many
from rlsim.results import PHASES
from rlsim.runs import run as whole_run
from rlsim.schema.scenario import Scenario
from tests.golden.plain import plain

PREFILL = ("loop.mode=async", "cluster.generation_gpus=4", "speculation.method=none", "engine.prefill={gpus: 1}",
           "engine.prefix_caching=false")  # fmt: skip
"""Engines that prefill alone."""
SMALL = ("simulation.replications=2", "workload.prompts_per_step=16")
NODES = ("cluster.num_gpus=16",)
MOE = (
    "model=qwen3-30b-a3b",
    "hardware=b200_sxm",
    "cluster.num_gpus=16",
    "engine.tensor_parallel=2",
    "trainer.expert_parallel=8",
    "trainer.pipeline_parallel=1",
)
HEAD = "speculation={method: eagle3, draft_length: 4, first_acceptance: 0.7"
TURNS = ("workload.agent={turns: {kind: lognormal, mean_turns: 3, log_sigma: 0.5}, max_turns: 8, "
         "environment_s: {kind: lognormal, mean_s: 6, log_sigma: 0.7}%s}")  # fmt: skip
JUDGE = ", judge: {gpus: 1, concurrency: 8, trajectory_s: {kind: lognormal, mean_s: 3}}, turn_timeout_s: 9"
ALONE = ("speculation.method=none", "speculation.draft_length=0")
PAIRS = ("workload.generations_per_prompt=2", "trainer.global_batch_samples=null", "trainer.policy_logprobs=null",
         "loop.supervised=true", *ALONE)  # fmt: skip


def guess(key: str, spread: float) -> str:
    """An assumption of a guessed value."""
    return f"{{text: a, keys: [{key}], log_spread: {spread}}}"


RESPONSE, PROMPT, ACCEPTANCE = "workload.response_tokens", "workload.prompt_tokens", "speculation.first_acceptance"
LONG = f"{RESPONSE}={{kind: lognormal, mean_tokens: %d}}"
TRAITS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "without drafts": (PLAIN,),
    "one replication": ("simulation.replications=1", PLAIN),
    "many replications": ("simulation.replications=9", "workload.prompts_per_step=4",
                          "trainer.global_batch_samples=128"),
    "lagged": (*LAG, "loop.policy_lag=2", "simulation.steps=6"),
    "lagged, trainer's pace": (*LAG, LONG % 60, "simulation.steps=4", PLAIN),
    "lagged, far ahead": (*LAG, "loop.policy_lag=6", "simulation.steps=12", "simulation.warmup_steps=2"),
    "lagged, stocked": (*LAG, "loop.policy_lag=6", "simulation.steps=6", LONG % 1500),
    "lagged, several steps an update": (*LAG, "loop.update_every=2", "simulation.steps=4"),
    "lagged, a reference pool": (*LAG, "cluster.reference_gpus=2"),
    "lagged, shared": ("loop.mode=async", "loop.policy_lag=1", "loop.overlap=false", "loop.recompute_kv=true"),
    "streaming": ("loop.streaming=true", "cluster.generation_gpus=4", "workload.environment_s=3"),
    "quantiles of lengths": (f"{RESPONSE}={{kind: quantiles, quantiles: [0, 0.5, 1], tokens: [10, 300, 3000]}}",
                             f"{PROMPT}={{kind: lognormal, mean_tokens: 150}}"),
    "rewards": ("workload.environment_s=7", "workload.usable_group_share=0.7"),
    "turns": (TURNS % JUDGE,),
    "turns, lagged": (*LAG, TURNS % ""),
    "turns, quantiles": (TURNS.replace("lognormal, mean_turns: 3, log_sigma: 0.5",
                                       "quantiles, quantiles: [0, 0.5, 1], turns: [1, 2, 7]") % "",),
    "turns, offloaded": (TURNS % "", "engine.kv_offload.capacity_bytes=1e11", "engine.gpu_memory_utilization=0.25"),
    "prefill engines": PREFILL,
    "first done": ("workload.tail_batching={samples_factor: 1.5, prompts_factor: 1.25}",),
    "rounds": ("workload.generated_batch_factor=2",),
    "critic": ("trainer.critic=true", "trainer.pipeline_parallel=1"),
    "LoRA": ("trainer.lora_rank=16", "trainer.pipeline_parallel=1", "stack=verl"),
    "FP8": ("engine.weight_precision=fp8", "trainer.precision=fp8", "engine.kv_precision=fp8"),
    "experts": (*MOE, HEAD + "}"),
    "experts, independent": (*MOE, HEAD + "}", "workload.routing_overlap=0.9"),
    "unmeasured": ("hardware=mi300x", "stack=null"),
    "carried over": ("hardware=h20_sxm",),
    "Grace": ("hardware=gb200_nvl72", "cluster.num_gpus=8", "engine.name=trtllm"),
    "two devices": (*LAG, "training_hardware=b200_sxm"),
    "imported tables": ("hardware=a100_sxm", "engine.name=sglang"),
    "users": (*NODES, "stack=verl", "cluster.fabric=null"),
    "users' experts": (*NODES, *MOE, "stack=slime", "cluster.fabric=null"),
    "slow network": (*NODES, "cluster.node_bandwidth_bytes_per_s=3e9"),
    "room": ("engine.gpu_memory_utilization=0.27", PLAIN),
    "captured": ("engine.max_captured_tokens=64",),
    "eager": ("engine.cuda_graphs=false",),
    "reach": (HEAD + ", trained_context_tokens: 512}",),
    "drifting": ("speculation.drift={mismatch_per_100_steps: 2.0}", "speculation.variation.prompt_spread=0.6"),
    "policy": ("speculation.policy=by_batch",),
    "looked up": ("speculation=null", "speculation={method: suffix, draft_length: 4, acceptance_length: 1.6, "
                  "variation: {group_gain: 0.5}}"),
    "supervised": (*PAIRS, "trainer.reference_logprobs=false"),
    "pairs": PAIRS,
    "rollouts alone": ("loop.rollouts_alone=true", "cluster.num_gpus=4", *ALONE),
    "guesses": (HEAD + "}", f"assumptions=[{guess(RESPONSE, 0.5)}, {guess(PROMPT, 0.3)}, {guess(ACCEPTANCE, 0.6)}]"),
    "wide guesses": (f"assumptions=[{guess(RESPONSE, 0.9)}, {guess(PROMPT, 1.5)}]", PLAIN, LONG % 1900),
    "guesses, lagged": (*LAG, f"assumptions=[{guess(RESPONSE, 0.5)}]"),
    "sure guesses": (HEAD.replace("0.7", "1.0") + "}", f"assumptions=[{guess(ACCEPTANCE, 0.6)}]"),
    "own price": ("hardware.price_per_gpu_hour_usd.value=9.5",),
    "nodes of sandboxes": (TURNS % ", nodes: {count: 2, places: 500, price_per_hour_usd: 2.5}",
                           "engine.dispatch=round_robin"),
    "no posterior": ("simulation.posterior=none",),
    "host optimizer": ("trainer.optimizer_on_host=true", "engine.version=0.9.0"),
}  # fmt: skip
"""What a small step has, by name."""
WHOLE = ("plain", "turns, lagged", "users", "supervised", "guesses")
"""Of which the words of each part are compared too."""
ANSWERED = ("many replications", "lagged", "LoRA", "experts", "eager", "policy", "host optimizer", "first done")
"""Of which the whole answer is asked for too, as of WHOLE."""


def words(value: Any) -> Any:
    """Data in which texts are compared by their letters too: of a long one a digest, then its numbers."""
    if isinstance(value, dict):
        return {key: words(one) for key, one in value.items()}
    if isinstance(value, list):
        return [words(one) for one in value]
    if not isinstance(value, str):
        return value
    text = re.sub(r"\d[\d.,]*", "#", value)
    short = text if len(text) < 24 else hashlib.sha256(text.encode()).hexdigest()[:6]
    return re.sub(r"[\s/]", "_", "|".join([short, *re.findall(r"\d[\d.,]*", value)]))


@contextmanager
def noted() -> Iterator[list[Any]]:
    """The sentences that are made, by their names, with their values as they are before they are printed."""
    made, said = list[Any](), model_assumptions.said

    def noting(sentence: str, **values: object) -> str:
        made.append([sentence, {name: words(plain(value)) for name, value in values.items()}])
        return said(sentence, **values)

    with (
        patch.object(assumptions, "said", noting),
        patch.object(model_assumptions, "said", noting),
        patch.object(whole_run, "said", noting),
    ):
        yield made


HALF = "workload.response_tokens={kind: lognormal, mean_tokens: 1900, cut_share: 0.3}"
SAID = (
    (), PREFILL, ("stack=verl", *NODES, "cluster.fabric=null"), *CHANGES,
    (HALF,),
    ("workload.prompts_per_step=15", "workload.generations_per_prompt=31", "trainer.global_batch_samples=null"),
    ("model=phi-3-mini", "workload.max_sequence_tokens=9000"), ("model=qwen3-8b", "workload.max_sequence_tokens=50000"),
    ("hardware=gb200_nvl72", "cluster.placement=scattered", "speculation.variation={group_gain: 0.0}"),
    ("hardware=mi300x", "engine.name=sglang", "engine.version=0.5.2"), ("hardware=a100_pcie", "engine.name=trtllm"),
    ("stack=nemo_rl-0.8", "trainer.sequence_packing=true"), ("stack=skyrl", "trainer.pipeline_parallel=1"),
    ("speculation.policy=by_batch", "speculation.draft_length=8"), ("trainer.host_memory_bytes_per_s=1e11",
     "trainer.optimizer_on_host=true"), ("speculation.trained_context_tokens=1450",),
    ("engine.max_captured_tokens=256",), ("engine.max_captured_tokens=200", "hardware.eager_launch_s.value=5e-5"),
    (*LAG, "loop.policy_lag=3", "simulation.warmup_steps=1"),
    (*LAG, TURNS % "", "loop.stale=cancel", "loop.max_age=2", "loop.membership=first_done", "loop.style=skyrl"),
    ("workload.agent={max_turns: 3, keep_prefix: false, environment_s: {kind: quantiles, quantiles: [0, 1], seconds: "
     "[1, 9]}}",),
    ("speculation={method: suffix, draft_length: 4, acceptance_length: 1.6, variation: {group_gain: 0.5}}",),
    ("speculation.drift={mismatch_per_100_steps: 2.0}", "simulation.steps=5", "speculation.online_training=true"),
)  # fmt: skip
"""Changes of a small step, each of which has sentences of its own."""


def sentences(keys: Sequence[str]) -> Any:
    """Sentences with their values, seconds of the parts and idle time of a small step with some features."""
    run = simulate_variant(load_scenario("quickstart", [*SMALL_STEP, *keys]))
    parts = [[part.name, part.seconds, part.measured, part.bound, part.label] for part in phase_parts(run)]
    with noted() as made:
        texts = [*assumptions_of(run), *warnings_of(run), *caveats_of(run.scenario), *doubtful_memory(run)]
    return words([made, len(texts), [one for one in parts if one[1] > 1e-6], plain(idle_of(run))])


def known(run: SimulatedVariant, whole: bool = False) -> Any:
    """What an answer to a simulated scenario says of it, and what that rests on. whole: with the words of each part."""
    scenario, parts, predicted, response = run.scenario, phase_parts(run), prediction_of(run), step_response(run)
    estimates = []
    for name in ("step", *PHASES):
        one = phase_estimate(run, name)
        numbers = one.mean, one.error, one.degrees, one.carried, one.model_error, one.settled
        estimates.append([*numbers, one.interval, one.above(1.01 * one.mean)] if one.mean else [])
    variant = plain(variant_of(run, parts))
    shown = [len(variant.pop("spans")), len(variant.pop("curves"))]
    parts_s = [one for one in variant.pop("parts") if one["seconds"] > 1e-6]
    support = support_of(run)
    with noted() as made:
        texts = [*assumptions_of(run), *warnings_of(run)]
    inputs = [[vars_of(one), [abs(moves[phase]).sum() for phase in moves]] for one, moves in open_draws(run)]
    described = {key: value for key, value in about(scenario).items() if key not in ("asked", "digest", "question")}
    devices = dict.fromkeys((scenario.hardware, scenario.training_device))
    slopes = [(name, list(found), list(found.values())) for name, found in vars_of(phase_slopes(run))]
    return words(plain({
        "estimates": estimates, "response": response, "shares": response.shares, "central": predicted.central_s,
        "slopes": slopes if whole else [values for _, _, values in slopes],
        "open": inputs, "posterior": posterior_of(scenario).name, "variant": variant,
        "sources": [[one.fields if whole else one.share, one.kind, one.assumed] for one in sources_of(run)],
        "parts": parts_s if whole else [[one["seconds"], one["measured"]] for one in parts_s],
        "support": support if whole else [[one.share, [len(run.differences) for run in one.runs]]
                                          for one in support.nearest],
        "sentences": [made, len(texts)], "shown": shown, "provenance": provenance_of(parts), "idle": idle_of(run),
        "about": described,
        "caveats": [*doubtful_memory(run), *caveats_of(scenario), *deciding_guess(run)],
        "verdict": [verdict.unmeasured_winner(one, "9 s") for one in devices],
        "beside": [(one.phase, one.best, one.device, one.model) for one in measured_beside(scenario)],
        "energy": energy_j(scenario, 1.0), "tuned": tuned_step_s(run), "moved": run.moved("generation_s"),
        "loop": [run.unsettled, run.fitted_batches, scenario.measured_steps.start, run.rewards_s],
    }))  # fmt: skip


def vars_of(record: Any) -> list[tuple[str, Any]]:
    """Fields of a struct with their values."""
    return [(name, getattr(record, name)) for name in record.__struct_fields__]


def trait(name: str) -> Any:
    """What is known of the answer to a small scenario."""
    scenario, whole = load_scenario("quickstart", [*SMALL, *TRAITS[name]]), name in WHOLE
    answer = words(plain(answer_to(scenario))) if whole or name in ANSWERED else []
    return [known(simulate_variant(scenario, detailed=whole), whole), answer]


FILES = {
    "lengths.csv": "prompt_id,output_tokens,input_tokens\n" + "".join(
        f"{n // 4},{90 + n * n % 1900},{60 + n % 9}\n" for n in range(80)),
    "seconds.csv": "seconds\n" + "".join(f"{1 + n * n % 17}\n" for n in range(40)),
    "trajectories.csv": "prompt,trajectory,prompt_tokens,response_tokens,observation_tokens,environment_s\n" + "".join(
        f",t{n},{90 + n},{40 + 9 * turn},{20 * (turn < n % 4)},{(3 + n % 5) * (turn < n % 4)}\n"
        for n in range(24) for turn in range(n % 4 + 1)),
}  # fmt: skip
"""Lengths, times of environments and trajectories as files hold them."""
MEASURED: dict[str, tuple[str, ...]] = {
    "lengths": (f"{RESPONSE}={{kind: trace, path: FOLDER/lengths.csv}}", "workload.max_response_tokens=1500",
                f"{PROMPT}={{kind: trace, path: FOLDER/lengths.csv, column: input_tokens}}"),
    "seconds": (TURNS.replace("lognormal, mean_s: 6, log_sigma: 0.7", "trace, path: FOLDER/seconds.csv") % "",),
    "trajectories": ("workload.agent={replay: {kind: trace, path: FOLDER/trajectories.csv}}",),
    "trajectories, lagged": (*LAG, "workload.agent={replay: {kind: trace, path: FOLDER/trajectories.csv}}"),
}  # fmt: skip


def measured(name: str) -> Any:
    """What is known of a small scenario whose lengths, times or trajectories were measured, and moves of its turns."""
    with tempfile.TemporaryDirectory() as folder:
        for file, text in FILES.items():
            Path(folder, file).write_text(text, encoding="utf-8")
        keys = (key.replace("FOLDER", folder) for key in MEASURED[name])
        scenario = load_scenario("quickstart", [*SMALL, PLAIN, *keys])
        limited = [[capped_turns(scenario, level), faster_calls(scenario, level)] for level in (0.5, 0.9)]
        return [known(simulate_variant(scenario)), words(plain(limited))]


TO_PRECISION: dict[str, tuple[str, ...]] = {
    "loose": ("simulation.precision=0.2",),
    "by tokens": ("simulation.precision=0.008",),
    "by environments": ("simulation.precision=0.05", "workload.prompts_per_step=8", "trainer.global_batch_samples=null",
                        TURNS.replace("mean_s: 6, log_sigma: 0.7", "mean_s: 60, log_sigma: 1") % "", LONG % 60),
    "lagged": (*LAG, "simulation.precision=0.03", PLAIN),
}  # fmt: skip


def to_precision(name: str) -> Any:
    """An answer that is simulated on until it is as exact as asked: how far, by which control, and how exact."""
    scenario = load_scenario("quickstart", [SMALL[1], *TO_PRECISION[name]])
    run = precise(simulate_variant(scenario, tokens=False))
    control, one = run.control, phase_estimate(run, "step")
    moved = None if control is None else [control.mean, control.error]
    steps = [len(run.traces), run.fitted_batches, moved, [run.moved(phase) for phase in PHASES]]
    return words(plain([
        steps, one.mean, one.error, one.degrees, one.carried, answered(scenario).interval,
        None if (by := anchor(scenario)) is None else (by.scale, astuple(by.carried(by.own))),
        projected_step(scenario)[:2], *answer_to(scenario),
    ]))  # fmt: skip


def answer_to(scenario: Scenario) -> list[Any]:
    """What the answer to a scenario has beside what is known of its own run."""
    seen = list[tuple[int, int]]()
    answer = project(scenario, lambda *counts: seen.append(counts), timeline=False)
    counts = [seen[:3], seen[-3:], len(seen), len(answer.warnings)]
    return [answer.try_first, answer.rollout_speedup, answer.end_to_end_speedup, answer.candidate.sampling, counts,
            answer.tuned_step_s, answer.caveats, answer.missing]  # fmt: skip


def in_pools() -> Any:
    """What is known of lagged loops of many engines of which one pool is simulated."""
    split = ("cluster.num_gpus=64", "cluster.generation_gpus=32", "cluster.training_gpus=32", "loop.mode=async",
             "loop.policy_lag=1", "workload.prompts_per_step=64", "simulation.steps=2", PLAIN,
             "workload.generations_per_prompt=4", "trainer.global_batch_samples=null")  # fmt: skip
    found = []
    with patch.object(scale, "MOST_SAMPLES", 2**10), patch.object(scale, "LEAST", 4):
        for more in ((), (TURNS % "", "engine.dispatch=round_robin")):
            one = load_scenario("quickstart", [*split, *more])
            run = simulate_variant(vary(one, so_many(one, 2)))
            with noted() as made:
                texts = [*assumptions_of(run), *warnings_of(run)]
            found.append([known(run), made, len(texts)])
    return words(plain(found))


CASES: dict[str, Callable[[], Any]] = {
    **{f"sentences {' '.join(keys)}": partial(sentences, keys) for keys in SAID},
    **{f"trait {name}": partial(trait, name) for name in TRAITS},
    **{f"to a precision, {name}": partial(to_precision, name) for name in TO_PRECISION},
    "answers in pools": in_pools,
    **{f"measured {name}": partial(measured, name) for name in MEASURED},
}
"""Calls by case."""
