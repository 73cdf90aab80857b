"""Matrix products that add their weight's gradient to the one that is there already.

autograd makes the gradient of every micro-batch in memory of its own and adds it to the sum in another pass. A product
can start from the sum instead (beta = 1 of a GEMM; Megatron-LM calls it gradient accumulation fusion): a third of that
traffic, and one rounding less in bfloat16.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from holdfast.trainer.model.functions import applied

_is_wanted = False  # not context variables: on a GPU backward runs in a thread of autograd's
_is_alone = False
_watchers: Mapping[int, Callable[[Tensor, Tensor], None]] = {}
_input_watchers: Mapping[int, Callable[[Tensor], None]] = {}
_is_first_pass = False


@contextmanager
def in_place(is_wanted: bool) -> Iterator[None]:
    """Whether backward, as long as this lasts, may add to gradients without autograd's knowledge: `torch.autograd.grad`
    then sees none of what was added, and hooks on parameters are called for it only if `hooks_hear`."""
    global _is_wanted
    before, _is_wanted = _is_wanted, is_wanted
    try:
        yield
    finally:
        _is_wanted = before


@contextmanager
def alone(is_alone: bool) -> Iterator[None]:
    """Whether products, as long as this lasts, have no earlier gradient to add to: torch's own are quicker then."""
    global _is_alone
    before, _is_alone = _is_alone, is_alone
    try:
        yield
    finally:
        _is_alone = before


@contextmanager
def watching(
    watchers: Mapping[int, Callable[[Tensor, Tensor], None]],
    inputs: Mapping[int, Callable[[Tensor], None]] | None = None,
) -> Iterator[None]:
    """As long as this lasts, backward hands what a matrix was multiplied with, (..., in), and the gradient of what came
    of it, (..., out), to its watcher, by id of the parameter: once for each product, recomputed or not. A product's
    input goes to the one in `inputs` when it is first computed, for matrices that have a watcher."""
    global _watchers, _input_watchers
    before = _watchers, _input_watchers
    _watchers, _input_watchers = watchers, inputs or {}
    try:
        yield
    finally:
        _watchers, _input_watchers = before


@contextmanager
def first_pass() -> Iterator[None]:
    """As long as this lasts, products are computed for the first time."""
    global _is_first_pass
    before, _is_first_pass = _is_first_pass, True
    try:
        yield
    finally:
        _is_first_pass = before


def is_alone() -> bool:
    """What `alone` says now."""
    return _is_alone


@functools.cache
def hooks_hear() -> bool:
    """Whether torch calls a parameter's hook even if its gradient was added in place. 2.13 does."""
    called: list[Tensor] = []
    weight = nn.Parameter(torch.ones(1, 1))
    weight.grad = torch.zeros(1, 1)
    weight.register_post_accumulate_grad_hook(called.append)  # type: ignore[no-untyped-call]  # torch's
    with in_place(True), alone(False), torch.enable_grad():
        multiply(torch.ones(1, 1), weight).sum().backward()  # type: ignore[no-untyped-call]  # torch's
    return bool(called)


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """`F.linear` of x (..., in) and weight (out, in)."""
    return multiply_all(x, weight)[0]


def multiply_all(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """`multiply` of one x and each of some weights. Backward adds up what they make of x as it makes it."""
    # What is not a parameter itself, such as a DTensor's local part, has its gradient added up elsewhere.
    is_watched = bool(_watchers) and any(id(weight) in _watchers for weight in weights)
    if (_is_alone and not is_watched) or not weights[0].is_leaf or is_dynamo_compiling():
        return tuple(map(F.linear, repeat(x), weights))
    products: tuple[Tensor, ...] = _multiply(x, *weights)
    return products


def weight_gradient(of_output: Tensor, x: Tensor) -> Tensor:
    """Of a product of x (..., in) that got the gradient `of_output` (..., out): (out, in)."""
    return of_output.flatten(0, -2).t() @ x.flatten(0, -2)


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *weights)
        ctx.parameters = weights  # recomputation hands back detached copies of what is saved
        if _input_watchers and _is_first_pass:
            for weight in weights:
                if (watcher := _input_watchers.get(id(weight))) is not None:
                    watcher(x)
        return tuple(map(F.linear, repeat(x), weights))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        needs_x, *needs = ctx.needs_input_grad
        of_x = None
        if needs_x:
            of_x = grads[0] @ weights[0]
            for grad, weight in zip(grads[1:], weights[1:], strict=True):
                of_x.view(-1, x.shape[-1]).addmm_(grad.flatten(0, -2), weight)
        if _watchers:
            for parameter, grad, is_needed in zip(ctx.parameters, grads, needs, strict=True):
                if is_needed and (watcher := _watchers.get(id(parameter))) is not None:
                    watcher(x, grad)
        return of_x, *[
            _added(parameter, grad, x) if is_needed else None
            for parameter, grad, is_needed in zip(ctx.parameters, grads, needs, strict=True)
        ]


def _added(parameter: Tensor, of_output: Tensor, x: Tensor) -> Tensor | None:
    """The gradient of a parameter, None once it is in the sum that is there."""
    total = parameter.grad
    if not _is_wanted or total is None or total.dtype != x.dtype:
        return weight_gradient(of_output, x)
    total.addmm_(of_output.flatten(0, -2).t(), x.flatten(0, -2))
    return None


_multiply = applied(_Multiply)
