"""Which links are slow by the newest diagnosis of both ends."""

from __future__ import annotations

from typing import Any

from holdfast.controller.diagnosis.slow_links import slow_links


def doc(nodes: str, *paths: tuple[str, str], of: str = "nodes", grade: str = "pass") -> dict[str, Any]:
    verdicts: list[dict[str, Any]] = [{"check": "pair", "grade": grade, "evidence": {"partners": ["b"]}}]
    verdicts += [{"check": "pair", "grade": "degraded", "evidence": {"path": list(p), "of": of}} for p in paths]
    return {"nodes": nodes.split(), "verdicts": verdicts}


def test_the_newest_diagnosis_of_both_ends_counts() -> None:
    bad = doc("a b c", ("a", "b"), ("b", "c"))
    assert slow_links([bad]).nodes == {("a", "b"), ("b", "c")}
    assert slow_links([bad, doc("a b")]).nodes == {("b", "c")}
    assert slow_links([bad, doc("a")]).nodes == {("a", "b"), ("b", "c")}
    assert slow_links([bad, doc("a b", grade="unable")]).nodes == {("a", "b"), ("b", "c")}  # no pair was tested
    assert slow_links([bad, doc("a b"), doc("a b", ("a", "b"))]).nodes == {("a", "b"), ("b", "c")}


def test_ways_between_switches() -> None:
    bad = doc("a b", ("s1", "s2"), of="switches")
    assert slow_links([bad]).switches == {("s1", "s2")}
    assert slow_links([bad]).nodes == frozenset()
    assert not slow_links([bad, doc("a b c")])
    assert slow_links([bad, doc("a")]).switches == {("s1", "s2")}


def test_what_an_older_journal_has_is_no_link() -> None:
    odd = [
        {"check": "pair", "grade": "degraded", "evidence": {"path": 3}},
        {"check": "pair", "grade": "fail", "evidence": None},
    ]
    assert not slow_links([{"nodes": ["a"], "verdicts": odd}, {}])
