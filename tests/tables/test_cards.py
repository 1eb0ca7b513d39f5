"""Model cards by the names of repositories."""

import pytest

from rlsim.errors import InputError
from rlsim.loading.models import list_cards, load_card
from rlsim.loading.scenario import load_scenario


@pytest.mark.parametrize(
    ("repository", "card"),
    [
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("Qwen/Qwen3-8B-Base", "qwen3-8b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2"),
        ("Qwen/Qwen2.5-Math-7B", "qwen2.5-7b"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron-3-nano-30b-a3b"),
    ],
)
def test_a_repository_is_the_card_of_its_dimensions(repository: str, card: str) -> None:
    assert card in list_cards()
    assert load_card(repository) == load_card(card)


def test_the_repositories_that_cards_come_from_are_known() -> None:
    for card in list_cards():
        source, _, repository = load_card(card).source.partition("config.json of ")
        if source and not repository:  # from a framework's own table of models, or from memory
            continue
        repository = repository.partition(" on Hugging Face")[0]
        assert "/" in repository
        if not repository.endswith("-FP8"):
            assert load_card(repository) == load_card(card)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Qwen/Qwen3-9B", "unknown model 'Qwen3-9B'; nearest: qwen3.5-9b"),
        ("Qwen/Qwen3-8B-FP8", "holds quantised weights; give model qwen3-8b and state engine.weight_precision"),
        ("Qwen/Qwen3-8B-AWQ", "holds quantised weights"),
        ("Qwen3-8B-Base", "unknown model 'Qwen3-8B-Base'"),
        ("someone/Qwen3-8B-pruned", "unknown model"),
    ],
)
def test_other_repositories_are_refused(name: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        load_card(name)


def test_a_scenario_names_a_repository() -> None:
    assert load_scenario("quickstart", ["model=Qwen/Qwen3-8B"]).model == load_card("qwen3-8b")
