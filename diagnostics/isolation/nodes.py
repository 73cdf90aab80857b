"""From the results of a diagnosis to its verdicts: what each node's figures are compared with. Pure."""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.diagnostics.catalog.catalog import BY_NAME, Check, metric_of
from holdfast.diagnostics.catalog.results import CheckFault, CheckResult, Reading
from holdfast.diagnostics.catalog.verdicts import FEWEST, Baseline, Grade, Verdict, best, judge, share
from holdfast.diagnostics.isolation.isolation import Pair
from holdfast.diagnostics.isolation.pairs import (
    ACROSS,
    LINK,
    Candidate,
    PairJudgement,
    Past,
    between,
    figure_key,
    own_past,
)

Figures = Mapping[str, Mapping[str, float | None]]
_Figure = tuple[str, str, str]  # check, metric, component
_Groups = dict[tuple[str, str, str, str], dict[str, list[float]]]
AGENT_LEFT = "its agent disconnected"
"""The error of a node whose agent left during a diagnosis: it proves nothing about the node."""
_MANY = 32  # nodes from which a group's median is not one node's doing
_REFERENCE = 0.75  # quantile of all figures that stands for a good one


class Judgement:
    """Collects results while a session runs, and judges them."""

    def __init__(self, candidates: Mapping[str, Candidate], past: Past) -> None:
        self._candidates, self._past = candidates, past
        self._values: dict[str, dict[_Figure, list[Reading]]] = {}
        self._faults: dict[str, dict[str, list[CheckFault]]] = {}
        self._unable: dict[tuple[str, str], str] = {}
        self._errors: dict[tuple[str, str], str] = {}
        self._evidence: dict[tuple[str, str], dict[str, Any]] = {}
        self._ran: set[tuple[str, str]] = set()  # (node, check) that gave a figure or a fault, or nothing bad to say
        self.pairs = PairJudgement(candidates, past)
        self.broken_ways: dict[Pair, str] = {}
        """Between two switches: why a group across had no figure."""
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
        self._errors.pop(key, None)  # a second attempt passed
        self._ran.add(key)
        self._groups = None
        for reading in result.readings:
            figure = (check, reading.metric, reading.component)
            self._values.setdefault(node, {}).setdefault(figure, []).append(reading)
        self._faults.setdefault(node, {}).setdefault(check, []).extend(result.faults)

    # --- while it runs -------------------------------------------------------------------------------------------

    def doubtful(self, targets: Collection[str]) -> dict[str, list[str]]:
        """Checks to repeat, by node: the figures are bad, or it broke where others did not, or they lie behind
        the best quarter. The last, since figures that scatter hide the node that is always bad."""
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

    # --- at the end ----------------------------------------------------------------------------------------------

    def node_verdicts(self, check: Check, targets: Collection[str]) -> list[Verdict]:
        found: list[Verdict] = []
        for node in targets:
            found += self._node(check, node)
        return found

    def neighbour_verdicts(self, check: Check, targets: Collection[str]) -> list[Verdict]:
        """What a group could not do as one says something of its switch, or of the way between two, and fails none of
        its members."""
        near = self._near(check)
        softened = [self._soften(verdict, near, check) for verdict in self.node_verdicts(check, targets)]
        for way, error in sorted(self.broken_ways.items()):
            node = next((n for n, c in sorted(self._candidates.items()) if c.switch in way), next(iter(targets)))
            text = f"the group across failed: {error}"
            softened.append(
                Verdict(node, check.name, Grade.DEGRADED, component=between(way), text=text, action=check.action)
            )
        return softened

    def _near(self, check: Check) -> dict[str, float]:
        """The median of the rate of groups under one switched, by metric."""
        found: dict[str, list[float]] = {}
        for figures in self._values.values():
            for (name, metric, component), readings in figures.items():
                if name == check.name and not component:
                    found.setdefault(metric, []).extend(r.value for r in readings)
        return {metric: statistics.median(values) for metric, values in found.items()}

    @staticmethod
    def _soften(verdict: Verdict, near: Mapping[str, float], check: Check) -> Verdict:
        if verdict.component.startswith(LINK) and verdict.grade is Grade.PASS:
            usual = near.get(verdict.metric, math.nan)
            if verdict.value < ACROSS * usual:
                text = f"{verdict.value / usual:.0%} of the rate of groups under one switch"
                return replace(verdict, grade=Grade.DEGRADED, text=text, action=check.action, against="peers",
                               baseline=usual)  # fmt: skip
        return replace(verdict, grade=Grade.DEGRADED) if verdict.grade is Grade.FAIL else verdict

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
            past = own_past(self._past, node, (name, metric_name, component))
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
        text = error if proof else f"{error}; no other node passed, so it proves nothing"
        grade = Grade.FAIL if proof and AGENT_LEFT not in error else Grade.UNABLE
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
    """gpu3 is compared with every GPU, a way between switches with every way, eth0 only with the others' eth0."""
    if component.startswith(LINK):
        return LINK
    return "gpu" if component.rstrip("0123456789") == "gpu" else component
