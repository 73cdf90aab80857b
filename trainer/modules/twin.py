"""A module's twin on meta tensors: it can be traced without the memory of the module, and without computing anything.

The trace names the meta device where the module asked for the device of its inputs; `land` puts the real one there.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from holdfast.trainer.modules.trace import Trace

META = torch.device("meta")


def twin(module: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers have no values. Those that are one tensor in `module` are one here.

    Raises what copying raises: a module may hold what cannot be copied.
    """
    known: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        empty = tensor.detach().to(META)
        if isinstance(tensor, nn.Parameter):
            empty = nn.Parameter(empty, tensor.requires_grad)
        known[id(tensor)] = empty
    return copy.deepcopy(module, known)


def land(trace: Trace, module: nn.Module, device: torch.device) -> Trace | None:
    """The trace of a twin as one of `module` on `device`. None where forward made a tensor out of numbers on the device
    of its inputs: the twin's has no values."""
    names = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    for node in trace.root.graph.nodes:
        if node.op == "get_attr" and node.target not in names and _is_empty(trace.root, str(node.target)):
            return None
        node.args, node.kwargs = pytree.tree_map_only(
            torch.device, lambda one: device if one == META else one, (node.args, node.kwargs)
        )
    return replace(trace, module=module)


def _is_empty(root: fx.GraphModule, target: str) -> bool:
    found: Any = root
    for name in target.split("."):
        found = getattr(found, name, None)
    return isinstance(found, Tensor) and found.is_meta
