"""A rank that does one run of the trainer after the other, and prints a line of JSON for each.

python trainer_runs.py RUNS.json

RUNS.json: a list of {"name", "argv", "port"}, and if wanted "dies_at": the step before which the process kills itself,
"fill": whether torch fills new memory with deterministic algorithms, and "fine_sum": "torch" for sums of gradients in
the stream that FSDP2 chooses. A run that fails ends those behind it where peers wait for this rank. On SIGUSR2 it
prints all stacks, and the last messages between stages that it has posted.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

_posted: deque[str] = deque(maxlen=12)


def main() -> None:
    # Before there are other threads: they inherit it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    threading.Thread(target=_show, daemon=True).start()
    import torch

    from holdfast.trainer.__main__ import parse
    from holdfast.trainer.optim.replicas import FineSum
    from holdfast.trainer.run import loop
    from holdfast.trainer.settings.errors import ConfigError
    from holdfast.trainer.settings.launch import from_environment

    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    seconds = list[float]()
    run: dict[str, Any] = {}
    step = loop.Trainer.step

    def timed(self: loop.Trainer, number: int) -> Any:
        if number == run.get("dies_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        begun = time.perf_counter()
        with _naming_bad_gradients(self.optimizer):
            totals = step(self, number)
        seconds.append(time.perf_counter() - begun)  # the loss is on the host: the device is done
        return totals

    loop.Trainer.step = timed  # type: ignore[method-assign]
    in_order = FineSum.in_order
    _note_messages()
    for run in json.loads(Path(sys.argv[1]).read_text()):
        name, begun = run["name"], time.perf_counter()
        seconds.clear()
        gc.collect()
        has_gpu = torch.cuda.is_available()
        if has_gpu:
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(1.0)  # chunks set another one
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        torch.utils.deterministic.fill_uninitialized_memory = run.get("fill", True)  # type: ignore[attr-defined]
        FineSum.in_order = _nothing if run.get("fine_sum") == "torch" else in_order  # type: ignore[method-assign]
        os.environ["MASTER_PORT"] = str(run["port"])
        found: dict[str, Any] = {"name": name}
        try:
            done = loop.run(parse(run["argv"]), from_environment(os.environ))
            found |= {"first": done.first_step, "losses": done.losses, "step_s": median(seconds[1:] or seconds or [0])}
        except Exception as error:
            traceback.print_exc()
            found["error"] = f"{type(error).__name__}: {error}"[:600]
            # What is refused is refused by all ranks, before they meet.
            found["goes_on"] = world == 1 or isinstance(error, ConfigError)
        if has_gpu:
            found |= {"peak": torch.cuda.max_memory_allocated(), "before": before}
        found["whole_s"] = time.perf_counter() - begun
        if rank == 0 or "error" in found:
            print(json.dumps(found), flush=True)
        if not found.get("goes_on", True):
            print("posted:", ", ".join(_posted), flush=True)
            os._exit(1)  # its peers wait in a collective
        torch.use_deterministic_algorithms(False)


def _nothing(*args: object) -> None:
    pass


@contextmanager
def _naming_bad_gradients(optimizer: Any) -> Iterator[None]:
    """Print where gradients are not finite that end a run. The optimizer drops them before that."""
    from holdfast.trainer.settings.errors import NonFiniteLoss

    held, drop = [], optimizer.drop

    def dropping() -> None:
        held.extend((piece.name, piece.shard.grad) for piece in optimizer.all)
        drop()

    optimizer.drop = dropping
    try:
        yield
    except NonFiniteLoss:
        for name, grad in held:
            places = (~grad.isfinite().flatten()).nonzero().flatten()
            if len(places):
                at = f"{int(places[0])} to {int(places[-1])}"
                print(f"not finite: {len(places)} of {grad.numel()} of {name}, {at}", flush=True)
        raise
    finally:
        held.clear()
        del optimizer.drop


def _show() -> None:
    while True:
        signal.sigwait({signal.SIGUSR2})
        faulthandler.dump_traceback(sys.stdout, all_threads=True)
        print("posted:", ", ".join(_posted), "-- end of stacks", flush=True)


def _note_messages() -> None:
    from holdfast.trainer.pipeline.messages import Messages

    for what in ("post", "send"):
        method = getattr(Messages, what)

        def noting(self: Messages, action: Any, *more: Any, method: Any = method) -> Any:
            _posted.append(action.id)
            return method(self, action, *more)

        setattr(Messages, what, noting)


if __name__ == "__main__":
    main()
