"""The first hour, as a reader has it: every command of the page, in order, in one shell without a network."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.cli.local import leftovers

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "first-hour.md"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CAN = os.geteuid() == 0 and shutil.which("unshare") is not None and shutil.which("ip") is not None

# What the reader is to see; a read-only command is repeated until it shows it, as a reader would.
SEEN = {
    "holdfast demo": [r"rank1"],
    "holdfast run --nproc-per-node 2": [r"step 50: loss"],
    "holdfast checkpoint list": [r"\b60\b"],
    "holdfast nodes": [r"node1", r"node2"],
    "holdfast status": [r"second", r"step"],
    "holdfast inject": [],  # refused until the job runs
    "holdfast incidents": [r"rank ?3"],
    "holdfast run --name third": [r"the data cannot be read"],
    "cat notified": [r"NOTIFIED .*the data cannot be read"],
}
REPEATED = ("holdfast nodes", "holdfast status", "holdfast inject", "holdfast incidents", "cat notified")
FAILS = ("holdfast run --name third",)


class Shell:
    """One bash in a network namespace of its own: the page's ports are free there, whatever else runs."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.log = folder / "log"
        with open(self.log, "wb") as out:
            argv = ["unshare", "--net", "bash"]
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=out, stderr=out, cwd=folder, env=env)
        self.count = 0

    def run(self, line: str, deadline_s: float = 150.0) -> tuple[int, str]:
        """Its exit code and what was printed meanwhile."""
        self.count += 1
        began, mark = self.log.stat().st_size, f"<<{self.count}:"
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\necho '{mark}'$?'>>'\n".encode())
        self.process.stdin.flush()
        end = time.monotonic() + deadline_s
        while True:
            text = self.log.read_bytes()[began:].decode(errors="replace")
            if found := re.search(rf"{mark}(\d+)>>", text):
                return int(found[1]), text[: found.start()]
            assert time.monotonic() < end, f"{line}: not over within {deadline_s:g} s:\n{text[-4000:]}"
            assert self.process.poll() is None
            time.sleep(0.05)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.kill()
        self.process.wait(30)
        self.process.stdin.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not CAN, reason="needs root, unshare and ip, for a network of its own")
def test_every_command(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, words in (("holdfast", f"{sys.executable} -m holdfast"), ("python3", sys.executable)):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    mark = f"HOLDFAST_E2E=hour{os.getpid()}"
    env = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    env |= {"PATH": f"{tmp_path / 'bin'}:{env['PATH']}", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env |= {"HOLDFAST_E2E": mark.partition("=")[2], "COLUMNS": "200"}
    shell = Shell(tmp_path, env)
    left = dict(SEEN)
    try:
        assert shell.run("ip link set lo up")[0] == 0
        for language, text in BLOCK.findall(PAGE.read_text()):
            if language == "python":
                (tmp_path / text.splitlines()[0].split()[1]).write_text(text)
                continue
            for line in text.splitlines():
                key = next((key for key in left if line.startswith(key)), "")
                wanted = left.pop(key, [])
                deadline = time.monotonic() + 150
                while True:
                    code, out = shell.run(line)
                    is_seen = all(re.search(one, out) for one in wanted) and (code != 0) == (key in FAILS)
                    if is_seen or key not in REPEATED or time.monotonic() > deadline:
                        break
                    time.sleep(0.2)
                assert is_seen, f"{line}: exit code {code}, {wanted} in\n{out[-4000:]}"
    finally:
        leftovers.end_marked(mark)
        shell.end()
        for node in ("node1", "node2"):
            leftovers.remove_shared_memory(tmp_path / "state" / node, node)
    assert not left, f"not on the page: {list(left)}"
