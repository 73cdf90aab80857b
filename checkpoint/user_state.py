"""A user's modules, optimizers and other stateful objects, as what a keeper keeps.

Modules and optimizers go through torch's own `get_` and `set_` functions, which know FSDP2, DDP and DTensor, and give
parameters the same names whatever wraps them. So what was saved under one wrapper or world goes on under another.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from holdfast.checkpoint.plain_data import join, split
from holdfast.checkpoint.stage1 import Tensors
from holdfast.checkpoint.tiles import Box, GlobalTensor
from holdfast.checkpoint.torch_state import place
from holdfast.checkpoint.worker_state import WORKERS, differing, of_worker, own_name
from holdfast.errors import UsageError


class Randomness:
    """The generators of this process: Python's, numpy's, torch's on the CPU and on this GPU."""

    def state_dict(self) -> dict[str, Any]:
        version, words, gauss = random.getstate()
        python = [version, np.array(words, dtype=np.uint32), gauss]
        found: dict[str, Any] = {"python": python, "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            found["cuda"] = torch.cuda.get_rng_state()
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words.tolist()), gauss))
        np.random.set_state(state["numpy"])
        torch.set_rng_state(state["cpu"])
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])


class UserState:
    """Implements `keeper.State`."""

    def __init__(self, shared: Mapping[str, Any], own: Mapping[str, Any], rank: int) -> None:
        """Raises UsageError for an object that has no state, or an optimizer of parameters that no module has."""
        if twice := shared.keys() & own.keys():
            raise UsageError(f"{min(twice)} is both shared and a worker's own")
        self._objects = {**shared, **own}
        self._own, self._rank = frozenset(own), rank
        modules = {name: one for name, one in shared.items() if isinstance(one, nn.Module)}
        self._model_of = {
            name: _model_of(name, one, modules) for name, one in shared.items() if isinstance(one, Optimizer)
        }
        for name, one in self._objects.items():
            if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")) and not isinstance(one, Tensor):
                raise UsageError(f"{name} is a {type(one).__qualname__}: it needs state_dict() and load_state_dict()")
        self._what: dict[str, tuple[GlobalTensor, Box]] | None = None
        self._raws: dict[str, Tensor] = {}
        self.left_out: list[str] = []
        """What `put_back` could not give back, in words."""

    @property
    def buffers(self) -> frozenset[str]:
        """Tensors that workers may have otherwise: DDP gives them those of the first in the next step."""
        return frozenset(
            f"{name}.{key}"
            for name, one in self._objects.items()
            if isinstance(one, nn.Module)
            for key, value in self._raw(name).items()
            if isinstance(value, Tensor) and not isinstance(value, DTensor) and not _is_parameter(one, value)
        )

    def capture(self) -> tuple[Tensors, dict[str, Any]]:
        """Raises UsageError when other tensors are there than in the beginning."""
        found, values = self._split()
        what = {name: (tensor, box) for name, (tensor, box, _) in found.items()}
        if self._what is None:
            self._what = what
        for name in sorted(what.keys() | self._what.keys()):
            if what.get(name) != self._what.get(name):
                raise UsageError(
                    f"{name} is not what it was when the Checkpointer was made: state keeps its names, shapes and types"
                )
        return found, values

    def put_back(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any], is_same_world: bool) -> None:
        changed = set() if is_same_world else differing(values) & (self._objects.keys() - self._own)
        self.left_out = [f"all take {name} of the first" for name in sorted(changed)]
        mine = of_worker(values if is_same_world else {k: v for k, v in values.items() if k != WORKERS}, self._rank)
        self._split()
        for name, one in self._objects.items():
            if name in self._own and not is_same_world:
                self.left_out.append(f"{name} of each begins anew")
                continue
            if name not in mine and name in self._own:
                continue  # it was not kept then
            # A tensor that was kept and one that is there now are the same memory, except where a type makes new ones.
            named = {at: self._full(name, at) for at in self._raws if at.startswith(f"{name}.")}
            whole = {at: _as_here(tensors[full], self._raws[at]) for at, full in named.items() if full in tensors}
            if name not in mine:
                raise UsageError(f"{name} is not in the checkpoint; it has {', '.join(sorted(mine))}")
            kept = join(mine[name], whole)
            if isinstance(one, nn.Module):
                kept = _with_tensors(kept, self._raw(name), name, whole)
            elif name in self._model_of:
                kept["state"] = _with_tensors(kept["state"], self._raw(name)["state"], f"{name}.state", whole)
            self._load(name, one, kept)

    def _full(self, name: str, at: str) -> str:
        return own_name(self._rank, at) if name in self._own else at

    def _split(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Places of local tensors by name, and JSON by object."""
        self._raws = {}
        values, found = {}, {}
        for name in self._objects:
            raws: dict[str, Tensor] = {}
            tree = split(self._raw(name), name, raws)
            # Of modules and optimizers the names say what goes where: thousands of them have no room in a snapshot.
            if isinstance(self._objects[name], nn.Module):
                tree = _without_tensors(tree)
            elif name in self._model_of:
                tree["state"] = _without_tensors(tree["state"])
            values[name] = tree
            for at, value in raws.items():
                local = value.to_local() if isinstance(value, DTensor) else value
                full = self._full(name, at)
                found[full] = (*place(full, value), local.detach())
            self._raws |= raws
        return found, values

    def _raw(self, name: str) -> Any:
        one = self._objects[name]
        if isinstance(one, Tensor):
            return {"value": one}
        if isinstance(one, nn.Module):
            return dict(get_model_state_dict(one))
        if name in self._model_of:
            found = cast(dict[str, Any], get_optimizer_state_dict(self._model_of[name], one))
            groups = [{key: v for key, v in group.items() if key != "params"} for group in found["param_groups"]]
            return {"state": found["state"], "param_groups": groups}
        return one.state_dict()

    def _load(self, name: str, one: Any, state: Any) -> None:
        if isinstance(one, Tensor):
            return  # filled in place
        if isinstance(one, nn.Module):
            set_model_state_dict(one, state)
        elif name in self._model_of:
            model = self._model_of[name]
            ours = cast(dict[str, Any], get_optimizer_state_dict(model, one))
            if len(ours["param_groups"]) != len(state["param_groups"]):
                raise UsageError(
                    f"{name} has {len(ours['param_groups'])} groups, {len(state['param_groups'])} were kept"
                )
            pairs = zip(ours["param_groups"], state["param_groups"], strict=True)
            # The parameters of a worker are those it has now: under pipelining others than when it was kept.
            groups = [{**kept, "params": group["params"]} for group, kept in pairs]
            kept = {fqn: {**ours["state"].get(fqn, {}), **state["state"].get(fqn, {})} for fqn in ours["state"]}
            set_optimizer_state_dict(model, one, cast(Any, {"state": kept, "param_groups": groups}))
        else:
            one.load_state_dict(state)


def _without_tensors(tree: dict[str, Any]) -> dict[str, Any]:
    """What `split` made, without the places of tensors, and without what is then empty."""
    found = {}
    for key, one in tree.items():
        if isinstance(one, dict) and one.get("$") != "tensor":
            one = _without_tensors(one) if "$" not in one else one
            if one:
                found[key] = one
        elif not isinstance(one, dict):
            found[key] = one
    return found


def _with_tensors(kept: Mapping[str, Any], here: Mapping[str, Any], path: str, whole: Mapping[str, Tensor]) -> Any:
    """`kept` with a tensor wherever there is one in `here`, which is what `kept` was made of."""
    found = dict(kept)
    for key, one in here.items():
        if isinstance(one, Tensor):
            found[key] = whole[f"{path}.{key}"]
        elif isinstance(one, Mapping):
            found[key] = _with_tensors(kept.get(key, {}), one, f"{path}.{key}", whole)
    return found


def _as_here(value: Tensor, raw: Tensor) -> Tensor:
    """The restored local part, as what `raw` is: a DTensor where that is one."""
    if not isinstance(raw, DTensor):
        return value
    return DTensor.from_local(
        value, raw.device_mesh, raw.placements, run_check=False, shape=raw.shape, stride=raw.stride()
    )


def _is_parameter(module: nn.Module, value: Tensor) -> bool:
    return any(value.data_ptr() == one.data_ptr() for one in module.parameters() if not isinstance(one, DTensor))


def _model_of(name: str, optimizer: Optimizer, modules: Mapping[str, nn.Module]) -> nn.Module:
    wanted = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for module in modules.values():
        if wanted <= {id(p) for p in module.parameters()}:
            return module
    together = nn.ModuleDict({key.replace(".", "_"): module for key, module in modules.items()})
    if wanted <= {id(p) for p in together.parameters()}:
        return together
    raise UsageError(f"{name} has parameters of no module in the state: add the model that it updates")
