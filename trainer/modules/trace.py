"""A module as a list of operations, without computing anything: `torch.export` on fake tensors.

Operations are those that the module itself would call, so a graph of them computes what the module does, bit for bit,
with the same way back. Unless the module asks for others when it is exported, as transformers' Llama: keys and values
of grouped heads are repeated before attention, and their gradients are summed outside its kernel.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from holdfast.base.plain import one_line
from holdfast.trainer.modules.aliases import Aliases
from holdfast.trainer.modules.cuts import Operation

_ONLY_CHECKS = {"_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range_for_size"}


class CannotTrace(ValueError):
    """The module's forward cannot become a list of operations; the text says why, and what would do instead."""


@dataclass(frozen=True)
class Trace:
    """What a module does with inputs of given shapes."""

    module: nn.Module
    root: fx.GraphModule
    """Holds the tensors that the trace reads and the module has no name for."""
    out_spec: pytree.TreeSpec
    """How the module's output is put together."""
    inputs: list[fx.Node]
    operations: list[fx.Node]
    """In order, the inputs first. Those that need neither inputs nor parameters are `constants` instead."""
    constants: list[fx.Node]
    results: list[fx.Node]
    parameters: frozenset[str]
    """Names of those that get a gradient. The others stay as they are."""
    with_gradient: frozenset[fx.Node]
    flops: float
    """Of all operations together, forward."""
    facts: list[Operation]
    """Of each of `operations`."""

    def results_of(self, tree: Any) -> Any:
        """The module's output, put together from what `results` came to."""
        return pytree.tree_unflatten(list(tree), self.out_spec)


def trace(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    pick: Callable[[Any], Tensor] | None = None,
    balance: str = "flops",
) -> Trace:
    """Trace `module` on inputs of the shapes of `args`. Raises CannotTrace.

    `pick` chooses the one result that is wanted out of the module's output; what it raises, is raised. `balance`: what
    the costs of operations count, flops or parameters.
    """
    with _quiet():
        try:
            exported = torch.export.export(module, tuple(args), dict(kwargs or {}), strict=False)
            root = exported.module(check_guards=False)
        except Exception as error:
            raise CannotTrace(_reason(error)) from error
    assert isinstance(root, fx.GraphModule)
    out_spec = exported.call_spec.out_spec
    names = _own_names(module)
    output = root.graph.output_node()
    results = list(output.args[0])  # type: ignore[arg-type]  # export always gives a tuple
    if pick is not None:
        values = [_value(node) for node in results]
        wanted = pick(pytree.tree_unflatten(values, out_spec))
        results = [node for node, value in zip(results, values, strict=True) if value is wanted][:1]
        output.args = (tuple(results),)
    for graph in _graphs(root):
        checks = [node for node in graph.graph.nodes if node.op == "call_function" and _name(node) in _ONLY_CHECKS]
        for node in checks:
            graph.graph.erase_node(node)
        if checks:
            graph.recompile()
    for node in root.graph.nodes:
        if node.op == "get_attr" and node.target in names:
            node.target = names[node.target]
    root.graph.eliminate_dead_code()
    return _found(module, root, out_spec, results, balance)


def _graphs(root: fx.GraphModule) -> list[fx.GraphModule]:
    """The whole one first, then those of blocks in forward with a mode of their own, as torch.no_grad()."""
    return [one for one in root.modules() if isinstance(one, fx.GraphModule)]


def _found(
    module: nn.Module, root: fx.GraphModule, out_spec: pytree.TreeSpec, results: list[fx.Node], balance: str
) -> Trace:
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    nodes = list(root.graph.nodes)
    aliases = Aliases(nodes)
    for node in aliases.changed_attributes():
        raise CannotTrace(
            f"its forward changes {node.target}, which no checkpoint would have: use what needs no running values, as "
            "nn.GroupNorm or nn.LayerNorm in place of nn.BatchNorm"
        )
    inputs = [node for node in nodes if node.op == "placeholder"]
    fixed: set[fx.Node] = set()
    forward: set[fx.Node] = set()
    """On a differentiable way from a parameter."""
    for node in nodes:
        if node.op == "get_attr":
            (forward if node.target in trained else fixed).add(node)
        elif node.op == "call_function":
            if all(one in fixed for one in node.all_input_nodes) and not aliases.is_changed(node) and not random(node):
                fixed.add(node)
            elif any(one in forward for one in aliases.read_by(node)) and _has_way_back(node):
                forward.add(node)
    backward: set[fx.Node] = set()
    for node in reversed(nodes):
        if node in forward and (
            node in results
            or any(user in backward for user in node.users)
            or any(other in backward for other in aliases.later(node))
        ):
            backward.add(node)
    parameters = frozenset(str(node.target) for node in backward if node.op == "get_attr")
    operations = [node for node in nodes if node.op != "output" and node.op != "get_attr" and node not in fixed]
    facts, flops = _facts(operations, results, aliases, backward, parameters, module, balance)
    constants = [node for node in nodes if node in fixed and node.op == "call_function"]
    return Trace(
        module, root, out_spec, inputs, operations, constants, results, parameters, frozenset(backward), flops, facts
    )


def _facts(
    operations: list[fx.Node],
    results: list[fx.Node],
    aliases: Aliases,
    backward: set[fx.Node],
    parameters: frozenset[str],
    module: nn.Module,
    balance: str,
) -> tuple[list[Operation], float]:
    places = {node: place for place, node in enumerate(operations)}
    counted: set[str] = set()
    total = 0.0
    facts = []
    for node in operations:
        value = _value(node)
        own = {str(one.target) for one in node.all_input_nodes if one.op == "get_attr"} & parameters
        flops = _flops(node) if node.op == "call_function" else 0.0
        total += flops
        new = own - counted
        counted |= own
        uses = [places[user] for user in node.users if user in places]
        facts.append(
            Operation(
                cost=flops if balance == "flops" else float(sum(module.get_parameter(name).numel() for name in new)),
                last_use=len(operations) if node in results else max(uses, default=-1),
                num_bytes=value.numel() * value.element_size() if _is_fixed(value) else 0,
                can_cross=_is_fixed(value),
                has_gradient=node in backward,
                changed_until=max((places[one] for one in aliases.changes(node) if one in places), default=-1),
                parameters=frozenset(own),
            )
        )
    return facts, total


def random(node: fx.Node) -> bool:
    """Whether the operation draws numbers."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    given = {argument.name: value for argument, value in zip(node.target._schema.arguments, node.args, strict=False)}
    given |= node.kwargs
    if _name(node) == "scaled_dot_product_attention":
        return bool(given.get("dropout_p", 0.0))
    if "train" in given and "p" in given:  # the many forms of dropout
        return bool(given["train"]) and bool(given["p"])
    return torch.Tag.nondeterministic_seeded in node.target.tags


def _has_way_back(node: fx.Node) -> bool:
    if _name(node) in ("detach", "detach_") or (_name(node) == "wrap_with_set_grad_enabled" and not node.args[0]):
        return False
    value = _value(node)
    values = value if isinstance(value, tuple | list) else [value]
    return any(isinstance(one, Tensor) and (one.is_floating_point() or one.is_complex()) for one in values)


def _is_fixed(value: Any) -> bool:
    """Whether it is a tensor whose size is known."""
    return isinstance(value, Tensor) and all(isinstance(size, int) for size in value.shape)


def _value(node: fx.Node) -> Any:
    """As the trace has it: of a tensor its shape and type only."""
    return node.meta.get("val") if isinstance(node, fx.Node) else node


def _name(node: fx.Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.partition("::")[2]
    return getattr(target, "__name__", str(target))


def _flops(node: fx.Node) -> float:
    """Of matrices, convolutions and attention as torch counts them; of anything else, one an element."""
    value = _value(node)
    values = [one for one in (value if isinstance(value, tuple | list) else [value]) if _is_fixed(one)]
    size = float(sum(one.numel() for one in values))
    if node.target is operator.getitem or not values:
        return 0.0
    if isinstance(node.target, torch._ops.OpOverload) and any(one.dim() > 1 for one in values):
        args, kwargs = pytree.tree_map_only(fx.Node, _value, (node.args, node.kwargs))
        with _quiet(), values[0].fake_mode, FlopCounterMode(display=False) as counter, torch.no_grad():
            try:
                node.target(*args, **kwargs)
            except Exception:  # sizes that only the data says: the trace has them as symbols
                return size
        return max(float(counter.get_total_flops()), size)
    return size


def _own_names(module: nn.Module) -> dict[str, str]:
    """Every name of every parameter and buffer, with the first that the same tensor has."""
    firsts: dict[int, str] = {}
    found = {}
    for entries in (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)):
        for name, tensor in entries:
            found[name] = firsts.setdefault(id(tensor), name)
    return found


def _reason(error: BaseException) -> str:
    """In one line, with what would do instead."""
    kind, text = type(error).__name__, str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), kind)
    on_data = ("GuardOnDataDependent", "DataDependent", "data-dependent", "data dependent")
    if any(sign in kind or sign in text for sign in on_data):
        return (
            "its forward branches on data (an `if`, a loop or an index by a tensor's values): choose with torch.where "
            "or torch.cond, or train the module as it is in a script of yours under holdfast run"
        )
    return f"its forward cannot be traced ({kind}: {one_line(first)[:200]})"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says of its own doings."""
    import warnings

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
