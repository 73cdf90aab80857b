"""Bad nodes among good ones: the exact set, in few rounds, with occasional wrong test results."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.diagnostics.isolation.isolation import Isolation, Pair


def play(
    nodes: int, bad: set[int], flaky: float = 0.0, seed: int = 0, dead_links: frozenset[Pair] = frozenset()
) -> Isolation:
    """Run an isolation to its end in a cluster where pairs with a bad node or over a dead link never pass."""
    draw = random.Random(seed)
    names = [f"n{i}" for i in range(nodes)]
    isolation = Isolation(names, seed=seed)
    while pairs := isolation.next_round():
        seen = [node for pair in pairs for node in pair]
        assert len(seen) == len(set(seen)), "a node in two pairs of one round"
        isolation.report(
            {
                p: not any(int(n[1:]) in bad for n in p) and tuple(sorted(p)) not in dead_links
                and draw.random() >= flaky
                for p in pairs
            }
        )  # fmt: skip
    return isolation


def named(bad: set[int]) -> set[str]:
    return {f"n{i}" for i in bad}


@pytest.mark.parametrize(("nodes", "bad"), [(5, 1), (8, 3), (9, 4), (16, 4), (128, 16)])
def test_the_exact_set_is_found(nodes: int, bad: int) -> None:
    for seed in range(100 if nodes < 100 else 30):
        culprits = set(random.Random(seed).sample(range(nodes), bad))
        assert play(nodes, culprits, seed=seed).bad == named(culprits)


def test_one_bad_node_of_a_thousand_takes_five_rounds() -> None:
    for seed in range(5):
        isolation = play(1024, {seed * 17}, seed=seed)
        assert isolation.bad == named({seed * 17})
        assert isolation.rounds <= 5
        assert isolation.tests <= 1024 + 10


def test_flaky_tests_blame_hardly_any_node() -> None:
    wrong = 0
    for seed in range(20):
        culprits = set(random.Random(seed).sample(range(64), 8))
        wrong += play(64, culprits, flaky=0.05, seed=seed).bad != named(culprits)
    assert wrong <= 1  # measured over 2,000: 0.4 %


def test_no_node_is_blamed_where_no_pair_passes() -> None:
    isolation = play(6, set(range(6)))
    assert isolation.bad == set()
    assert isolation.undecided == named(set(range(6)))


def test_of_two_nodes_it_is_unknown_which() -> None:
    assert play(2, {0}).bad == set()
    assert play(2, set()).good == named({0, 1})


def test_a_dead_link_is_distinguished_from_its_nodes() -> None:
    found = 0
    for seed in range(40):
        isolation = play(8, set(), seed=seed, dead_links=frozenset({("n2", "n5")}))
        assert isolation.bad == set()
        assert isolation.links <= {("n2", "n5")}
        found += bool(isolation.links)
    assert found  # whenever the two happened to meet


def test_nodes_under_one_switch_are_paired_first() -> None:
    names = [f"n{i}" for i in range(8)]
    switches = {name: f"s{i // 4}" for i, name in enumerate(names)}
    pairs = Isolation(names, switches=switches, seed=3).next_round()
    assert all(switches[a] == switches[b] for a, b in pairs)


def test_known_good_partners_are_never_accused() -> None:
    isolation = Isolation(["a"], known_good=["b", "c"])
    rounds = 0
    while pairs := isolation.next_round():
        assert {n for pair in pairs for n in pair} <= {"a", "b", "c"}
        isolation.report(dict.fromkeys(pairs, False))
        rounds += 1
    assert (isolation.bad, isolation.good, rounds) == ({"a"}, {"b", "c"}, 3)


def test_a_test_that_was_not_done_says_nothing() -> None:
    isolation = Isolation(["a"], known_good=["b"])
    for _ in range(5):
        assert isolation.next_round()
        isolation.report({})
    assert isolation.bad == set()


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 20), st.data())
def test_one_pass_clears_no_node_and_it_always_ends(nodes: int, data: st.DataObject) -> None:
    names = [f"n{i}" for i in range(nodes)]
    switches = {name: f"s{data.draw(st.integers(0, 3))}" for name in names} if data.draw(st.booleans()) else {}
    isolation = Isolation(names, switches=switches, seed=data.draw(st.integers(0, 100)))
    passes = dict.fromkeys(names, 0)
    results_of = random.Random(data.draw(st.integers(0, 10_000)))
    share = data.draw(st.sampled_from([0.1, 0.5, 0.9]))
    while pairs := isolation.next_round():
        results = {pair: results_of.random() < share for pair in pairs}
        for pair, ok in results.items():
            for node in pair:
                passes[node] += ok
        isolation.report(results)
    assert isolation.rounds <= 48
    assert all(passes[node] >= 2 for node in isolation.good)
    found = [isolation.good, isolation.bad, isolation.crossing, isolation.undecided]
    assert sorted(name for names in found for name in names) == sorted(names)  # each in one of them
