"""Workers' output: files that the workers write themselves, followed from outside.

A worker's standard output and error are files opened with O_APPEND, never pipes: an agent that is slow, stopped or
gone can neither block a worker nor lose what it printed. They are in memory (`output_memory`), so that a full disk
blocks and ends no worker either, and go from there to the disk (`output_log`); where the system has no such files, they
are on the disk. This module follows them, within bounds: so much is forwarded per second, so much is kept on disk.
"""

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

from holdfast.agent.forkserver import output_memory
from holdfast.agent.logs.file_rotation import Rotation
from holdfast.agent.logs.forwarding import Backlog, Forwarder, Key
from holdfast.agent.logs.output_log import Disk, OutputLog
from holdfast.agent.logs.progress_watch import Mark
from holdfast.agent.logs.rules import LogRule, Rules
from holdfast.agent.logs.scanner import Scanner
from holdfast.agent.logs.unfinished import Unfinished, needed, visible
from holdfast.base import private
from holdfast.wire.messages import LogChunk
from holdfast.wire.types import LogMatched

MAX_LINE = 128 * 1024
"""Bytes; a longer line is cut into pieces of this size (a character that the cut hits is replaced)."""
MAX_READ = 1 << 20
"""Bytes read in one poll, shared evenly by the files, but at least MIN_READ from each."""
MIN_READ = 64 << 10
MAX_BACKLOG = 32 << 20
"""A file that is further ahead than this is skipped to its end; the lines passed over are counted."""
TAIL = 64 << 10
"""Bytes of the end of each output in memory that stay at hand."""
TAILS = 64
"""Outputs of workers that are gone whose ends stay."""
STREAMS = ("out", "err")
_SAFE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(slots=True)
class _File:
    backlog: Backlog
    path: str
    fd: int = -1
    at: int = 0
    rest: bytes = b""
    rotation: Rotation | None = None
    disk: Disk | None = None
    """Where what was read goes, of a file in memory; None for one that is on the disk itself."""
    recent: bytes = b""
    """The end of what was read from memory, or from a file of the user's."""
    unfinished: Unfinished = field(default_factory=Unfinished)
    is_users: bool = False
    """Is it a file that the user chose? Then it is never rotated."""
    mark: Mark = field(default_factory=Mark)
    """Of both files of the worker."""


class WorkerLogs:
    """The output files of this node's workers. One owner; `poll` wants to be called 10 to 20 times a second."""

    def __init__(
        self,
        directory: str | Path,
        max_bytes: int = 256 << 20,
        keep: int = 1,
        rules: Rules | None = None,
        on_match: Callable[[LogMatched, LogRule | None], None] = lambda event, rule: None,
        on_full: Callable[[str, OSError], None] = lambda path, error: None,
        rate: float = 256 * 1024,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`max_bytes`: size at which a file is rotated; `keep` older copies stay as `<file>.1` (newest) and up.
        `rate`: characters per second forwarded for the whole node, with one second's worth of burst; lines
        beyond it are counted in `LogChunk.dropped`, but go through the rules and stay in the files. `on_match` may be
        called some polls later than a line was read; without a rule for a printed loss. `on_full` is
        called, from another thread, each time that the disk refuses a file."""
        self._directory = Path(directory)
        self._max_bytes, self._keep = max_bytes, keep
        self._files: dict[Key, tuple[_File, _File]] = {}
        self._scanner = Scanner(rules or Rules(()), on_match, clock, wall_ns)
        self._share = MAX_READ
        self._log = OutputLog(max_bytes, keep, on_full)
        self._tails: dict[tuple[Key, str], bytes] = {}
        """Ends of the output of workers that are gone, of which the disk may know less."""
        self._forwarder, self._clock = Forwarder(rate, clock), clock
        self._idle: tuple[list[int], list[int]] | None = None
        """Descriptors and sizes of all files, when there was nothing left to do with any of them."""

    def paths(
        self, job: str, generation: int, rank: int, from_end: bool = False, users: tuple[str, str] = ("", "")
    ) -> tuple[Path, Path]:
        """Where this worker's standard output and error go; the folder exists afterwards. Open with O_APPEND. `users`:
        files of the user's in their place, where they are not "".

        From now on `poll` follows them; `from_end` for a worker found running, whose earlier lines are not news.
        Raises OSError when the folder cannot be made.
        """
        key = (job, generation, rank)
        if key not in self._files:
            folder = self._folder(job, generation)
            try:
                for part in (self._directory, folder.parent, folder):
                    private.make_folder(part)
            except OSError as error:
                if error.errno not in output_memory.FULL:  # else the worker starts, with its output in memory
                    raise
            mark = Mark()
            ours = (str(folder / f"rank{rank}.{stream}") for stream in STREAMS)
            out, err = (
                _File(Backlog(key, s), theirs or own, is_users=theirs not in ("", os.path.realpath(own)), mark=mark)
                for s, theirs, own in zip(STREAMS, users, ours, strict=True)
            )
            self._files[key] = (out, err)
            self._idle = None
            self._share = max(MIN_READ, MAX_READ // (2 * len(self._files)))
            for file in (out, err):
                if from_end and os.path.exists(file.path):
                    file.at = os.path.getsize(file.path)
        out, err = self._files[key]
        return Path(out.path), Path(err.path)

    def follow(self, job: str, generation: int, rank: int, sources: tuple[str, str]) -> None:
        """This worker's output is in memory, and opened there. What another reader has taken is not read again."""
        for file, source in zip(self._files[job, generation, rank], sources, strict=True):
            if file.disk is not None:
                continue
            try:
                fd = os.open(source, os.O_RDWR | os.O_CLOEXEC)
                at = output_memory.unread(fd)
            except OSError:
                continue  # it is gone: what is on the disk is all there is
            self._close(file)
            if at:
                file.recent = self._end_of(file.path)
            file.fd, file.at = fd, at
            file.disk = Disk(file.path, os.dup(fd), at)
        self._idle = None

    def poll(self) -> list[LogChunk]:
        """New whole lines of all followed files, within the rate. Never raises."""
        if self._is_idle():
            return []
        self._forwarder.refill()
        chunks = []
        for pair in self._files.values():
            for file in pair:
                is_new = self._read(file)
                if file.rest or file.unfinished.shown:
                    file.backlog.unfinished = file.unfinished.look(file.rest, is_new, self._clock())
                    if file.backlog.unfinished:
                        file.mark.read(file.backlog.unfinished)
                if is_new or file.backlog:
                    chunks += self._forwarder.forward(file.backlog)
        self._scanner.work()
        self._idle = self._when_idle()
        return chunks

    @property
    def is_behind(self) -> bool:
        """Whether lines wait to be put through the rules: `poll` soon again."""
        return self._scanner.is_behind

    def _is_idle(self) -> bool:
        """Nothing was written: what nearly every poll finds, so nothing but the calls themselves is done for it."""
        if self._idle is None:
            return False
        fds, sizes = self._idle
        try:
            return list(map(os.lseek, fds, repeat(0), repeat(os.SEEK_END))) == sizes  # a third of what fstat costs
        except OSError:
            return False

    def _when_idle(self) -> tuple[list[int], list[int]] | None:
        files = [file for pair in self._files.values() for file in pair]
        if self._scanner.holds or not all(map(_is_done, files)):
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
        self._forwarder.refill()
        chunks = []
        for file in pair:
            for _ in range(MAX_BACKLOG // MIN_READ + 1):  # bounded: a grandchild may go on writing
                if not self._read(file):
                    break
                self._forwarder.trim(file.backlog)
            file.backlog.unfinished = ""
            if file.rest:
                self._take_lines(file, file.rest + b"\n")
                file.rest = b""
            self._forwarder.trim(file.backlog)
            chunks += self._forwarder.forward(file.backlog)
            self._close(file)
        self._scanner.finish((job, generation, rank))
        return chunks

    def tail(self, job: str, generation: int, rank: int, stream: str, n_bytes: int = 64 * 1024) -> str:
        """The last `n_bytes` of a worker's "out" or "err", from the start of a line if it can; "" without any."""
        if stream not in STREAMS:
            raise ValueError(f"stream must be 'out' or 'err', not {stream!r}")
        key = (job, generation, rank)
        path = str(self._folder(job, generation) / f"rank{rank}.{stream}")
        pair = self._files.get(key)
        file = pair[STREAMS.index(stream)] if pair is not None else None
        if file is not None and (file.disk is not None or file.is_users):
            known: bytes | None = file.recent + (os.pread(file.fd, TAIL, file.at) if file.fd >= 0 else b"")
        else:
            known = self._tails.get((key, stream))
        raw = known if known is not None else self._end_of(path, n_bytes + 1)
        start = max(0, len(raw) - n_bytes)
        raw = raw[start:]
        cut = raw.find(b"\n") + 1 if start else 0
        if cut < len(raw):  # one line longer than all of it stays
            raw = raw[cut:]
        return raw.decode("utf-8", "replace")

    @staticmethod
    def _end_of(path: str, n_bytes: int = TAIL) -> bytes:
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                return os.pread(file.fileno(), n_bytes, max(0, size - n_bytes))
        except OSError:
            return b""

    def mark(self, job: str, generation: int, rank: int) -> Mark | None:
        """The greatest number of a step that this worker printed; None when its files are not followed."""
        pair = self._files.get((job, generation, rank))
        return pair[0].mark if pair is not None else None

    def close(self) -> None:
        """Stop following all files; the files stay."""
        self._idle = None
        for pair in self._files.values():
            for file in pair:
                self._close(file)
        self._files.clear()
        self._log.end()

    def flush(self) -> bool:
        """Wait until what was read is on the disk; False when that takes too long."""
        return self._log.flush()

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
            if file.disk is not None:
                return self._read_memory(file, file.disk, size)
            if size < file.at:  # another process truncated it
                file.at, file.rest = 0, b""
                self._end_rotation(file)
            if size - file.at > MAX_BACKLOG:
                self._skip(file, size - self._share)
            raw = os.pread(file.fd, self._share, file.at)
            file.at += len(raw)
            if raw:
                self._split(file, raw)
            if file.is_users:
                file.recent = (file.recent + raw)[-TAIL:]
            elif size > self._max_bytes:
                self._rotate(file, size)
            return bool(raw)
        except OSError:
            return False

    def _read_memory(self, file: _File, disk: Disk, size: int) -> bool:
        if (begin := output_memory.begin(file.fd, file.at)) > file.at:  # unread for long, and the oldest had to go
            self._log.skip(disk, begin - file.at, "they were printed while no agent read them")
            file.at, file.rest = begin, b""
            file.backlog.dropped += 1
        to = size - self._share if size - file.at > MAX_BACKLOG else 0
        while file.at < to:
            raw = self._taken(file, disk, min(MAX_READ, to - file.at))
            file.backlog.dropped += raw.count(b"\n")
            file.rest = b""
        if raw := self._taken(file, disk, self._share):
            self._split(file, raw)
        return bool(raw)

    def _taken(self, file: _File, disk: Disk, most: int) -> bytes:
        """What is new, on its way to the disk."""
        raw = os.pread(file.fd, most, file.at)
        file.at += len(raw)
        file.recent = (file.recent + raw)[-TAIL:] if len(raw) < TAIL else raw[-TAIL:]
        if raw:
            self._log.write(disk, raw, file.at)
        return raw

    def _skip(self, file: _File, to: int) -> None:
        file.backlog.dropped += bool(file.rest)
        file.rest = b""
        while file.at < to:
            raw = os.pread(file.fd, min(MAX_READ, to - file.at), file.at)
            if not raw:
                break
            file.at += len(raw)
            file.backlog.dropped += raw.count(b"\n")

    def _split(self, file: _File, raw: bytes) -> None:
        raw = file.rest + raw
        end = raw.rfind(b"\n") + 1
        file.rest = needed(raw[end:])
        if len(file.rest) > MAX_LINE:  # a line without end must not be held back forever
            cut = (len(file.rest) - 1) // MAX_LINE * MAX_LINE  # leaves something for the line end to close
            self._take_lines(file, raw[:end] + file.rest[:cut] + b"\n")
            file.rest = file.rest[cut:]
        elif end:
            self._take_lines(file, raw[:end])

    def _take_lines(self, file: _File, raw: bytes) -> None:
        text = raw.decode("utf-8", "replace")
        for line in map(visible, text.removesuffix("\n").split("\n")):
            if len(line) <= MAX_LINE:
                file.backlog.lines.append(line)
            else:
                file.backlog.lines += [line[at : at + MAX_LINE] for at in range(0, len(line), MAX_LINE)]
        file.mark.read(text)
        self._scanner.add(file.backlog.key, text)

    # --- rotation

    def _rotate(self, file: _File, size: int) -> None:
        """Copy the file aside, a step per poll, then empty it in place: the worker keeps its descriptor.

        A worker that writes faster than a step per poll is cut off at twice the size: the rest of that copy is lost to
        the disk, though not to the stream.
        """
        if file.rotation is None:
            file.rotation = Rotation(file.path, self._keep)
        copied = file.rotation.step(file.fd, size)
        if not (copied or size > 2 * self._max_bytes) or file.at < size:
            return
        if copied:
            file.rotation.finish(file.fd)
        # Read on to the very end, so that the stream misses nothing that the copy has.
        raw = os.pread(file.fd, MAX_READ, file.at)
        os.ftruncate(file.fd, 0)
        self._split(file, raw)
        file.at = 0
        file.rotation.shift()
        file.rotation = None

    @staticmethod
    def _end_rotation(file: _File) -> None:
        if file.rotation is not None:
            file.rotation.end()
        file.rotation = None

    def _close(self, file: _File) -> None:
        self._end_rotation(file)
        if file.disk is not None or file.is_users:
            if file.disk is not None:
                self._log.close(file.disk)
            self._tails[file.backlog.key, file.backlog.stream] = file.recent
            file.disk = None
            while len(self._tails) > TAILS:
                self._tails.pop(next(iter(self._tails)))
        if file.fd >= 0:
            os.close(file.fd)
            file.fd = -1


def _is_done(file: _File) -> bool:
    """Read to its end, all of it forwarded, no copy under way: only what is written to it is news."""
    return file.fd >= 0 and file.rotation is None and not file.backlog and not file.unfinished.waits
