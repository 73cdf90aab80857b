"""Runs of pytest side by side: side_by_side.py RUN [--then RUN]... [--beside RUN [--then RUN]...]...

RUN: arguments of pytest, after `--idle` where it shall take only what all others leave of the processors. What comes
after `--then` runs when the run before it has ended, whatever came of it. The first line of runs is shown while it goes
on, the others when all have ended. The exit code is that of the first run that failed.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import IO

Run = Sequence[str]


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


def run(words: Run, out: IO[bytes] | None) -> int:
    """Its exit code."""
    first, lower = words[:1] == ["--idle"], ["chrt", "--idle", "0"]
    command = [*(lower if first else []), sys.executable, "-m", "pytest", *words[first:]]
    return subprocess.run(command, stdout=out, stderr=out and subprocess.STDOUT).returncode


def main(words: Sequence[str]) -> int:
    interrupted = threading.Event()
    # Ctrl-C reaches the runs themselves, which are waited for, unless it was ignored when this was started, as after
    # `&`: then they would be deaf to it.
    signal.signal(signal.SIGINT, lambda number, frame: interrupted.set())
    shown, *others = parsed(words)
    codes: list[list[int]] = [[] for _ in (shown, *others)]

    def follow(runs: Sequence[Run], out: IO[bytes] | None, found: list[int]) -> None:
        for words in runs:
            if not interrupted.is_set():
                found.append(run(words, out))

    with ExitStack() as stack:
        outs = [stack.enter_context(tempfile.TemporaryFile()) for _ in others]
        beside = [threading.Thread(target=follow, args=one) for one in zip(others, outs, codes[1:], strict=True)]
        for thread in beside:
            thread.start()
        follow(shown, None, codes[0])
        for thread, out in zip(beside, outs, strict=True):
            thread.join()
            out.seek(0)
            shutil.copyfileobj(out, sys.stdout.buffer)
            sys.stdout.flush()
    if interrupted.is_set():
        return 128 + signal.SIGINT
    return next((code for line in codes for code in line if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
