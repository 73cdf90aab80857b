"""A user's modules, optimizers and other stateful objects, as what a manager keeps.

Modules and optimizers go through torch's own `get_` and `set_` functions, which know FSDP2, DDP and DTensor, and give
parameters the same names whatever wraps them. So what was saved under one wrapper or world goes on under another.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from holdfast.base.errors import UsageError
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.checkpoint.format.worker_state import WORKERS, differing, is_own_name, of_worker, own_name
from holdfast.checkpoint.worker import optimizer_state
from holdfast.checkpoint.worker.plain_data import EntryPlace, Leaf, as_dict, check, join, name_all, named_child, split
from holdfast.checkpoint.worker.stage1 import Tensors
from holdfast.checkpoint.worker.torch_state import local_of, local_part, place, unkept
from holdfast.plan.tiles import TensorShard


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
    """Implements `manager.State`."""

    def __init__(self, shared: Mapping[str, Any], own: Mapping[str, Any], rank: int) -> None:
        """Raises UsageError for an object that has no state, or an optimizer of parameters that no module has."""
        if twice := shared.keys() & own.keys():
            raise UsageError(f"{min(twice)} is both shared and a worker's own")
        self._objects = {**shared, **own}
        for name, one in self._objects.items():
            if type(name) is not str or name == WORKERS or not name.isprintable():
                raise UsageError(f"state cannot be called {name!r}: name it otherwise, in plain text")
            if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")) and not isinstance(one, Tensor):
                raise UsageError(f"{name} is a {type(one).__qualname__}: it needs state_dict() and load_state_dict()")
        self._own, self._rank = frozenset(own), rank
        modules = {name: one for name, one in shared.items() if isinstance(one, nn.Module)}
        self._model_of = {
            name: _model_of(name, one, modules) for name, one in shared.items() if isinstance(one, Optimizer)
        }
        self._what: dict[str, tuple[GlobalTensor, TensorShard]] | None = None
        self._leaves: dict[str, list[Leaf]] = {}
        self.left_out: list[str] = []
        """What `put_back` could not give back in a world of another size, in words."""
        self.unmatched: list[str] = []
        """What only the checkpoint has, or only this run, in words."""

    @property
    def has_own(self) -> bool:
        """Whether this worker has something for itself: its generators, its place in the data."""
        return bool(self._own)

    @property
    def buffers(self) -> frozenset[str]:
        """Tensors that workers may have otherwise: DDP gives them those of the first in the next step."""
        self._split()
        return frozenset(
            leaf.name
            for name, one in self._objects.items()
            if isinstance(one, nn.Module)
            for leaf in self._leaves[name]
            if not isinstance(leaf.value, DTensor) and not _is_parameter(one, leaf.value)
        )

    def capture(self) -> tuple[Tensors, dict[str, Any]]:
        """Raises UsageError when other tensors are there than in the beginning."""
        values = self._split()
        if self._what is None:
            self._require_kept()
        found = {}
        for name, leaves in self._leaves.items():
            for leaf in leaves:
                full = self._full(name, leaf.name)
                found[full] = (*place(full, leaf.value), local_part(leaf.value))
        what = {name: (tensor, shard) for name, (tensor, shard, _) in found.items()}
        if self._what is None:
            self._what = what
        for name in sorted(what.keys() | self._what.keys()):
            if what.get(name) != self._what.get(name):
                raise UsageError(
                    f"{name} is not what it was when the Checkpointer was made: state keeps its names, shapes and types"
                )
        # A snapshot's shards are distinguished by their order, and the order of a user's dict may change.
        return {name: found[name] for name in self._what}, values

    def places(self) -> dict[str, str]:
        """Of what the workers share, by name: the exact place."""
        self._split()
        shared = (leaf for name, leaves in self._leaves.items() if name not in self._own for leaf in leaves)
        return {leaf.name: leaf.place.exact for leaf in shared}

    def problem(self, values: Mapping[str, Any]) -> str:
        """Why what a checkpoint has besides tensors cannot be put back, in words; "" when it can."""
        try:
            for worker in [values, *values.get(WORKERS, {}).values()]:
                for name, tree in worker.items():
                    if name != WORKERS:
                        self._read(name, tree, None)
        except (AttributeError, CheckpointError) as error:
            return str(error)
        return ""

    def put_back(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any], is_same_world: bool) -> None:
        changed = set() if is_same_world else differing(values) & (self._objects.keys() - self._own)
        self.left_out = [f"all take {name} of the first" for name in sorted(changed)]
        mine = of_worker(values if is_same_world else {k: v for k, v in values.items() if k != WORKERS}, self._rank)
        self.unmatched = [f"{name} is in the checkpoint only" for name in sorted(mine.keys() - self._objects.keys())]
        self._split()
        for name, one in self._objects.items():
            if name in self._own and not is_same_world:
                self.left_out.append(f"{name} of each begins anew")
                continue
            if name not in mine and name in self._own:
                self.unmatched.append(f"{name} is not in the checkpoint and begins anew")
                continue
            if name not in mine:
                raise UsageError(f"{name} is not in the checkpoint; it has {', '.join(sorted(mine))}")
            # A tensor that was kept and one that is there now are the same memory, except where a type makes new ones.
            full = {leaf.name: self._full(name, leaf.name) for leaf in self._leaves[name]}
            raws = {leaf.name: leaf.value for leaf in self._leaves[name]}
            whole = {at: _as_here(tensors[there], raws[at]) for at, there in full.items() if there in tensors}
            self._load(name, one, self._read(name, mine[name], whole))

    def _full(self, name: str, at: str) -> str:
        return own_name(self._rank, at) if name in self._own else at

    def _split(self) -> dict[str, Any]:
        """JSON by object; tensors into `_leaves`."""
        self._leaves = {name: [] for name in self._objects}
        values: dict[str, Any] = {}
        for name, leaves in self._leaves.items():
            raw, root = self._raw(name), EntryPlace.of(name)
            # Of modules and optimizers the names say what goes where: thousands of them have no room in a snapshot.
            if levels := self._levels(name):
                values[name] = _without_tensors(raw, root, leaves, levels)
            else:
                values[name] = split(raw, root, leaves)
        name_all([leaf for leaves in self._leaves.values() for leaf in leaves])
        return values

    def _levels(self, name: str) -> int:
        """In how many levels of dicts the tensors of an object are identified by their names alone."""
        return 1 if isinstance(self._objects[name], nn.Module) else 3 if name in self._model_of else 0

    def _require_kept(self) -> None:
        """Raise UsageError, naming it, for a tensor that could not be kept or filled again."""
        for name, leaves in self._leaves.items():
            is_in_place = isinstance(self._objects[name], Tensor | nn.Module)
            for leaf in leaves:
                if reason := unkept(leaf.value, is_in_place):
                    raise UsageError(f"{leaf.place} {reason}")
                if name not in self._own and is_own_name(leaf.name):
                    raise UsageError(f"{leaf.place} is called as one worker's own state is: name it otherwise")
                try:
                    place(leaf.name, leaf.value)
                except CheckpointError as error:
                    raise UsageError(str(error)) from None

    def _read(self, name: str, tree: Any, whole: Mapping[str, Tensor] | None) -> Any:
        """What `_split` made of an object's state, undone; without tensors only looked at. Raises CheckpointError."""
        one = self._objects.get(name)
        if one is not None and not _fits(tree, isinstance(one, Tensor | nn.Module), name in self._model_of):
            raise CheckpointError(f"what it has of {name} is that of something else")
        levels = self._levels(name) if one is not None else 0
        if not levels:
            return check(tree) if whole is None else join(tree, whole)
        kept = _joined(tree, levels, whole)
        if whole is not None:
            names = {leaf.place.exact: leaf.name for leaf in self._leaves[name]}
            _add_tensors(kept, self._raw(name), EntryPlace.of(name), lambda at: _found(whole, names[at.exact]))
        return kept

    def _raw(self, name: str) -> Any:
        one = self._objects[name]
        if isinstance(one, Tensor):
            return {"value": one}
        if isinstance(one, nn.Module):
            return dict(get_model_state_dict(one))
        if name in self._model_of:
            return optimizer_state.read(name, one, self._model_of[name])
        return one.state_dict()

    def _load(self, name: str, one: Any, state: Any) -> None:
        if isinstance(one, Tensor):
            here, there = local_of(one), local_of(state["value"]).detach()
            if here.data_ptr() != there.data_ptr():
                with torch.no_grad():
                    here.copy_(there)
            return  # else it is filled in place
        if isinstance(one, nn.Module):
            set_model_state_dict(one, state)
        elif name in self._model_of:
            optimizer_state.load(name, one, self._model_of[name], state)
        else:
            one.load_state_dict(state)


def _fits(tree: Any, is_dict: bool, is_optimizer: bool) -> bool:
    """Whether JSON looks like that of such an object. Only the others themselves know theirs."""
    if is_optimizer:
        groups = tree.get("param_groups") if isinstance(tree, dict) else None
        return isinstance(groups, list) and all(isinstance(g, dict) and g.get("$", "dict") == "dict" for g in groups)
    return isinstance(tree, dict) or not is_dict


def _without_tensors(value: Mapping[Any, Any], at: EntryPlace, leaves: list[Leaf], levels: int) -> dict[str, Any]:
    """`value` as JSON without the tensors in its outer levels of dicts, and without dicts there that are then empty.

    Raises UsageError, naming the entry, for what is not kept.
    """
    found: dict[Any, Any] = {}
    for key, one in value.items():
        here = named_child(at, key)
        if isinstance(one, Tensor) and not one.requires_grad and type(one) is not nn.Parameter:
            leaves.append(Leaf(here, one))
        elif levels > 1 and isinstance(one, Mapping):
            if inner := _without_tensors(one, here, leaves, levels - 1):
                found[key] = inner
        else:
            found[key] = split(one, here, leaves)
    return as_dict(found, at)


def _joined(tree: Any, levels: int, whole: Mapping[str, Tensor] | None) -> dict[Any, Any]:
    """Undo `_without_tensors`, but for the tensors. Raises CheckpointError."""
    if isinstance(tree, dict) and "$" in tree:
        check(tree)
        found = tree if whole is None else join(tree, whole)
        if not isinstance(found, dict):
            raise CheckpointError("state of a module or an optimizer that is none")
        return found
    if not isinstance(tree, dict):
        raise CheckpointError("state of a module or an optimizer that is none")
    found = {}
    for key, one in tree.items():
        if levels > 1 and isinstance(one, dict) and "$" not in one:
            found[key] = _joined(one, levels - 1, whole)
        elif whole is None:
            check(one)
        else:
            found[key] = join(one, whole)
    return found


def _add_tensors(
    kept: dict[Any, Any], here: Mapping[Any, Any], at: EntryPlace, get: Callable[[EntryPlace], Tensor]
) -> None:
    """Put a tensor into `kept` wherever there is one in `here`, and in `kept` nothing."""
    odd = {at.child(key).exact: key for key in kept if type(key) is not str}  # a NaN is equal to no other
    for key, one in here.items():
        if isinstance(one, Tensor | Mapping):
            place = at.child(key)
            there = odd.get(place.exact, key)
            if isinstance(one, Mapping):
                inner = kept.setdefault(there, {})
                if isinstance(inner, dict):
                    _add_tensors(inner, one, place, get)
            elif there not in kept:
                kept[key] = get(place)


def _found(whole: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in whole:
        raise CheckpointError(f"{name} is in this run's state, but not in the checkpoint")
    return whole[name]


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
