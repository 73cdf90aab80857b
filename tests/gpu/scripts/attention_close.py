"""Attention of a real GPU, with and without a window, beside the plain formula in float64. Prints a line of JSON."""

from __future__ import annotations

import json
import time

import torch
from torch import Tensor

from holdfast.trainer.model.attention import allowed, attend, rotate, rotations

BATCH, LENGTH, GROUPS, WIDTH = 2, 512, 2, 64


def plain(mixed: Tensor, heads: int, rotation: Tensor, window: int) -> Tensor:
    split = mixed.view(BATCH, LENGTH, GROUPS, heads + 2, WIDTH)
    turned = rotate(split[:, :, :, : heads + 1], rotation[:, :LENGTH, None, None])
    q = turned[:, :, :, :heads].reshape(BATCH, LENGTH, GROUPS * heads, WIDTH).transpose(1, 2)
    k, v = (x.transpose(1, 2).repeat_interleave(heads, 1) for x in (turned[:, :, :, heads], split[:, :, :, heads + 1]))
    mask = allowed(LENGTH, window or LENGTH, mixed.device)
    scores = (q @ k.transpose(-1, -2) / WIDTH**0.5).masked_fill(~mask, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(BATCH, LENGTH, GROUPS, heads * WIDTH)


def main() -> None:
    device = torch.device("cuda", 0)
    torch.use_deterministic_algorithms(True)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        for heads, windows in ((1, (0,)), (4, (0, 100))):
            for window in windows:  # each of them is compiled
                torch.manual_seed(0)
                mixed = torch.randn(BATCH, LENGTH, GROUPS, (heads + 2) * WIDTH, device=device).to(dtype)
                weight = torch.randn(BATCH, LENGTH, GROUPS, heads * WIDTH, device=device).double()
                fine = mixed.double().requires_grad_()
                expected = plain(fine, heads, rotations(LENGTH, WIDTH, dtype=torch.float64).to(device), window)
                (expected * weight).sum().backward()
                outcomes = []
                for _ in range(2):
                    begun = time.perf_counter()
                    own = mixed.clone().requires_grad_()
                    seen = attend(own, heads, WIDTH, rotations(LENGTH, WIDTH).to(device), window)
                    (seen.double() * weight).sum().backward()
                    assert own.grad is not None
                    torch.cuda.synchronize()
                    outcomes.append((seen.detach(), own.grad, time.perf_counter() - begun))
                one, other = outcomes
                assert fine.grad is not None
                found.append({
                    "dtype": str(dtype), "heads": heads, "window": window,
                    "first_s": one[2], "again_ms": other[2] * 1e3,
                    "forward": _far(one[0], expected), "backward": _far(one[1], fine.grad),
                    "same_bits": torch.equal(one[0], other[0]) and torch.equal(one[1], other[1]),
                })  # fmt: skip
    print(json.dumps({"cases": found}))


def _far(one: Tensor, expected: Tensor) -> float:
    return float((one.double() - expected.detach()).norm() / expected.detach().norm())


if __name__ == "__main__":
    main()
