"""Hosts and workers of a cluster in virtual time: what each is doing, and what its agent has not sent yet."""

import dataclasses
import math

from holdfast.wire import types as t


@dataclasses.dataclass
class Worker:
    job: str
    generation: int
    rank: int
    pid: int
    running: bool = True
    step: int = -1
    read: int = -1  # the last step that its agent has sent: a new agent reads the others in the worker's file
    progress_at: float = 0.0
    stopped_at: float = math.inf  # process stopped or GIL held: no tick from here on
    state_t: bool = False
    sleeping_at: float = math.inf  # alive but stuck outside of any operation
    busy_until: float = 0.0  # it computes until then, wherever it stands
    waits_for_turn: bool = False  # another job's worker has the slot


@dataclasses.dataclass
class FakeAgent:
    name: str
    slots: int
    memory_bytes: int = 0  # of the host; 0: not known
    alive: bool = True
    frozen: bool = False
    incarnation: int = 0
    workers: dict[tuple[str, int, int], Worker] = dataclasses.field(default_factory=dict)
    newest: dict[str, int] = dataclasses.field(default_factory=dict)
    unheard: list[t.Event] = dataclasses.field(default_factory=list)
