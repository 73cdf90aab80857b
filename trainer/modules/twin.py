"""A module's twin on a device, of fake tensors: traced there it takes no memory of the device and computes nothing.

To forward they are tensors of the device, so a branch on `x.device` goes the way that it goes in training. What
`torch.export` traces are fake tensors in any case: here the module has them from the start.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from holdfast.trainer.modules.trace import Trace


def twin(module: nn.Module, shape: tuple[int, ...], device: torch.device) -> tuple[nn.Module, Tensor]:
    """A copy of `module` on `device` and tokens of `shape` for it, all without values. Parameters and buffers that are
    one tensor in `module` are one here.

    Raises what copying raises: a module may hold what cannot be copied.
    """
    fakes = FakeTensorMode(shape_env=ShapeEnv(tracked_fakes=[]))  # export asks for the list
    known: dict[int, Any] = {}
    with fakes:
        for tensor in (*module.parameters(), *module.buffers()):
            empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
            if isinstance(tensor, nn.Parameter):
                empty = nn.Parameter(empty, tensor.requires_grad)
            known[id(tensor)] = empty
        tokens = torch.zeros(shape, dtype=torch.int64, device=device)
    return copy.deepcopy(module, known), tokens


def land(trace: Trace, module: nn.Module) -> Trace | None:
    """The trace of a twin as one of `module`. None where it reads a tensor that `module` has no name for and that has
    no values. Graphs of blocks in forward, as of `with torch.no_grad()`, read none: export hands them all in."""
    names = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    for node in trace.root.graph.nodes:
        is_nameless = node.op == "get_attr" and node.target not in names
        if is_nameless and isinstance(_attribute(trace.root, str(node.target)), FakeTensor):
            return None
    return replace(trace, module=module)


def _attribute(root: fx.GraphModule, target: str) -> Any:
    found: Any = root
    for name in target.split("."):
        found = getattr(found, name, None)
    return found
