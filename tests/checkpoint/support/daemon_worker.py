"""A worker that takes snapshots without end, each checkpointed right after the one before. For tests that kill it.

    python -m tests.checkpoint.support.daemon_worker FOLDER STORE GENERATION

Prints `memory N` when the snapshot of step N is complete, `stored N` when it heard that N is a checkpoint.
"""

import sys
import time
from pathlib import Path

from holdfast.checkpoint.commit.fence import claim
from holdfast.checkpoint.stores.file import FileStore
from tests.checkpoint.support.daemons import Node, Worker, big


def main(folder: Path, store: FileStore, generation: int) -> None:
    fence = claim(store, "job", generation)
    worker = Worker(Node(folder, "n0"), fence, store.url, tensors=big(2), generation=generation, rate=40e6)
    step = max((one.step for one in worker.arena.snapshots()), default=0)
    pending = 0
    while True:
        made = worker.fill(step + 1)
        if made is not None:
            step += 1
            print(f"memory {step}", flush=True)
            worker.report(made, persist=not pending)
            pending = pending or step
        for note in worker.client.poll():
            if note["step"] == pending and note["note"] in ("persisted", "refused"):
                pending = 0
            if note["note"] == "persisted":
                print(f"stored {note['step']}", flush=True)
        time.sleep(0.002)


if __name__ == "__main__":
    main(Path(sys.argv[1]), FileStore(Path(sys.argv[2])), int(sys.argv[3]))
