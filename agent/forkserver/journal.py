"""What the fork server must not forget when it dies: which workers it started, and how they ended.

`exits.jsonl` in the run folder, one JSON object a line: `{"started": ...}`, `{"exited": ...}`, `{"acked": KEY}`. A
line cut off by a crash is left out. Nothing is flushed to disk: this has to outlive a process, not the host (the
boot id shows a reboot).
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.agent.forkserver import output_memory
from holdfast.agent.forkserver.worker_spec import Key
from holdfast.agent.processes import tree as process_tree
from holdfast.base import private
from holdfast.wire.messages import KeptWorker
from holdfast.wire.types import WorkerExited

NAME = "exits.jsonl"
RESERVED = 64 << 10
"""Bytes on the disk for it: starts and exits of some hundred workers."""


@dataclass(frozen=True, slots=True)
class Started:
    """A worker as it was started. `start_ticks` distinguishes its process from a later one with the same id."""

    worker: KeptWorker
    start_ticks: int
    boot_id: str

    def alive(self) -> bool:
        process = process_tree.read(self.worker.pid)
        same = process is not None and process.start_ticks == self.start_ticks and process.state not in "ZX"
        return same and self.boot_id == boot_id()


class WorkerJournal:
    """The file, open for appending; reading it back shortens it to what still matters.

    On a full disk nothing ends: blocks for it are reserved, and what does not fit waits in memory until it does.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / NAME
        self.started, self.exits = _load(self._path)
        part = self._path.with_suffix(".part")
        lines = [{"started": _plain(s)} for s in self.started.values()]
        lines += [{"exited": asdict(e)} for e in self.exits.values()]
        self._waiting = b""  # lines that had no room
        self._is_cut = False  # does the file end in the middle of a line?
        self._fd = -1
        try:
            private.write_text(part, "".join(json.dumps(line) + "\n" for line in lines))
            part.rename(self._path)
        except OSError as error:
            if error.errno not in output_memory.FULL:
                raise
            part.unlink(missing_ok=True)  # the file as it was holds all of it
        self._open()

    def start(self, started: Started) -> None:
        self._write({"started": _plain(started)})

    def exit(self, exited: WorkerExited) -> None:
        self._write({"exited": asdict(exited)})

    def ack(self, key: Key) -> None:
        self._write({"acked": key})

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def retry(self) -> None:
        """Write what waits, if there is room by now. Cheap when nothing waits."""
        if self._waiting:
            self._flush()

    def _write(self, line: dict[str, Any]) -> None:
        self._waiting += (json.dumps(line) + "\n").encode()
        self._flush()

    def _flush(self) -> None:
        try:
            self._open()
            if self._fd < 0:
                return
            if self._is_cut:
                os.write(self._fd, b"\n")
                self._is_cut = False
            while self._waiting:
                whole = self._waiting.index(b"\n") + 1
                done = os.write(self._fd, self._waiting[:whole])
                self._is_cut = done < whole  # then all of that line is written again
                if self._is_cut:
                    return
                self._waiting = self._waiting[whole:]
        except OSError as error:
            if error.errno not in output_memory.FULL:
                raise

    def _open(self) -> None:
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                if error.errno not in output_memory.FULL:
                    raise
                return
            output_memory.reserve(self._fd, RESERVED)


def forget(run_dir: Path) -> None:
    """Of a folder that was copied: the workers in it are those of the fork server of the original."""
    (run_dir / NAME).unlink(missing_ok=True)


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def key_of(worker: KeptWorker | WorkerExited) -> Key:
    return worker.job, worker.generation, worker.rank


def _plain(started: Started) -> dict[str, Any]:
    return {**asdict(started.worker), "start_ticks": started.start_ticks, "boot_id": started.boot_id}


def _load(path: Path) -> tuple[dict[Key, Started], dict[Key, WorkerExited]]:
    """Workers without an exit, and exits that are not acknowledged."""
    started: dict[Key, Started] = {}
    exits: dict[Key, WorkerExited] = {}
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return started, exits
    for text in lines:
        try:
            line = json.loads(text)
            if (fields := line.get("started")) is not None:
                start_ticks, boot = fields.pop("start_ticks"), fields.pop("boot_id")
                worker = KeptWorker(**fields)
                started[key_of(worker)] = Started(worker, start_ticks, boot)
            elif (fields := line.get("exited")) is not None:
                ended = WorkerExited(**fields)
                started.pop(key_of(ended), None)
                exits[key_of(ended)] = ended
            elif (fields := line.get("acked")) is not None:
                exits.pop((fields[0], fields[1], fields[2]), None)
        except (ValueError, TypeError, LookupError, AttributeError):
            continue
    return started, exits
