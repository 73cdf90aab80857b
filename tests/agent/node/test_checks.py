"""Checks as processes: results come back, a check that hangs is killed, no process is left."""

import asyncio
import json
from pathlib import Path

import psutil
import pytest

from holdfast.agent.node.checks import Checks
from holdfast.agent.processes import interpreter
from holdfast.diagnostics.catalog.results import parse_result
from holdfast.wire import messages as msg
from tests.agent.support.processes import until
from tests.agent.support.warm_node import alive


def ask(order: msg.RunCheck, folder: Path) -> msg.CommandResult:
    answers: list[msg.CommandResult] = []

    async def run() -> None:
        checks = Checks(str(folder), answers.append)
        command = msg.Command("c1", "", 0, order)
        checks.begin(command, order)
        checks.begin(command, order)  # sent again: runs once
        async with asyncio.timeout(60):
            while not answers:
                await asyncio.sleep(0.01)
        await checks.close()

    asyncio.run(run())
    (answer,) = answers
    return answer


def test_results_come_back_one_a_line(tmp_path: Path) -> None:
    answer = ask(msg.RunCheck(("memory", "disk", "pair"), '{"suite": "quick"}', 30.0), tmp_path)
    assert (answer.ok, answer.error) == (True, "")
    memory, disk, pair = [parse_result(line) for line in answer.data["results"].splitlines()]
    assert memory.readings[0].value > 1e8
    assert {r.metric for r in disk.readings} == {"write", "read"}
    assert disk.evidence["folder"] == str(tmp_path)
    assert "partner" in pair.unable
    assert list(tmp_path.iterdir()) == []


def test_bad_input_is_reported_in_the_process_own_words(tmp_path: Path) -> None:
    answer = ask(msg.RunCheck(("gem",), "{}", 30.0), tmp_path)
    assert not answer.ok
    assert "did you mean gemm" in answer.error


def test_a_check_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The server of a pair whose client never comes, and a child of its own.
    script = f"sleep 100 & echo $! > {tmp_path / 'pid'}; echo '{{}}'; sleep 100"
    monkeypatch.setattr(interpreter, "command", lambda *_: ["sh", "-c", script])
    for deadline in (2.0, 20.0):
        answer = ask(msg.RunCheck(("pair",), "{}", deadline), tmp_path)
        assert (answer.ok, answer.error) == (False, f"killed after {deadline:g} s")
        if answer.data["results"]:
            break  # by then the shell has done its part, unless the machine is very busy
    assert json.loads(answer.data["results"]) == {}
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not alive(pid))


def test_closing_ends_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "command", lambda *_: ["sleep", "100"])

    async def run() -> list[psutil.Process]:
        checks = Checks(str(tmp_path), lambda _: None)
        order = msg.RunCheck(("memory",), "{}", 50.0)
        checks.begin(msg.Command("c1", "", 0, order), order)
        async with asyncio.timeout(30):
            while not [c for c in psutil.Process().children() if c.name() == "sleep"]:
                await asyncio.sleep(0.01)
        await checks.close()
        return [c for c in psutil.Process().children() if c.name() == "sleep"]

    assert asyncio.run(run()) == []
