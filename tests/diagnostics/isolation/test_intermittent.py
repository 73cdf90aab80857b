"""Parts that fail with probability 0.5 per test are named, and noise blames no healthy part."""

import random
from itertools import combinations

import pytest

from holdfast.diagnostics.catalog.catalog import INCIDENT_PASSES, MOST_ROUNDS, PASSES, Suite
from holdfast.diagnostics.isolation.isolation import Isolation, Pair

RUNS = 40


class Cluster:
    """`culprit`: a node, the name of a node across switches ("out"), two switches ("way") or two nodes ("link")."""

    def __init__(self, sizes: list[int], fault: str, seed: int, noise: float = 0.0) -> None:
        self._draw, self._noise, self._fault = random.Random(seed), noise, fault
        self._switch = {f"n{s}{chr(97 + i)}": f"s{s}" for s, size in enumerate(sizes) for i in range(size)}
        self.names = list(self._switch)
        self.shows = 0
        self.culprit: set[str] = set()
        if fault in ("node", "out"):
            self.culprit = {self._draw.choice(self.names)}
        elif fault == "way":
            self.culprit = set(self._draw.choice(list(combinations(sorted(set(self._switch.values())), 2))))
        elif fault == "link":
            self.culprit = set(self._draw.sample([n for n in self.names if self._switch[n] == "s0"], 2))

    def _is_hit(self, pair: Pair) -> bool:
        ends = {self._switch[name] for name in pair}
        match self._fault:
            case "node":
                return not self.culprit.isdisjoint(pair)
            case "out":
                return len(ends) == 2 and not self.culprit.isdisjoint(pair)
            case "way":
                return ends == self.culprit
            case _:
                return set(pair) == self.culprit

    def _passes(self, pair: Pair) -> bool:
        if self._is_hit(pair) and self._draw.random() < 0.5:
            self.shows += 1
            return False
        return self._draw.random() >= self._noise

    def play(self, seed: int, passes: int, max_rounds: int = MOST_ROUNDS, partners: int = 0) -> Isolation:
        """`partners`: how many of the last nodes are only that."""
        switches = self._switch if len(set(self._switch.values())) > 1 else None
        isolation = Isolation(
            self.names, switches=switches, max_rounds=max_rounds, seed=seed, passes=passes,
            partners=self.names[len(self.names) - partners :],
        )  # fmt: skip
        while pairs := isolation.next_round():
            isolation.report({pair: self._passes(pair) for pair in pairs})
        return isolation


def blamed(isolation: Isolation) -> list[set[str]]:
    nodes = [{name} for name in isolation.bad | isolation.crossing]
    return nodes + [set(pair) for pair in isolation.ways | isolation.links]


@pytest.mark.parametrize(
    ("sizes", "fault"),
    [([8], "node"), ([4, 4], "node"), ([4, 4], "out"), ([4, 4, 4], "out"), ([4, 4], "way"), ([4, 4, 4], "way")],
)
def test_what_fails_half_of_its_tests_is_named_in_93_of_100_incidents(sizes: list[int], fault: str) -> None:
    named = wrong = 0
    for seed in range(RUNS):
        cluster = Cluster(sizes, fault, seed)
        isolation = cluster.play(seed, INCIDENT_PASSES)
        named += cluster.culprit in blamed(isolation)
        wrong += bool(isolation.bad | isolation.crossing) and not isolation.bad | isolation.crossing <= cluster.culprit
    assert named >= 0.93 * RUNS
    assert wrong == 0


def test_a_link_that_fails_half_of_its_tests_is_named_once_it_has_failed() -> None:
    named = shown = 0
    for seed in range(RUNS):
        cluster = Cluster([4], "link", seed)
        isolation = cluster.play(seed, INCIDENT_PASSES)
        assert isolation.bad == set()
        shown += cluster.shows > 0
        named += cluster.culprit in blamed(isolation)
    assert shown > RUNS / 2
    assert named >= 0.9 * shown


@pytest.mark.parametrize("passes", sorted({*PASSES.values(), 6}))
def test_the_passes_that_are_wanted_set_how_much_is_missed(passes: int) -> None:
    runs, missed = 60, 0
    for seed in range(runs):
        cluster = Cluster([8], "node", seed)
        missed += cluster.play(seed, passes).bad != cluster.culprit
    assert missed / runs <= 0.5**passes + 0.03


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05])
def test_noise_blames_a_healthy_part_in_one_run_of_a_thousand(noise: float) -> None:
    wrong = sum(
        bool(blamed(Cluster([8], "", seed, noise).play(seed, PASSES[Suite.QUICK])))
        for seed in range(1000 if noise == 0.01 else 100)
    )
    assert wrong <= 1


@pytest.mark.parametrize(("sizes", "rounds"), [([8], 2), ([7], 4), ([4, 4], 6), ([8] * 8, 6)])
def test_a_healthy_cluster_costs_the_rounds_of_the_search_and_no_more(sizes: list[int], rounds: int) -> None:
    for seed in range(20 if sum(sizes) < 20 else 3):
        assert Cluster(sizes, "", seed).play(seed, PASSES[Suite.QUICK]).rounds == rounds


@pytest.mark.parametrize(("sizes", "rounds"), [([4], 8), ([4, 4], 10), ([4, 4, 4], 14)])
def test_an_incident_wants_its_passes_of_the_node_in_question_only(sizes: list[int], rounds: int) -> None:
    for seed in range(20):
        isolation = Cluster(sizes, "", seed).play(seed, INCIDENT_PASSES, partners=sum(sizes) - 1)
        assert isolation.rounds <= rounds
        assert isolation.tested("n0a") >= INCIDENT_PASSES
        assert not isolation.undecided


@pytest.mark.parametrize("fault", ["node", "out", "way", "link"])
def test_what_failed_is_not_certain_when_the_rounds_are_over(fault: str) -> None:
    """Neither bad nor passed: it stays in doubt, with its failures and its tests."""
    doubtful = 0
    for seed in range(RUNS // 2):
        cluster = Cluster([4, 4], fault, seed)
        isolation = cluster.play(seed, INCIDENT_PASSES, max_rounds=8)
        healthy = set(cluster.names) - (cluster.culprit if fault in ("node", "out") else set())
        assert healthy.isdisjoint(isolation.bad | isolation.crossing)
        if not cluster.shows or cluster.culprit in blamed(isolation):
            continue
        doubtful += 1
        parts = [{name} for name in cluster.names if isolation.doubt(name)]
        parts += [set(pair) for pair in (*isolation.way_doubts(), *isolation.link_doubts())]
        assert parts
        assert isolation.good.isdisjoint(set.union(*[part for part in parts if len(part) == 1], set()))
        if fault in ("node", "out"):
            (culprit,) = cluster.culprit
            doubt = isolation.doubt(culprit)
            assert doubt is not None
            assert culprit in isolation.undecided
            assert (doubt.fails, doubt.across) == (cluster.shows, fault == "out" and doubt.across)
            assert doubt.fails <= doubt.tests <= isolation.tested(culprit)
    assert doubtful > 5
