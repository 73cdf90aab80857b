"""An optimizer's state under its parameters' names, and how it comes back exactly.

torch's `get_optimizer_state_dict` gives parameters the same names whatever wraps them. Its way back,
`Optimizer.load_state_dict`, casts tensors to the parameter's type, makes `str(generator)` of a text, and turns each
dict into a plain one. So after it has run, what was kept replaces what it made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.optim import Optimizer

from holdfast.base.errors import UsageError


def read(name: str, optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """Its state by parameter, and its groups without the parameters.

    Raises UsageError, naming the entry, for state that belongs to no parameter.
    """
    if _is_plain(optimizer, "state_dict"):
        params = {id(param) for group in optimizer.param_groups for param in group["params"]}
        for key in optimizer.state:
            if id(key) not in params:
                what = "a tensor that" if isinstance(key, Tensor) else f"{key!r:.100}, which"
                raise UsageError(f"{name}.state has an entry for {what} is none of its parameters: keep that elsewhere")
    found = _by_name(optimizer, model)
    for param, state in found["state"].items():
        if not isinstance(state, Mapping):
            raise UsageError(f"{name}.state.{param} is a {type(state).__qualname__}: a parameter's state is a dict")
    groups = [{key: v for key, v in group.items() if key != "params"} for group in found["param_groups"]]
    return {"state": found["state"], "param_groups": groups}


def load(name: str, optimizer: Optimizer, model: nn.Module, state: Mapping[str, Any]) -> None:
    """Put back what `read` gave. Raises UsageError when the optimizer has another number of groups."""
    ours = _by_name(optimizer, model)
    if len(ours["param_groups"]) != len(state["param_groups"]):
        raise UsageError(f"{name} has {len(ours['param_groups'])} groups, {len(state['param_groups'])} were kept")
    # The parameters of a worker are those it has now: under pipelining others than when it was kept.
    pairs = zip(ours["param_groups"], state["param_groups"], strict=True)
    groups = [{**kept, "params": group["params"]} for group, kept in pairs]
    kept = {param: {**now, **state["state"].get(param, {})} for param, now in ours["state"].items()}
    exact = _held(optimizer, ours)
    given = {param: _for_torch(one) if param in exact else one for param, one in kept.items()}
    set_optimizer_state_dict(model, optimizer, cast(Any, {"state": given, "param_groups": groups}))
    for at, (param, held) in exact.items():
        # A step goes where a fused optimizer needs it, which the groups decide that have just come.
        step = optimizer.state[param].get("step")
        held.clear()
        held.update(kept[at])
        if isinstance(step, Tensor):
            held["step"] = step
        optimizer.state[param] = held


def _by_name(optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    return cast(dict[str, Any], get_optimizer_state_dict(model, optimizer))


def _is_plain(optimizer: Optimizer, method: str) -> bool:
    """Whether an optimizer has torch's own `state_dict`, or `load_state_dict`, and nothing hooked into it."""
    if getattr(getattr(optimizer, method), "__func__", None) is not getattr(Optimizer, method):
        return False
    hooks = (f"_optimizer_{method}_pre_hooks", f"_optimizer_{method}_post_hooks")
    return not any(getattr(optimizer, one, None) for one in hooks)


def _held(optimizer: Optimizer, ours: Mapping[str, Any]) -> dict[str, tuple[Any, dict[Any, Any]]]:
    """By name, the parameter and the very dict in which the optimizer has its state. None where it has its own way."""
    if not _is_plain(optimizer, "state_dict") or not _is_plain(optimizer, "load_state_dict"):
        return {}
    found = {}
    for named, group in zip(ours["param_groups"], optimizer.param_groups, strict=True):
        for at, param in zip(named["params"], group["params"], strict=False):
            held = optimizer.state.get(param)
            if held is not None and held is ours["state"].get(at):
                found[at] = (param, held)
    return found


def _for_torch(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """What torch's cast can take: it fails at arrays. Optimizers look into it, for a step for one."""
    return {key: one for key, one in state.items() if one is None or isinstance(one, Tensor | bool | int | float)}
