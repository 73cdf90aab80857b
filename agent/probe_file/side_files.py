"""What a worker leaves beside its probe file: the job's plan, where its state came from, what it saved.

The agent picks it up (`agent/workers/announcements.py`, `agent/logs/progress_watch.py`). A file is whole or not there.
No training run may fail because it is missing: errors are one line.
"""

import json
import math
import os
import re
from contextlib import suppress

from holdfast.agent.probe_file import layout, taken
from holdfast.agent.probe_file.memory import Memory
from holdfast.base import bounds, private

_CHECKPOINT_IN_PATH = re.compile(r"checkpoint|ckpt", re.IGNORECASE)
_STEP_IN_PATH = re.compile(r"(?:step|checkpoint|ckpt|iter(?:ation)?|epoch)s?[-_=]*(\d{1,18})", re.IGNORECASE)
_ONE_SAVE_NS = 1_000_000_000
"""Pieces of one file that end within this time are one save."""


def leave_plan(data: bytes) -> None:
    """A `holdfast.wire.plans` message."""
    leave_file(layout.PLAN_SUFFIX, data, "the plan of this job is not reported")


def leave_restored(step: int, source: str, seconds: float, num_bytes: int, sent_bytes: int) -> None:
    """As `probe.restored`."""
    took = taken.real(seconds)
    said = {
        "step": taken.whole(step, 0, bounds.MAX_STEP, 0),
        "source": taken.text(source),
        "seconds": took if took is not None and math.isfinite(took) else 0.0,
        "bytes": taken.whole(num_bytes, 0, bounds.MAX_COUNT, 0),
        "sent": taken.whole(sent_bytes, 0, bounds.MAX_COUNT, 0),
    }
    leave_file(layout.RESTORED_SUFFIX, json.dumps(said).encode(), "the source of the state is not reported")


def leave_imports(seconds: float, frameworks: list[str]) -> None:
    """How long the imports of this worker took, and which frameworks were among them. Of rank 0 alone."""
    if os.environ.get("RANK", "0") != "0":
        return
    said = {"seconds": seconds, "frameworks": ",".join(frameworks)}
    leave_file(layout.IMPORTS_SUFFIX, json.dumps(said).encode(), "the time of imports is not reported")


def leave_saved(live: Memory, target: object, is_sure: bool, now: int) -> None:
    """As `observations.save`, at `now` by the monotonic clock (ns)."""
    path = target if isinstance(target, str | os.PathLike) else getattr(target, "name", None)
    if not isinstance(path, str | os.PathLike):
        return
    name = os.fsdecode(path)
    if not is_sure and _CHECKPOINT_IN_PATH.search(name) is None:
        return
    if name == live.saved and now - live.saved_at < _ONE_SAVE_NS:
        return
    live.saves, live.saved, live.saved_at = live.saves + 1, name, now
    steps = _STEP_IN_PATH.findall(name)
    said = {"count": live.saves, "path": name[-500:], "number": int(steps[-1]) if steps else -1}
    leave_file(layout.SAVED_SUFFIX, json.dumps(said).encode(), "the save is not reported")


def leave_file(suffix: str, data: bytes, otherwise: str) -> None:
    """Write a file beside the probe's, under its name and `suffix`. `otherwise`: what an error's line begins with."""
    path = os.environ.get(layout.ENV_PATH, "")
    if not path:
        return
    path += suffix
    try:
        with open(f"{path}.part", "wb", opener=private.opener) as part:
            part.write(data)
        os.replace(f"{path}.part", path)
    except (OSError, TypeError) as error:
        with suppress(OSError):
            os.write(2, f"holdfast: {otherwise}: {error}\n".encode())
