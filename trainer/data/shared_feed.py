"""A rank's side of its node's loader: one process reads, all local ranks read their batches from shared memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import holdfast
from holdfast.trainer.data.batches import Batch, Batches
from holdfast.trainer.data.ring import Ring, folder, sweep
from holdfast.trainer.data.shards import Shards
from holdfast.trainer.settings.errors import TrainingError

_FRUITLESS = 3
"""Loaders that died in a row without writing a step, after which there will be no more."""


class SharedFeed:
    """One local rank's batches out of the node's ring. `read` gives views into it, valid until the next call."""

    def __init__(self, ring: Ring, reader: int, replica: int | None, patience_s: float) -> None:
        """`reader`: this rank's number on the node; `replica`: whose batches it wants, None for none."""
        self._ring, self._reader, self._replica, self._patience_s = ring, reader, replica, patience_s
        ring.register(reader, replica)

    def read(self, step: int) -> Batch:
        """Raises TrainingError when the loader could not read what this step needs, or nothing comes for long."""
        assert self._replica is not None, "a rank that takes no batches asks for one"
        self._ring.want(self._reader, step)
        end, pause = time.monotonic() + self._patience_s, 0.0001
        while (batch := self._ring.take(step, self._replica)) is None:
            if (why := self._ring.failure(step)) is not None:
                raise TrainingError(f"step {step}: no batch: {why}")
            if time.monotonic() > end:
                raise TrainingError(f"step {step}: no batch from this node's loader for {self._patience_s:g} s")
            time.sleep(pause)
            pause = min(2 * pause, 0.002)
        return batch

    def close(self) -> None:
        self._ring.close()


class Loader:
    """The node's loader process and its ring, held by the node's first rank. Starts another when one dies."""

    def __init__(self, batches: Batches, samples: int, readers: int, ahead: int, steps: int) -> None:
        """`samples`: of one replica in a step; `readers`: ranks of this node; `ahead`: steps to read in advance.

        Raises OSError when there is no memory for the ring.
        """
        shards = batches.tokens
        assert isinstance(shards, Shards), "only tokens in files can be read by another process"
        settings = {
            "paths": [str(path.absolute()) for path in shards.paths],
            "counts": shards.counts,
            "dtype": shards.dtype.name,
            "seq_len": batches.seq_len,
            "seed": batches.seed,
            "micro_batches": batches.micro_batches,
            "micro_batch_size": batches.micro_batch_size,
            "samples": samples,
            "steps": steps,
        }
        sweep(folder())
        self.ring = Ring.create(folder(), readers, ahead + 1, 2 * 8 * samples * batches.seq_len, settings)
        self._process = self._start()
        self._watcher = threading.Thread(target=self._watch, name="holdfast-loader", daemon=True)
        self._watcher.start()

    def close(self) -> None:
        """End the process and remove the ring."""
        self.ring.closing = True
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        self._watcher.join()
        self.ring.close(remove=True)

    def _start(self) -> subprocess.Popen[bytes]:
        # Never forked from here: this process has threads, whose locks a fork would copy in whatever state they are.
        command = [sys.executable, "-P", "-m", "holdfast.trainer.data.loader", str(self.ring.path)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=_environment())

    def _watch(self) -> None:
        fruitless, written = 0, 0
        while True:
            code = self._process.wait()
            if self.ring.closing or code == 0:
                return
            fruitless = 0 if self.ring.steps_written > written else fruitless + 1
            written = self.ring.steps_written
            how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            again = fruitless < _FRUITLESS
            what = "starting another" if again else "the one before it did nothing either, giving up"
            print(f"holdfast train: this node's loader died ({how}): {what}", file=sys.stderr, flush=True)
            if not again:
                self.ring.give_up()
                return
            self._process = self._start()
            if self.ring.closing:
                self._process.terminate()


def _environment() -> dict[str, str]:
    """This process's, with the folder of this very package on the path, whether it is installed or not."""
    root = str(Path(holdfast.__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), root]))}
