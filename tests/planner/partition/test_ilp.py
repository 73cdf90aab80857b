"""The integer program against every choice there is."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from holdfast.planner.partition.ilp import Edge, Node, NoStrategy, Problem, solve

LIMIT_S = 60


def random_problem(rng: random.Random) -> Problem:
    """Up to 8 operators with up to 4 strategies, with followers, aliases and little memory."""
    nodes: list[Node] = []
    for v in range(rng.randint(2, 8)):
        leader = rng.randrange(v) if v and rng.random() < 0.25 else None
        count = len(nodes[leader].costs) if leader is not None else rng.randint(1, 4)
        costs = tuple(float(rng.randint(0, 60)) for _ in range(count))
        nodes.append(Node(costs, tuple(float(rng.randint(0, 9)) for _ in range(count)), leader))
    edges = []
    for a, b in itertools.combinations(range(len(nodes)), 2):
        if rng.random() < 0.5:
            source, target = (a, b) if rng.random() < 0.8 else (b, a)
            rows = [[float(rng.randint(0, 40)) for _ in nodes[target].costs] for _ in nodes[source].costs]
            edges.append(Edge(source, target, tuple(map(tuple, rows))))
    live = tuple(tuple(v for v in range(len(nodes)) if rng.random() < 0.6) for _ in range(rng.randint(1, 3)))
    pairs = []
    for _ in range(rng.randint(0, 4)):
        v, u = rng.sample(range(len(nodes)), 2)
        pairs.append(((v, rng.randrange(len(nodes[v].costs))), (u, rng.randrange(len(nodes[u].costs)))))
    limit = float(rng.randint(5, 40)) if rng.random() < 0.8 else None
    return Problem(tuple(nodes), tuple(edges), live, limit, tuple(pairs))


def cheapest(problem: Problem) -> float | None:
    """By trying all, with memory and pairs counted here."""
    best: float | None = None
    for choice in itertools.product(*(range(len(node.costs)) for node in problem.nodes)):
        if any(n.follows is not None and choice[n.follows] != choice[v] for v, n in enumerate(problem.nodes)):
            continue
        if any(choice[v] == i and choice[u] == j for (v, i), (u, j) in problem.forbidden):
            continue
        held = [sum(problem.nodes[v].memory[choice[v]] for v in point) for point in problem.live]
        if problem.limit is not None and max(held) > problem.limit:
            continue
        cost = sum(node.costs[i] for node, i in zip(problem.nodes, choice, strict=True))
        cost += sum(edge.costs[choice[edge.source]][choice[edge.target]] for edge in problem.edges)
        best = cost if best is None else min(best, cost)
    return best


@pytest.mark.parametrize("tens", range(10))
def test_equals_every_choice_tried(tens: int) -> None:
    impossible = 0
    for seed in range(10 * tens, 10 * tens + 10):
        problem = random_problem(random.Random(seed))
        expected = cheapest(problem)
        if expected is None:
            impossible += 1
            with pytest.raises(NoStrategy):
                solve(problem, LIMIT_S)
            continue
        found = solve(problem, LIMIT_S)
        assert found.is_optimal
        assert problem.is_allowed(found.choice), seed
        assert found.cost == expected, seed
        assert found.bound <= expected + 1e-3
    assert impossible < 6, "most cases must have an answer"


def test_too_little_memory_says_how_much_is_needed() -> None:
    nodes = tuple(Node((1.0, 2.0), (8e9, 4e9)) for _ in range(3))
    with pytest.raises(NoStrategy, match=r"need 1\.2e\+10 bytes at least, and 1e\+10 are there"):
        solve(Problem(nodes, live=((0, 1, 2),), limit=1e10), LIMIT_S)
    assert solve(Problem(nodes, live=((0, 1), (1, 2)), limit=1e10), LIMIT_S).choice == (1, 1, 1)


def test_pairs_that_forbid_everything() -> None:
    with pytest.raises(NoStrategy, match="satisfies all pairs"):
        solve(Problem((Node((1.0,)), Node((1.0,))), forbidden=(((0, 0), (1, 0)),)), LIMIT_S)


def test_no_time_is_no_answer() -> None:
    rng = random.Random(3)
    nodes = tuple(Node(tuple(rng.uniform(0, 9) for _ in range(8))) for _ in range(40))
    edges = tuple(
        Edge(a, b, tuple(tuple(rng.uniform(0, 9) for _ in range(8)) for _ in range(8)))
        for a, b in itertools.combinations(range(40), 2)
    )
    with pytest.raises(NoStrategy, match="give the solver more time"):
        solve(Problem(nodes, edges), 0.0)


def test_a_follower_is_of_an_earlier_node_with_as_many_strategies() -> None:
    for nodes in ((Node((1.0, 2.0)), Node((1.0,), follows=0)), (Node((1.0,), follows=1), Node((1.0,)))):
        with pytest.raises(ValueError, match="an earlier one with as many strategies"):
            solve(Problem(nodes), LIMIT_S)


def test_small_differences_of_large_costs_count() -> None:
    """Tie-breakers of a thousandth beside a million, in both orders."""
    for low in (0, 1):
        costs = (786432.01, 786432.101) if low == 0 else (786432.101, 786432.01)
        assert solve(Problem((Node(costs), Node((5.0,)))), LIMIT_S).choice[0] == low


def test_what_is_allowed_fits_follows_and_is_not_forbidden() -> None:
    nodes = (Node((1.0, 2.0), (6e9, 4e9)), Node((1.0, 2.0), (5e9, 3e9)), Node((0.0, 0.0), follows=1))
    problem = Problem(nodes, live=((0, 1), (1, 2)), limit=9e9, forbidden=(((0, 1), (1, 1)),))
    assert [problem.peak((i, j, j)) for i in (0, 1) for j in (0, 1)] == [11e9, 9e9, 9e9, 7e9]
    allowed = [c for c in itertools.product((0, 1), repeat=3) if problem.is_allowed(c)]
    assert allowed == [(0, 1, 1), (1, 0, 0)]  # (0, 0, 0) is too large, (1, 1, 1) forbidden
    # A millionth of the limit is a solver's rounding, and no more than that.
    rounded = replace(problem, limit=9e9 * (1 - 0.9e-6))
    assert rounded.is_allowed((0, 1, 1))
    assert not replace(problem, limit=9e9 * (1 - 2e-6)).is_allowed((0, 1, 1))
    assert replace(problem, limit=None, forbidden=()).is_allowed((0, 0, 0))


def test_an_optimum_is_proven_by_its_bound() -> None:
    nodes = (Node((30.0, 20.0)), Node((5.0, 40.0)))
    found = solve(Problem(nodes, (Edge(0, 1, ((0.0, 0.0), (20.0, 0.0))),)), LIMIT_S)
    assert (found.choice, found.cost) == ((0, 0), 35.0)
    assert found.bound == pytest.approx(35.0, rel=1e-6)
