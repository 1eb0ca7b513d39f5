"""Reading tables that nobody vouches for, and what they call models."""

from pathlib import Path

import pytest

from rlsim.errors import InputError
from rlsim.evidence.rows import model_card_name
from rlsim.evidence.tables import MAX_LINE_CHARACTERS, MAX_ROWS, read_table


def table(tmp_path: Path, content: bytes | str) -> Path:
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_cells_are_read_as_people_write_them_damaged_records_told_and_a_million_refused(tmp_path: Path) -> None:
    path = table(tmp_path, b'\xef\xbb\xbfid, note\r\na," x, y "\r\n\r\n"b","say ""hi"""\r\n')
    records = read_table(path, ("id",))
    assert [dict(r.cells) for r in records] == [{"id": "a", "note": "x, y"}, {"id": "b", "note": 'say "hi"'}]
    assert [r.line for r in records] == [2, 4]
    records = read_table(table(tmp_path, "id,b\n1\n2,3,4\n5,6\n" + "y" * 20_000 + ",7\n"), ("id",))
    assert [bool(r.problem) for r in records] == [True, True, False, True]
    assert "line 2 has 1 cells, the header 2" in records[0].problem
    assert len(records[3].cells["id"]) <= 200
    path = table(tmp_path, "id\n" + "r\n" * 1_000_000)
    with pytest.raises(InputError, match=f"more than {MAX_ROWS:,} rows"):
        read_table(path, ("id",))


@pytest.mark.parametrize(("content", "message"), [
    ("", "is empty"),
    ("\n\n", "is empty"),
    ("identity,b\n1,2\n", r"column id \(there is 'identity'\)|column id is missing"),
    ("iD,b\n1,2\n", "column id"),
    ("id,id\n1,2\n", "column id appears more than once"),
    (b"id\n\xff\xfe\n", "not UTF-8"),
    (b"id\na\0b\n", "it has NUL bytes"),
    ('id\n"never closed\n', "not CSV"),
    ("id\n" + "x" * (MAX_LINE_CHARACTERS + 1), "line 2 is longer"),
])  # fmt: skip
def test_what_is_no_table_is_told_in_one_line(tmp_path: Path, content: bytes | str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_table(table(tmp_path, content), ("id",))
    assert "\n" not in str(caught.value)
    assert "t.csv" in str(caught.value)


@pytest.mark.parametrize(("name", "card"), [
    ("deepseek-ai/DeepSeek-R1", "deepseek-v3"), ("nvidia/DeepSeek-V3.1-NVFP4", "deepseek-v3"),
    ("DeepSeekV3 (w/o MTP)", "deepseek-v3"), ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"),
    ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"), ("Qwen3_30B_a3B (tokendrop)", "qwen3-30b-a3b"),
    ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"), ("LLAMA3_8B", "llama-3.1-8b"),
    ("LLAMA3_70B", "llama-3.1-70b"), ("LLAMA3.1_405B", "llama-3.1-405b"), ("llama3-405b", "llama-3.1-405b"),
    ("Llama3 8B", "llama-3.1-8b"), ("GPT OSS 120B", "gpt-oss-120b"), ("openai/gpt-oss-20b", "gpt-oss-20b"),
    ("Kimi_K2", "kimi-k2"), ("moonshotai/Kimi-K2.5", "kimi-k2.5"), ("zhipuai/GLM-5", "glm-5"),
    ("zai-org/GLM-5.2", "glm-5.2"), ("Qwen/Qwen3.5-397B-A17B", "qwen3.5-397b-a17b"),
    ("Qwen/Qwen3.6-35B-A3B", "qwen3.5-35b-a3b"), ("Nemotron_3_Nano", "nemotron-3-nano-30b-a3b"),
    ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "nemotron-3-super-120b-a12b"),
    ("Nemotron V3 Ultra 550B (26.04)", "nemotron-3-ultra-550b-a55b"),
    ("moonshotai/Moonlight-16B-A3B", "moonlight-16b-a3b"), ("DeepSeek V3 671B", "deepseek-v3"),
    ("deepseekv2", "deepseek-v2"), ("PrimeIntellect/INTELLECT-3", "glm-4.5-air"), ("Qwen3 MoE 30B", "qwen3-30b-a3b"),
    ("Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b"), ("Qwen2.5 32B 2-node", "qwen2.5-32b"),
    ("Qwen2.5-Math-7B", "qwen2.5-7b"),
])  # fmt: skip
def test_models_by_their_published_names(name: str, card: str) -> None:
    assert model_card_name(name) == card
