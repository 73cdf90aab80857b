"""Every option of every command with invalid values: one line, exit code 2, no traceback, in seconds.

The commands run in children that a fork server starts (`fuzz_warm`), a thousand in a minute. What is tried is in
`fuzz_values`, on what in `fuzz_cases`. HOLDFAST_FUZZ=all checks every value on every option: ten minutes.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.local import leftovers
from tests.holdfast.support import fuzz_train
from tests.holdfast.support.fake_controller import FakeController
from tests.holdfast.support.fuzz_cases import Case, cases, dealt
from tests.holdfast.support.fuzz_values import Files, Value
from tests.holdfast.support.fuzz_warm import LIMIT_S

_ROOT = Path(__file__).parents[3]
_MARK = "HOLDFAST_FUZZ_RUN"
_RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_BESIDE = re.compile(r"settings\.renamed|^tokenising .*% of ")
"""Lines that tell of no fault: a setting's new name, and how far it is with what takes long on a busy machine."""
_STUBS = {"demo": ["holdfast.cli.demo.demo:_run"], "train": [fuzz_train.STUB]}
"""What would start a whole cluster is left out, and so are the steps of a training; tests/e2e has both."""
_MODULES = dict.fromkeys(("rows", "train"), ("httpx", *fuzz_train.MODULES))
"""What is imported before a command's cases are tried; for all others, only a client's."""

Json = dict[str, Any]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Files]:
    made = Files(tmp_path_factory.mktemp("files") / "f")
    yield made
    made.close()


def answers(chosen: Sequence[Case], folder: Path, env: dict[str, str] | None = None) -> list[tuple[Case, Json]]:
    """How each case ended, and that no process of them is left."""
    found = []
    for number, modules in enumerate({_MODULES.get(case.command, ("httpx",)): None for case in chosen}):
        some = [case for case in chosen if _MODULES.get(case.command, ("httpx",)) == modules]
        found += _answers(some, folder / str(number), env or {}, modules)
    return found


def _answers(
    chosen: Sequence[Case], folder: Path, env: dict[str, str], modules: Sequence[str]
) -> list[tuple[Case, Json]]:
    fake = FakeController()
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    own = {_MARK: str(os.getpid()), "HOLDFAST_CONTROLLER": fake.address, "HOLDFAST_CONFIG": ""}
    warm = "train" if any(case.command == "train" for case in chosen) else "status"
    asked: list[Json] = [{"warm": [warm, "--no-such-option"]}]
    asked += [
        {
            "id": number, "argv": case.argv, "cwd": str(folder / str(number)), "env": env,
            "stubs": _STUBS.get(case.command, []),
        }
        for number, case in enumerate(chosen)
    ]  # fmt: skip
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.holdfast.support.fuzz_warm", *modules],
            input="\n".join(map(json.dumps, asked)),
            capture_output=True,
            text=True,
            cwd=_ROOT,
            env=clean | own,
            check=True,
        )
    finally:
        fake.close()
    deadline = time.monotonic() + 10
    while leftovers.marked(f"{_MARK}={os.getpid()}") and time.monotonic() < deadline:
        time.sleep(0.02)  # what was killed ends when the machine lets it
    assert leftovers.marked(f"{_MARK}={os.getpid()}") == []
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(chosen)
    return [(chosen[answer["id"]], answer) for answer in found]


def complaints(case: Case, answer: Json) -> list[str]:
    """What is wrong with the way in which a case ended."""
    err, code = answer["err"], answer["code"]
    err = "".join(line for line in err.splitlines(keepends=True) if not _BESIDE.search(line))
    wrong = []
    if "Traceback" in err or "Fatal Python error" in err:
        wrong.append("a traceback")
    if code not in case.codes:
        wrong.append(f"exit code {code}, not one of {sorted(case.codes)}")
    if code == 2 and (err.count("\n") != 1 or not err.startswith("holdfast") or len(err) > 2000 or answer["out"]):
        wrong.append("more than one line, or a line that helps nobody")
    if _RAW.search(err) or _RAW.search(answer["out"]):
        wrong.append("control characters reach the terminal")
    if answer["seconds"] > LIMIT_S:
        wrong.append(f"took {answer['seconds']:.1f} s of processor time")
    if answer["left"]:
        wrong.append(f"left {answer['left'][:3]} behind")
    return [f"{case.name}: {what}: {err[-600:]}" for what in wrong]


def check(chosen: Sequence[Case], folder: Path, env: dict[str, str] | None = None) -> None:
    found = [line for case, answer in answers(chosen, folder, env) for line in complaints(case, answer)]
    assert not found, f"{len(found)} of {len(chosen)}:\n" + "\n".join(found)


def test_some_values_on_every_option(files: Files, tmp_path: Path) -> None:
    """One option in eighteen of the commands that need no torch; the slow test tries these and all others."""
    chosen = [case for case in dealt(files, whole=False) if case.command not in _MODULES][::18]
    check(chosen, tmp_path)


@pytest.mark.slow
@pytest.mark.calm
@pytest.mark.timeout(1800)
def test_values_of_all_kinds_on_every_option(files: Files, tmp_path: Path) -> None:
    chosen = list(cases(files)) if os.environ.get("HOLDFAST_FUZZ") == "all" else dealt(files, whole=True)
    check(chosen, tmp_path)


def test_the_fuzz_sees_what_is_wrong() -> None:
    case = Case("status", "--config", Value("empty", ""), ())
    good = {"code": 2, "err": "holdfast: no\n", "out": "", "seconds": 0.1, "left": []}
    assert complaints(case, good) == []
    train = Case("train", "--steps", Value("a billion", "999999999"), ())
    assert complaints(train, good | {"code": 0, "err": ""}) == []
    for bad in (
        {"code": 0}, {"err": "holdfast: a\nb\n"}, {"err": "Traceback (most recent call last)\n"},
        {"err": "holdfast: \x1b[31m\n"}, {"seconds": 11.0}, {"left": ["tmp/x"]}, {"out": "x"},
    ):  # fmt: skip
        assert complaints(case, good | bad), bad
