"""What a layer's operations move: each reads its inputs once and writes its result once. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from holdfast.trainer.rows.row import Row

ROWS, WIDTH, OUT = 24, 16, 40
WORD = 4
HEAD = 8


def fusion() -> Iterator[Row]:
    """One kernel for a norm and one for GELU (MegaScale, 3.3), attention that never holds its matrix (FlashAttention),
    and a weight's gradient added up by its product."""
    n = ROWS * WIDTH
    # x, y, weight and bias, and each row's mean and deviation, which backward needs.
    yield from _moved("LayerNorm", _layer_norm, 2 * n + 2 * WIDTH + 2 * ROWS)
    yield from _moved("GELU", _gelu, 2 * n)
    yield from _moved("GELU, backward", _gelu_back, 3 * n)
    yield from _moved("a weight's gradient in the second micro-batch", _sum, n + ROWS * OUT + 2 * WIDTH * OUT)
    for length in (128, 512):
        expected = length * 3 * HEAD
        yield Row(f"numbers in attention's largest tensor, {length} positions", expected, _largest(length))
    for name, apart in _differences():
        yield Row(f"largest difference from its formula, {name}, float64", 0.0, apart, 1e-12)


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Counts what does more than look at a tensor in another way, and the bytes that it reads and writes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.count, self.num_bytes, self.largest = 0, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        read = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        held = {one.untyped_storage().data_ptr() for one in read}
        results = [one for one in tree_leaves(out) if isinstance(one, Tensor) and one.numel()]
        is_view = all(one.untyped_storage().data_ptr() in held for one in results) and not func._schema.is_mutable
        if not is_view and not func.__name__.startswith("empty"):
            self.count += 1
            self.num_bytes += sum(one.nbytes for one in (*read, *results))
            self.largest = max(self.largest, *(one.numel() for one in results))
        return out


def _moved(name: str, made: Callable[[], Callable[[], object]], numbers: int) -> Iterator[Row]:
    act = made()
    with _Kernels() as kernels:
        act()
    yield Row(f"kernels, {name}", 1, kernels.count)
    yield Row(f"bytes read and written, {name}, {ROWS} rows", WORD * numbers, kernels.num_bytes)


def _model(norm: str) -> Any:
    from holdfast.trainer.settings.config import ModelConfig

    return ModelConfig(d_model=WIDTH, norm=norm)  # type: ignore[arg-type]  # one of its two names


def _normed(norm: str, dtype: torch.dtype = torch.float32) -> Any:
    from holdfast.trainer.model import layers

    class Alone:
        """In the place of what makes a rank's parameters: a rank alone has all of each."""

        @staticmethod
        def constant(shape: tuple[int, ...], value: float) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.linspace(value, value + 1, *shape, dtype=dtype))

    return layers.norm(_model(norm), Alone())  # type: ignore[arg-type]


def _drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape, dtype=dtype, generator=generator)


def _layer_norm() -> Callable[[], object]:
    layer, x = _normed("layer"), _drawn(ROWS, WIDTH)
    return lambda: layer(x)


def _gelu() -> Callable[[], object]:
    from holdfast.trainer.model.layers import activation

    x = _drawn(ROWS, WIDTH)
    return lambda: activation(x)


def _gelu_back() -> Callable[[], object]:
    from holdfast.trainer.model.layers import activation

    x = _drawn(ROWS, WIDTH).requires_grad_()
    y, grad = activation(x), _drawn(ROWS, WIDTH)
    return lambda: torch.autograd.grad(y, x, grad)


def _sum() -> Callable[[], object]:
    from holdfast.trainer.model.accumulate import in_place, multiply

    weight = torch.nn.Parameter(_drawn(OUT, WIDTH))
    weight.grad = _drawn(OUT, WIDTH)
    y, grad = multiply(_drawn(ROWS, WIDTH), weight), _drawn(ROWS, OUT)

    def back() -> None:
        with in_place(True):
            torch.autograd.backward(y, grad)

    return back


def _largest(length: int) -> int:
    """Forward and back, for one head."""
    from holdfast.trainer.model.attention import attend

    mixed = _drawn(1, length, 1, 3 * HEAD).requires_grad_()
    with _Kernels() as kernels:
        seen = attend(mixed, 1, HEAD, None, 0)
        torch.autograd.grad(seen, mixed, torch.ones_like(seen))
    return int(kernels.largest)


def _differences() -> Iterator[tuple[str, float]]:
    """Results and gradients of functions of our own, from autograd's of their formulas."""
    from holdfast.trainer.model.layers import packed_activation

    eps = _model("rms").norm_eps
    layer = _normed("rms", torch.float64)

    def rms(x: Tensor, weight: Tensor) -> Tensor:
        scaled: Tensor = x / ((x * x).sum(-1, keepdim=True) / WIDTH + eps) ** 0.5 * weight
        return scaled

    def swiglu(x: Tensor) -> Tensor:
        gate, up = x[..., : WIDTH // 2], x[..., WIDTH // 2 :]
        swished: Tensor = gate / (1 + torch.exp(-gate)) * up
        return swished

    x = _drawn(ROWS, WIDTH, dtype=torch.float64).requires_grad_()
    yield "RMS norm", _apart(layer(x), rms(x, layer.weight), (x, layer.weight))
    yield "SwiGLU", _apart(packed_activation(x, "swiglu"), swiglu(x), (x,))


def _apart(found: Tensor, formula: Tensor, inputs: tuple[Tensor, ...]) -> float:
    grad = _drawn(*found.shape, dtype=torch.float64)
    pairs = [(found, formula)]
    pairs += zip(*(torch.autograd.grad(one, inputs, grad) for one in (found, formula)), strict=True)
    return max((one - other).detach().abs().max().item() for one, other in pairs)
