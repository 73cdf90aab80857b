"""Runs of pytest side by side: side_by_side.py RUN [--then RUN]... [--beside RUN [--then RUN]...]...

RUN: arguments of pytest, after `--idle` where it shall take only what all others leave of the processors. What comes
after `--then` runs when the run before it has ended, whatever came of it. The first line of runs is shown while it goes
on, the others when all have ended.

Some tests hold real processes against a clock, and the runs make the machine busy. So where only a few tests failed,
they run again when nothing else does, and are named: what passes only then is to be mended, but fails no run. The exit
code is that of the first run that failed.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

MOST_AGAIN = 8
"""Where more tests fail, that is no matter of a busy machine."""
_TESTS_FAILED = 1
"""pytest's exit code for nothing worse than that."""


@dataclass
class Run:
    words: Sequence[str]
    cache: Path
    """A folder of its own, in which pytest notes what failed."""
    code: int = 0

    def run(self, out: IO[bytes] | None) -> None:
        lower = ["chrt", "--idle", "0"] if self.words[:1] == ["--idle"] else []
        self._run(lower, [], out)

    def run_again(self) -> None:
        """Run only what failed, with nothing beside."""
        self._run([], ["--last-failed", "--last-failed-no-failures", "none"], None)

    def failed(self) -> list[str]:
        """The names of the tests that did."""
        try:
            return list(json.loads((self.cache / "v" / "cache" / "lastfailed").read_bytes()))
        except FileNotFoundError:
            return []

    def _run(self, before: Sequence[str], more: Sequence[str], out: IO[bytes] | None) -> None:
        words = self.words[self.words[:1] == ["--idle"] :]
        command = [*before, sys.executable, "-m", "pytest", *words, *more, "-o", f"cache_dir={self.cache}"]
        self.code = subprocess.run(command, stdout=out, stderr=out and subprocess.STDOUT).returncode


def parsed(words: Sequence[str]) -> list[list[list[str]]]:
    """By line, by run: its words."""
    lines: list[list[list[str]]] = [[[]]]
    for word in words:
        if word == "--beside":
            lines.append([[]])
        elif word == "--then":
            lines[-1].append([])
        else:
            lines[-1][-1].append(word)
    return lines


def again(runs: Sequence[Run]) -> None:
    """Run what failed once more, if that is little."""
    runs = [one for one in runs if one.code]
    names = [name for one in runs for name in one.failed()]
    if any(one.code != _TESTS_FAILED for one in runs) or not 0 < len(names) <= MOST_AGAIN:
        return
    print("\n".join(["", "Failed, and run again with nothing beside:", *names]), flush=True)
    for one in runs:
        one.run_again()


def main(words: Sequence[str]) -> int:
    interrupted = threading.Event()
    # Ctrl-C reaches the runs themselves, which are waited for, unless it was ignored when this was started, as after
    # `&`: then they would be deaf to it.
    signal.signal(signal.SIGINT, lambda number, frame: interrupted.set())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lines = [
            [Run(words, folder / f"{n}-{m}") for m, words in enumerate(line)] for n, line in enumerate(parsed(words))
        ]
        runs = [one for line in lines for one in line]

        def follow(line: Sequence[Run], out: IO[bytes] | None) -> None:
            for one in line:
                if not interrupted.is_set():
                    one.run(out)

        outs = [stack.enter_context(tempfile.TemporaryFile()) for _ in lines[1:]]
        beside = [threading.Thread(target=follow, args=one) for one in zip(lines[1:], outs, strict=True)]
        for thread in beside:
            thread.start()
        follow(lines[0], None)
        for thread, out in zip(beside, outs, strict=True):
            thread.join()
            out.seek(0)
            shutil.copyfileobj(out, sys.stdout.buffer)
            sys.stdout.flush()
        if not interrupted.is_set():
            again(runs)
    if interrupted.is_set():
        return 128 + signal.SIGINT
    return next((one.code for one in runs if one.code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
