"""Processor time of each test, with all processes that it starts: `python -m pytest -p tests.cpu_seconds FILE...`.

Wall time of a test depends on what else runs; processor time hardly does. Counted are this process, the children that
have ended, and those that live (with their ended children), before and after each phase of each test. A fixture's time
goes to the test that sets it up first. Not counted are processes that end without a parent that waits for them.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
SHOWN = 25


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cpu-seconds",
        metavar="FILE",
        help="also write there, tab-separated, each test's setup, call, teardown, and its wall time",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Meter(config.getoption("--cpu-seconds")), "cpu_seconds_meter")


class _Meter:
    def __init__(self, file: str | None) -> None:
        self._file = Path(file) if file else None
        if self._file:
            self._file.write_text("test\tsetup\tcall\tteardown\twall\n")
        self._begun_s = consumed_s()
        self._cpu_s: dict[str, dict[str, float]] = defaultdict(lambda: {"setup": 0.0, "call": 0.0, "teardown": 0.0})
        self._wall_s: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        yield from self._phase(item, "setup")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        yield from self._phase(item, "call")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        yield from self._phase(item, "teardown")

    def _phase(self, item: pytest.Item, name: str) -> Iterator[None]:
        cpu_s, wall_s = consumed_s(), time.monotonic()
        try:
            yield
        finally:
            self._cpu_s[item.nodeid][name] += consumed_s() - cpu_s
            self._wall_s[item.nodeid] += time.monotonic() - wall_s
        if self._file and name == "teardown":
            seconds = [*self._cpu_s[item.nodeid].values(), self._wall_s[item.nodeid]]
            with self._file.open("a") as file:  # at once: a long run can be read while it goes on
                print(item.nodeid, *(f"{one:.3f}" for one in seconds), sep="\t", file=file)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        totals = {test: sum(phases.values()) for test, phases in self._cpu_s.items()}
        files: dict[str, float] = defaultdict(float)
        for test, seconds in totals.items():
            files[test.split("::")[0]] += seconds
        say = terminalreporter.write_line
        say(f"processor time: {consumed_s() - self._begun_s:.1f} s, of these {sum(totals.values()):.1f} s in tests")
        for what in (files, totals):
            for name, seconds in sorted(what.items(), key=lambda pair: -pair[1])[:SHOWN]:
                say(f"{seconds:8.2f} s  {name}")


def consumed_s() -> float:
    """Seconds of processor time of this process and of all that descend from it, living or waited for."""
    own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in own) + _living_s(os.getpid())


def _living_s(root: int) -> float:
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                line = Path(entry.path, "stat").read_text()
            except OSError:
                continue  # it ended since
            fields = line.rpartition(")")[2].split()  # the name may hold spaces and brackets; proc(5)
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    children: dict[int, list[int]] = defaultdict(list)
    for pid, parent in parents.items():
        children[parent].append(pid)
    total, ahead = 0, list(children[root])
    while ahead:
        pid = ahead.pop()
        total += ticks[pid]
        ahead += children[pid]
    return total / TICKS
