"""An instrumented script without collectives. leaving.py threads|steps FOLDER

threads: twenty steps; rank 0 then waits for a thread that never ends, and the others end.
steps: steps until a file `end` is in the folder.
"""

import os
import sys
import threading
import time
from pathlib import Path

from holdfast.agent import probe

how, folder = sys.argv[1], Path(sys.argv[2])
rank = os.environ["RANK"]
(folder / f"began-{os.environ['HOLDFAST_GENERATION']}-{rank}").write_text(str(os.getpid()))
probe.attach()
probe.phase("train")
step = 0
while step < 20 if how == "threads" else not (folder / "end").exists():
    probe.step(step)
    step += 1
    time.sleep(0.05)
if how == "threads" and rank == "0":
    lock = threading.Lock()
    lock.acquire()
    threading.Thread(target=lock.acquire).start()
