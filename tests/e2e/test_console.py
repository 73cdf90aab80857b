"""What comes through to the console of `holdfast run` before a line has an end, and what goes the other way."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.daemons import HOLDFAST, commands, wait_for
from tests.e2e.test_run import WARM_S, script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ASKS = """
import os, sys, time
print("x" * 100_000)
for n in range(1, 6):
    sys.stderr.write(f"\\r{n * 20:>3}% of the way")
    sys.stderr.flush()
    while not os.path.exists(f"seen-{n}"):
        time.sleep(0.02)
sys.stderr.write("\\n")
name = input("your name: ")
print("hello", name)
print("rest", sys.stdin.read().split())
"""


def test_bars_and_questions_are_live_long_lines_whole_and_the_answer_reaches_the_worker(tmp_path: Path) -> None:
    path = script(tmp_path, ASKS)
    with commands(tmp_path / "own") as own:
        out, err = tmp_path / "out", tmp_path / "err"
        with open(out, "wb") as to_out, open(err, "wb") as to_err:
            run = subprocess.Popen(
                [*HOLDFAST, "run", "--nproc-per-node", "1", path],
                stdin=subprocess.PIPE,
                stdout=to_out,
                stderr=to_err,
                cwd=tmp_path,
                env=own.environment({"XDG_STATE_HOME": str(tmp_path)}),
                start_new_session=True,
            )
        assert run.stdin is not None
        try:
            for n in range(1, 6):  # each before the next one is written
                wait_for(lambda n=n: f"{n * 20:>3}% of the way" in err.read_text(), WARM_S, err.read_text)  # type: ignore[misc]
                (tmp_path / f"seen-{n}").touch()
            wait_for(lambda: b"[0] your name: " in out.read_bytes(), WARM_S, err.read_text)
            assert b"hello" not in out.read_bytes()
            run.stdin.write(b"Ada\nmore words\n")
            run.stdin.close()
            assert run.wait(60) == 0, err.read_text()
        finally:
            run.kill()
            run.wait()
        assert own.left() == []
    shown = out.read_bytes().decode()
    assert "[0] " + "x" * 100_000 + "\n" in shown
    assert shown.endswith("[0] your name: \r[0] your name: hello Ada\n[0] rest ['more', 'words']\n")
    lines = [line for line in err.read_bytes().decode().split("\n") if "of the way" in line]
    states = lines[0].split("\r")
    assert states[:5] == [f"[0] {n * 20:>3}% of the way" for n in range(1, 6)]
    assert lines[-1].split("\r")[-1] == "[0] 100% of the way"
    assert not [line for line in lines if "holdfast:" in line]
    assert os.listdir(tmp_path / "own") == []
