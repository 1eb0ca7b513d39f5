"""Trajectories of a file as they are: whole prompts at random, each with trajectories of its own, nothing fitted."""

import csv
from array import array
from pathlib import Path

import numpy as np
from msgspec import Struct

from rlsim.errors import InputError, shortened
from rlsim.files.lookup import length_file
from rlsim.files.reading import TRACE_BYTES, check_readable, read_text, shown_path, text_lines
from rlsim.schema.workload import Replay, Workload
from rlsim.units import FloatArray, IntArray
from rlsim.workload.agents import Turns, judged_s, started_s
from rlsim.workload.file_cache import cached_with_files
from rlsim.workload.lengths import Place

COLUMNS = ("prompt", "trajectory", "prompt_tokens", "response_tokens", "observation_tokens", "environment_s")
"""Of each turn, trajectory by trajectory in order. prompt: name, empty where nobody knows which are alike; observation
and environment: after the turn, of a last one nothing."""
MOST_VALUE = 1e9
"""Of a token count or time."""
_PROMPTS = 32
"""Purpose of the draws, beyond those of batches.py and agents.py."""


class Recorded(Struct, frozen=True, eq=False):
    """Trajectories of a file. members: of each prompt; first: number of each one's first turn and, last, of all turns.
    prompt_tokens: of each trajectory; the others of each turn."""

    members: list[IntArray]
    first: IntArray
    prompt_tokens: IntArray
    response_tokens: IntArray
    observation_tokens: IntArray
    environment_s: FloatArray


@cached_with_files(4)
def recorded(replay: Replay) -> Recorded:
    """The trajectories of a file. Raises InputError naming it, the line and the column that cannot be used."""
    path = length_file(replay.path)
    if path is None:
        raise InputError(f"{shown_path(Path(replay.path))}: file of trajectories not found")
    check_readable(path)
    where = shown_path(path)
    rows = csv.DictReader(line for _, line in text_lines(read_text(path, TRACE_BYTES), where))
    if lacking := [name for name in COLUMNS if name not in (rows.fieldnames or ())]:
        raise InputError(f"{where}: lacks the column {lacking[0]}; needed: {', '.join(COLUMNS)}")
    first, prompts, values, owner = list[int](), list[str](), array("d"), None
    try:
        for turn, row in enumerate(rows):
            values.extend(_number(row[name], name, where, rows.line_num) for name in COLUMNS[2:])
            if row["trajectory"] != owner:
                owner = row["trajectory"]
                first.append(turn)
                prompts.append(row["prompt"])
    except csv.Error as error:
        raise InputError(f"{where}, line {rows.line_num + 1}: {shortened(str(error))}") from error
    if not values:
        raise InputError(f"{where}: holds no trajectory")
    _, number = np.unique(prompts, return_inverse=True)
    order = np.argsort(number, kind="stable")
    columns = np.array(values).reshape(-1, len(COLUMNS) - 2)
    tokens = np.maximum(np.rint(columns[:, :3]), [1, 1, 0]).astype(np.int64)
    return Recorded(
        np.split(order, np.cumsum(np.bincount(number))[:-1]), np.array([*first, len(columns)]), tokens[first, 0],
        tokens[:, 1], tokens[:, 2], columns[:, 3],
    )  # fmt: skip


def _number(text: str | None, name: str, where: str, line: int) -> float:
    try:
        found = float(text or 0)
    except ValueError:
        found = -1.0
    if not 0 <= found <= MOST_VALUE:
        limits = f"a number from 0 to {MOST_VALUE:g}"
        raise InputError(f"{where}, line {line}: {name} must be {limits}, got {shortened(str(text))}")
    return found


def replayed(workload: Workload, place: Place, response_scale: float = 1.0) -> tuple[IntArray, IntArray, Turns]:
    """Prompt tokens and trained tokens of the trajectories of a rollout, and their turns.

    No prompt comes again before all came once, and so for the trajectories of a prompt, so that as many prompts as the
    file has are the file. response_scale: factor on what is generated. A trajectory is cut where its context is full.
    Raises ValueError without a file.
    """
    agent = workload.agent
    if agent is None or agent.replay is None:
        raise ValueError("a workload without a file of trajectories replays none")
    found, rng = recorded(agent.replay), place.generator(_PROMPTS)
    of_prompts = _dealt(rng, np.arange(len(found.members)), workload.launched_prompts)
    chosen = np.concatenate([_dealt(rng, found.members[at], workload.launched_generations) for at in of_prompts])
    counts = np.minimum(found.first[chosen + 1] - found.first[chosen], agent.max_turns)
    first = np.concatenate(([0], np.cumsum(counts)))
    owner = np.repeat(np.arange(chosen.size), counts)
    turn = np.arange(first[-1]) - first[owner] + found.first[chosen][owner]
    response = np.maximum(np.rint(response_scale * found.response_tokens[turn]), 1).astype(np.int64)
    added = response + found.observation_tokens[turn]
    before = np.cumsum(added) - added
    history = before - before[first[:-1]][owner]
    cap = workload.max_sequence_tokens
    prompt = np.minimum(found.prompt_tokens[chosen], cap - 1)
    room = cap - prompt[owner] - history
    kept = room > 0
    left = np.bincount(owner[kept], minlength=chosen.size)
    last = np.cumsum(left) - 1
    history, response = history[kept], np.minimum(response, room)[kept]
    limit_s = np.inf if agent.turn_timeout_s is None else agent.turn_timeout_s
    seconds = np.minimum(found.environment_s[turn][kept], limit_s)
    seconds[last] = 0.0
    others = judged_s(agent, place, chosen.size), None, started_s(agent, place, chosen.size)
    turns = Turns(np.concatenate(([0], last + 1)), history, response, seconds, *others)
    return prompt, history[last] + response[last], turns


def _dealt(rng: np.random.Generator, among: IntArray, count: int) -> IntArray:
    """So many of ``among``, shuffled anew each time that all have come."""
    return np.concatenate([rng.permutation(among) for _ in range(-(-count // among.size))])[:count]
