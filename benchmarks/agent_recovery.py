"""Are known processes of agents read back from their traces? ``python benchmarks/agent_recovery.py [PROMPTS]``.

For each process of tests/readers/agent_processes.py: PROMPTS x 8 trajectories (default 512) are written as traces of
verifiers, fitted, and 16 x 8 of the truth and of the fit projected on one node (Llama-3.1-8B on 8 H100, 24 steps).
Printed: errors of the step, of its wait, which is the parts environment and imbalance of generation, and of the share
of contexts that turns find in the prefix cache.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.readers.traces.agents import AgentAnswer
from rlsim.readers.traces.reading import Reading, read_trace
from rlsim.schema.base import changed
from rlsim.schema.workload import Workload

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "readers"))

import agent_processes

NODE = ("speculation.method=none", "trainer.global_batch_samples=128", "workload.prompts_per_step=16",
        "workload.generations_per_prompt=8", "simulation.steps=24")  # fmt: skip


def step_wait_and_hits(workload: Workload) -> tuple[float, float, float]:
    """Mean step, and what of it waits for environments and the slowest, in seconds; share of contexts found cached."""
    variant = project(changed(load_scenario("quickstart", NODE), workload=workload)).candidate
    waits = (part.seconds for part in variant.parts if part.name in ("environment", "imbalance"))
    found, prefilled = variant.statistics.reused_tokens or 0.0, variant.statistics.prefill_tokens
    return variant.step_s.mean, sum(waits), found / (found + prefilled)


def fitted(truth: Workload, folder: Path) -> AgentAnswer:
    """What is read from draws of ``truth``."""
    found = read_trace(agent_processes.written(folder / "traces.jsonl", truth), Reading())
    if not isinstance(found, AgentAnswer):
        raise TypeError(f"traces of verifiers are read as {type(found).__name__}")
    return found


def main() -> None:
    """Print one line a process."""
    prompts = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    sizes = {"prompts_per_step": 16, "generations_per_prompt": 8}
    for name in agent_processes.PROCESSES:
        with tempfile.TemporaryDirectory() as folder:
            found = fitted(agent_processes.workload(name, prompts), Path(folder))
        read = step_wait_and_hits(Workload.model_validate({**found.settings, "agent": found.of_agent, **sizes}))
        true = step_wait_and_hits(agent_processes.workload(name, 16))
        step, wait, hits = (one / other - 1 for one, other in zip(read, true, strict=True))
        errors = f"step {step:+.1%}  wait {wait:+.1%}  cache hits {hits:+.1%}"
        print(f"{name:34} {errors}  least p {min(one.p for one in found.tests):.2f}")


if __name__ == "__main__":
    main()
