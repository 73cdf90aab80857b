"""A trace, cut: one module a stage, with the parameters that it reads, by the names that they have in the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from holdfast.trainer.model.tensor_parallel import hash_of
from holdfast.trainer.modules.cuts import Cuts, Operation, cut, live
from holdfast.trainer.modules.message import Field, Message
from holdfast.trainer.modules.trace import Trace, random


@dataclass(frozen=True)
class Partition:
    """A traced module in stages."""

    trace: Trace
    cuts: Cuts
    messages: tuple[Message, ...]
    """Over each cut, in order."""
    device: torch.device | None = None
    """Where stages compute; None: where the module is."""

    @property
    def stages(self) -> int:
        return len(self.messages) + 1

    @property
    def digest(self) -> int:
        """What ranks must have in common, below 2**63: the operations, and where they are cut. Which GPU of its node a
        rank has, though operations may name it, is not."""
        steps = (
            (node.name, str(node.target), str(_by_type(node.args)), str(_by_type(node.kwargs)))
            for node in self.trace.operations
        )
        return hash_of(repr(list(steps)), repr(self.cuts), repr(self.messages))

    def operations_of(self, stage: int) -> list[fx.Node]:
        places = [0, *self.cuts.places, len(self.trace.operations)]
        return self.trace.operations[places[stage] : places[stage + 1]]

    def crossing(self, boundary: int) -> list[fx.Node]:
        """What goes from stage `boundary` to the next, in the order of the message."""
        return _crossing(self.trace, self.cuts.places[boundary])

    def parameters_of(self, stage: int) -> set[str]:
        """Names of those that a stage reads and that get a gradient."""
        inputs = (one for node in self.operations_of(stage) for one in node.all_input_nodes)
        read = {str(one.target) for one in inputs if one.op == "get_attr"}
        return read & self.trace.parameters

    def shapes_of(self, stage: int) -> dict[str, tuple[int, ...]]:
        """Of the parameters of a stage."""
        return {name: tuple(_found(self.trace, name).shape) for name in sorted(self.parameters_of(stage))}


def _by_type(values: Any) -> Any:
    """Arguments of an operation, with no device's number."""
    return pytree.tree_map_only(torch.device, lambda one: one.type, values)


def partition(trace: Trace, stages: int, dtype: torch.dtype, device: torch.device | None = None) -> Partition:
    """Cut a trace; messages are of `dtype`. Raises CannotCut."""
    facts = [_sendable(fact, node, dtype) for fact, node in zip(trace.facts, trace.operations, strict=True)]
    cuts = cut(facts, len(trace.inputs), stages)
    messages = tuple(
        Message(
            tuple(Field.of(node.meta["val"], node in trace.with_gradient) for node in _crossing(trace, place)), dtype
        )
        for place in cuts.places
    )
    return Partition(trace, cuts, messages, device)


def _sendable(fact: Operation, node: fx.Node, dtype: torch.dtype) -> Operation:
    """What has a gradient is sent in the type of the message, or not at all."""
    if not fact.has_gradient or not fact.can_cross or node.meta["val"].dtype == dtype:
        return fact
    return replace(fact, can_cross=False)


def _crossing(trace: Trace, place: int) -> list[fx.Node]:
    return [trace.operations[v] for v in live(trace.facts, place)]


class Piece(nn.Module):
    """One stage: the values that come in to those that go out, as plain arguments and a tuple."""

    def __init__(self, whole: Partition, stage: int) -> None:
        super().__init__()
        is_last = stage == whole.stages - 1
        coming = whole.trace.inputs if stage == 0 else whole.crossing(stage - 1)
        going = whole.trace.results if is_last else whole.crossing(stage)
        graph, self.draws = _graph(whole.trace, whole.operations_of(stage), coming, going)
        self.held = nn.Module()
        """The tree of what it reads, apart: names in it are the user's, and may be any."""
        read = [str(node.target) for node in graph.nodes if node.op == "get_attr"]
        for target in dict.fromkeys(read):
            _hold(self.held, target, _found(whole.trace, target), target in whole.trace.parameters)
        self._compute = _compiled(graph)

    def forward(self, *values: Any, seed: int = 0) -> tuple[Tensor, ...]:
        return self._compute(self.held, seed, *values)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """By the names that they have in the user's module."""
        if recurse:
            yield from self.held.named_parameters(prefix, True, remove_duplicate)


def _graph(
    trace: Trace, operations: Sequence[fx.Node], coming: Iterable[fx.Node], going: Iterable[fx.Node]
) -> tuple[fx.Graph, bool]:
    """The operations and what they need of the constant ones; and whether any of them draws numbers."""
    wanted = {one for node in operations for one in node.all_input_nodes} | set(going)
    mine = set(operations)
    for node in reversed(trace.constants):
        if node in wanted:
            mine.add(node)
            wanted.update(node.all_input_nodes)
    graph = fx.Graph()
    seed = graph.placeholder("seed")
    copies: dict[fx.Node, Any] = {}
    for number, node in enumerate(coming):
        copies[node] = graph.placeholder(f"coming_{number}")
    draws = False
    for node in trace.root.graph.nodes:
        if node.op == "get_attr" and node in wanted:
            copies[node] = graph.get_attr(str(node.target))
        elif node in mine and node not in copies:
            copy: Any = graph.node_copy(node, copies.__getitem__)
            copies[node] = copy
            if random(node):
                draws = True
                copy.args = (copy.target, seed, node.name, *copy.args)
                copy.target = seeded
    graph.output(tuple(copies[node] for node in going))
    graph.lint()
    return graph, draws


def seeded(operation: Callable[..., Any], seed: int, site: str, *args: Any, **kwargs: Any) -> Any:
    """An operation that draws numbers, from a seed and its place in the model alone: on whatever rank, and again."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]  # torch's
    with torch.random.fork_rng(devices):
        torch.manual_seed(hash_of(seed, site))
        return operation(*args, **kwargs)


def _compiled(graph: fx.Graph) -> Callable[..., tuple[Tensor, ...]]:
    """The graph's code, as a function of the module that holds its parameters."""
    code = graph.python_code("self")
    names = dict(code.globals)
    exec(compile(code.src, "<stage>", "exec"), names)
    forward: Callable[..., tuple[Tensor, ...]] = names["forward"]
    return forward


def _found(trace: Trace, target: str) -> Any:
    """What the module has by this name, else what its trace has."""
    for root in (trace.module, trace.root):
        found: Any = root
        for name in target.split("."):
            found = getattr(found, name, None)
        if found is not None:
            return found
    raise AttributeError(target)


def _hold(module: nn.Module, target: str, value: Any, is_trained: bool) -> None:
    """Put it where the graph looks for it. What gets no gradient is no parameter here, and stays as it is."""
    *path, name = target.split(".")
    for one in path:
        if one not in module._modules:
            module.add_module(one, nn.Module())
        module = module.get_submodule(one)
    if is_trained or not isinstance(value, Tensor):
        setattr(module, name, value)
    else:
        module.register_buffer(name, value.detach(), persistent=False)
