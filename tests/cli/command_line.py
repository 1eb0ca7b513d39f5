"""What tests of the command line share: a small scenario file, the program as a process, its complaints."""

import subprocess
import sys
from typing import Any

SMALL = """\
name: small
model: qwen3-8b
hardware: h100_sxm
cluster: {num_gpus: 8}
workload:
  prompts_per_step: 4
  generations_per_prompt: 4
  response_tokens: {kind: lognormal, mean_tokens: 200}
  max_sequence_tokens: 1024
speculation: {method: eagle3, draft_length: 3, acceptance_length: 2.5}
simulation: {replications: 2}
"""


def process(*argv: str, stdout: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from rlsim.cli import main; main()", *argv]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True)


def complains(result: tuple[int, str, str], *naming: str) -> None:
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("rlsim: ") and err.count("\n") == 1
    for name in naming:
        assert name in err
