"""Parts of random scripts: names of frameworks, places, groups, pauses and hangs, and which go together."""

import shutil
from dataclasses import dataclass

FRAMEWORKS = {
    "ddp": 3.0, "accumulate": 1.5, "own-update": 0.7, "subgroup": 0.7, "fsdp2": 2.0, "tp": 1.5, "pipeline": 1.5,
    "dcp": 1.5, "collectives": 2.0, "rpc": 1.0, "compiled": 0.4,
}  # fmt: skip
"""How often each is drawn."""
DDP_PLACES = ("start", "first", "loader", "forward", "backward", "gradient", "after-backward", "optimizer", "between",
              "checkpoint", "exit")  # fmt: skip
HANG_PLACES = DDP_PLACES[:-1]
"""After the last step a rank that stays does not hang: it ends late."""
_ANYWHERE = (*DDP_PLACES, "late-exit")
_WITHOUT_HOOKS = tuple(place for place in _ANYWHERE if place != "gradient")
PLACES: dict[str, tuple[str, ...]] = {
    "ddp": _ANYWHERE,
    "accumulate": (*_ANYWHERE, "micro", "micro"),
    "own-update": tuple(place for place in _ANYWHERE if place != "optimizer"),
    "subgroup": _ANYWHERE,
    "fsdp2": _WITHOUT_HOOKS,
    "tp": _WITHOUT_HOOKS,
    "pipeline": _WITHOUT_HOOKS,
    "dcp": (*_ANYWHERE, "writer", "writer", "writer"),
    "collectives": _ANYWHERE,
    "rpc": ("start", "first", "loader", "forward", "backward", "between", "remote", "remote", "remote", "exit"),
    "compiled": ("first", "loader", "between", "exit"),
}
"""A framework's name may be there twice: then it is drawn more often."""
_SIDES = ("none", "none", "sub", "overlap", "unpickle", "monitored", "async", "thread", "ring")
GROUPS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(FRAMEWORKS, _SIDES), "rpc": ("none",), "compiled": ("none",), "subgroup": ("none",),
}  # fmt: skip
"""Operations that a script has beside those of its framework. Their names are places as well: a member pauses there."""

WHATS: tuple[str, ...] = (
    "compute", "python", "sleep", "short-sleeps", "late-reply", "down-and-retries", "growing-retries", "file-lock",
    "child", "busy-child", "pool", "page-faults", "garbage", "sort", "lock-and-read", "lock-and-sleep", "epoll", "poll",
    "queue-timeouts", "lock-timeout", "one-deadline", "event-of-a-thread", "queue-of-a-thread", "own-socket", "fifo",
    "shared-event", "alarm", "file-poll", "store-wait", "slow-pipe", "upload", "event-loop", "writes",
    *(("compile",) if shutil.which("g++") else ()), *(("debugger",) if shutil.which("gdb") else ()),
    "stop-job", "freeze-job", "freeze-rank",
)  # fmt: skip
SIMPLE = ("compute", "python", "sleep", "short-sleeps", "child", "epoll", "one-deadline", "file-lock", "page-faults")
MAIN_ONLY = ("alarm", "compile")
WHOLE_JOB = ("stop-job", "freeze-job")
ONE_RANK = (*WHOLE_JOB, "compile")
TRACED = ("debugger", "freeze-rank")
FORKING = ("pool", "shared-event", "event-loop")
"""Not while the interpreter ends."""

IDLE = ("idle", "either")


@dataclass(frozen=True, slots=True)
class HangKind:
    life: str
    """`dead`, `idle`, `either` (a judge may not be able to prove it), `left`."""
    places: tuple[str, ...] = ()
    """Empty: all of the framework."""
    may_be_in_thread: bool = False
    has_no_odd_rank: bool = False


_BETWEEN = ("between", "checkpoint")
_EARLY = (*_BETWEEN, "first")
_DEAD, _IDLE, _EITHER = (HangKind(life, may_be_in_thread=True) for life in ("dead", "idle", "either"))
_ALONE = HangKind("dead", (*_EARLY, "after-backward"), True)
LOCAL: dict[str, HangKind] = {
    **dict.fromkeys(("lock-twice", "lock-of-ended-thread", "empty-queue", "condition"), _DEAD),
    **dict.fromkeys(("two-locks", "endless-thread", "native-lock", "stop"), HangKind("dead")),
    "lock-with-company": HangKind("idle"),
    **dict.fromkeys(("sleep-loop", "long-sleep", "quiet-socket", "file-lock-of-a-child", "endless-child"), _IDLE),
    **dict.fromkeys(("pipe-of-dead-child", "queue-of-dead-child", "own-socketpair"), _EITHER),
    "store-key": HangKind("either", _EARLY, True),
    **dict.fromkeys(("recv-alone", "barrier-alone", "all-gather-alone", "broadcast-alone", "new-group-alone"), _ALONE),
    **dict.fromkeys(("left", "left-with-child"), HangKind("left", _BETWEEN)),
}
"""Hangs in which one rank does something, while the others go on."""
_SHARED = HangKind("dead", _EARLY, True)
_NOBODY = HangKind("dead", _EARLY, True, has_no_odd_rank=True)
SHARED: dict[str, HangKind] = {
    **dict.fromkeys(("kind", "kind-of-barrier", "size", "order", "root", "group", "object-kind"), _SHARED),
    **dict.fromkeys(("skip-barrier", "skip-all-gather", "skip-broadcast", "skip-gather", "skip-monitored"), _SHARED),
    **dict.fromkeys(("tag", "circle", "overlapping-cycle", "pair-kind"), _NOBODY),
}
"""Hangs in which all ranks take part, one of them in another way."""
SLOW_TO_START = {"stop": 12.0, "left": 30.0, "left-with-child": 30.0}
"""Seconds, before the first step: calls that hold the interpreter are usual there."""


def named(kind: HangKind, odd: str) -> str:
    return "job" if kind.has_no_odd_rank else odd
