"""Whether this torch can take a backward in two halves, which some schedules do: inputs first, weights later."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from holdfast.plan.schedules.table import SCHEDULES
from holdfast.trainer.model import accumulate
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError


def check(config: Config) -> None:
    """Raise ConfigError where the schedule needs what this torch cannot do. A module of the user's may do without."""
    if SCHEDULES[config.parallel.schedule].halves_backward and not config.module.build and not goes_through_functions():
        raise ConfigError(
            f"parallel.schedule = {config.parallel.schedule} takes each backward in two halves, and torch "
            f"{torch.__version__} cannot do that through an autograd.Function, of which the model is made: install "
            "torch 2.13, or set parallel.schedule = 1f1b"
        )


@functools.cache
def goes_through_functions() -> bool:
    """Whether the halves of a backward through an autograd.Function with two outputs give its gradients.

    2.13 does it. 2.11 raises, and would add up gradients of different outputs (PyTorch issue 166577).
    """
    x = torch.ones(1, 1, requires_grad=True)
    weights = [nn.Parameter(torch.ones(1, 1)) for _ in range(2)]
    with torch.enable_grad(), accumulate.alone(False), accumulate.in_place(False):
        one, other = accumulate.multiply_all(x, *weights)
        loss = (2 * one + 3 * other).sum()
        try:
            (of_x,), groups = stage_backward_input([loss], None, [x], iter(weights))
            stage_backward_weight(iter(weights), groups)
        except Exception:  # what it raises depends on the version
            return False
    return [None if grad is None else grad.item() for grad in (of_x, *(w.grad for w in weights))] == [5, 2, 3]
