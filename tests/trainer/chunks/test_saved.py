"""What graphs keep for backward is counted while they keep it."""

from __future__ import annotations

from collections import Counter

import torch

from holdfast.trainer.chunks.device import ACTIVATIONS, key_of
from holdfast.trainer.chunks.saved import SavedOnArena


class Arena:
    """Of a device; nothing else is counted."""

    def __init__(self) -> None:
        self.used: Counter[str] = Counter()
        self.takes = 0

    def take(self, kind: str, num_bytes: int) -> None:
        self.used[kind] += num_bytes
        self.takes += 1

    def release(self, kind: str, num_bytes: int) -> None:
        self.used[kind] -= num_bytes
        assert self.used[kind] >= 0


def counting(*left_out: torch.Tensor) -> tuple[Arena, SavedOnArena]:
    arena = Arena()
    return arena, SavedOnArena(arena, lambda: {key_of(one) for one in left_out})  # type: ignore[arg-type]


def test_one_memory_counts_once_and_until_the_last_graph_lets_go() -> None:
    """exp keeps its result; a product keeps both factors, which here are that result again."""
    x = torch.ones(6, requires_grad=True)
    arena, saved = counting()
    with saved:
        y = x.exp()
        assert arena.used == {ACTIVATIONS: 6 * 4}
        z = y * y
    assert (arena.used, arena.takes) == ({ACTIVATIONS: 6 * 4}, 1)
    z.sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, 2 * torch.exp(torch.tensor(2.0)).expand(6))
    del y, z
    assert arena.used[ACTIVATIONS] == 0


def test_all_of_a_memory_counts_if_part_of_it_is_kept() -> None:
    x = torch.ones(4, 8, requires_grad=True)
    arena, saved = counting()
    with saved:
        y = x.exp()
        z = y[1].sin()  # keeps a view
    del y
    assert arena.used[ACTIVATIONS] == 4 * 8 * 4
    del z
    assert arena.used[ACTIVATIONS] == 0


def test_parameters_and_tokens_do_not_count() -> None:
    table, tokens = torch.ones(5, 3, requires_grad=True), torch.tensor([1, 4])
    arena, saved = counting(table)
    with saved:
        y = torch.nn.functional.embedding(tokens, table).sum() + (table * table).sum()
    assert arena.takes == 0
    y.backward()
    outside = (torch.ones(2, requires_grad=True)).exp()
    assert (arena.takes, outside.shape) == (0, (2,))
