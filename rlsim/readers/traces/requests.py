"""Lengths of measured requests, whatever file they came in."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from rlsim.errors import InputError
from rlsim.files.records import dataclass
from rlsim.units import FloatArray, IntArray
from rlsim.workload.lengths import PROMPT_IDS, guessed_column, known_column

TOKEN_BLOCKS = "hash_ids"
"""Mooncake's prefix blocks: requests of one conversation share some, which makes them no samples of one prompt."""


@dataclass(frozen=True, eq=False)
class Requests:
    """One entry per sample, in tokens.

    response: generated lengths, shape (n,); prompt: of the same samples, None where the file has none. groups: number
    of each sample's prompt, None where nothing tells which samples share one. where: the file, for messages. form: the
    format that it was read in. remarks: what a reader must know of the figures.
    """

    response: FloatArray
    prompt: FloatArray | None
    groups: IntArray | None
    where: str
    form: str
    remarks: tuple[str, ...] = ()


def chosen_columns(
    row: Mapping[str, Any], names: Sequence[str | None], where: str
) -> tuple[str, str | None, str | None]:
    """Columns of response, prompt and group: those of ``names``, guessed among those of ``row`` where None."""
    response = names[0] or guessed_column(row, where, "response")
    prompt = names[1] or known_column(row, "prompt")
    group = names[2] or next((name for name in PROMPT_IDS if name in row and name != TOKEN_BLOCKS), None)
    return response, prompt if prompt != response else None, group


class Collected:
    """Samples as they are read: lengths, and what tells their prompts apart."""

    def __init__(self) -> None:
        self.response: list[float] = []
        self.prompt: list[float] = []
        self.keys: list[Hashable] = []

    def add(self, response: float, prompt: float | None, key: Hashable | None) -> None:
        """One sample; key: of its prompt."""
        self.response.append(response)
        if prompt is not None:
            self.prompt.append(prompt)
        if key is not None:
            self.keys.append(key)

    def requests(self, where: str, form: str, group_size: int | None, remarks: Sequence[str] = ()) -> Requests:
        """All samples. group_size: where given, each so many samples in a row share a prompt.

        Raises InputError where there is none, all are 0, or the samples are no whole number of groups.
        """
        response = np.array(self.response, dtype=np.float64)
        if not response.size:
            raise InputError(f"{where}: no rows; at least one length is needed")
        if response.max() <= 0:
            raise InputError(f"{where}: every response length is 0")
        whole = len(self.prompt) == response.size
        prompt = np.array(self.prompt, dtype=np.float64) if whole else None
        keys = self.keys if len(self.keys) == response.size else None
        return Requests(
            response, prompt, group_numbers(keys, response.size, group_size, where), where, form, (*remarks,)
        )


def group_numbers(keys: Sequence[Hashable] | None, samples: int, group_size: int | None, where: str) -> IntArray | None:
    """Number of each sample's prompt, from the samples in a row that share one, or from what the file tells of each.

    None where every prompt has a single sample: then nothing tells how alike samples of one are.
    """
    if group_size is not None:
        if samples % group_size:
            raise InputError(f"{where}: --group-size {group_size} does not divide its {samples:,} samples")
        return np.arange(samples) // group_size if group_size > 1 else None
    if keys is None:
        return None
    numbers: dict[Hashable, int] = {}
    found = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    return found if len(numbers) < samples else None
