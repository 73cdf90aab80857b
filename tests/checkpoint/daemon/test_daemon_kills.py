"""Daemon and worker killed at random moments: listed checkpoints are whole, acknowledged ones are there."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.restore.inspect import list_checkpoints, verify
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.stores.file import FileStore
from tests.checkpoint.support.daemons import ROOT, DaemonProcess, big, until
from tests.checkpoint.support.jobs import assert_step, layout_of, restore_all

pytestmark = [pytest.mark.slow, pytest.mark.calm]


class Life:
    """One node's daemon and worker, over many deaths."""

    def __init__(self, folder: Path) -> None:
        (folder / "store").mkdir()
        self.store = FileStore(folder / "store")
        self.daemon = DaemonProcess(folder / "n0")
        self.outs: list[Path] = []
        """Output of each run: a kill can cut a line off, and the next run must not append to it."""
        self.worker: subprocess.Popen[bytes] | None = None

    def start_worker(self) -> None:
        self.outs.append(self.daemon.folder.parent / f"out{len(self.outs)}")
        command = [sys.executable, "-m", "tests.checkpoint.support.daemon_worker"]
        command += [str(self.daemon.folder), str(self.store.root), str(len(self.outs))]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "tests/checkpoint/support")}
        with open(self.outs[-1], "wb") as out:
            self.worker = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, env=env)

    def kill_worker(self) -> None:
        assert self.worker is not None
        self.worker.kill()
        self.worker.wait(20)

    def reported(self, word: str) -> list[int]:
        """Steps that the worker reported with this word, in all of its runs."""
        lines = [line for out in self.outs for line in out.read_text().splitlines(keepends=True)]
        return [int(line.split()[1]) for line in lines if line.startswith(word) and line.endswith("\n")]

    def until_reported(self, word: str, more: int) -> None:
        """Let it run until it has reported this so many times more."""
        wanted = len(self.reported(word)) + more

        def is_reported() -> bool:
            assert self.is_alive, "the worker died by itself"
            return len(self.reported(word)) >= wanted

        until(is_reported, 60)

    def check(self) -> None:
        """Nothing promised is lost, nothing torn is listed."""
        listed = [one.step for one in list_checkpoints(self.store.url)]
        for step in listed:
            # A checkpoint may expire while it is read.
            assert verify_unless_gone(self.store, step) == []
        if stored := self.reported("stored"):
            assert max(listed) >= max(stored)
        in_memory = self.reported("memory")
        paths = list(self.daemon.folder.glob("job/own-*.snap"))
        if in_memory:
            arena = Arena.open(paths[0])
            newest = arena.snapshots()[0]
            assert newest.step >= max(in_memory)
            assert self.is_alive or arena.broken(newest) == []
            arena.close()

    @property
    def is_alive(self) -> bool:
        return self.worker is not None and self.worker.poll() is None

    def close(self) -> None:
        if self.worker is not None:
            self.kill_worker()
        self.daemon.close()


def verify_unless_gone(store: FileStore, step: int) -> list[str]:
    """What is wrong with a checkpoint that is still listed afterwards."""
    try:
        problems = verify(store.url, step)
    except (CheckpointError, OSError) as error:
        problems = [str(error)]
    return problems if step in [one.step for one in list_checkpoints(store.url)] else []


def survive(folder: Path, seed: int, kills: int) -> None:
    chance, life = random.Random(seed), Life(folder)
    try:
        life.start_worker()
        for _ in range(kills):
            life.until_reported("memory", 1 + chance.randrange(40))
            victims = chance.choice(("worker", "daemon", "both"))
            if victims != "daemon":
                life.kill_worker()
            if victims != "worker":
                life.daemon.kill()
            life.check()
            if victims != "worker":
                life.daemon.start()
            if victims != "daemon":
                life.start_worker()
        life.until_reported("stored", 1)
        life.kill_worker()
        life.check()
        # The last one reported is really its state, bit for bit.
        layout = layout_of(1, big(2))
        found, _ = restore_all(life.store, layout)
        assert found[0] is not None
        assert found[0].manifest.step >= max(life.reported("stored"))
        assert_step(found, found[0].manifest.step, layout)
    finally:
        life.close()


@pytest.mark.parametrize("seed", [11, 12])
def test_many_kills(tmp_path: Path, seed: int) -> None:
    """Of worker, daemon or both, each some times. HOLDFAST_KILLS=500 looks for what is rare."""
    survive(tmp_path, seed, kills=int(os.environ.get("HOLDFAST_KILLS", "9")))
