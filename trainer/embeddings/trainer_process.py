"""The process of one trainer: `python -m holdfast.trainer.embeddings.trainer_process RUN_FILE RANK`."""

from __future__ import annotations

import gc
import os
import sys

from holdfast.base.service import follow_parent, gc_paused, report

if __name__ == "__main__":
    follow_parent()
    with gc_paused():
        from holdfast.trainer.embeddings.trainer import main
    gc.freeze()  # no collection looks at what torch has imported, which stays
    code = report(main)
    # torch's threads may outlive the interpreter, and then abort a process whose work is done.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
