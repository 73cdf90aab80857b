"""A script composed at random: it pauses honestly and ends with 0, or it hangs in its first life.

torchrun --nproc-per-node 3 benchmarks/workers/random_pauses.py SEED:INDEX FOLDER [SECONDS]

Into the folder it writes its truth (truth.json), when the hang began (begun-RANK), and that it ended (ended-RANK).
"""

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import random_hangs
import torch
import torch.distributed as dist
from random_composition import CHECKPOINT_EVERY, Composition, Event, composed
from random_frameworks import BATCH, FINISH, RANK, framework
from random_groups import SIDES
from random_holders import register
from random_waits import PAUSES
from standing import mark

AGAIN = "RANDOM_PAUSES_EXECUTED_AGAIN"


class Script:
    def __init__(self, composition: Composition, folder: Path) -> None:
        self.its, self.folder, self.now = composition, folder, -1
        restarts, generation = (os.environ.get(name) for name in ("TORCHELASTIC_RESTART_COUNT", "HOLDFAST_GENERATION"))
        self.hang = composition.hang if restarts in (None, "0") and generation in (None, "1") else None
        self.left = list(composition.pauses)
        self.groups: random_hangs.Prepared | None = None
        self._lock = threading.Lock()

    def at(self, place: str) -> None:
        """Does what is to happen here, once."""
        place, _, number = place.partition(":")
        step = int(number or self.now)
        with self._lock:  # places of threads come while others do
            due = [p for p in self.left if p.place == place and RANK in p.ranks and _is_now(p, step)]
            self.left = [p for p in self.left if p not in due]
        for pause in due:
            self._do(pause, lambda pause=pause: self.pause(pause))
        hang = self.hang
        if hang is not None and hang.place == place and _is_now(hang, step):
            self.hang = None
            if hang.what in random_hangs.SHARED or RANK in hang.ranks:
                self._do(hang, lambda: self.stand(hang))

    def _do(self, event: Event, action: Callable[[], None]) -> None:
        if event.thread == "main":
            action()
            return
        thread = threading.Thread(target=_or_end, args=(action,))
        thread.start()
        if event.thread == "joined":
            thread.join()

    def pause(self, pause: Event) -> None:
        if pause.what == "recompile":
            BATCH[0] += 1
        else:
            PAUSES[pause.what](self.folder, pause.seconds)

    def stand(self, hang: Event) -> None:
        mark(self.folder, "begun")
        if hang.what in random_hangs.LOCAL:
            random_hangs.LOCAL[hang.what]()
            return
        assert self.groups is not None
        odd = hang.ranks[0] if hang.ranks else -1
        random_hangs.SHARED[hang.what](odd == RANK, odd, self.groups)

    def run(self) -> None:
        if RANK == 0:
            (self.folder / "truth.json").write_text(json.dumps(self.its.truth()))
        register(self.folder, RANK)
        self.at("start")
        step = framework(self.its.framework)(self.at, self.folder)
        if self.its.hang is not None and self.its.hang.what in random_hangs.SHARED:
            self.groups = random_hangs.Prepared()
        if dist.is_initialized():
            dist.barrier()  # all have left their process ids
        side = SIDES[self.its.groups](self.at, self.its.steps)
        self.at("first")
        for number, _ in enumerate(self.batches()):
            self.now = number
            step(number)
            side(number)
            self.at("between")
            if number % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1:
                self.checkpoint()
        self.at("exit")
        mark(self.folder, "ended")
        for finish in FINISH or [dist.destroy_process_group]:
            finish()
        self.at("late-exit")

    def batches(self) -> Iterator[torch.Tensor]:
        workers = self.its.loader_workers
        return iter(torch.utils.data.DataLoader(_Data(self), num_workers=workers))

    def checkpoint(self) -> None:
        if RANK == 0:
            torch.save({"weights": torch.zeros(100)}, self.folder / "checkpoint.pt")
        self.at("checkpoint")


class _Data(torch.utils.data.Dataset[torch.Tensor]):
    """The place `loader`: where a batch is made."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def __len__(self) -> int:
        return self.script.its.steps

    def __getitem__(self, index: int) -> torch.Tensor:
        self.script.at(f"loader:{index}")
        return torch.zeros(1)


def _is_now(event: Event, step: int) -> bool:
    return step == event.step or event.place in ("start", "first", "exit", "late-exit")


def _or_end(action: Callable[[], None]) -> None:
    """An error in a thread is an error of the script."""
    try:
        action()
    except BaseException:
        traceback.print_exc()
        os._exit(70)


def main() -> None:
    seed, index = sys.argv[1].split(":")[-2:]
    composition = composed(int(seed), int(index))
    if composition.is_executed_again and AGAIN not in os.environ:
        os.environ[AGAIN] = "1"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    torch.set_num_threads(1)
    Script(composition, Path(sys.argv[2])).run()


if __name__ == "__main__":
    main()
