"""Graphs become programs with the right costs, and the layouts that people found by hand come out."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from holdfast.planner.partition.axes import Collective, MeshAxis
from holdfast.planner.partition.ilp import NoStrategy, solve
from holdfast.planner.partition.intra import Program, aliases, live, program, shard, sharding
from holdfast.planner.partition.operators import Kind, Operator, OperatorGraph
from holdfast.planner.partition.strategies import Devices, Strategy, strategies

LIMIT_S = 60
COPIES = ((), ())


def mlp(rows: int, width: int, inner: int, item: int = 1) -> OperatorGraph:
    """Two matrices with a function between them; what comes out is wanted whole on every device."""
    return OperatorGraph(
        (
            Operator("x", Kind.INPUT, (), (rows, width), item),
            Operator("up", Kind.PARAMETER, (), (inner, width), item),
            Operator("down", Kind.PARAMETER, (), (width, inner), item),
            Operator("h", Kind.MATMUL, ("x", "up"), (rows, inner), item, flops=2.0 * rows * width * inner),
            Operator("f", Kind.FOLLOW, ("h",), (rows, inner), item, dims=((0, 1),)),
            Operator("y", Kind.MATMUL, ("f", "down"), (rows, width), item, flops=2.0 * rows * width * inner),
            Operator("out", Kind.OUTPUT, ("y",), (rows, width), item, fixed=COPIES),
        )
    )


def limited_to_a_share(graph: OperatorGraph, devices: Devices) -> Program:
    """Memory for parameters alone, 1/n of what they take whole."""
    made = program(graph, devices)
    parameters = tuple(i for i, one in enumerate(graph.operators) if one.kind is Kind.PARAMETER)
    total = sum(max(made.problem.nodes[i].memory) for i in parameters)
    return replace(made, problem=replace(made.problem, live=(parameters,), limit=total / devices.mesh[0].size))


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("inner", [1024, 4096])
def test_an_mlp_is_cut_by_columns_then_by_rows(inner: int, is_training: bool) -> None:
    """512 rows of width 1024, a byte each and beta 1, on 4 devices with a quarter of the memory of both matrices: the
    one all-reduce of what comes out costs 2 (3/4) 512 x 1024 + 0.01."""
    graph, devices = mlp(512, 1024, inner), Devices((MeshAxis(4),), is_training=is_training)
    made = limited_to_a_share(graph, devices)
    found = solve(made.problem, LIMIT_S)
    assert found.cost == pytest.approx(786432.01, abs=1e-6)
    chosen = sharding(graph, made, found).chosen
    assert [chosen[name].rules for name in ("h", "f", "y")] == [("column",), ("column",), ("row",)]
    assert [chosen[name].output for name in ("up", "down", "h", "y")] == [((0,), ()), ((), (0,)), ((), (0,)), COPIES]


def test_with_memory_for_all_a_batch_is_cut() -> None:
    """Nothing has to be summed but gradients, once a step."""
    graph = mlp(4096, 64, 64)
    graph = OperatorGraph((*graph.operators[:-1], replace(graph.operators[-1], fixed=((0,), ()))))
    found = shard(graph, Devices((MeshAxis(4),), micro_batches=8))
    assert {found.chosen[name].rules for name in ("h", "y")} == {("batch0",)}
    assert found.cost == pytest.approx(2 * MeshAxis(4).cost(Collective.ALL_REDUCE, 64 * 64) / 8)


@pytest.mark.parametrize(
    ("limit", "rules", "collectives"),
    [
        (1 << 20, "replicate", [(Collective.ALL_REDUCE, 2)]),
        (2 * 4096 * 2.5, "states", [(Collective.REDUCE_SCATTER, 2), (Collective.ALL_GATHER, 2)]),
        (2 * 4096, "cut", [(Collective.ALL_GATHER, 4 * 8), (Collective.REDUCE_SCATTER, 2 * 8)]),
    ],
)
def test_less_memory_is_zero_by_stages(limit: float, rules: str, collectives: list[tuple[Collective, int]]) -> None:
    """Weights and gradients of a byte, states of two: 4 bytes a parameter whole, 2.5 with states shared, 1 with all.

    An all-reduce of gradients becomes reduce-scatter and all-gather, once a step, then gathers for each micro-batch.
    """
    graph = mlp(1024, 64, 64)
    graph = OperatorGraph((*graph.operators[:-1], replace(graph.operators[-1], fixed=((0,), ()))))
    devices = Devices((MeshAxis(4),), micro_batches=8)

    def batch(one: Operator, strategy: Strategy) -> str | None:
        wanted = one.kind in (Kind.MATMUL, Kind.INPUT)
        return "samples are cut" if wanted and strategy.rules[0] not in ("batch0", "cut0") else None

    made = program(graph, devices, limit, batch)
    parameters = tuple(i for i, one in enumerate(graph.operators) if one.kind is Kind.PARAMETER)
    found = solve(replace(made.problem, live=(parameters,)), LIMIT_S)
    chosen = sharding(graph, made, found).chosen
    assert all(chosen[name].rules[0].startswith(rules) for name in ("up", "down"))
    cost = sum(count * MeshAxis(4).cost(collective, 4096) for collective, count in collectives) / 8
    assert found.cost == pytest.approx(cost)


@pytest.mark.parametrize("seed", range(20))
def test_a_program_says_what_its_parts_say(seed: int) -> None:
    """Of random layouts of both axes: costs of operators, and of handing on, are those of the program."""
    rng = random.Random(seed)
    graph = mlp(8, 16, 32, item=2)
    graph = OperatorGraph((*graph.operators[:-1], replace(graph.operators[-1], fixed=None)))
    devices = Devices((MeshAxis(2, 1, 0.5, 0), MeshAxis(4, 2, 0.25, 0)), flops=100, traffic=50)
    made = program(graph, devices)
    problem = made.problem
    free = [rng.randrange(len(own)) for own in made.strategies]
    choice = [free[problem.root(v)] for v in range(len(free))]
    picked = [own[i] for own, i in zip(made.strategies, choice, strict=True)]
    total = sum(one.compute + one.communication for one in picked)
    assert sum(problem.nodes[v].costs[i] for v, i in enumerate(choice)) == pytest.approx(total)
    for one, strategy in zip(graph.operators, picked, strict=True):
        for cut, size in zip(strategy.output, one.shape, strict=True):
            assert size % [1, 2, 4, 8][len(cut) + sum(cut)] == 0 or not cut
    h = picked[3]
    work = 1
    for axis, size in ((0, 2), (1, 4)):
        work *= size if axis in h.work else 1
    # Forward, and the gradient of the weights: x is data, whose gradient nobody wants.
    assert h.compute == pytest.approx(2 * max(2 * 8 * 16 * 32 / 100, 2 * (8 * 16 + 16 * 32 + 8 * 32) / 50) / work)


def test_two_axes_equal_every_choice_tried() -> None:
    graph = OperatorGraph(mlp(8, 4, 4).operators[:4])
    devices = Devices((MeshAxis(2, 1, 1), MeshAxis(2, 2, 0.5)))
    made = program(graph, devices, 80)
    best = min(
        made.problem.cost(choice)
        for choice in itertools.product(*(range(len(own)) for own in made.strategies))
        if made.problem.is_allowed(choice)
    )
    assert solve(made.problem, LIMIT_S).cost == pytest.approx(best)


def test_what_follows_and_cannot_be_cut_is_gathered() -> None:
    """A sum over the last dimension needs it whole; the other one stays cut."""
    graph = OperatorGraph(
        (
            Operator("x", Kind.INPUT, (), (8, 16), 1),
            Operator("w", Kind.PARAMETER, (), (32, 16), 1),
            Operator("h", Kind.MATMUL, ("x", "w"), (8, 32), 1),
            Operator("norm", Kind.FOLLOW, ("h",), (8, 32), 1, dims=((0, None),)),
        )
    )
    devices = Devices((MeshAxis(4),), is_training=False)
    made = program(graph, devices)
    own = {s.rules: s for s in made.strategies[3]}
    assert own["column",].output == own["column",].inputs[0] == COPIES
    assert own["batch0",].output == ((0,), ())
    edge = next(e for e in made.problem.edges if e.target == 3)
    at = [s.rules for s in made.strategies[2]].index(("column",))
    assert edge.costs[at][at] == MeshAxis(4).cost(Collective.ALL_GATHER, 8 * 32)


def test_what_is_alive() -> None:
    graph = mlp(4, 4, 4)
    names = [one.name for one in graph.operators]
    points = live(graph, Devices((MeshAxis(2),), is_training=False))
    assert [{names[i] for i in point} - {"up", "down"} for point in points] == [
        {"x"},
        {"x"},
        {"x"},
        {"x", "h"},
        {"h", "f"},
        {"f", "y"},
        {"y", "out"},
    ]
    assert all({1, 2} <= set(point) for point in points)
    assert live(graph, Devices((MeshAxis(2),))) == (tuple(range(7)),)


def test_aliases_are_laid_out_alike() -> None:
    """An updated parameter lies where the parameter lay, though a copy would be free."""
    graph = OperatorGraph(
        (Operator("w", Kind.PARAMETER, (), (8, 8), 1), Operator("new", Kind.PARAMETER, (), (8, 8), 1))
    )
    made = program(graph, Devices((MeshAxis(2),), is_training=False))
    pairs = aliases(made, 0, 1)
    assert len(pairs) == 4 * 4 - (2 + 2 + 1 * 2 + 2 - 2)
    costs = (0.0, 5.0, 5.0, 5.0)
    nodes = (replace(made.problem.nodes[0], costs=costs), replace(made.problem.nodes[1], costs=costs[::-1]))
    found = solve(replace(made.problem, nodes=nodes, forbidden=pairs), LIMIT_S)
    assert made.strategies[0][found.choice[0]].output == made.strategies[1][found.choice[1]].output


def test_strategies_of_attention_and_tables() -> None:
    graph = OperatorGraph(
        (
            Operator("tokens", Kind.INPUT, (), (2, 8), 8),
            Operator("table", Kind.PARAMETER, (), (64, 16), 1),
            Operator("e", Kind.EMBEDDING, ("table", "tokens"), (2, 8, 16), 1),
            *(Operator(n, Kind.INPUT, (), (2, 4, 8, 4), 1, has_gradient=True) for n in "qkv"),
            Operator("a", Kind.ATTENTION, ("q", "k", "v"), (2, 4, 8, 4), 1, flops=100),
        )
    )
    devices = Devices((MeshAxis(4, tie=0),), flops=1)
    by_rule = {s.rules[0]: s for s in strategies(graph, graph.operators[2], devices)}
    assert set(by_rule) == {"replicate", "column", "vocabulary", "vocabulary-scatter1", "batch1"}
    assert by_rule["vocabulary"].communication == 2 * 3 / 4 * 256
    assert by_rule["vocabulary-scatter1"].communication == 2 * 3 / 4 * 256
    heads = {s.rules[0]: s for s in strategies(graph, graph.operators[6], devices)}
    assert set(heads) == {"replicate", "heads"}, "two samples are not cut in four"
    assert heads["heads"].compute == 3 * 100 / 4


def test_obstacles_are_counted_and_named() -> None:
    def none(one: Operator, strategy: Strategy) -> str | None:
        return f"no {one.kind}" if one.kind is Kind.MATMUL else None

    with pytest.raises(NoStrategy, match=r"operator h of shape .* has no strategy on this mesh: no matmul"):
        shard(mlp(4, 4, 4), Devices((MeshAxis(2),)), obstacle=none)

    def few(one: Operator, strategy: Strategy) -> str | None:
        return "not by rows" if strategy.rules[0] == "row" else None

    assert shard(mlp(4, 4, 4), Devices((MeshAxis(2),)), obstacle=few).refused == {"not by rows": 2}


@pytest.mark.parametrize(
    ("operators", "says"),
    [
        ([("a", Kind.INPUT, ()), ("a", Kind.INPUT, ())], "a is in the graph twice"),
        ([("a", Kind.OUTPUT, ("b",)), ("b", Kind.INPUT, ())], "b, which is computed after it: the graph has a cycle"),
        ([("a", Kind.OUTPUT, ("b",))], "b, which is not in the graph"),
        ([("a", Kind.INPUT, ()), ("b", Kind.FOLLOW, ("a",))], "it needs dims of each of its 1 inputs"),
    ],
)
def test_graphs_that_are_none(operators: list[tuple[str, Kind, tuple[str, ...]]], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        OperatorGraph(tuple(Operator(name, kind, inputs, (2,)) for name, kind, inputs in operators))
    with pytest.raises(ValueError, match="whole sizes of 1 or more"):
        OperatorGraph((Operator("a", Kind.INPUT, (), (0,)),))


def test_part_of_a_graph_gets_inputs_for_what_is_before_it() -> None:
    graph = mlp(4, 4, 4)
    laid = OperatorGraph(tuple(replace(one, layer=int(one.name in ("y", "out"))) for one in graph.operators))
    part = laid.of_layers(1, 2)
    assert [(one.name, one.kind, one.has_gradient) for one in part.operators] == [
        ("f", Kind.INPUT, True),
        ("down", Kind.PARAMETER, None),
        ("y", Kind.MATMUL, None),
        ("out", Kind.OUTPUT, None),
    ]
