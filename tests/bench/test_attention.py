"""Cached attention against its definition, for ragged prefixes and several queries."""

import pytest
import torch

from bench import attention
from bench.attention import AttentionPlan, cached_attention, plan_attention, reference_attention, usable_kernels
from bench.transformer import rope_table, rotate

CPU = torch.device("cpu")


def is_the_reference(kernel: str, lengths: list[int], queries: int, heads: int, kv_heads: int) -> bool:
    """Whether a kernel gives what the definition gives, over three ragged prefixes."""
    generator, held = torch.Generator().manual_seed(queries), torch.tensor(lengths)
    query = torch.randn(3, queries, heads, 16, generator=generator)
    keys, values = (torch.randn(3, 32, kv_heads, 16, generator=generator) for _ in range(2))
    plan = plan_attention(kernel, held, queries, 32, heads // kv_heads)
    rows = torch.arange(3)[:, None]
    out = cached_attention(plan, query, keys[rows, plan.slots], values[rows, plan.slots], keys, values)
    return torch.allclose(out, reference_attention(query, keys, values, held), atol=1e-5)


@pytest.mark.parametrize("queries", [1, 2, 8])
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 2), (4, 4)])
def test_masked_kernel_is_bottom_right_causal(queries: int, heads: int, kv_heads: int) -> None:
    assert is_the_reference("sdpa_masked", [0, 5, 17], queries, heads, kv_heads)


def test_content_past_the_visible_slots_has_no_influence() -> None:
    query = torch.randn(1, 3, 4, 8)
    keys, values = torch.randn(1, 20, 2, 8), torch.randn(1, 20, 2, 8)
    lengths = torch.tensor([6])
    before = reference_attention(query, keys, values, lengths)
    keys[:, 9:], values[:, 9:] = 1e3, -1e3
    assert torch.equal(reference_attention(query, keys, values, lengths), before)
    plan = plan_attention("sdpa_masked", lengths, 3, 20, 2)
    out = cached_attention(plan, query, keys[:, 6:9], values[:, 6:9], keys, values)
    assert torch.allclose(out, before, atol=1e-5)


def test_cpu_offers_the_masked_kernel_only() -> None:
    assert usable_kernels(CPU, torch.float32, 8, 2, 16) == ["sdpa_masked"]


def test_rotation_keeps_lengths_and_depends_on_relative_position_only() -> None:
    angles = rope_table(64, 16, CPU)
    x, y = torch.randn(1, 16), torch.randn(1, 16)
    near = (rotate(x, angles[3]) * rotate(y, angles[10])).sum()
    far = (rotate(x, angles[43]) * rotate(y, angles[50])).sum()
    assert torch.allclose(near, far, atol=1e-4)
    assert torch.allclose(rotate(x, angles[9]).norm(), x.norm(), atol=1e-5)


def flash_by_definition(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    plan: AttentionPlan,
    max_query: int,
    used: torch.Tensor,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What FlashAttention promises for packed queries [T, H, D] over used lengths: output, and log-sum-exp [H, T]."""
    out, lse = torch.empty_like(query), torch.empty(query.shape[1], query.shape[0])
    group = query.shape[1] // keys.shape[2]
    for sequence, (start, end) in enumerate(zip(plan.query_offsets[:-1], plan.query_offsets[1:], strict=True)):
        length = int(used[sequence])
        k, v = (cache[sequence, :length].repeat_interleave(group, dim=1) for cache in (keys, values))
        scores = torch.einsum("qhd,shd->hqs", query[start:end], k) / query.shape[-1] ** 0.5
        if causal:
            last = length - max_query + torch.arange(max_query)
            scores = scores.masked_fill(torch.arange(length) > last[:, None], float("-inf"))
        lse[:, start:end] = scores.logsumexp(-1)
        out[start:end] = torch.einsum("hqs,shd->qhd", scores.softmax(-1), v)
    return out, lse


@pytest.mark.parametrize("kernel", ["flash_varlen", "flash_prefix"])
@pytest.mark.parametrize("queries", [1, 4])
def test_flash_paths_pack_and_merge_rightly(kernel: str, queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_flash", flash_by_definition)
    assert is_the_reference(kernel, [9, 1, 20], queries, 8, 2)


def test_log_sum_exp_in_swapped_memory_order_is_read_by_its_own_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(
        query: torch.Tensor, keys: torch.Tensor, *rest: torch.Tensor | AttentionPlan | int | bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = flash_by_definition(query, keys, *rest)
        batch, kv_heads = query.shape[0], keys.shape[2]
        return out, lse.view(kv_heads, -1, batch).transpose(1, 2).contiguous().view(-1, batch)

    monkeypatch.setattr(attention, "_flash", swapped)
    assert "flash_prefix_swapped" in usable_kernels(CPU, torch.float32, 8, 2, 16)
    assert "flash_prefix" not in usable_kernels(CPU, torch.float32, 8, 2, 16)


def test_a_kernel_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_flash", flash_by_definition)
    right = [kernel for kernel in attention.KERNELS if kernel != "flash_prefix_swapped"]
    assert usable_kernels(CPU, torch.float32, 8, 2, 16) == right

    def scaled(*arguments: object) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = flash_by_definition(*arguments)
        return 1.1 * out, lse

    monkeypatch.setattr(attention, "_flash", scaled)
    assert usable_kernels(CPU, torch.float32, 8, 2, 16) == ["sdpa_masked"]
