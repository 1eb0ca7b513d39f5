"""Small work for every command that writes results."""

from tests.loading.small_scenario import SMALL

SCENARIO = (
    SMALL.replace(": 4\n", ": 8\n").replace("400", "300").replace("2048", "1024")
    + """\
question: What does drafting bring a small job?
simulation: {replications: 2}
"""
)
SPLIT = (*("--set", "cluster={num_gpus: 8, generation_gpus: 4, training_gpus: 4}"),
         *("--set", "loop={mode: async, policy_lag: 2}"))  # fmt: skip
MEASURED = """\
id,model,gpu,num_gpus,on_off_policy,prompts_per_step,generations_per_prompt,max_seq_len,avg_seq_len,\
gen_tp,gen_pp,gen_ep,train_tp,train_cp,train_ep,train_pp,total_step_time_s
one,meta-llama/Llama-3.1-8B-Instruct,h100,8,sync,8,8,2048,400,1,1,1,1,1,1,1,20
two,meta-llama/Llama-3.1-8B-Instruct,h100,8,sync,16,8,2048,400,1,1,1,1,1,1,1,30
three,no/such-model,h100,8,sync,16,8,2048,400,1,1,1,1,1,1,1,30
"""
COMMANDS: dict[str, tuple[str, ...]] = {
    "projection": ("project", "SCENARIO"),
    "async": ("project", "SCENARIO", *SPLIT),
    "plain": ("project", "SCENARIO", "--set", "speculation.method=none"),
    "run": ("run", "SCENARIO", *SPLIT, "--steps", "12", "--set", "run.validation={every_steps: 4, samples: 8}"),
    "sweep": (*("sweep", "SCENARIO", "--vary", "speculation.draft_length=1,2,3"),
              *("--vary", "speculation.acceptance_length=1.5,1.9,2.6", "--jobs", "1")),
    "line": ("sweep", "SCENARIO", "--vary", "workload.prompts_per_step=4,8", "--jobs", "1"),
    "plan": ("plan", "SCENARIO", "--jobs", "1"),
    "validation": ("validate", "MEASURED"),
    "check": ("check", "SCENARIO", "--step", "40", "--generation", "30", "--train", "3"),
    "improvement": ("improve", "SCENARIO"),
    "size": ("size", "qwen3-1.7b", "--device", "h100_sxm,l40s", "--batch", "8x8", "--response-tokens", "300"),
    "k": ("k", "SCENARIO"),
}  # fmt: skip
