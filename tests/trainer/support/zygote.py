"""A fork server that forks ranks on demand. Run as a script; speaks JSON lines on standard input and output.

A request names a task of tasks.py, or of another module as `module:task`, a world size and arguments; the answer holds
what each rank returned, or how it ended. Or it names a module for the server to import, for all ranks after that.
Every wait has a deadline, after which the ranks are killed by process id.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from striking import STRUCK_AT


def serve() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from holdfast.base.service import gc_paused

    with gc_paused():
        from holdfast.trainer.preload import preload

        preload()
    parse = importlib.import_module("tasks").parse
    parse(["--set", "train.steps=1"])  # the patterns that argparse and tomllib make are then there
    gc.freeze()

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what ranks print must not mix with the answers
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if name := request.get("imported"):
            importlib.import_module(name)
            gc.freeze()  # ranks do not copy its pages
            print(json.dumps({"imported": name}), file=answers, flush=True)
            continue
        module, _, name = request["task"].rpartition(":")
        task = getattr(importlib.import_module(module or "tasks"), name)
        result = run_job(task, **request["job"])
        print(json.dumps(result), file=answers, flush=True)


def run_job(
    task: Any,
    *,
    world: int,
    args: dict[str, Any],
    folder: str,
    generation: int = 0,
    deadline_s: float = 240.0,
    kill: dict[str, int] | None = None,
    number: int = signal.SIGKILL,
) -> dict[str, Any]:
    """Fork `world` ranks; `kill` maps ranks to the step whose mark file triggers the signal `number`.

    A rank that stops without ending is not waited for; `ends_s` are each rank's seconds from there to its end.
    """
    started = time.perf_counter()
    struck = {int(rank): step for rank, step in (kill or {}).items()}
    store, port = fork_store()
    pids: dict[int, int] = {}
    ends: dict[int, int] = {}
    at_end: dict[int, float] = {}
    stopped: dict[int, float] = {}
    try:
        for rank in range(world):
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(world),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RESTART_COUNT": str(generation),
                "HOLDFAST_JOB": "test",
                "HOLDFAST_GENERATION": str(generation),
            }
            if number == signal.SIGKILL and rank in struck:
                environment[STRUCK_AT] = str(struck[rank])
            pids[rank] = fork_rank(task, args, Path(folder), environment)
        give_up = time.monotonic() + deadline_s
        while len(ends | stopped) < world and time.monotonic() < give_up:
            for rank, pid in pids.items():
                if rank not in ends:
                    done, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
                    if done and os.WIFSTOPPED(status):
                        stopped.setdefault(rank, time.monotonic())
                    elif done:
                        ends[rank], at_end[rank] = os.waitstatus_to_exitcode(status), time.monotonic()
            for rank, step in struck.items():
                if rank not in ends and (Path(folder) / f"mark-{rank}-{step}").exists():
                    os.kill(pids[rank], number)
            # Marks are of steps that take milliseconds. The end of a rank can wait: the ranks need the processor.
            time.sleep(0.002 if struck else 0.01)
    finally:
        for rank in pids.keys() - ends.keys():
            os.kill(pids[rank], signal.SIGKILL)
            os.waitpid(pids[rank], 0)
        os.kill(store, signal.SIGKILL)
        os.waitpid(store, 0)
    results = []
    for rank in range(world):
        path = Path(folder) / f"result-{generation}-{rank}.json"
        results.append(json.loads(path.read_text()) if path.exists() else None)
    return {
        "exits": [ends.get(rank) for rank in range(world)],
        "results": results,
        "seconds": time.perf_counter() - started,
        "ends_s": {rank: at - min(stopped.values()) for rank, at in at_end.items()} if stopped else {},
    }


def fork_rank(task: Any, args: dict[str, Any], folder: Path, environment: dict[str, str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.environ.update(environment)
        generation, rank = environment["HOLDFAST_GENERATION"], environment["RANK"]
        result = task(folder=folder, **args)
        (folder / f"result-{generation}-{rank}.json").write_text(json.dumps(result))
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def fork_store() -> tuple[int, int]:
    """A rendezvous store in a process of its own: threads in the forking process would break its children."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        import torch.distributed as dist

        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writer, str(store.port).encode())
        os.close(writer)
        while True:
            time.sleep(60)
    os.close(writer)
    port = int(os.read(reader, 16))
    os.close(reader)
    return pid, port


if __name__ == "__main__":
    serve()
