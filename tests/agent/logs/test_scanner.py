"""The rules see a bounded amount of output per turn; nothing is lost that fits in memory."""

import dataclasses
import re
from re import _constants, _parser  # type: ignore[attr-defined]  # the compiler's own view of a pattern
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.logs import scanner
from holdfast.agent.logs.rules import MOST_OF_LINE, LogRule, Rules, load
from holdfast.agent.logs.scanner import Scanner, cut
from holdfast.wire.types import LogMatched, Severity

RULES = load()
WORKERS = [rule for rule in RULES.all if not rule.host]
KEY = ("j1", 1, 0)
LONG = 512 << 10


class Counting:
    """A pattern that records how much it was given to read."""

    def __init__(self, pattern: "re.Pattern[str] | None") -> None:
        self.pattern, self.read = pattern, 0

    def search(self, text: str) -> Any:
        self.read += len(text)
        return self.pattern.search(text) if self.pattern is not None else None


def counted(rule: LogRule) -> tuple[LogRule, list[Counting]]:
    patterns = [Counting(one) for one in (rule.pattern, rule.exclude, rule.well)]
    pattern, exclude, well = patterns
    more: Any = {"pattern": pattern, "exclude": rule.exclude and exclude, "well": rule.well and well}
    return dataclasses.replace(rule, **more), patterns


class Clock:
    """CPU time that advances only on request."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def reading(rules: Rules, cost: float = 0.0) -> tuple[Scanner, list[LogMatched], Clock]:
    """`cost`: seconds that each match takes."""
    cpu, found = Clock(), list[LogMatched]()

    def on_match(event: LogMatched, rule: LogRule) -> None:
        cpu.now += cost
        found.append(event)

    return Scanner(rules, on_match, clock=Clock(), wall_ns=lambda: 1, cpu=cpu), found, cpu


@pytest.mark.parametrize("rule", WORKERS, ids=lambda rule: rule.name)
def test_one_line_costs_no_more_than_its_two_ends(rule: LogRule) -> None:
    """Each needle half a million characters long, whatever the pattern makes of it."""
    for needle in (*rule.needles, *rule.well_needles):
        one, patterns = counted(rule)
        reads, *_ = reading(Rules([one]))
        reads.add(KEY, (needle + " ") * (LONG // (len(needle) + 1)))
        while reads.is_behind:
            reads.work()
        assert max(pattern.read for pattern in patterns) <= 4 * MOST_OF_LINE + 100  # as a line, and in a row of them


def unbounded(pattern: str) -> list[str]:
    """The unbounded repeats of a pattern."""

    def walk(tree: Any) -> list[str]:
        found = []
        for op, args in tree:
            if op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT):
                found += [str(op)] if args[1] is _constants.MAXREPEAT else []
            for part in args if isinstance(args, tuple | list) else ():
                for tree in part if isinstance(part, list) else [part]:
                    found += walk(tree) if isinstance(tree, _parser.SubPattern) else []
        return found

    return walk(_parser.parse(pattern))


@pytest.mark.parametrize("rule", RULES.all, ids=lambda rule: rule.name)
def test_no_pattern_repeats_without_bound(rule: LogRule) -> None:
    """Else its time is the square of a line's length, or more."""
    assert unbounded("NCCL WARN.*(?:a|b)") == unbounded("a(?:b|c{2,}d)") == ["MAX_REPEAT"]
    for pattern in (rule.pattern, rule.exclude, rule.well):
        assert pattern is None or not unbounded(pattern.pattern)


def test_both_ends_of_a_long_line_are_seen() -> None:
    for line in ("CUDA error: x" + "-" * LONG, "-" * LONG + " NCCL error in: x", "\r10%" * LONG + "\rCUDA error: x"):
        [(found, _)] = RULES.scan("\n".join(cut(line)))
        assert len(found) <= 2 * MOST_OF_LINE + 5
        assert RULES.match(line) is not None


@given(
    st.text(alphabet="ab\r\n", max_size=60) | st.lists(st.sampled_from(["\n", "x" * 9, "y" * 30, "\r"])).map("".join),
    st.integers(1, 12),
)
def test_pieces_are_whole_lines_and_hold_all_of_them(text: str, most: int) -> None:
    pieces = list(cut(text, most))

    def lines(of: str) -> list[str]:
        return [line for line in of.replace("\r", "\n").split("\n") if line]

    assert lines("\n".join(pieces)) == lines(text)
    assert all(len(piece) <= most or "\n" not in piece for piece in pieces)


RULE = LogRule("boom", "crash", Severity.CRITICAL, re.compile(r"boom \d"), "boom 1", ("boom",))
EACH = [dataclasses.replace(RULE, name=f"boom{n}", pattern=re.compile(f"boom {n}$")) for n in range(20)]
BOOMS = [f"boom {n}".rjust(MOST_OF_LINE - 1) for n in range(20)]


def test_what_does_not_fit_into_a_turn_waits_for_the_next() -> None:
    reads, found, _ = reading(Rules(EACH), cost=scanner.WORK_S / 4)
    reads.add(KEY, "\n".join(BOOMS) + "\n")
    counts = []
    while reads.is_behind:
        reads.work()
        counts.append(len(found))
    assert counts == [4, 8, 12, 16, 20]
    assert [event.rule for event in found] == [rule.name for rule in EACH]


def test_the_last_words_of_a_worker_do_not_wait() -> None:
    reads, found, _ = reading(Rules(EACH), cost=scanner.FINISH_S / 4)
    reads.add(KEY, "\n".join(BOOMS))
    reads.add(("j1", 1, 1), "boom 3")
    reads.finish(KEY)
    mine = [event.rule for event in found if event.rank == 0]
    first = 20 - scanner.LAST // (MOST_OF_LINE - 1) - 1
    assert mine == [f"boom{n}" for n in (*range(first, first + 4), 19)]
    assert not reads.is_behind


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(scanner, "MOST_WAITING", 5 * MOST_OF_LINE)
    reads, found, _ = reading(Rules(EACH))
    for _ in range(2):
        reads.add(KEY, "\n".join(BOOMS))
    while reads.is_behind:
        reads.work()
    assert [event.rule for event in found] == [f"boom{n}" for n in range(15, 20)]
    assert [r.message for r in caplog.records] == ["lines.unread"]
