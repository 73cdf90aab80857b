"""Random scripts of `pauses.py` (workers/random_pauses.py): which there are, what was wrong with one, and their table.

A script writes its truth itself. Nothing here, nor in the scripts, knows how Holdfast judges.
"""

import json
import math
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

Json = dict[str, Any]
Row = tuple[object, ...]
FREEZERS = Path("/sys/fs/cgroup/freezer")
DEAD_S = 2.0
WORLD = 3
LATE_S = 7.0
"""After its limit, in which an idle one must have been ended: each look at stacks is a second that does not count."""
HEAD = ("what", "count", "right", "restarted or ended", "wrong rank", "not found", "median, s", "longest, s", "in 2 s")
_BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100000))"


def cases(count: int, seed: int, only: str | None) -> list[str]:
    """Even indices are honest, odd ones hang."""
    step, first = (1, 0) if only is None else (2, 0 if only == "honest" else 1)
    return [f"random:{seed}:{index}" for index in range(first, first + step * count, step)]


def is_honest(case: str) -> bool:
    return int(case.rpartition(":")[2]) % 2 == 0


def limits(case: str) -> Json | None:
    """The job's limits; None for the default ones."""
    from random_composition import IDLE_LIMIT_S, composed

    limit = composed(*map(int, case.split(":")[1:])).idle_limit_s
    return None if limit == IDLE_LIMIT_S else {"idle_limit": limit, "idle_limit_start": limit}


@contextmanager
def load(count: int) -> Iterator[None]:
    """So many processes that do nothing but compute; they end with this one."""
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def thaw(folder: Path) -> None:
    """Thaw what a freeze left that was ended halfway: frozen processes do not even die."""
    for path in folder.glob("pid-?"):
        for group in FREEZERS.glob(f"random-pauses-{path.read_text().split()[0]}-*"):
            (group / "freezer.state").write_text("THAWED")
            with suppress(OSError):  # it still has processes, which end now
                group.rmdir()


def truth(folder: Path) -> Json:
    """The truth that the script wrote, with the time at which its hang began; empty if it did not come so far."""
    try:
        found: Json = json.loads((folder / "truth.json").read_text())
    except (OSError, ValueError):
        return {}
    marks = [float(path.read_text() or "nan") for path in folder.glob("begun-*")]
    is_whole = len(marks) >= found.get("marks", 0)
    return found | {"began": max(marks) if marks and is_whole else math.nan, "ended": len(list(folder.glob("ended-*")))}


def wrong(found: Json) -> list[str]:
    """Differences between how a script went under Holdfast and its own truth."""
    said: Json = found["truth"]
    if not said:
        return ["the script did not begin"]
    texts = [] if found["state"] == "finished" else [f"the job is {found['state']}"]
    if said["set"] == "honest":
        texts += [f"{found['restarts']} restarts"] if found["restarts"] else []
        texts += [f"node {name} is {state}" for name, state in found["nodes"].items() if state != "healthy"]
        return texts + [f"incident: {one['summary']}" for one in found["incidents"]]
    if ended_by_itself(found):
        return texts
    if not found["incidents"]:
        return [*texts, "not found"]
    if found["named"] != said["named"]:
        texts.append(f"named {found['named'] or 'nobody'}, not {said['named']}")
    if len(found["incidents"]) > 1:
        texts.append(f"{len(found['incidents'])} incidents")
    life, seconds = found["life"], found["seconds"]
    if said["life"] in ("dead", "idle") and life != said["life"]:
        texts.append(f"judged {life or 'nothing'}, not {said['life']}")
    if said["life"] == "dead" and not seconds <= said["within_s"]:
        texts.append(f"found after {seconds:.2f} s, not within {said['within_s']:g} s")
    if said["life"] in ("idle", "either") and not seconds <= said["limit_s"] + LATE_S:
        texts.append(f"ended after {seconds:.1f} s, not at {said['limit_s']:g} s")
    if said["life"] == "idle" and seconds < said["limit_s"] - 1.0:
        texts.append(f"ended after {seconds:.1f} s, before {said['limit_s']:g} s")
    return texts


def ended_by_itself(found: Json) -> bool:
    """Whether what was meant as a hang was none. Gloo lets ranks leave some operations of different sizes, so that all
    come to their end in the first life; and it aborts a process that gets more bytes than it expects."""
    said = found["truth"]
    if said.get("set") == "hang" and any("with SIGABRT" in one["summary"] for one in found["incidents"][:1]):
        return True
    all_ended = said.get("set") == "hang" and said.get("ended") == WORLD
    return all_ended and found["state"] == "finished" and not found["restarts"] and not found["incidents"]


def rows(found: Iterable[Json]) -> list[Row]:
    groups: dict[str, list[Json]] = {}
    for one in found:
        ours = one.get("holdfast")
        if ours is not None:
            said = ours["truth"] or {"set": one["set"], "life": "?"}
            name = "honest" if said["set"] == "honest" else f"hang: {said['life']}"
            groups.setdefault("hang: none, it ended by itself" if ended_by_itself(ours) else name, []).append(ours)
    return [_row(name, some) for name, some in sorted(groups.items())]


def _row(name: str, some: Sequence[Json]) -> Row:
    right = sum(not one["wrong"] for one in some)
    if name == "honest":
        ended = sum(bool(one["restarts"] or one["incidents"] or one["state"] != "finished") for one in some)
        return (name, len(some), right, ended, "-", "-", "-", "-", "-")
    seen = [one for one in some if one["incidents"]]
    times = [one["seconds"] for one in seen if not math.isnan(one["seconds"])]
    named = sum(one["named"] != one["truth"].get("named") for one in seen)
    quick = f"{sum(t <= DEAD_S for t in times)} of {len(some)}" if name.endswith("dead") else "-"
    return (name, len(some), right, sum(one["restarts"] or 0 for one in some), named, len(some) - len(seen),
            float(median(times)) if times else "-", float(max(times)) if times else "-", quick)  # fmt: skip


def median_s(found: Iterable[Json]) -> float | None:
    """Until the incident, of dead ones."""
    ours = [one["holdfast"] for one in found if one.get("holdfast")]
    times = [one["seconds"] for one in ours if one["truth"].get("life") == "dead" and not math.isnan(one["seconds"])]
    return median(times) if times else None


def wrong_rows(found: Iterable[Json]) -> list[Row]:
    """One row for each that was wrong: its name repeats it (`--case`)."""
    rows: list[Row] = []
    for one in found:
        ours, theirs = one.get("holdfast"), one.get("torchrun")
        if ours is not None and ours["wrong"]:
            rows.append((one["case"], _what(ours["truth"]), "; ".join(ours["wrong"])[:160]))
        if theirs is not None and not theirs["is_right"]:
            rows.append((one["case"], "under torchrun", f"ends with {theirs['code']}"))
    return rows


def _what(said: Json) -> str:
    if not said:
        return "?"
    its = said["composition"]
    events = [its["hang"]] if its["hang"] else its["pauses"]
    texts = [f"{e['what']}@{e['place']}:{e['step']} r{''.join(map(str, e['ranks']))} {e['thread']}" for e in events]
    return f"{its['framework']}/{its['groups']} {' + '.join(texts)}"
