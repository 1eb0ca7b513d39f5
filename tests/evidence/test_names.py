"""What published tables call models."""

import pytest

from rlsim.evidence.rows import model_card_name


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("nvidia/DeepSeek-V3.1-NVFP4", "deepseek-v3"),
        ("DeepSeekV3 (w/o MTP)", "deepseek-v3"),
        ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("Qwen3_30B_a3B (tokendrop)", "qwen3-30b-a3b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("LLAMA3_8B", "llama-3.1-8b"),
        ("LLAMA3_70B", "llama-3.1-70b"),
        ("LLAMA3.1_405B", "llama-3.1-405b"),
        ("llama3-405b", "llama-3.1-405b"),
        ("Llama3 8B", "llama-3.1-8b"),
        ("GPT OSS 120B", "gpt-oss-120b"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("Kimi_K2", "kimi-k2"),
        ("moonshotai/Kimi-K2.5", "kimi-k2.5"),
        ("zhipuai/GLM-5", "glm-5"),
        ("zai-org/GLM-5.2", "glm-5.2"),
        ("Qwen/Qwen3.5-397B-A17B", "qwen3.5-397b-a17b"),
        ("Qwen/Qwen3.6-35B-A3B", "qwen3.5-35b-a3b"),
        ("Nemotron_3_Nano", "nemotron-3-nano-30b-a3b"),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "nemotron-3-super-120b-a12b"),
        ("Nemotron V3 Ultra 550B (26.04)", "nemotron-3-ultra-550b-a55b"),
        ("moonshotai/Moonlight-16B-A3B", "moonlight-16b-a3b"),
        ("DeepSeek V3 671B", "deepseek-v3"),
        ("deepseekv2", "deepseek-v2"),
        ("PrimeIntellect/INTELLECT-3", "glm-4.5-air"),
        ("Qwen3 MoE 30B", "qwen3-30b-a3b"),
        ("Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b"),
        ("Qwen2.5 32B 2-node", "qwen2.5-32b"),
        ("Qwen2.5-Math-7B", "qwen2.5-7b"),
    ],
)
def test_models_by_their_published_names(name: str, card: str) -> None:
    assert model_card_name(name) == card
