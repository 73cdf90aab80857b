"""Autograd functions of our own, called as cheaply as can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def applied(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` without what torch does first, in eight calls of Python or more: it looks for functorch's
    transforms (vmap, jvp), of which training has none. Not for what `torch.compile` may trace."""
    call: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]  # of its C base
    return call
