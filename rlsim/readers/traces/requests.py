"""Lengths of measured requests, whatever file they came in: rollouts that RL frameworks dump (verl's
``rollouts/{step}.jsonl``, NeMo-RL's ``train_data_step*.jsonl``), and Parquet files, of which only columns of numbers,
and of texts that name prompts, are ever decoded."""

import hashlib
import io
from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlsim.errors import InputError, shortened
from rlsim.units import FloatArray, IntArray
from rlsim.workload.lengths import PROMPT_IDS, guessed_column, known_column, number_in

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


Sample = tuple[float, float | None, Hashable | None]
"""Tokens of the response and, where they are told, of the prompt, and what tells its prompt from others."""


def requests_of(
    samples: Iterable[Sample], where: str, form: str, group_size: int | None, remarks: list[str]
) -> Requests:
    """All samples. group_size: where given, each so many samples in a row share a prompt; remarks: of their reader.

    Raises InputError where there is none, all are 0, or the samples are no whole number of groups.
    """
    # Arrays: in a list each number takes 32 bytes in place of 8, and traces have millions.
    response, prompts, keys = array("d"), array("d"), list[Hashable]()
    for tokens, prompt, key in samples:
        response.append(tokens)
        prompts.extend([] if prompt is None else [prompt])
        keys += [] if key is None else [key]
    if not response:
        raise InputError(f"{where}: no rows; at least one length is needed")
    if max(response) <= 0:
        raise InputError(f"{where}: every response length is 0")
    count = len(response)
    groups = group_numbers(keys if len(keys) == count else None, count, group_size, where)
    whole = np.array(prompts) if len(prompts) == count else None
    return Requests(np.array(response), whole, groups, where, form, (*remarks,))


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


Rows = Iterator[tuple[int, dict[str, Any]]]


def verl_samples(rows: Rows, where: str, characters_per_token: float, remarks: list[str]) -> Iterator[Sample]:
    """Samples of verl: JSON with the texts ``input`` and ``output``, and the ``step``.

    Texts count by their characters, which ``remarks`` then tells, unless a row has its token counts. Samples with the
    same input in the same step belong to one prompt. Raises InputError naming the line without a text.
    """
    for line, row in rows:
        prompt, response = (_text(row, name, where, line) for name in ("input", "output"))
        column, given = known_column(row, "response"), known_column(row, "prompt")
        key = (row.get("step") if isinstance(row.get("step"), int) else None, _digest(prompt))
        if column is not None:
            tokens = None if given is None else number_in(row, given, where, line)
            yield number_in(row, column, where, line), tokens, key
            continue
        remarks[:] = [
            f"assumed: {characters_per_token:g} characters a token; the rollouts hold text, not tokens "
            "(4 is the rule of thumb for English; --characters-per-token states that of your tokenizer)"
        ]
        yield len(response) / characters_per_token, len(prompt) / characters_per_token, key


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


def nemo_rl_samples(rows: Rows, where: str, group_size: int | None, remarks: list[str]) -> Iterator[Sample]:
    """Samples of NeMo-RL: ``input_lengths`` (prompt and response), ``token_ids``, and ``token_loss_mask``.

    The mask tells what was generated: responses are its ones, and all tokens before the first are the prompt, which
    samples of one group share. Without it the prompt is what ``group_size`` samples in a row have in common at their
    beginning, a little more than the prompt where they all begin alike, and ``remarks`` says so. Raises InputError
    where neither is there.
    """
    pending: list[tuple[float, Sequence[Any]]] = []
    remarks.append("prompts are what the samples of a group have in common at their beginning (no token_loss_mask)")
    for line, row in rows:
        total = _length(row, where, line)
        ids, mask = (row.get(name) for name in ("token_ids", "token_loss_mask"))
        if isinstance(mask, list):
            remarks.clear()
            yield _masked(total, ids, mask, where, line)
        elif group_size is None or not isinstance(ids, list):
            raise InputError(
                f"{where}, line {line}: without 'token_loss_mask' only 'token_ids' and --group-size N tell what of "
                "'input_lengths' is prompt"
            )
        else:
            pending.append((total, ids))
            if len(pending) == group_size:
                yield from _group(pending)
                pending = []
    if pending:
        raise InputError(f"{where}: --group-size {group_size} does not divide its samples")


def _length(row: Mapping[str, Any], where: str, line: int) -> float:
    given = row.get("input_lengths")
    single = given[0] if isinstance(given, list) and len(given) == 1 else given
    return number_in({"input_lengths": single}, "input_lengths", where, line)


def _masked(total: float, ids: Any, mask: Sequence[Any], where: str, line: int) -> Sample:
    used = mask[: int(total)]
    if any(entry not in (0, 1) for entry in used):
        raise InputError(f"{where}, line {line}: 'token_loss_mask' must hold 0 and 1")
    first = next((place for place, entry in enumerate(used) if entry), len(used))
    # Tokens of an environment's answers are neither prompt nor response; they stay out of both.
    return float(sum(used)), float(first), _digest(repr(ids[:first])) if isinstance(ids, list) else None


def _group(samples: Sequence[tuple[float, Sequence[Any]]]) -> Iterator[Sample]:
    shortest = int(min(min(total, len(ids)) for total, ids in samples))
    first = samples[0][1]
    common = next(
        (place for place in range(shortest) if any(ids[place] != first[place] for _, ids in samples)), shortest
    )
    return ((max(0.0, total - common), float(common), None) for total, _ in samples)


MAGIC = b"PAR1"
MOST_ROWS = 20_000_000
"""A Parquet file of some KiB can claim any number of rows of one repeated value."""


def parquet_requests(content: bytes, where: str, names: Sequence[str | None], group_size: int | None) -> Requests:
    """Lengths in a Parquet file. names: columns of response, prompt and group, guessed where None.

    Raises InputError where the file is none, is cut short or lacks the columns.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(io.BytesIO(content))
        rows, present = file.metadata.num_rows, file.schema_arrow
        if rows > MOST_ROWS:
            raise InputError(f"{where}: {rows:,} rows are more than {MOST_ROWS:,}, the most that are read")
        response, prompt, group = chosen_columns(dict.fromkeys(present.names), names, where)
        chosen = [name for name in (response, prompt, group) if name is not None]
        for name in chosen:
            _check(name, present, where, text=name not in (response, prompt))
        # Texts stay in their dictionary: some KiB can repeat a long one any number of times.
        named = [group] if group is not None else []
        table = parquet.ParquetFile(io.BytesIO(content), read_dictionary=named).read(columns=chosen)
        lengths = _numbers(table, response, where)
        prompts = None if prompt is None else _numbers(table, prompt, where)
        keys = None
        if group is not None:
            column = table.column(group)
            if column.null_count:
                raise InputError(f"{where}: column '{shortened(group)}' must name the prompt of every sample")
            keys = column.combine_chunks().dictionary_encode().indices.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{where}: no Parquet file that can be read ({shortened(str(error))})") from error
    if not lengths.size or lengths.max() <= 0:
        raise InputError(f"{where}: no length above 0 in '{shortened(response)}'")
    return Requests(lengths, prompts, group_numbers(keys, lengths.size, group_size, where), where, "parquet")


def _check(name: str, present: Any, where: str, text: bool) -> None:
    from pyarrow import types

    if present.names.count(name) != 1:
        listed = shortened(", ".join(present.names), 200)
        raise InputError(f"{where}: no column '{shortened(name)}', or several; there is {listed}")
    kind = present.field(name).type
    fits = types.is_integer(kind) or types.is_floating(kind)
    fits |= text and (types.is_string(kind) or types.is_large_string(kind))
    if not fits:
        raise InputError(f"{where}: column '{shortened(name)}' holds {shortened(str(kind))}, no numbers")


def _numbers(table: Any, name: str, where: str) -> FloatArray:
    column = table.column(name)
    values = np.asarray(column.to_numpy(), dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(values) | (values < 0))
    if bad.size:
        raise InputError(f"{where}, row {bad[0] + 1}: '{shortened(name)}' must be a number of at least 0")
    return values
