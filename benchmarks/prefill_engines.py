"""Engines that prefill alone beside measured services: ``python benchmarks/prefill_engines.py decode_iterations.csv``.

Each disaggregated row without speculation or objections, whose GPUs are those of its prefill and decode workers, is a
closed loop of its clients on ``engine.prefill`` as the simulation has it. Prints the error of tokens (prompts and
responses) a second over all GPUs; nothing was fitted to it. KV cache follows at KV_BYTES_PER_S, an assumption that
moves the first token alone.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from rlsim.costs.engine_memory import kv_bytes_per_gpu_token
from rlsim.costs.interface import PrefillService
from rlsim.evidence import engines
from rlsim.parameters.sets import shipped
from rlsim.schema.workload import Agent
from rlsim.simulation.pool import Fleet
from rlsim.simulation.rollout import agent_rollout
from rlsim.units import FloatArray
from rlsim.workload.agents import Turns
from rlsim.workload.batches import Batch, Generated

KV_BYTES_PER_S = 50e9
"""Of a GPU: a network card of 400 Gbit/s."""
NEEDED = "prefill_workers", "prefill_tp", "decode_workers", "num_gpus", "concurrency", "total_tokens_per_s_per_gpu"
REQUESTS = 10
"""For each client, as InferenceX asks (rlsim/evidence/iterations.py); ramp and tail count as they do there."""

Row = dict[str, str]


def is_compared(row: Row) -> bool:
    """Whether a row says all that its service needs."""
    if row["serving_mode"] != "disagg" or row["spec_method"] != "none" or row["flag"] or not all(map(row.get, NEEDED)):
        return False
    pairs = (("decode_workers", "decode_gpus_per_engine"), ("prefill_workers", "prefill_tp"))
    return float(row["num_gpus"]) == sum(float(row[one]) * float(row[other]) for one, other in pairs)


def of_prefill(row: Row) -> Row:
    """The row with one of its prefill engines in place of those that decode."""
    copies = row["prefill_tp"] if row["prefill_dp_attention"] in ("1", "true") else "1"
    own = {"decode_gpus_per_engine": row["prefill_tp"], "tp": row["prefill_tp"], "ep": row["prefill_ep"]}
    return {
        **row,
        **own,
        "dp_attention": row["prefill_dp_attention"],
        "attn_dp": copies,
        "moe_tp": "",
        "decode_workers": "1",
    }


def tokens_per_s(row: Row) -> float:
    """Tokens of prompts and responses a second that the service of a row is predicted to serve."""
    fitted, load = shipped(), engines.load_of(row)
    setups = engines.engine_setup(row, load), engines.engine_setup(of_prefill(row), load)
    decode, prefill = (engines.prepared_engine(setup, fitted).table for setup in setups)
    budget = setups[1].engine.budget_tokens
    token_s = float(np.interp(budget, prefill.prefill_grid_tokens, prefill.prefill_s[0])) / budget
    sent_s = kv_bytes_per_gpu_token(setups[0]) / KV_BYTES_PER_S
    service = PrefillService(int(float(row["prefill_workers"])), prefill, token_s, sent_s)
    clients, rng = int(float(row["concurrency"])), np.random.default_rng(0)
    count = clients * REQUESTS
    prompts, responses = (
        np.maximum(2, np.rint(nominal * rng.uniform(load.shortest, 1.0, count))).astype(np.int64)
        for nominal in (load.prompt_tokens, load.response_tokens)
    )
    turns = Turns(np.arange(count + 1), np.zeros(count, dtype=np.int64), responses, np.zeros(count), np.zeros(count))
    one = Generated(Batch(prompts, responses, np.arange(count)), np.ones(count, dtype=np.bool_), turns)
    fleet = Fleet(int(float(row["decode_workers"])), "least_loaded", decode, prefix_caching=False, prefill=service)
    # Trajectories of one turn, so many at once: a client asks again when it is answered.
    ends_s: FloatArray = agent_rollout(one, responses - 1, fleet, Agent(max_trajectories=clients)).result.finish_s
    return float((prompts + responses).sum() / ends_s.max())


def main() -> None:
    """Print the errors by engine, and the worst rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="decode_iterations.csv or a table of its columns")
    with parser.parse_args().table.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if is_compared(row)]
    errors = {
        (row["engine"], row["id"]): tokens_per_s(row)
        / float(row["num_gpus"])
        / float(row["total_tokens_per_s_per_gpu"])
        - 1
        for row in rows
    }
    for engine in ("", *sorted({engine for engine, _ in errors})):
        own = np.array([error for (name, _), error in errors.items() if engine in ("", name)])
        median, bias = np.median(np.abs(own)), np.median(own)
        print(f"{engine or 'all':8s} {own.size:4d} rows   off by {median:.1%} in the median, bias {bias:+.1%}")
    for (engine, name), error in sorted(errors.items(), key=lambda one: -abs(one[1]))[:8]:
        print(f"  {engine} {name} {error:+.0%}")


if __name__ == "__main__":
    main()
