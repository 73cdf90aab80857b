"""Sums of tensor parallelism beside the computation of another part of the micro-batch, by the real function in virtual
time."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.trainer.rows.row import Row

BATCH, LENGTH, WIDTH = 12, 4, 8
RANKS, RANK = 4, 1
EXACT = 1e-6
"""Of a millisecond, for sums of floats."""


def parts() -> Iterator[Row]:
    """K n g + c for n halves of layers in K parts, each of g ms and a sum of c <= g, instead of K n (g + c).

    Back it is twice the computation: of the input and of the weight (Merak, Lai et al., TPDS 2023). With c > g the link
    is never idle from the first sum on: K n c + g.
    """
    for n, k, g, c in (
        (4, 2, 50.0, 40.0),
        (4, 2, 50.0, 50.0),
        (8, 2, 30.0, 10.0),
        (6, 3, 20.0, 35.0),
        (4, 2, 20.0, 60.0),
    ):
        forward, backward, sent, apart = _measured(n, k, g, c)
        case = f"n {n}, K {k}, g {g:g}, c {c:g}"
        yield Row(f"forward, {case}", k * n * max(g, c) + min(g, c), forward, EXACT)
        yield Row(f"backward, {case}", k * n * max(2 * g, c) + min(2 * g, c), backward, EXACT)
        forward, backward, whole, _ = _measured(n, 1, k * g, k * c)
        yield Row(f"forward of the whole, {case}", k * n * (g + c), forward, EXACT)
        yield Row(f"bytes sent more than for the whole, {case}", 0, sent - whole)
        yield Row(f"largest difference from one process, {case}", 0.0, apart, 1e-12)


def _measured(n: int, k: int, g: float, c: float) -> tuple[float, float, int, float]:
    """Virtual time of forward and backward, bytes sent in both, and how far results are from those of one process."""
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    from holdfast.trainer.model.sub_batches import Section, pipelined
    from holdfast.trainer.rows.layer.mirrored import Clock, Mirrored

    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    def section(weight: nn.Parameter, scale: nn.Parameter) -> Section:
        return Section(lambda x: x * scale, lambda h: F.linear(h, weight), [scale, weight])

    x = drawn(BATCH, LENGTH, WIDTH).requires_grad_()
    weights = [nn.Parameter(drawn(WIDTH, WIDTH) / RANKS / WIDTH) for _ in range(n)]
    scales = [nn.Parameter(drawn(WIDTH)) for _ in range(n)]
    part = BATCH // k * LENGTH * WIDTH
    clock = Clock(2 * part * WIDTH / g)
    group = Mirrored(RANK, RANKS, clock, 2 * (RANKS - 1) / RANKS * part * x.itemsize / c)
    with clock:
        out = pipelined(x, [section(*pair) for pair in zip(weights, scales, strict=True)], group, k)
        forward = clock.now
        grad = drawn(*out.shape)
        found = torch.autograd.grad(out, [x, *weights, *scales], grad)
        backward = clock.now - forward
    # As one process has it, where every rank's share is a copy of this one's: RANKS times this share is the sum. A
    # weight's gradient is of one rank's share.
    plain = x
    for weight, scale in zip(weights, scales, strict=True):
        plain = plain + RANKS * F.linear(plain * scale, weight)
    of_x, *others = torch.autograd.grad(plain, [x, *weights, *scales], grad)
    others[:n] = [of_weight / RANKS for of_weight in others[:n]]
    pairs = zip((out, *found), (plain, of_x, *others), strict=True)
    return forward, backward, group.sent, max((a - b).detach().abs().max().item() for a, b in pairs)
