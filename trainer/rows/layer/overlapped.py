"""Transfers of tensor parallelism beside the products that need them, by the real functions in virtual time."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.trainer.rows.row import Row

BATCH, LENGTH, WIDE, NARROW = 2, 32, 12, 8
"""Sizes of the activations; the length is the whole sequence's."""
RANKS, RANK = 4, 1
EXACT = 1e-6
"""Of a millisecond, for sums of floats."""


def chunks() -> Iterator[Row]:
    """c / K + (K - 1) / K max(c, g) + g / K for a transfer of c ms and a product of g in K chunks, instead of c + g.

    It follows from MegaScale, 3.2, figure 3. Backward there is the weight's gradient too, another g that needs no
    transfer: behind a scatter it hides what is left of one, behind a gather it comes last.
    """
    for c, g in ((200.0, 200.0), (100.0, 300.0), (300.0, 100.0)):
        for k in (4, 1, 2, 8):
            takes = c / k + (k - 1) / k * max(c, g) + g / k
            for name, back in (("gather", max(takes, 2 * g)), ("scatter", takes + g)):
                case = f"c {c:g}, g {g:g}, K {k}"
                forward, backward, sent, apart = _measured(name, c, g, k)
                yield Row(f"{name} and product, {case}", takes, forward, EXACT)
                yield Row(f"backward of it, {name}, {case}", back, backward, EXACT)
                if (c, k) == (200.0, 4):
                    yield Row(f"bytes sent both ways, {name}, tp {RANKS}, K {k}", _piece(), sent)
                    yield Row(f"largest difference from one product, {name}, K {k}", 0.0, apart, 1e-12)


def _piece() -> int:
    """Bytes of a rank's positions for each of its peers, forward and back, in float64."""
    return 2 * (RANKS - 1) * BATCH * (LENGTH // RANKS) * NARROW * 8


def _measured(name: str, c: float, g: float, k: int) -> tuple[float, float, int, float]:
    """Virtual time of forward and backward, bytes sent in both, and how far results are from those of one product."""
    import torch
    import torch.nn.functional as F

    from holdfast.trainer.model.overlap import gather_multiply, multiply_scatter
    from holdfast.trainer.rows.layer.mirrored import Clock, Mirrored

    # Between layers an activation has NARROW, between the matrices of one WIDE.
    is_gather = name == "gather"
    shape = (BATCH, LENGTH // RANKS, NARROW) if is_gather else (BATCH, LENGTH, WIDE)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
    sizes = (WIDE, NARROW) if is_gather else (NARROW, WIDE)
    weight = torch.randn(sizes, dtype=torch.float64, generator=generator).requires_grad_()
    clock = Clock(2 * BATCH * LENGTH * WIDE * NARROW / g)
    group = Mirrored(RANK, RANKS, clock, _piece() / 2 / c)
    with clock:
        out = gather_multiply(x, [weight], group, k)[0] if is_gather else multiply_scatter(x, weight, group, k)
        forward = clock.now
        grad = torch.randn(out.shape, dtype=torch.float64, generator=generator)
        of_x, of_weight = torch.autograd.grad(out, (x, weight), grad)
        backward = clock.now - forward
    # As one process has it, where every rank's part is a copy of this one's.
    if is_gather:
        whole = torch.cat([x] * RANKS, dim=1)
        plain = F.linear(whole, weight)
        mine = RANKS * (grad @ weight).chunk(RANKS, dim=1)[RANK]
        its = torch.einsum("bso,bsi->oi", grad, whole)
    else:
        plain = RANKS * F.linear(x, weight).chunk(RANKS, dim=1)[RANK]
        every = torch.cat([grad] * RANKS, dim=1)
        mine, its = every @ weight, torch.einsum("bso,bsi->oi", every, x)
    pairs = ((out, plain), (of_x, mine), (of_weight, its))
    return forward, backward, group.sent, max((a - b).detach().abs().max().item() for a, b in pairs)
