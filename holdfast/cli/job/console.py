"""What `holdfast run` prints of the workers' output, and what of it goes to files here, after torchrun's options."""

import errno
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from holdfast.base.errors import UsageError
from holdfast.base.plain import coloured
from holdfast.cli.common.output import note
from holdfast.wire.std_streams import ERR, OUT, StdStreams

Json = dict[str, Any]
_NUMBERS = {"out": OUT, "err": ERR}
_NONE = StdStreams()


@dataclass(frozen=True, slots=True)
class Choice:
    """Which lines are shown and which are written to `filtered_stdout.log` and `filtered_stderr.log`. Pure."""

    nproc: int = 1
    hidden: StdStreams = _NONE
    """Streams that go to files only."""
    tee: StdStreams = _NONE
    ranks: Collection[int] = ()
    """Local ranks that are shown; empty: all."""
    filters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By stream: a line with one of these texts is written to a file here, if its stream is in `tee`."""

    def shows(self, line: Json) -> bool:
        local_rank = int(line["rank"]) % self.nproc
        is_hidden = self.hidden.has(local_rank, _NUMBERS[line["stream"]])
        return not is_hidden and (not self.ranks or local_rank in self.ranks)

    def duplicates(self, line: Json) -> bool:
        is_tee = self.tee.has(int(line["rank"]) % self.nproc, _NUMBERS[line["stream"]])
        return (
            is_tee and self.shows(line) and any(text in line["text"] for text in self.filters.get(line["stream"], ()))
        )


class Console:
    """Prints lines as they come. `folder`: where lines are duplicated, an attempt each; None without filters."""

    def __init__(self, choice: Choice, folder: Path | None = None) -> None:
        self._choice, self._folder = choice, folder
        self._open: set[TextIO] = set()  # streams on which an unfinished line stands

    def show(self, line: Json) -> None:
        """Worker output goes to a file or a pipe unchanged, as with torchrun. On a terminal colours stay; sequences
        that move the cursor, rename the window or write the clipboard are removed."""
        if line.get("unfinished"):
            self._show_unfinished(line)
            return
        if self._folder is not None and self._choice.duplicates(line):
            self._duplicate(self._folder, line)
        if not self._choice.shows(line):
            return
        stream = sys.stderr if line["stream"] == "err" else sys.stdout
        if line.get("dropped"):
            print(f"[{line['rank']}] ... {line['dropped']} lines left out ...", file=sys.stderr)
        self._print(stream, self._start_of_line(stream) + _text(line, stream) + "\n")

    def note(self, text: str) -> None:
        """Print a line of the command's own, below an unfinished one."""
        for stream in self._open:
            self._print(stream, "\n")
        self._open.clear()
        note(text)

    def _show_unfinished(self, line: Json) -> None:
        """What a line shows that has no end yet: the next text takes its place on a terminal."""
        if not self._choice.shows(line):
            return
        stream = sys.stderr if line["stream"] == "err" else sys.stdout
        start = self._start_of_line(stream)
        self._open.add(stream)
        self._print(stream, start + _text(line, stream))

    def _start_of_line(self, stream: TextIO) -> str:
        """What comes first where an unfinished line stands: a terminal clears it, in a file it stays."""
        is_open = stream in self._open or (stream.isatty() and bool(self._open))
        if not is_open:
            return ""
        self._open.clear() if stream.isatty() else self._open.discard(stream)
        return "\r\x1b[K" if stream.isatty() else "\r"

    @staticmethod
    def _print(stream: TextIO, text: str) -> None:
        try:
            print(text, end="", file=stream, flush=True)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # The terminal is closed, and SIGHUP is ignored: the job continues without output.
            hide(stream)

    def _duplicate(self, folder: Path, line: Json) -> None:
        stream = line["stream"]
        path = folder / f"attempt_{int(line['generation']) - 1}" / f"filtered_std{stream}.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a", encoding="utf-8", errors="replace") as file:
                file.write(line["text"] + "\n")
        except OSError as error:
            raise UsageError(
                f"--duplicate-std{stream}-filters: cannot write below {folder}: {error.strerror}"
            ) from None


def _text(line: Json, stream: TextIO) -> str:
    return f"[{line['rank']}] {coloured(line['text']) if stream.isatty() else line['text']}"


def hide(stream: TextIO) -> None:
    """Redirect a closed stream to /dev/null, including the interpreter's last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
