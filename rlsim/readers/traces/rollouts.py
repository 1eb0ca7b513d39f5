"""Rollouts that RL frameworks dump: verl's ``rollouts/{step}.jsonl`` and NeMo-RL's ``train_data_step*.jsonl``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlsim.errors import InputError
from rlsim.readers.traces.requests import Collected
from rlsim.workload.lengths import known_column, number_in

Rows = Iterator[tuple[int, dict[str, Any]]]


def add_verl(collected: Collected, rows: Rows, where: str, characters_per_token: float) -> list[str]:
    """Samples of verl: JSON with the texts ``input`` and ``output``, and the ``step``; gives remarks.

    Texts count by their characters unless a row has its token counts. Samples with the same input in the same step
    belong to one prompt. Raises InputError naming the line without a text.
    """
    counted = True
    for line, row in rows:
        prompt, response = (_text(row, name, where, line) for name in ("input", "output"))
        column = known_column(row, "response")
        key = (row.get("step") if isinstance(row.get("step"), int) else None, _digest(prompt))
        if column is not None:
            given = known_column(row, "prompt")
            tokens = None if given is None else number_in(row, given, where, line)
            collected.add(number_in(row, column, where, line), tokens, key)
        else:
            counted = False
            collected.add(len(response) / characters_per_token, len(prompt) / characters_per_token, key)
    if counted:
        return []
    return [
        f"assumed: {characters_per_token:g} characters a token; the rollouts hold text, not tokens "
        "(4 is the rule of thumb for English; --characters-per-token states that of your tokenizer)"
    ]


def _text(row: Mapping[str, Any], name: str, where: str, line: int) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise InputError(
            f"{where}, line {line}: a rollout of verl has the texts 'input' and 'output'; '{name}' is none"
        )
    return value


def _digest(text: str) -> bytes:
    # Prompts are long and many; a lone surrogate that JSON can escape is no UTF-8.
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def add_nemo_rl(collected: Collected, rows: Rows, where: str, group_size: int | None) -> list[str]:
    """Samples of NeMo-RL: ``input_lengths`` (prompt and response), ``token_ids``, and ``token_loss_mask``.

    The mask tells what was generated: responses are its ones, and all tokens before the first are the prompt, which
    samples of one group share. Without it the prompt is what ``group_size`` samples in a row have in common at their
    beginning, a little more than the prompt where they all begin alike. Raises InputError where neither is there.
    """
    pending: list[tuple[float, Sequence[Any]]] = []
    masked = False
    for line, row in rows:
        total = _length(row, where, line)
        ids, mask = (row.get(name) for name in ("token_ids", "token_loss_mask"))
        if isinstance(mask, list):
            masked = True
            _add_masked(collected, total, ids, mask, where, line)
        elif group_size is None or not isinstance(ids, list):
            raise InputError(
                f"{where}, line {line}: without 'token_loss_mask' only 'token_ids' and --group-size N tell what of "
                "'input_lengths' is prompt"
            )
        else:
            pending.append((total, ids))
            if len(pending) == group_size:
                _add_group(collected, pending)
                pending = []
    if pending:
        raise InputError(f"{where}: --group-size {group_size} does not divide its samples")
    if masked:
        return []
    return ["prompts are what the samples of a group have in common at their beginning (no token_loss_mask)"]


def _length(row: Mapping[str, Any], where: str, line: int) -> float:
    given = row.get("input_lengths")
    single = given[0] if isinstance(given, list) and len(given) == 1 else given
    return number_in({"input_lengths": single}, "input_lengths", where, line)


def _add_masked(collected: Collected, total: float, ids: Any, mask: Sequence[Any], where: str, line: int) -> None:
    used = mask[: int(total)]
    if any(entry not in (0, 1) for entry in used):
        raise InputError(f"{where}, line {line}: 'token_loss_mask' must hold 0 and 1")
    first = next((place for place, entry in enumerate(used) if entry), len(used))
    # Tokens of an environment's answers are neither prompt nor response; they stay out of both.
    key = _digest(repr(ids[:first])) if isinstance(ids, list) else None
    collected.add(float(sum(used)), float(first), key)


def _add_group(collected: Collected, samples: Sequence[tuple[float, Sequence[Any]]]) -> None:
    shortest = int(min(min(total, len(ids)) for total, ids in samples))
    first = samples[0][1]
    common = next(
        (place for place in range(shortest) if any(ids[place] != first[place] for _, ids in samples)), shortest
    )
    for total, _ in samples:
        collected.add(max(0.0, total - common), float(common), None)
