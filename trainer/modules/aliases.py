"""Which values of a trace lie in the same memory, and which operations change it: by the operators' schemas."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from torch import fx


class Aliases:
    """Of the nodes of a graph, in their order."""

    def __init__(self, nodes: Sequence[fx.Node]) -> None:
        self._place = {node: place for place, node in enumerate(nodes)}
        self._root: dict[fx.Node, fx.Node] = {}
        self._members: dict[fx.Node, list[fx.Node]] = defaultdict(list)
        self._changes: dict[fx.Node, list[fx.Node]] = defaultdict(list)
        for node in nodes:
            shared, written = _touched(node)
            roots = sorted({self._root[one] for one in shared}, key=self._place.__getitem__)
            root = roots[0] if roots else node
            for other in roots[1:]:  # what lies in the memory of both
                for member in self._members.pop(other):
                    self._root[member] = root
                    self._members[root].append(member)
                self._changes[root] += self._changes.pop(other, [])
            self._root[node] = root
            self._members[root].append(node)
            for one in written:
                self._changes[self._root[one]].append(node)

    def is_changed(self, node: fx.Node) -> bool:
        """Whether anything changes the memory in which it lies."""
        return bool(self._changes.get(self._root[node]))

    def changes(self, node: fx.Node) -> list[fx.Node]:
        """Operations that change the memory, of the first value that lies there; none of the others."""
        root = self._root[node]
        made = (one for one in self._members[root] if one.op != "get_attr")
        first = min(made, key=self._place.__getitem__, default=None)
        return self._changes.get(root, []) if node is first else []

    def read_by(self, node: fx.Node) -> Iterator[fx.Node]:
        """What it reads: its inputs, and what has been written into their memory before."""
        for one in node.all_input_nodes:
            yield one
            if self.is_changed(one):
                yield from (other for other in self._members[self._root[one]] if self._place[other] < self._place[node])

    def later(self, node: fx.Node) -> list[fx.Node]:
        """Values in changed memory that were made after this one: what was written goes into them."""
        if not self.is_changed(node):
            return []
        return [one for one in self._members[self._root[node]] if self._place[one] > self._place[node]]

    def changed_attributes(self) -> Iterator[fx.Node]:
        """Parameters and buffers that are changed; also by batch norms, whose schema does not say so."""
        for root, changes in self._changes.items():
            if changes:
                yield from (node for node in self._members[root] if node.op == "get_attr")
        for node in self._place:
            if node.target is torch.ops.aten.batch_norm.default and node.args[5] and isinstance(node.args[3], fx.Node):
                yield node.args[3]


def _touched(node: fx.Node) -> tuple[list[fx.Node], list[fx.Node]]:
    """Of the values that it reads: those in whose memory its own lies, and those that it changes."""
    if node.op != "call_function":
        return [], []
    if node.target is operator.getitem:
        return [node.args[0]], []  # type: ignore[list-item]  # of a tuple that another node made
    if not isinstance(node.target, torch._ops.OpOverload):
        return [], []
    schema = node.target._schema
    labels = {label for result in schema.returns if result.alias_info for label in result.alias_info.before_set}
    shared, written = [], []
    for number, argument in enumerate(schema.arguments):
        value = node.args[number] if number < len(node.args) else node.kwargs.get(argument.name)
        info = argument.alias_info
        if info is None or value is None:
            continue
        is_kept = bool(labels & set(info.before_set)) or any(label.endswith("*") for label in info.after_set)
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, fx.Node):
                if info.is_write:
                    written.append(one)
                if is_kept or info.is_write:
                    shared.append(one)
    return shared, written
