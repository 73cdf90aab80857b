"""All ranks of a job on this machine, for short runs: `python -m holdfast.trainer.here WORLD ARGS`.

Torch is imported once, in this process, from which the ranks are forked: each of many that import it by themselves
takes seconds of a processor. When one rank fails the others are ended, and its exit code is this process's.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from holdfast.agent.forkserver.store import serve
from holdfast.base.service import PARENT, follow_parent, gc_paused

HOST = "127.0.0.1"


def main(argv: Sequence[str]) -> int:
    """Exit code of the first rank that failed, 0 when all are done. WORLD is 1 or more; ARGS are the trainer's."""
    world, arguments = int(argv[0]), list(argv[1:])
    with gc_paused():
        from holdfast.trainer.preload import preload

        preload()
    us = os.getpid()
    store, port = _store(us)
    ranks = {_fork(us, rank, world, port, arguments): rank for rank in range(world)}
    try:
        while ranks:
            pid, status = os.wait()
            if ranks.pop(pid, None) is not None and (code := os.waitstatus_to_exitcode(status)):
                return code if code > 0 else 128 - code
            if pid == store:
                return 1
        return 0
    finally:
        for pid in [*ranks, store]:
            _end(pid)


def _fork(parent: int, rank: int, world: int, port: int, arguments: Sequence[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    _follow(parent)
    for name in ("RANK", "LOCAL_RANK"):
        os.environ[name] = str(rank)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        os.environ[name] = str(world)
    os.environ |= {"MASTER_ADDR": HOST, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    _leave(arguments)


def _leave(arguments: Sequence[str]) -> NoReturn:
    """Train, and end as a process of its own does: not back into the loop of the parent."""
    from holdfast.agent.forkserver.bootstrap import finish
    from holdfast.trainer import __main__ as trainer

    code = 1
    try:
        code = trainer.main(list(arguments))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finish(code)


def _store(parent: int) -> tuple[int, int]:
    """Process and port of the rendezvous store: it has a thread, and what is forked from may have none."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        _follow(parent)
        os._exit(serve(HOST, writing))
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = json.loads(pipe.read() or "{}")
    if "port" not in answer:
        raise OSError(answer.get("error", f"no rendezvous endpoint on {HOST}"))
    return pid, int(answer["port"])


def _follow(parent: int) -> None:
    follow_parent({PARENT: str(parent)})


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
