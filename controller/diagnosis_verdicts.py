"""From the results of a diagnosis to its verdicts: what each node's figures are held against. Pure."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.diagnostics.catalog import BY_NAME, Check, metric_of
from holdfast.diagnostics.isolation import Isolation, Pair
from holdfast.diagnostics.results import CheckResult, Fault, Reading
from holdfast.diagnostics.verdicts import (
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

Past = Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]
"""By node, by `figure_key`: (Unix seconds, value), oldest first."""

Figures = Mapping[str, Mapping[str, float | None]]
_Figure = tuple[str, str, str]  # check, metric, component
_Groups = dict[tuple[str, str, str, str], dict[str, list[float]]]
_MANY = 32  # nodes from which a group's median is not one node's doing
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


def figure_key(check: str, metric: str, component: str) -> str:
    return f"{check}/{metric}/{component}"


class Judgement:
    """Collects results while a session runs, and judges them."""

    def __init__(self, candidates: Mapping[str, Candidate], past: Past) -> None:
        self._candidates, self._past = candidates, past
        self._values: dict[str, dict[_Figure, list[Reading]]] = {}
        self._faults: dict[str, dict[str, list[Fault]]] = {}
        self._unable: dict[tuple[str, str], str] = {}
        self._errors: dict[tuple[str, str], str] = {}
        self._evidence: dict[tuple[str, str], dict[str, Any]] = {}
        self._ran: set[tuple[str, str]] = set()  # (node, check) that gave a figure or a fault, or nothing bad to say
        self._pairs: dict[str, list[tuple[str, CheckResult | None, str]]] = {}  # by node: partner, result, error
        self._round: dict[Pair, CheckResult | None] = {}
        self._references: dict[tuple[str, str], float] = {}
        self._groups: _Groups | None = None  # until the next result
        self._baselines: dict[tuple[str, str, str, str], Baseline | None] = {}
        self.out_of_time = False

    # --- results come --------------------------------------------------------------------------------------------

    def take(self, node: str, check: str, results: Sequence[CheckResult], error: str) -> None:
        """What a node said of one check. `error`: why its process did not end well."""
        result = next((r for r in results if r.check == check), None)
        key = (node, check)
        if result is None:
            self._errors[key] = error or "its process ended without a result"
            return
        self._evidence[key] = result.evidence
        if result.unable:
            self._unable[key] = result.unable
            if not result.readings and not result.faults:
                return
        if result.error:
            self._errors[key] = result.error
            return
        self._errors.pop(key, None)  # a second try went well
        self._ran.add(key)
        self._groups = None
        for reading in result.readings:
            figure = (check, reading.metric, reading.component)
            self._values.setdefault(node, {}).setdefault(figure, []).append(reading)
        self._faults.setdefault(node, {}).setdefault(check, []).extend(result.faults)

    def pair(self, pair: Pair, results: Mapping[str, Sequence[CheckResult]], errors: Mapping[str, str]) -> None:
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
                self._unable[(node, "pair")] = unable
            return
        measured = next((r for r in results.get(client, ()) if not r.error), None) if not error else None
        self._round[pair] = measured
        self._references.clear()
        for node, other in ((client, server), (server, client)):
            self._pairs.setdefault(node, []).append((other, measured, error))

    # --- while it runs -------------------------------------------------------------------------------------------

    def doubtful(self, targets: Collection[str]) -> dict[str, list[str]]:
        """Checks to try once more, by node: the figures are bad, or it broke where others did not, or they lie behind
        the best quarter. The last, since figures that scatter hide who is bad for good."""
        again = {pair for pair in self._behind() if pair[0] in targets}
        for name in {name for _, name in [*self._ran, *self._errors]}:
            for verdict in self.node_verdicts(BY_NAME[name], targets):
                if verdict.grade in (Grade.FAIL, Grade.DEGRADED) and verdict.against != "fault":
                    again.add((verdict.node, name))
        return {node: sorted(name for n, name in again if n == node) for node in sorted({n for n, _ in again})}

    def _behind(self) -> set[tuple[str, str]]:
        found = set()
        for (_, check, name, _), group in self._by_peers().items():
            metric = metric_of(check, name)
            values = sorted(v for values in group.values() for v in values)
            if metric is None or len(values) < FEWEST:
                continue
            good = values[int((_REFERENCE if metric.is_more_better else 1 - _REFERENCE) * len(values))]
            found |= {
                (node, check)
                for node, mine in group.items()
                if any(share(metric, v, good) < metric.degraded for v in mine)
            }
        return found

    def round_results(self) -> dict[Pair, bool]:
        """Passed or failed, for the isolation; the pairs of one round, judged against all pairs so far."""
        results = {pair: result is not None and not self._pair_faults(result) for pair, result in self._round.items()}
        self._round = {}
        return results

    def _pair_faults(self, result: CheckResult) -> list[tuple[Reading, Metric]]:
        found = []
        for reading in result.readings:
            metric = metric_of("pair", reading.metric, reading.bar)
            if metric is None or not math.isfinite(reading.value):
                continue
            if (math.isfinite(metric.bar) and is_worse(metric, reading.value, metric.bar)) or (
                share(metric, reading.value, self._reference(metric, reading.component)) < metric.degraded
            ):
                found.append((reading, metric))
        return found

    def _reference(self, metric: Metric, component: str) -> float:
        """What a good pair has: the best quarter of the nodes, each by its best pair. Neither the median, since one bad
        node spoils a pair, nor all pairs alike, since bad nodes are tested more often than good ones."""
        key = (metric.name, component)
        if key not in self._references:
            nodes = [
                best(metric, [r.value for _, result, _ in tests if result for r in result.readings
                              if (r.metric, r.component) == key])
                for tests in self._pairs.values()
            ]  # fmt: skip
            known = sorted((v for v in nodes if math.isfinite(v)), reverse=not metric.is_more_better)
            self._references[key] = known[min(len(known) - 1, int(_REFERENCE * len(known)))] if known else math.nan
        return self._references[key]

    # --- at the end ----------------------------------------------------------------------------------------------

    def node_verdicts(self, check: Check, targets: Collection[str]) -> list[Verdict]:
        found: list[Verdict] = []
        for node in targets:
            found += self._node(check, node)
        return found

    def neighbour_verdicts(self, check: Check, targets: Collection[str]) -> list[Verdict]:
        """What a group could not do as one says something of its switch, and fails none of its members."""
        softened = []
        for verdict in self.node_verdicts(check, targets):
            is_fail = verdict.grade is Grade.FAIL
            softened.append(replace(verdict, grade=Grade.DEGRADED) if is_fail else verdict)
        return softened

    def _node(self, check: Check, node: str) -> list[Verdict]:
        key = (node, check.name)
        evidence = self._evidence.get(key, {})
        found = [
            Verdict(node, check.name, Grade.FAIL if f.fatal else Grade.DEGRADED, component=f.component, text=f.text,
                    against="fault", action=f.action or check.action, evidence=evidence)
            for f in dict.fromkeys(self._faults.get(node, {}).get(check.name, ()))
        ]  # fmt: skip
        for (name, metric_name, component), readings in self._values.get(node, {}).items():
            metric = metric_of(name, metric_name, readings[-1].bar)
            if name != check.name or metric is None:
                continue
            value = best(metric, [r.value for r in readings])
            peers = self._peers(node, (name, metric_name, component))
            past = self._own_past(node, (name, metric_name, component))
            found.append(judge(node, name, metric, value, peers, past, component, check.action, evidence))
        if key in self._errors:
            found.append(self._broken(check, node, self._errors[key]))
        if found and key in self._unable:  # a part of it could not be tested
            found.append(Verdict(node, check.name, Grade.UNABLE, text=self._unable[key], evidence=evidence))
        if found:
            return found
        if key in self._ran:
            return [Verdict(node, check.name, Grade.PASS, text="nothing found", evidence=evidence)]
        why = self._unable.get(key) or ("out of time" if self.out_of_time else "not run")
        return [Verdict(node, check.name, Grade.UNABLE, text=why, evidence=evidence)]

    def _broken(self, check: Check, node: str, error: str) -> Verdict:
        hardware = self._candidates[node].hardware
        others = [n for n, name in self._ran if name == check.name and n != node]
        proof = any(self._candidates[n].hardware == hardware for n in others)
        text = error if proof else f"{error}; nowhere else did it go well, so it proves nothing"
        grade = Grade.FAIL if proof and "left" not in error else Grade.UNABLE
        return Verdict(node, check.name, grade, text=text, action=check.action if proof else "")

    def _peers(self, node: str, figure: _Figure) -> Baseline | None:
        """The same figure of the other nodes with this hardware. In a large group its own changes nothing."""
        check, name, component = figure
        key = (self._candidates[node].hardware, check, name, _kind(component))
        group = self._by_peers().get(key, {})
        if len(group) < _MANY:
            return Baseline.of([v for other, values in group.items() if other != node for v in values])
        if key not in self._baselines:
            self._baselines[key] = Baseline.of([v for values in group.values() for v in values])
        return self._baselines[key]

    def _by_peers(self) -> _Groups:
        """Hardware, check, metric and kind of component -> node -> its best values."""
        if self._groups is not None:
            return self._groups
        self._baselines.clear()
        groups: _Groups = {}
        for node, figures in self._values.items():
            for (check, name, component), readings in figures.items():
                metric = metric_of(check, name)
                if metric is not None:
                    key = (self._candidates[node].hardware, check, name, _kind(component))
                    value = best(metric, [r.value for r in readings])
                    groups.setdefault(key, {}).setdefault(node, []).append(value)
        self._groups = groups
        return groups

    def _own_past(self, node: str, figure: _Figure) -> Baseline | None:
        rows = self._past.get(node, {}).get(figure_key(*figure), ())
        return Baseline.of([value for _, value in rows], min((at for at, _ in rows), default=0.0))

    def pair_verdicts(self, check: Check, targets: Collection[str], isolation: Isolation) -> list[Verdict]:
        found: list[Verdict] = []
        for node in sorted({*targets, *isolation.bad}):
            tests = self._pairs.get(node, [])
            if not tests:
                only = "needs a second idle node" if len(self._candidates) < 2 else ""
                why = self._unable.get((node, check.name)) or only or ("out of time" if self.out_of_time else "not run")
                found.append(Verdict(node, check.name, Grade.UNABLE, text=why))
            else:
                found += self._paired(check, node, tests, isolation)
        found = [self._of_switch(v, isolation) for v in found]
        for first, second in sorted(isolation.links):
            text = f"the pair fails though both are well with others: the way between them, not {first} or {second}"
            found.append(
                Verdict(first, check.name, Grade.DEGRADED, component=f"link to {second}", text=text,
                        action="look at the cables and switch ports between them")
            )  # fmt: skip
        return found

    def _of_switch(self, verdict: Verdict, isolation: Isolation) -> Verdict:
        """Where every tested node under a switch fails and others do not, it is the switch: no node goes for that."""
        switch = self._candidates[verdict.node].switch
        under = {name for name, candidate in self._candidates.items() if candidate.switch == switch}
        if verdict.grade is not Grade.FAIL or not switch or len(under) < 2 or not under <= isolation.bad:
            return verdict
        text = f"all {len(under)} nodes under switch {switch} fail alike; {verdict.text}"
        action = f"look at switch {switch} first"
        return replace(verdict, grade=Grade.DEGRADED, component=f"switch {switch}", text=text, action=action)

    def _paired(
        self, check: Check, node: str, tests: list[tuple[str, CheckResult | None, str]], isolation: Isolation
    ) -> list[Verdict]:
        partners = [other for other, _, _ in tests]
        evidence: dict[str, Any] = {"partners": partners}
        readings = [r for _, result, _ in tests if result is not None for r in result.readings]
        if node in isolation.undecided:
            text = f"no pair with it passed, and no partner of it is known to be good ({', '.join(partners)})"
            why = "out of time; " if self.out_of_time else ""
            return [Verdict(node, check.name, Grade.UNABLE, text=why + text, evidence=evidence)]
        if not readings:
            errors = list(dict.fromkeys(error for _, _, error in tests if error))
            text = f"no pair with it works: {errors[0] if errors else 'no figure'}"
            grade = Grade.FAIL if node in isolation.bad else Grade.UNABLE
            return [Verdict(node, check.name, grade, text=text, action=check.action, evidence=evidence)]
        found = []
        for name, component in dict.fromkeys((r.metric, r.component) for r in readings):
            mine = [r for r in readings if (r.metric, r.component) == (name, component)]
            metric = metric_of(check.name, name, mine[-1].bar)
            if metric is not None:
                value = best(metric, [r.value for r in mine])
                verdict = self._pair_verdict(check, node, metric, component, value, evidence)
                found.append(self._against_pairs(verdict, metric, check) if node in isolation.bad else verdict)
        failed = [error for _, result, error in tests if result is None]
        if node in isolation.bad and worst([v.grade for v in found]) is Grade.PASS:
            # Each figure was good in some pair, but no pair was good as a whole.
            text = f"none of {len(tests)} pairs with it passed" + (f"; {failed[0]}" if failed else "")
            found.append(Verdict(node, check.name, Grade.DEGRADED, text=text, action=check.action, evidence=evidence))
        return found

    def _pair_verdict(
        self, check: Check, node: str, metric: Metric, component: str, value: float, evidence: dict[str, Any]
    ) -> Verdict:
        """A pair is as good as its worse member, so a node's figure is the best of its pairs, and so are its peers'."""
        past = self._own_past(node, (check.name, metric.name, component))
        return judge(node, check.name, metric, value, None, past, component, check.action, evidence)

    def _against_pairs(self, verdict: Verdict, metric: Metric, check: Check) -> Verdict:
        """For a node that isolation found bad: by how much its best pair is worse than a good one."""
        reference = self._reference(metric, verdict.component)
        ratio = share(metric, verdict.value, reference)
        if verdict.grade is Grade.FAIL or not ratio < metric.degraded:
            return verdict
        pairs = sum(result is not None for tests in self._pairs.values() for _, result, _ in tests) // 2
        return replace(
            verdict, grade=Grade.FAIL if ratio < metric.fail else Grade.DEGRADED, against="peers", baseline=reference,
            baseline_n=pairs, baseline_since=0.0, text=f"{ratio:.0%} of what good pairs have", action=check.action,
        )  # fmt: skip


def passes(verdicts: Iterable[Verdict]) -> Figures:
    """What joins a node's past, by node and `figure_key`: figures that passed, so that a slow decay never becomes the
    measure of itself. None for a test that has no figure."""
    found: dict[str, dict[str, float | None]] = {}
    for v in verdicts:
        if v.grade is Grade.PASS:
            value = v.value if math.isfinite(v.value) else None
            found.setdefault(v.node, {})[figure_key(v.check, v.metric, v.component)] = value
    return found


def from_passes(figures: Figures) -> list[Verdict]:
    """The verdicts that `passes` was made of, as far as it holds them."""
    found = []
    for node, values in figures.items():
        for key, value in values.items():
            check, name, component = key.split("/", 2)
            metric = metric_of(check, name)
            found.append(
                Verdict(node, check, Grade.PASS, name, component, math.nan if value is None else value,
                        metric.unit if metric else "")
            )  # fmt: skip
    return found


def _kind(component: str) -> str:
    """gpu3 is compared with every GPU, eth0 only with the others' eth0."""
    return "gpu" if component.rstrip("0123456789") == "gpu" else component
