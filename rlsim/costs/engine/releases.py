"""What engines do by themselves, by release: draft passes in CUDA graphs, and hosts that work ahead of the device.

Without a release the newest counts, as for what is captured. Rules were read in the engines' code and pull requests.
"""

from rlsim.schema.engine import Engine
from rlsim.schema.engine_parameters import version_order
from rlsim.schema.model import ModelCard
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import LOOKUP_METHODS, DraftGraph, Speculation

VLLM_FULL_DRAFTS = {"dense": (0, 25), "other": (0, 29)}
"""Releases from which vLLM's runner V2 is the default, which replays full graphs of draft steps
(vllm/v1/worker/gpu/spec_decode/eagle/cudagraph.py @80bc35a6): of dense models since PR 44443, of all since 0.29. Runner
V1 has piecewise graphs of EAGLE and MTP drafters whatever the model's own (v1/spec_decode/llm_base_proposer.py
@00c4f22d) and none of draft models (PR 47460)."""
SGLANG_ONE_GRAPH = (0, 4, 4)
"""SGLang's release from which one graph holds all draft steps (srt/speculative/eagle_draft_cuda_graph_runner.py
@00023be5)."""
VLLM_SCHEDULES_AHEAD, VLLM_DRAFTS_AHEAD = (0, 14), (0, 19)
"""vLLM's release from which it schedules ahead by default (PR 27614), with EAGLE and MTP drafts (PR 31998), and from
which neither they nor draft models wait for the host between two iterations (PR 32951)."""
SGLANG_DRAFTS_AHEAD, SGLANG_STATES_AHEAD = (0, 5, 4), (0, 5, 15)
"""SGLang's release from which drafts may be scheduled ahead (spec v2, PR 11398): chains, never trees or n-grams. Until
0.5.12 SGLANG_ENABLE_SPEC_V2 asks for it (PR 27964); measured chains of 0.5.6 lie where such hosts do (SpecForge, 126
rows: errors of 3 %, and of 12 % with hosts that wait). And from which recurrent models that cache prefixes keep their
states in buffers of their own and schedule ahead too (``auto`` is extra_buffer, PRs 27220 and 30127)."""
SCHEDULING_S = 0.46e-3
"""Host time of an iteration that vLLM's asynchronous scheduling hides: 5.98 to 6.20 requests/s of 128 tokens at 10
requests, Qwen3-30B-A3B FP8 on an H100 with full graphs (PR 25444). Of TensorRT-LLM, not measured, the same."""
SGLANG_SCHEDULING_S = 1.1e-3
"""The same of SGLang: Llama-3.1-8B, k = 5, without and with the second version of speculation 2.99 tokens at 246.8/s
and 3.01 at 273.4/s (PR 11398)."""
PROPOSER_LAUNCHES = {(0, 9): 34, (): 72}
"""Host work around a vLLM draft pass outside its graphs, in launches, by release: positions, slots, attention metadata,
forward context, logits, draw. 0.83 ms for each drafted token at one sequence (gpt-oss-120b EAGLE-3, k = 3 to 8, PR
32628; 0.87 ms in issue 20780), 1.47 ms in 0.8.4 (ArcticInference docs), at 16.8 us a launch of an x86 host, less the
attention and the pieces of one layer. The hosts of the measurements are not stated: an assumption."""
READS_LATENTS_AGAIN = ("sglang",)
"""Engines that read latent caches before Blackwell once a position (DeepSeek-R1 on H200); TensorRT-LLM packs them."""
DRAFTING_PREFILL = 2.0
"""Host time of a prefill of SGLang that speculates over one that does not: it keeps the hidden states of its layers,
goes through the drafter too, and is in no piecewise graphs (none with drafts until PR 22128). Fitted by ``python -m
research.drafting_prefill`` to 79 iterations of DeepSeek-R1 and Qwen3.5-397B, 12.6 % off at 1 and 8.4 % at 2."""
COPIES_ACCEPTED_STATE = ("sglang",)
"""Engines that copy the state after the last accepted token back to the sequence's own (update_mamba_state_after_mtp_
verify); vLLM reads it next time from where the verification left it."""


def _since(engine: Engine, release: tuple[int, ...]) -> bool:
    return engine.version is None or version_order(engine.version) >= release


def proposer_launches(engine: Engine) -> int:
    """Launches around a draft pass outside the drafter's graphs; of engines that were not measured vLLM's newest."""
    engine = engine if engine.name == "vllm" else Engine()
    return next(launches for since, launches in PROPOSER_LAUNCHES.items() if _since(engine, since))


def draft_graph(engine: Engine, card: ModelCard, drafting: Speculation) -> DraftGraph:
    """How draft passes are launched: as stated, else as the release does with the method and ``card``.

    none: every kernel by the host; piecewise: compiled pieces in graphs, attention between them by the host; full: a
    graph for each pass after the first; one: a graph for all of them.
    """
    if drafting.draft_graph is not None:
        return drafting.draft_graph
    if engine.name == "trtllm":
        return "one"
    if engine.name == "sglang":
        return "one" if _since(engine, SGLANG_ONE_GRAPH) else "none"
    if engine.name != "vllm":
        return "none"
    kind = "dense" if card.moe is None and card.recurrent is None else "other"
    # Runner V2 has no graphs of P-EAGLE yet (worker/gpu/spec_decode/peagle/speculator.py @484e39a1); V1 has its pieces.
    eagle_block = drafting.parallel_drafting and drafting.method == "eagle3"
    if _since(engine, VLLM_FULL_DRAFTS[kind]) and not eagle_block:
        return "full"
    return "none" if drafting.method == "draft_model" else "piecewise"


def launched_drafts(scenario: Scenario) -> bool:
    """Whether the host launches kernels of every draft pass of a scenario."""
    drafting, engine = scenario.speculation, scenario.released_engine
    if not drafting.active or drafting.method in LOOKUP_METHODS:
        return False
    return draft_graph(engine, scenario.model, drafting) in ("none", "piecewise")


def verifies_in_pieces(engine: Engine, drafting: Speculation) -> bool:
    """Whether verifications run in piecewise graphs: vLLM has full ones of batches with as many tokens for each request
    alone (v1/cudagraph_dispatcher.py), and where tokens are looked up some requests propose none."""
    return engine.name == "vllm" and drafting.active and drafting.method in LOOKUP_METHODS


def drafts_ahead(engine: Engine, drafting: Speculation) -> bool:
    """Whether the host launches drafts without waiting for the verification before them, and so behind its work."""
    return engine.name == "vllm" and _since(engine, VLLM_DRAFTS_AHEAD) and drafting.method not in LOOKUP_METHODS


def schedules_ahead(engine: Engine, card: ModelCard, drafting: Speculation) -> bool:
    """Whether an iteration is prepared while the device works on the one before: as stated, else as the release does.

    SGLang, ``srt/server_args.py`` 0.5.6 to 0.5.12: ``disable_overlap_schedule`` is set for recurrent models with a
    radix cache (``mamba_scheduler_strategy`` no_buffer), for n-gram drafts, for trees, and for chains without
    ``SGLANG_ENABLE_SPEC_V2``.
    """
    stated = engine.async_scheduling if engine.overlap_scheduling is None else engine.overlap_scheduling
    if stated is not None:
        return stated
    if engine.name == "sglang":
        if _waits_for_states(engine, card):
            return False
        chain = drafting.tree_width == 1 and drafting.method != "ngram"
        return not drafting.active or (chain and _since(engine, SGLANG_DRAFTS_AHEAD))
    if engine.name == "vllm":
        if drafting.active and drafting.method in LOOKUP_METHODS:
            return False
        late = drafting.active and drafting.method == "draft_model"
        return _since(engine, VLLM_DRAFTS_AHEAD if late else VLLM_SCHEDULES_AHEAD)
    return True


def unhidden_s(engine: Engine, card: ModelCard, drafting: Speculation, recurrent_s: float) -> float:
    """Host seconds that an iteration takes longer because the next one is not prepared ahead; 0 where it is.

    recurrent_s: of SGLang with the prefix cache of a recurrent model.
    """
    if schedules_ahead(engine, card, drafting):
        return 0.0
    if engine.name != "sglang":
        return SCHEDULING_S
    return recurrent_s if _waits_for_states(engine, card) else SGLANG_SCHEDULING_S


def prefill_factor(engine: Engine, drafting: Speculation) -> float:
    """Host time of prefills that run operator by operator, over that of an engine that does not speculate."""
    return DRAFTING_PREFILL if engine.name == "sglang" and drafting.active else 1.0


def _waits_for_states(engine: Engine, card: ModelCard) -> bool:
    cached = engine.prefix_caching and card.num_recurrent_layers > 0
    return cached and engine.version is not None and not _since(engine, SGLANG_STATES_AHEAD)
