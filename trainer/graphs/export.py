"""The transformer as torch.export sees it, on meta tensors: a graph of operators with FLOPs and bytes. Needs torch.

Nothing is allocated: a model of any size takes as long as one of its layers and no memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.fx import Node

from holdfast.planner.partition.operators import Kind, Operator, OperatorGraph
from holdfast.trainer.graphs import dims as of
from holdfast.trainer.model.model import DTYPES, ModelStage, Moment
from holdfast.trainer.model.tensor_parallel import Packed, Parameters
from holdfast.trainer.settings.config import Config, ParallelConfig
from holdfast.trainer.settings.layout import vocab_of

SAMPLES = 2
"""In the graph that is exported: torch makes one of 1 special, and a dimension of 1 cannot be followed."""
_RESHAPES = frozenset({"view", "reshape", "flatten", "unsqueeze", "squeeze", "_unsafe_view", "unflatten"})
_SEVERAL = frozenset({"chunk", "split", "split_with_sizes", "unbind"})
"""Operators that give several tensors, of which `getitem` takes one."""
_NOTHING = frozenset({"_assert_tensor_metadata"})


def model_graph(config: Config, samples: int = 1, layers: int | None = None) -> OperatorGraph:
    """Of the settings' model on `samples` samples; with `layers`, of as many layers instead.

    Block 0 is the embedding, then each layer, then the head (`Operator.layer`). What comes out is the logits, in an
    OUTPUT named `loss`. Dropout, which is small, is left out. A model that torch.export cannot trace raises its error.
    """
    count = config.model.layers if layers is None else layers
    model = replace(config.model, dropout=0.0, layers=count)
    bare = replace(config, model=model, parallel=ParallelConfig())
    bare = replace(bare, train=replace(config.train, recompute="none"))
    make = _Unfilled(0, cast(DeviceMesh, _Alone()), torch.device("meta"), DTYPES[config.train.dtype])
    stage = ModelStage(bare, 0, range(count), vocab_of(config.data.tokenizer), make, Moment(0))
    tokens = torch.empty(SAMPLES, config.data.seq_len, dtype=torch.int64, device="meta")
    exported = torch.export.export(stage, (tokens, 0), strict=True)
    return with_samples(graph_of(exported, count), samples)


def with_samples(graph: OperatorGraph, samples: int) -> OperatorGraph:
    """The same graph for another number of samples than SAMPLES: in the first dimension of all that depends on them."""
    depends: set[str] = set()
    found = []
    for one in graph.operators:
        if one.name == "x" or depends.intersection(one.inputs):
            depends.add(one.name)
            shape = (one.shape[0] // SAMPLES * samples, *one.shape[1:])
            one = replace(one, shape=shape, flops=one.flops / SAMPLES * samples)
        found.append(one)
    return OperatorGraph(tuple(found))


def graph_of(exported: torch.export.ExportedProgram, layers: int) -> OperatorGraph:
    """An exported stage's operators. Its parameters have the names that they have in the trainer.

    ValueError, in one line, for sizes that are not fixed, and for constants that are no buffers.
    """
    signature = exported.graph_signature
    names: Mapping[str, str] = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    walk = _Walk(names, layers)
    for node in exported.graph.nodes:
        walk.add(node)
    return OperatorGraph(tuple(walk.operators))


class _Walk:
    """Nodes become operators one by one."""

    def __init__(self, names: Mapping[str, str], layers: int) -> None:
        self.names, self.layers = names, layers
        self.operators: list[Operator] = []
        self._made: dict[Node, str] = {}
        self._pending: dict[str, Operator] = {}
        """Parameters and buffers before their first use, which says to which block they belong."""
        self._block = 0

    def add(self, node: Node) -> None:
        if node.op == "placeholder":
            self._placeholder(node)
        elif node.op == "output":
            (logits,) = cast(tuple[Node], node.args[0])
            value = logits.meta["val"]
            self._append(Operator("loss", Kind.OUTPUT, (self._made[logits],), tuple(value.shape), value.element_size()))
        else:
            self._call(node)

    def _placeholder(self, node: Node) -> None:
        value = node.meta["val"]
        if not isinstance(value, Tensor):
            return
        name = self.names.get(node.name, node.name)
        kind = Kind.PARAMETER if isinstance(value, nn.Parameter) or node.name.startswith("p_") else Kind.INPUT
        self._made[node] = name
        self._pending[name] = Operator(name, kind, (), tuple(value.shape), value.element_size())

    def _call(self, node: Node) -> None:
        name = _name(node)
        if name in _NOTHING or (name in _SEVERAL):
            return
        if name == "getitem":
            several, which = cast(Node, node.args[0]), cast(int, node.args[1])
            self._follow(node, [(cast(Node, several.args[0]), _dims(several, node, which))])
            return
        sources = [one for one in node.all_input_nodes if isinstance(one.meta.get("val"), Tensor)]
        value = node.meta["val"]
        match name:
            case "linear":
                flops = 2.0 * value.numel() * sources[0].meta["val"].shape[-1]
                self._compute(node, Kind.MATMUL, sources, flops)
            case "embedding":
                self._compute(node, Kind.EMBEDDING, sources, 0.0)
            case "scaled_dot_product_attention":
                batch, heads, length, width = value.shape
                keys = sources[1].meta["val"].shape[-2]
                self._compute(node, Kind.ATTENTION, sources, 4.0 * batch * heads * length * keys * width)
            case _:
                self._follow(node, [(source, _dims(node, node, 0, source)) for source in sources])

    def _compute(self, node: Node, kind: Kind, sources: list[Node], flops: float) -> None:
        value = node.meta["val"]
        inputs = tuple(self._use(source) for source in sources)
        self._made[node] = node.name
        self._append(Operator(node.name, kind, inputs, tuple(value.shape), value.element_size(), flops))

    def _follow(self, node: Node, sources: list[tuple[Node, of.Dims]]) -> None:
        value = node.meta["val"]
        if not sources:
            raise ValueError(f"the model makes {node.name} of nothing: planners need constants to be buffers")
        inputs = tuple(self._use(source) for source, _ in sources)
        self._made[node] = node.name
        is_view = len(sources) == 1 and (_name(node) in _VIEWS)
        self._append(
            Operator(
                node.name, Kind.FOLLOW, inputs, tuple(value.shape), value.element_size(),
                dims=tuple(one for _, one in sources), is_view=is_view,
            )
        )  # fmt: skip

    def _use(self, node: Node) -> str:
        name = self._made[node]
        if name.startswith("layers."):
            self._block = max(self._block, int(name.split(".")[1]) + 1)
        elif name.startswith("head."):
            self._block = self.layers + 1
        if (pending := self._pending.pop(name, None)) is not None:
            self._append(pending)
        return name

    def _append(self, one: Operator) -> None:
        if not all(isinstance(size, int) for size in one.shape):
            raise ValueError(f"{one.name} has shape {tuple(map(str, one.shape))}: export the model with fixed sizes")
        self.operators.append(replace(one, layer=self._block))


_VIEWS = _RESHAPES | {"transpose", "permute", "t", "slice", "select", "getitem", "expand", "alias", "detach"}


def _name(node: Node) -> str:
    """`linear` of aten.linear.default, `getitem` of the builtin."""
    target: Any = node.target
    schema = getattr(target, "_schema", None)
    return str(target.__name__ if schema is None else schema.name.split("::")[-1])


def _dims(node: Node, result: Node, which: int, source: Node | None = None) -> of.Dims:
    """Of one input, by dimension of `result`. What is not known needs its input whole."""
    source = cast(Node, node.args[0]) if source is None else source
    have: tuple[int, ...] = tuple(source.meta["val"].shape)
    give: tuple[int, ...] = tuple(result.meta["val"].shape)
    name = _name(node)
    args: Any = node.args
    if name in _RESHAPES:
        return of.reshaped(give, have)
    if name == "transpose":
        return of.swapped(len(have), args[1] % len(have), args[2] % len(have))
    if name == "permute":
        return tuple(d % len(have) for d in args[1])
    if name == "select":
        return of.without(len(have), args[1])
    if name == "unbind":
        return of.without(len(have), args[1] if len(args) > 1 else 0)
    if name in ("slice", "chunk", "split", "split_with_sizes") and len(give) == len(have):
        return of.kept(give, have)
    if name == "cat":
        return of.kept(give, have)
    if name in ("rms_norm", "layer_norm", "softmax", "_softmax", "native_layer_norm"):
        whole = of.broadcast(give, have) or (None,) * len(give)
        return (*whole[:-1], None)
    return of.broadcast(give, have) or (None,) * len(give)


class _Alone:
    """A mesh of one device, of which no group need be made."""

    def size(self) -> int:
        return 1

    def get_group(self) -> _Alone:
        return self

    def get_local_rank(self) -> int:
        return 0


class _Unfilled(Parameters):
    """Parameters without values."""

    def _draw(self, piece: Packed) -> Tensor:
        return torch.empty(piece.shape, device="meta")

    def constant(self, shape: tuple[int, ...], value: float) -> nn.Parameter:
        return self._place(torch.empty(shape, device="meta"), None)


def crossing(graph: OperatorGraph, block: int) -> Iterator[Operator]:
    """The results that later blocks read of this one or an earlier one: one of each block of a transformer."""
    last = graph.last_uses
    for one in graph.operators:
        is_later = graph.operators[last[one.name]].layer > block
        if one.layer <= block and is_later and one.kind not in (Kind.PARAMETER, Kind.INPUT):
            yield one
