"""Workers' output: files that the workers write themselves, followed from outside.

A worker's standard output and error are files opened with O_APPEND, never pipes: an agent that is slow, stopped or
gone can neither block a worker nor lose what it printed. This module follows the files, within bounds: so much is
forwarded per second, so much is kept on disk.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

from holdfast.agent.log_rules import RateLimit, Rule, Rules
from holdfast.messages import LogChunk
from holdfast.types import LogMatched

MAX_LINE = 16 * 1024
"""Bytes; a longer line is cut into pieces of this size (a character that the cut hits is replaced)."""
MAX_READ = 1 << 20
"""Bytes read in one poll, shared evenly by the files, but at least MIN_READ from each."""
MIN_READ = 64 << 10
MAX_BACKLOG = 32 << 20
"""A file that is further ahead than this is skipped to its end; the lines passed over are counted."""
COPY_STEP = 8 << 20
"""Bytes that a rotation copies in one poll, so that no poll takes long."""
STREAMS = ("out", "err")
_SAFE = re.compile(r"[^A-Za-z0-9._-]")

Key = tuple[str, int, int]


@dataclass(slots=True)
class _Rotation:
    fd: int
    copied: int = 0


@dataclass(slots=True)
class _File:
    key: Key
    stream: str
    path: str
    fd: int = -1
    at: int = 0
    rest: bytes = b""
    rotation: _Rotation | None = None
    ready: list[str] = field(default_factory=list)
    """Whole lines not yet forwarded."""
    dropped: int = 0


class WorkerLogs:
    """The output files of this node's workers. One owner; `poll` wants to be called 10 to 20 times a second."""

    def __init__(
        self,
        directory: str | Path,
        max_bytes: int = 256 << 20,
        keep: int = 1,
        rules: Rules | None = None,
        on_match: Callable[[LogMatched, Rule], None] = lambda event, rule: None,
        rate: float = 256 * 1024,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`max_bytes`: size at which a file is rotated; `keep` older copies stay as `<file>.1` (newest) and up.
        `rate`: characters per second forwarded for the whole node, with one second's worth of burst; lines
        beyond it are counted in `LogChunk.dropped`, but go through the rules and stay in the files."""
        self._directory = Path(directory)
        self._max_bytes, self._keep, self._rate = max_bytes, keep, rate
        self._rules, self._on_match = rules, on_match
        self._clock, self._wall = clock, wall_ns
        self._files: dict[Key, tuple[_File, _File]] = {}
        self._limit: RateLimit[tuple[Key, Rule]] = RateLimit()
        self._share = MAX_READ
        self._allowance, self._filled_at = rate, clock()
        self._idle: tuple[list[int], list[int]] | None = None
        """Descriptors and sizes of all files, when there was nothing left to do with any of them."""

    def paths(self, job: str, generation: int, rank: int, from_end: bool = False) -> tuple[Path, Path]:
        """Where this worker's standard output and error go; the folder exists afterwards. Open with O_APPEND.

        From now on `poll` follows them; `from_end` for a worker found running, whose earlier lines are not news.
        Raises OSError when the folder cannot be made.
        """
        key = (job, generation, rank)
        if key not in self._files:
            folder = self._folder(job, generation)
            folder.mkdir(parents=True, exist_ok=True)
            out, err = (_File(key, s, str(folder / f"rank{rank}.{s}")) for s in STREAMS)
            self._files[key] = (out, err)
            self._idle = None
            self._share = max(MIN_READ, MAX_READ // (2 * len(self._files)))
            for file in (out, err):
                if from_end and os.path.exists(file.path):
                    file.at = os.path.getsize(file.path)
        out, err = self._files[key]
        return Path(out.path), Path(err.path)

    def poll(self) -> list[LogChunk]:
        """New whole lines of all followed files, within the rate. Never raises."""
        if self._is_idle():
            return []
        self._refill()
        chunks = []
        for pair in self._files.values():
            for file in pair:
                if self._read(file) or file.ready or file.dropped:
                    chunks += self._forward(file)
        self._flush_matches()
        self._idle = self._when_idle()
        return chunks

    def _is_idle(self) -> bool:
        """Nobody wrote anything: what nearly every poll finds, so nothing but the calls themselves is done for it."""
        if self._idle is None:
            return False
        fds, sizes = self._idle
        try:
            return list(map(os.lseek, fds, repeat(0), repeat(os.SEEK_END))) == sizes  # a third of what fstat costs
        except OSError:
            return False

    def _when_idle(self) -> tuple[list[int], list[int]] | None:
        files = [file for pair in self._files.values() for file in pair]
        if self._limit.holds or not all(map(_is_done, files)):
            return None
        return [file.fd for file in files], [file.at for file in files]

    def drain(self, job: str, generation: int, rank: int) -> list[LogChunk]:
        """After a worker's exit: everything left, last line without an end too, and stop following its files.

        The rate holds here too, but the last lines, not the first, are what is forwarded beyond it.
        """
        pair = self._files.pop((job, generation, rank), None)
        if pair is None:
            return []
        self._idle = None
        self._refill()
        chunks = []
        for file in pair:
            for _ in range(MAX_BACKLOG // MIN_READ + 1):  # bounded: a grandchild may go on writing
                if not self._read(file):
                    break
                self._trim(file)
            if file.rest:
                self._take_lines(file, file.rest + b"\n")
                file.rest = b""
            self._trim(file)
            chunks += self._forward(file)
            self._close(file)
        self._flush_matches()
        return chunks

    def tail(self, job: str, generation: int, rank: int, stream: str, n_bytes: int = 64 * 1024) -> str:
        """The last `n_bytes` of a worker's "out" or "err", from the start of a line if it can; "" without any."""
        if stream not in STREAMS:
            raise ValueError(f"stream must be 'out' or 'err', not {stream!r}")
        path = self._folder(job, generation) / f"rank{rank}.{stream}"
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                start = max(0, size - n_bytes)
                raw = os.pread(file.fileno(), n_bytes, start)
        except OSError:
            return ""
        cut = raw.find(b"\n") + 1 if start else 0
        if cut < len(raw):  # one line longer than all of it stays
            raw = raw[cut:]
        return raw.decode("utf-8", "replace")

    def close(self) -> None:
        """Stop following all files; the files stay."""
        self._idle = None
        for pair in self._files.values():
            for file in pair:
                self._close(file)
        self._files.clear()

    # --- reading

    def _folder(self, job: str, generation: int) -> Path:
        return self._directory / (_SAFE.sub("_", job).lstrip(".") or "_") / f"g{generation}"

    def _read(self, file: _File) -> bool:
        """Read what is new, at most MAX_READ. True when something was."""
        try:
            if file.fd < 0:
                if not os.path.exists(file.path):
                    return False
                file.fd = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)  # writing: to truncate at rotation
            size = os.lseek(file.fd, 0, os.SEEK_END)
            if size == file.at and file.rotation is None:
                return False
            if size < file.at:  # somebody else truncated it
                file.at, file.rest = 0, b""
                self._end_rotation(file)
            if size - file.at > MAX_BACKLOG:
                self._skip(file, size - self._share)
            raw = os.pread(file.fd, self._share, file.at)
            file.at += len(raw)
            if raw:
                self._split(file, raw)
            if size > self._max_bytes:
                self._rotate(file, size)
            return bool(raw)
        except OSError:
            return False

    def _skip(self, file: _File, to: int) -> None:
        file.dropped += bool(file.rest)
        file.rest = b""
        while file.at < to:
            raw = os.pread(file.fd, min(MAX_READ, to - file.at), file.at)
            if not raw:
                break
            file.at += len(raw)
            file.dropped += raw.count(b"\n")

    def _split(self, file: _File, raw: bytes) -> None:
        raw = file.rest + raw
        end = raw.rfind(b"\n") + 1
        file.rest = raw[end:]
        if len(file.rest) > MAX_LINE:  # a line without end must not be held back for ever
            cut = (len(file.rest) - 1) // MAX_LINE * MAX_LINE  # leaves something for the line end to close
            self._take_lines(file, raw[:end] + file.rest[:cut] + b"\n")
            file.rest = file.rest[cut:]
        elif end:
            self._take_lines(file, raw[:end])

    def _take_lines(self, file: _File, raw: bytes) -> None:
        text = raw.decode("utf-8", "replace")
        for line in text.removesuffix("\n").split("\n"):
            if len(line) <= MAX_LINE:
                file.ready.append(line)
            else:
                file.ready += [line[at : at + MAX_LINE] for at in range(0, len(line), MAX_LINE)]
        if self._rules is not None:
            for line, rule in self._rules.scan(text):
                self._matched(file.key, line[:MAX_LINE], rule)

    # --- matches

    def _matched(self, key: Key, line: str, rule: Rule) -> None:
        count = self._limit.admit((key, rule), line, self._clock())
        if count:
            self._tell(key, rule, line, count)

    def _flush_matches(self) -> None:
        for held, line, count in self._limit.flush(self._clock()):
            self._tell(*held, line, count)

    def _tell(self, key: Key, rule: Rule, line: str, count: int) -> None:
        if count > 1:
            line = f"{line} [{count} times]"
        self._on_match(LogMatched(*key, self._wall(), rule.name, rule.kind, rule.severity, line), rule)

    # --- forwarding

    def _refill(self) -> None:
        now = self._clock()
        self._allowance = min(self._rate, self._allowance + (now - self._filled_at) * self._rate)
        self._filled_at = now

    def _trim(self, file: _File) -> None:
        """Keep only the last lines that the allowance has room for."""
        room = self._allowance
        for at in range(len(file.ready) - 1, -1, -1):
            room -= _cost(file.ready[at])
            if room < 0:
                file.dropped += at + 1
                del file.ready[: at + 1]
                return

    def _forward(self, file: _File) -> list[LogChunk]:
        lines, file.ready = file.ready, []
        sent = 0
        for line in lines:
            if _cost(line) > self._allowance:
                break
            self._allowance -= _cost(line)
            sent += 1
        file.dropped += len(lines) - sent
        if not sent:  # counted on, said with the next line that gets through
            return [self._chunk(file, "")] if file.dropped and not lines else []
        return [self._chunk(file, "\n".join(lines[:sent]) + "\n")]

    @staticmethod
    def _chunk(file: _File, text: str) -> LogChunk:
        dropped, file.dropped = file.dropped, 0
        return LogChunk(*file.key, file.stream, text, dropped)

    # --- rotation

    def _rotate(self, file: _File, size: int) -> None:
        """Copy the file aside, a step per poll, then empty it in place: the worker keeps its descriptor.

        What the worker writes between the last step's end and the emptying, microseconds, is lost to the disk. A
        worker that writes faster than a step per poll is cut off at twice the size: the rest of that copy is lost to
        the disk, though not to the stream. Where the disk has no room for the copy there is none.
        """
        if file.rotation is None:
            fd = -1
            if self._keep > 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                fd = os.open(f"{file.path}.new", flags, 0o644)
            file.rotation = _Rotation(fd)
        rotation = file.rotation
        try:
            if rotation.fd >= 0:
                self._copy(file.fd, rotation, COPY_STEP)
        except OSError:
            self._end_rotation(file)
            file.rotation = rotation = _Rotation(-1)
        copied = rotation.fd < 0 or rotation.copied >= size
        if not (copied or size > 2 * self._max_bytes) or file.at < size:
            return
        if rotation.fd >= 0 and copied:
            with contextlib.suppress(OSError):  # a copy without its last lines is still a copy
                self._copy(file.fd, rotation, COPY_STEP)
        # Read on to the very end, so that the stream misses nothing that the copy has.
        raw = os.pread(file.fd, MAX_READ, file.at)
        os.ftruncate(file.fd, 0)
        self._split(file, raw)
        file.at = 0
        if rotation.fd >= 0:
            for number in range(self._keep, 1, -1):
                if os.path.exists(older := f"{file.path}.{number - 1}"):
                    os.replace(older, f"{file.path}.{number}")
            os.replace(f"{file.path}.new", f"{file.path}.1")
        self._end_rotation(file)

    @staticmethod
    def _copy(source: int, rotation: _Rotation, most: int) -> None:
        while most > 0:
            raw = os.pread(source, min(most, MAX_READ), rotation.copied)
            if not raw:
                return
            written = os.pwrite(rotation.fd, raw, rotation.copied)
            rotation.copied += written
            most -= written

    @staticmethod
    def _end_rotation(file: _File) -> None:
        if file.rotation is not None and file.rotation.fd >= 0:
            os.close(file.rotation.fd)
            if os.path.exists(f"{file.path}.new"):
                os.unlink(f"{file.path}.new")
        file.rotation = None

    def _close(self, file: _File) -> None:
        self._end_rotation(file)
        if file.fd >= 0:
            os.close(file.fd)
            file.fd = -1


def _is_done(file: _File) -> bool:
    """Read to its end, all of it forwarded, no copy under way: only what is written to it is news."""
    return file.fd >= 0 and file.rotation is None and not file.ready and not file.dropped


def _cost(line: str) -> int:
    """Characters that a forwarded line counts for."""
    return len(line) + 1
