"""Commands whose answers are held, by case: a few of each with what changes their numbers and verdicts."""

FEW = ("quickstart", "simulation.replications=1", "workload.prompts_per_step=16")
LAG = ("qwen8b_async_lag1", "simulation.replications=2", "workload.prompts_per_step=16",
       "trainer.global_batch_samples=64")  # fmt: skip
SMALL = ("qwen235b_512", "search_agent_16")
SPEC = "speculation={method: eagle3, draft_length: 3, acceptance_length: 2.4, "
AGENT = "workload.agent={environment_s: {kind: lognormal, mean_s: 3, log_sigma: 0.8}, "
WILD = ("D3_deepswe_32b_h200", "F_verl_05b_a100", "J_miles_30b_mi300x", "P03_9b_16k_lora_tp2", "S02_das_4b_16",
        "S04_30b_fsdp_s1", "S06_30b_megatron_ep8", "S11_3b_lora_A3", "S17_marin_235b", "S22_skyrl_35b_32_ib",
        "B3_slime_4b_a100_async", "S07_codescout_4b_s2")  # fmt: skip
"""Scenarios of users' runs, of as many frameworks."""
COMMANDS: dict[str, tuple[str, ...]] = {
    "project": ("project", *FEW),
    "project, lagged": ("project", *LAG),
    "project, unmeasured": ("project", *FEW[:2], "workload.prompts_per_step=16", "hardware=b200_sxm",
                            "model=qwen3-30b-a3b", "engine.tensor_parallel=2", "simulation.replications=3"),
    "improve": ("improve", *FEW),
    **{f"improve, {part}": ("improve", *FEW, "--only", part) for part in ("idle", "headroom", "inputs")},
    "improve, lagged": ("improve", *LAG, "--only", "idle"),
    "compare": ("compare", FEW[0], *FEW, "--set-b", "engine.tensor_parallel=2"),
    "check, pasted": ("check", *FEW, "--step", "90", "--generation", "60", "--train", "9"),
    "project, agents": ("project", "search_agent_16", "simulation.replications=1"),
    "run, disturbed": ("run", *FEW, "--steps", "40", "run.response_growth=[[0,1.0],[20,1.5],[40,2.0]]",
                       "run.validation={every_steps: 7, samples: 64}", "run.checkpoint={every_steps: 9, seconds: 20}",
                       "run.faults={gpu_hours_between: 300}", "run.stalls={probability: 0.2, seconds: 30}",
                       "run.slow_nodes={share: 0.2, factor: 1.3}"),
    **{f"project, {name}": ("project", name, *one) for name in SMALL for one in [FEW[1:]]},
    **{f"check, {name}": ("check", name, *FEW[1:], "--step", "300") for name in SMALL},
    **{f"improve, {name}": ("improve", name, *FEW[1:], "--only", "idle") for name in SMALL},
    "run, a data set": ("run", *FEW, "--rows", "200", "--epochs", "1.5"),
    "run, lagged": ("run", *LAG, "--steps", "9"),
    "run": ("run", *FEW, "--steps", "30"),
    "plan": ("plan", *FEW),
    "preflight": ("preflight", *FEW),
    **{f"log {n}": ("log", f"LOG {n}", *FEW) for n in (0, 5)},
    **{f"check {n}": ("check", *FEW, "--log", f"LOG {n}") for n in (0, 3)},
    "watch": ("watch", "LOG 1", "--once"),
    # A run short, long, fast and slow in each of its phases, of loops of both kinds.
    **{f"check, {name}": ("check", *base, "--step", step, *more) for name, base, step, more in (
        ("fast", FEW, "9", ()), ("slow", FEW, "4000", ("--noise", "0.2")),
        ("every phase", FEW, "200", ("--generation", "20", "--train", "90", "--logprob", "60", "--weight-update", "9",
                                     "--data", "5", "--figure", "response_tokens=900")),
        ("lagged", LAG, "90", ("--generation", "40", "--train", "30", "--logprob", "9", "--weight-update", "4")),
        ("too long", FEW, "20", ("--generation", "19", "--train", "9")),
    )},
    "improve, lagged headroom": ("improve", *LAG, "--only", "headroom"),
    "improve, agents": ("improve", "search_agent_16", *FEW[1:], "--only", "headroom"),
    # Draws to a stated precision, what warnings warn of, and sentences on a model's own layers.
    "project, precise": ("project", FEW[0], FEW[2], "simulation.precision=0.02"),
    "project, first done": ("project", *FEW, "workload.tail_batching={samples_factor: 1.5, prompts_factor: 1.25}"),
    "project, drafted": ("project", *FEW, "model=qwen3-8b", f"{SPEC}trained_context_tokens: 512, "
                         "variation: {sample_spread: 0.3, prompt_spread: 0.2}}"),
    "project, small cache": ("project", *FEW, "engine.gpu_memory_utilization=0.3"),
    "project, few graphs": ("project", *FEW, "engine.max_captured_tokens=16", "engine.max_batched_tokens=512"),
    "project, long": ("project", *FEW, "workload.max_sequence_tokens=60000", "model=gemma-3-4b"),
    "project, recurrent": ("project", *FEW, "model=nemotron-nano-9b-v2", "speculation.method=none"),
    "project, host optimizer": ("project", *FEW, "trainer.optimizer_on_host=true"),
    "project, turns": ("project", *FEW, f"{AGENT}turns: {{kind: lognormal, mean_turns: 4, log_sigma: 0.5}}, "
                       "max_turns: 9, turn_timeout_s: 8, call_failure_share: 0.1, max_environments: 64}"),
    "improve, turns": ("improve", *FEW, f"{AGENT}turns: {{kind: lognormal, mean_turns: 4, log_sigma: 0.5}}, "
                       "max_turns: 9, max_environments: 64}"),
    **{f"project, {name}": ("project", f"WILD {name}", "simulation.replications=1") for name in WILD},
    # What nobody stated: guesses, the network between nodes, hosts and what users' stacks take beyond tuned ones.
    "project, guessed": ("project", *FEW, "assumptions=[{text: a, keys: [workload.response_tokens], log_spread: 0.9}, "
                         "{text: b, keys: [workload.prompt_tokens], log_spread: 0.4}, "
                         "{text: c, keys: [speculation.first_acceptance], log_spread: 0.5}]"),
    "project, users": ("project", *FEW, "stack=verl", "cluster.num_gpus=16", "cluster.fabric=null"),
    "project, users' experts": ("project", FEW[0], *FEW[1:], "stack=slime", "model=qwen3-30b-a3b",
                                "cluster.num_gpus=16", "engine.tensor_parallel=2", "trainer.expert_parallel=8"),
    "improve, users": ("improve", *FEW, "stack=verl", "cluster.num_gpus=16", "cluster.fabric=null", "--only", "inputs"),
    "project, two devices": ("project", *LAG, "training_hardware=b200_sxm"),
    "project, controlled": ("project", "search_agent_16", FEW[2], "simulation.precision=0.06"),
    **{f"improve, {name}": ("improve", *LAG, "loop.policy_lag=null", f"loop.{name}", "--only", "idle")
       for name in ("queue_batches=2", "staleness_fraction=0.5")},
    "k": ("k", *FEW),
    "check, wild": ("check", f"WILD {WILD[4]}", "simulation.replications=1", "--step", "500", "--figure",
                    "response_tokens=3000"),
}  # fmt: skip
"""Words of a command; LOG n stands for a log in the n-th form, WILD name for the scenario of a user's run."""
TABLES = ("iterations", "training_steps", "refit", "refit_colocated", "rollouts", "speculation", "rl_steps",
          "refit_more", "training_users", "memory/rows", "memory/peaks")  # fmt: skip
