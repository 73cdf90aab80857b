"""What the tests of pairs say of nodes, of the ways between them, and of switches. Pure.

Pairs under one switch are compared with each other. A pair across is alone on its way when it is compared with those
(it must reach half of what they do); when many go across at once they are compared with each other only.
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.diagnostics.catalog.catalog import Check, metric_of
from holdfast.diagnostics.catalog.results import CheckResult, Reading
from holdfast.diagnostics.catalog.verdicts import (
    FEWEST,
    Baseline,
    Grade,
    Metric,
    Verdict,
    best,
    is_worse,
    judge,
    share,
    worst,
)
from holdfast.diagnostics.isolation.isolation import STRIKES, Doubt, Isolation, Pair, PairKind

Past = Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]
"""By node, by `figure_key`: (Unix seconds, value), oldest first."""

LINK = "link "
"""What the component of a verdict on a way begins with: it is reported with a node, and says nothing of that node."""
_Figure = tuple[str, str, str]  # check, metric, component
ACROSS = 0.5  # share of a pair's figure under one switch, or of the other pairs' across: less than that is a fault
_AGAIN = "test it again with more passes: holdfast diagnose --suite full"
_REFERENCE = 0.75  # quantile of all pairs' figures that stands for a good pair: up to that many may be bad


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node as a diagnosis sees it. `host`: its machine, which several agents may share. `hardware`: nodes with the
    same text are each other's peers. `address`: where other nodes reach it."""

    node: str
    host: str = ""
    switch: str = ""
    address: str = ""
    hardware: str = ""
    rdma: tuple[str, ...] = ()


def between(way: Pair) -> str:
    """The component of figures and verdicts of the way between two switches."""
    return f"{LINK}between switches {way[0]} and {way[1]}"


def figure_key(check: str, metric: str, component: str) -> str:
    return f"{check}/{metric}/{component}"


def own_past(past: Past, node: str, figure: _Figure) -> Baseline | None:
    rows = past.get(node, {}).get(figure_key(*figure), ())
    return Baseline.of([value for _, value in rows], min((at for at, _ in rows), default=0.0))


@dataclass(frozen=True, slots=True)
class _Test:
    """A test of a pair, as one of its nodes sees it. `result` None: it failed, and `error` says why."""

    partner: str
    result: CheckResult | None
    error: str
    kind: PairKind


class PairJudgement:
    """Collects the results of pairs while a session runs, and judges them."""

    def __init__(self, candidates: Mapping[str, Candidate], past: Past) -> None:
        self._candidates, self._past = candidates, past
        self._pairs: dict[str, list[_Test]] = {}  # by node
        self._round: dict[Pair, tuple[CheckResult | None, PairKind]] = {}
        self._references: dict[tuple[str, str], float] = {}
        self._unable: dict[str, str] = {}
        self._out_of_time = False

    def take(
        self,
        pair: Pair,
        results: Mapping[str, Sequence[CheckResult]],
        errors: Mapping[str, str],
        kind: PairKind = PairKind.NEAR,
    ) -> None:
        """What a pair said: its client (the first) measures, its server's words count where it could not."""
        client, server = pair
        said = [r for node in pair for r in results.get(node, ())]
        again = any(r.evidence.get("try_again") for r in said)
        if again:
            return  # neither's fault: isolation asks again
        error = "; ".join(f"{node}: {text}" for node, text in errors.items())
        error = error or "; ".join(r.error for r in said if r.error)
        unable = next((r.unable for r in said if r.unable), "")
        if unable:
            for node in pair:
                self._unable[node] = unable
            return
        measured = next((r for r in results.get(client, ()) if not r.error), None) if not error else None
        self._round[pair] = measured, kind
        self._references.clear()
        for node, other in ((client, server), (server, client)):
            self._pairs.setdefault(node, []).append(_Test(other, measured, error, kind))

    def round_results(self) -> dict[Pair, bool]:
        """Passed or failed, for the isolation; the pairs of one round, judged against all pairs so far."""
        crowd: dict[tuple[str, str], list[float]] = {}
        for result, kind in self._round.values():
            for r in result.readings if result is not None and kind is PairKind.CROWD else ():
                crowd.setdefault((r.metric, r.component), []).append(r.value)
        results = {
            pair: result is not None and not any(self._is_pair_bad(r, kind, crowd) for r in result.readings)
            for pair, (result, kind) in self._round.items()
        }
        self._round = {}
        return results

    def _is_pair_bad(self, reading: Reading, kind: PairKind, crowd: Mapping[tuple[str, str], Sequence[float]]) -> bool:
        """`crowd`: the figures of those that went across at the same time. What others inject, too, is the price of
        going at once, and no fault of one."""
        metric = metric_of("pair", reading.metric, reading.bar)
        if metric is None or not math.isfinite(reading.value):
            return False
        is_past_bar = math.isfinite(metric.bar) and is_worse(metric, reading.value, metric.bar)
        if kind is PairKind.CROWD:
            values = crowd[(reading.metric, reading.component)]
            if len(values) < FEWEST:
                return False
            is_only = is_past_bar and sum(is_worse(metric, value, metric.bar) for value in values) == 1
            is_compared = math.isfinite(metric.degraded)
            return is_only or (is_compared and share(metric, reading.value, statistics.median(values)) < ACROSS)
        least = metric.degraded if kind is PairKind.NEAR else ACROSS if math.isfinite(metric.degraded) else math.nan
        return is_past_bar or share(metric, reading.value, self._reference(metric, reading.component)) < least

    def _reference(self, metric: Metric, component: str) -> float:
        """What a good pair under one switch has: the best quarter of the nodes, each by its best pair. Neither the
        median, since one bad node spoils a pair, nor all pairs alike, since bad nodes are tested more often than good
        ones. Where no two nodes are under one switch, all pairs count."""
        key = (metric.name, component)
        if key not in self._references:
            all_tests = [test for tests in self._pairs.values() for test in tests]
            kinds = (
                {PairKind.NEAR}
                if any(test.result and test.kind is PairKind.NEAR for test in all_tests)
                else set(PairKind)
            )
            nodes = [
                best(metric, [r.value for test in tests if test.result and test.kind in kinds
                              for r in test.result.readings if (r.metric, r.component) == key])
                for tests in self._pairs.values()
            ]  # fmt: skip
            known = sorted((v for v in nodes if math.isfinite(v)), reverse=not metric.is_more_better)
            self._references[key] = known[min(len(known) - 1, int(_REFERENCE * len(known)))] if known else math.nan
        return self._references[key]

    def verdicts(
        self, check: Check, targets: Collection[str], isolation: Isolation, out_of_time: bool
    ) -> list[Verdict]:
        self._out_of_time = out_of_time
        found: list[Verdict] = []
        dead = isolation.switches
        for node in sorted({*targets, *isolation.bad, *isolation.crossing}):
            tests = self._pairs.get(node, [])
            if not tests:
                only = "needs a second idle node" if len(self._candidates) < 2 else ""
                why = self._unable.get(node) or only or ("out of time" if self._out_of_time else "not run")
                found.append(Verdict(node, check.name, Grade.UNABLE, text=why))
            elif self._candidates[node].switch in dead:
                found.append(self._under_dead_switch(check, node, isolation))
            else:
                found += self._paired(check, node, tests, isolation)
                found += self._across(check, node, tests, isolation)
        return found + self._of_ways(check, isolation) + self._doubtful(check, isolation)

    def _of_ways(self, check: Check, isolation: Isolation) -> list[Verdict]:
        """Bad paths between two nodes or switches. They are reported with the first node, and fail no node."""
        found = []
        for first, second in sorted(isolation.links):
            text = f"the pair fails, but both pass with others: the path between them, not {first} or {second}"
            found.append(
                Verdict(first, check.name, Grade.DEGRADED, component=f"{LINK}to {second}", text=text,
                        action="check the cables and switch ports between them",
                        evidence={"path": [first, second], "of": "nodes"})
            )  # fmt: skip
        for one, other in sorted(isolation.ways):
            ends = {one: [], other: []}  # type: dict[str, list[str]]
            for name, candidate in sorted(self._candidates.items()):
                if candidate.switch in ends and name in self._pairs:
                    ends[candidate.switch].append(name)
            tests = [
                test for name in ends[one] for test in self._pairs[name]
                if test.kind is not PairKind.NEAR and self._candidates[test.partner].switch == other
            ]  # fmt: skip
            rates = [r.value for test in tests if test.result for r in test.result.readings if r.metric == "bandwidth"]
            metric = metric_of(check.name, "bandwidth")
            usual = self._reference(metric, "") if metric is not None else math.nan
            much = f"; at best {max(rates) / usual:.0%} of the rate under one switch" if rates and usual else ""
            text = (
                f"pairs between switches {one} and {other} fail ({len(tests)} tests) while both switches pass "
                f"inside{much}: the path between them, not a node"
            )
            found.append(
                Verdict((ends[one] or ends[other])[0], check.name, Grade.DEGRADED,
                        component=between((one, other)), text=text,
                        action=f"check the uplinks and the switches between {one} and {other}",
                        evidence={"path": [one, other], "of": "switches"})
            )  # fmt: skip
        return found

    def _doubtful(self, check: Check, isolation: Isolation) -> list[Verdict]:
        """Paths that failed, and were not tested often enough to say whether they are bad. They fail no node."""
        found = []
        why = "out of time; " if self._out_of_time else ""
        for (first, second), doubt in sorted(isolation.link_doubts().items()):
            found.append(
                Verdict(first, check.name, Grade.UNABLE, component=f"{LINK}to {second}",
                        text=f"{why}{_not_certain(doubt)}, and both nodes pass with others", action=_AGAIN,
                        evidence={"path": [first, second], "of": "nodes"})
            )  # fmt: skip
        for way, doubt in sorted(isolation.way_doubts().items()):
            node = next(name for name, candidate in sorted(self._candidates.items()) if candidate.switch in way)
            found.append(
                Verdict(node, check.name, Grade.UNABLE, component=between(way), text=why + _not_certain(doubt),
                        action=_AGAIN, evidence={"path": [*way], "of": "switches"})
            )  # fmt: skip
        return found

    def _under_dead_switch(self, check: Check, node: str, isolation: Isolation) -> Verdict:
        """If nothing passes under a switch, but elsewhere does, the switch is faulty: no node is evicted for it."""
        switch = self._candidates[node].switch
        under = [name for name, candidate in self._candidates.items() if candidate.switch == switch]
        text = f"all {len(under)} nodes under switch {switch} fail alike, with each other and across switches"
        return Verdict(
            node, check.name, Grade.DEGRADED, component=f"switch {switch}", text=text,
            action=f"check switch {switch} first", evidence={"partners": self._partners(node)},
        )  # fmt: skip

    def _partners(self, node: str) -> list[str]:
        return [test.partner for test in self._pairs[node]]

    def _across(self, check: Check, node: str, tests: Sequence[_Test], isolation: Isolation) -> list[Verdict]:
        """Good under its switch, and bad with partners under others, whose own pairs across pass."""
        if not isolation.is_crossing(node):
            return []
        partners = dict.fromkeys(second if first == node else first for first, second in isolation.failed_with(node))
        errors = [test.error for test in tests if test.kind is not PairKind.NEAR and test.error]
        text = (
            f"passes under switch {self._candidates[node].switch}, and fails across with {', '.join(partners)}, "
            f"which pass across with others" + (f"; {errors[0]}" if errors else "")
        )
        return [
            Verdict(node, check.name, Grade.FAIL, component="across switches", text=text, against="peers",
                    action="check its routes, its address and its uplink",
                    evidence={"partners": list(partners)})
        ]  # fmt: skip

    def _undecided(self, check: Check, node: str, isolation: Isolation) -> Verdict:
        evidence: dict[str, Any] = {"partners": self._partners(node)}
        failed = isolation.failed_with(node)
        partners = list(dict.fromkeys(second if first == node else first for first, second in failed))
        if len(failed) >= STRIKES and len(partners) == 1:
            text = (
                f"{len(failed)} of {isolation.tested(node)} tests with {partners[0]} failed: {node}, {partners[0]} or "
                "the path between them; one more idle node would show which"
            )
            return Verdict(
                node, check.name, Grade.DEGRADED, component=f"pair with {partners[0]}", text=text, action=check.action,
                evidence=evidence,
            )  # fmt: skip
        why = "out of time; " if self._out_of_time else ""
        if not failed:
            text = f"tested {isolation.tested(node)} times; two passes with one partner are needed"
            return Verdict(node, check.name, Grade.UNABLE, text=why + text, evidence=evidence)
        doubt = isolation.doubt(node)
        text = _not_certain(doubt) if doubt is not None else "not certain"
        if not any(isolation.is_good(partner) for partner in evidence["partners"]):
            text += f"; no partner is known to be good ({', '.join(partners)})"
        return Verdict(node, check.name, Grade.UNABLE, text=why + text, action=_AGAIN, evidence=evidence)

    def _paired(self, check: Check, node: str, tests: Sequence[_Test], isolation: Isolation) -> list[Verdict]:
        evidence: dict[str, Any] = {"partners": self._partners(node)}
        readings = [r for test in tests if test.result is not None for r in test.result.readings]
        if isolation.is_undecided(node):
            return [self._undecided(check, node, isolation)]
        is_bad = isolation.is_bad(node)
        if not readings:
            errors = list(dict.fromkeys(test.error for test in tests if test.error))
            text = f"all its pairs failed: {errors[0] if errors else 'no figure'}"
            grade = Grade.FAIL if is_bad else Grade.UNABLE
            return [Verdict(node, check.name, grade, text=text, action=check.action, evidence=evidence)]
        found = []
        for name, component in dict.fromkeys((r.metric, r.component) for r in readings):
            mine = [r for r in readings if (r.metric, r.component) == (name, component)]
            metric = metric_of(check.name, name, mine[-1].bar)
            if metric is not None:
                value = best(metric, [r.value for r in mine])
                verdict = self._pair_verdict(check, node, metric, component, value, evidence)
                found.append(self._against_pairs(verdict, metric, check) if is_bad else verdict)
        if is_bad and worst([v.grade for v in found]) is Grade.PASS:
            found.append(self._intermittent(check, node, tests, isolation, evidence))
        return found

    def _intermittent(
        self, check: Check, node: str, tests: Sequence[_Test], isolation: Isolation, evidence: dict[str, Any]
    ) -> Verdict:
        """Each figure was good in some pair; no partner that is well with others was well with it twice in a row."""
        failed = isolation.failed_with(node)
        errors = [test.error for test in tests if test.result is None and test.error]
        text = f"{len(failed)} of its {isolation.tested(node)} pairs failed, with partners that pass with others"
        text += f"; {errors[0]}" if errors else ""
        return Verdict(node, check.name, Grade.FAIL, text=text, action=check.action, evidence=evidence)

    def _pair_verdict(
        self, check: Check, node: str, metric: Metric, component: str, value: float, evidence: dict[str, Any]
    ) -> Verdict:
        """A pair is as good as its worse member, so a node's figure is the best of its pairs, and so are its peers'."""
        past = own_past(self._past, node, (check.name, metric.name, component))
        return judge(node, check.name, metric, value, None, past, component, check.action, evidence)

    def _against_pairs(self, verdict: Verdict, metric: Metric, check: Check) -> Verdict:
        """For a node that isolation found bad: by how much its best pair is worse than a good one."""
        reference = self._reference(metric, verdict.component)
        ratio = share(metric, verdict.value, reference)
        if verdict.grade is Grade.FAIL or not ratio < metric.degraded:
            return verdict
        pairs = sum(test.result is not None for tests in self._pairs.values() for test in tests) // 2
        return replace(
            verdict, grade=Grade.FAIL if ratio < metric.fail else Grade.DEGRADED, against="peers", baseline=reference,
            baseline_n=pairs, baseline_since=0.0, text=f"{ratio:.0%} of the figure of good pairs", action=check.action,
        )  # fmt: skip


def _not_certain(doubt: Doubt) -> str:
    where = " across switches" if doubt.across else ""
    return f"not certain: failed {doubt.fails} of {doubt.tests} tests{where}"
