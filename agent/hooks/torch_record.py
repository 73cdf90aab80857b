"""torch's own record of its collectives, read while the worker stands: those begun in C++ are in it, too.

The Flight Recorder has which collectives are under way or over, and each group's number how many were begun, whoever
began them. Both are read in the liveness thread, without the interpreter lock where it takes long: 2,000 entries, as
many as there are after some minutes of training, are a text of 1 MB, for which torch needs some 40 ms.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from holdfast.agent.hooks.groups import MONITORED, Group, Watch
from holdfast.agent.probe_file import layout
from holdfast.agent.probe_file.memory import Memory
from holdfast.agent.probe_file.torch_record import write_record
from holdfast.wire.operation_size import TYPES, pack

_SPARING = 20
"""While something is under way, the next look comes after so many times what the last one took, at the earliest."""
_AGAIN_NS = 500_000_000
"""And at least this."""
_ALLOWED_NS, _MOST_ALLOWED_NS = 250_000_000, 1_000_000_000
_RUNS = 0.3
"""Share of the time between two ticks. A main thread that computes for more stands nowhere, and needs no record."""
_PATIENCE_NS = 2_000_000_000
"""A thread that spins while it waits for its GPU looks the same: after so long a look is made in any case."""
_OTHER_TRANSPORTS = ("horovod.torch", "mpi4py.MPI", "oneccl_bindings_for_pytorch", "torch_ucc")
"""Modules with which ranks wait for each other unseen."""
_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_TYPES = {
    "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Double": "float64", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}  # fmt: skip
"""torch's names of element types in C++, by those in Python."""
_SIDES = {
    "all_reduce": "input",
    "broadcast": "input",
    "reduce": "input",
    "all_gather": "output",
    "reduce_scatter": "input",
}
"""By kind, which tensors are together of the same size on all ranks: as `sizes` has it."""
_UNRETIRED = '"retired":false'
_DECODER = json.JSONDecoder()
_FIRST, _LAST = '{"collective_seq_id":', '"timeout_ms":'
"""Keys of an entry are in order. What is a name in it has its quotation marks escaped."""


class Recorder:
    def __init__(self, torch: Any, watch: Watch) -> None:
        self._torch, self._watch = torch, watch
        self._dump = dumper(torch)
        self._main = threading.main_thread().ident or 0
        self._seen: tuple[tuple[int, ...], int] = ((), -1)  # numbers and last move at the last look
        self._read_at = self._took = 0
        self._under_way: list[tuple[int, int, int, int]] = []
        self._over: list[tuple[int, int, int, int]] = []
        self._is_whole = False
        self._newest: dict[int, int] = {}  # by slot: the newest collective that was recorded
        self._cpu = (0, 0)
        self._runs = False

    def look(self, live: Memory, now: int) -> None:
        """As `Memory.recorder`: while no thread moves."""
        try:
            self._look(live, now)
        except Exception:  # another torch, or a group that is just being taken down: the block stays as it is, and ages
            self._seen = ((), -1)

    def _look(self, live: Memory, now: int) -> None:
        if self._watch.leaving:
            return
        self._runs = self._main_runs(now)
        groups, numbers, timed = self._groups()
        moved = live.words[layout.WORD_MOVED]
        if self._seen[0] and self._seen[0] != tuple(numbers) and self._seen[1] == moved:
            live.words[layout.WORD_MOVED] = moved = now  # collectives that no hook sees go on
            self._seen = (tuple(numbers), moved)
            return
        has_changed = self._seen != (tuple(numbers), moved)
        self._seen = (tuple(numbers), moved)
        if self._is_due(has_changed, now, moved):
            self._read(live, groups, numbers)
        exact = [self._exact(slot, number, groups) for slot, number in enumerate(numbers)]
        is_complete = self._is_whole and self._is_alone()
        if live.words[layout.WORD_MOVED] == moved:
            write_record(live.map, now, self._read_at, timed, is_complete, exact, self._under_way, self._over)

    def _groups(self) -> tuple[dict[str, Group], list[int], int]:
        """All groups by name; by slot, how many collectives were begun; mask of the slots with a short timeout."""
        watch, c10d = self._watch, self._watch.c10d
        groups: dict[str, Group] = {}
        numbers, timed = [-1] * layout.GROUPS, 0
        for group in list(c10d._world.pg_map):
            known = watch.known(group)
            if known is None or not known.slot:
                continue
            groups[known.name] = known
            numbers[known.slot] = known.begun(group)
            if _is_short(group, c10d):
                for slot in known.slots():
                    timed |= 1 << slot
        return groups, numbers, timed & ~1

    def _is_due(self, has_changed: bool, now: int, moved: int) -> bool:
        if self._runs and now - moved < _PATIENCE_NS:
            return False
        if has_changed or self._read_at <= moved:
            return now >= self._read_at + self._took * _SPARING // 2
        return bool(self._under_way) and now >= self._read_at + max(_AGAIN_NS, self._took * _SPARING)

    def _main_runs(self, now: int) -> bool:
        used = time.clock_gettime_ns(time.pthread_getcpuclockid(self._main))
        (then, before), self._cpu = self._cpu, (now, used)
        return used - before > _RUNS * (now - then)

    def _exact(self, slot: int, number: int, groups: dict[str, Group]) -> int:
        """A number that is the same on all ranks: gloo's counts messages, so torch's record must confirm what is left
        without them."""
        known = next((one for one in groups.values() if one.slot == slot), None)
        is_inside = known is not None and known.entered >= 0
        if known is not None and known.is_uneven and not is_inside:
            return -1
        if known is None or number < 0 or not known.is_gloo or not known.sent:
            return number
        taken = self._newest.get(slot, 0) - number
        return number if 0 <= taken <= (MONITORED if is_inside else 0) else -1

    def _is_alone(self) -> bool:
        """Whether nothing else is loaded with which ranks may wait for each other."""
        if any(name in sys.modules for name in _OTHER_TRANSPORTS):
            return False
        rpc = sys.modules.get("torch.distributed.rpc.api")
        return rpc is None or not rpc._is_current_rpc_agent_set()

    def _read(self, live: Memory, groups: dict[str, Group], numbers: list[int]) -> None:
        self._is_whole, self._under_way, self._over, self._newest = False, [], [], {}
        self._read_at = began = time.monotonic_ns()
        # On a busy host this takes long. The thread needs no interpreter lock meanwhile, so that its silence is none.
        live.words[layout.WORD_TICK] = began + min(max(_ALLOWED_NS, 2 * self._took), _MOST_ALLOWED_NS)
        try:
            text = self._dump() if self._dump is not None and groups else ""
        finally:
            live.words[layout.WORD_TICK] = now = time.monotonic_ns()
            self._took = now - began
        slots = {name: known.slot for name, known in groups.items()}
        self._newest = newest(text, slots)
        entries = unretired(text)
        for entry in entries:
            if slot := slots.get(entry["process_group"][0], 0):
                kind, size = kind_and_size(entry)
                self._under_way.append((int(entry["collective_seq_id"]) - 1, size, slot, kind))
        # What another thread began meanwhile, or a group of the same name that is gone, would have other numbers.
        ends = {name: known.slot for name, known in groups.items() if known.is_gloo and numbers[known.slot] > 0}
        most = min(layout.RECORD_OVER_EACH, max(1, layout.RECORD_OVER // max(len(ends), 1)))
        for name, slot in ends.items():
            for entry in ended(text, name, numbers[slot], most):
                kind, size = kind_and_size(entry)
                if kind:
                    self._over.append((int(entry["collective_seq_id"]) - 1, size, slot, kind))
        is_off = '"entries"' not in text and any(live.groups.counted(slot) for slot in slots.values())
        is_known = len(self._under_way) == len(entries) and len(groups) == len(self._watch.c10d._world.pg_map)
        is_recorded = not groups or (self._dump is not None and all(known.is_gloo for known in groups.values()))
        self._is_whole = is_recorded and is_known and not is_off


def dumper(torch: Any) -> Callable[[], str] | None:
    """A function that returns the Flight Recorder's text; None where there is none, or it records nothing."""
    if any(os.environ.get(name) == "0" for name in _SIZES):
        return None
    core = torch._C._distributed_c10d
    try:
        handler = core._get_handler("fr_trace_json")  # releases the interpreter lock, which the other one does not
    except (AttributeError, RuntimeError):
        dump = getattr(core, "_dump_fr_trace_json", None)
        return (lambda: dump(True, True).decode("utf-8", "replace")) if dump is not None else None

    class Request(core._Request):  # type: ignore[misc, name-defined]  # classes of C++
        def body(self) -> bytes:
            return b""

        def get_param(self, name: str) -> str:
            return ""

    class Response(core._Response):  # type: ignore[misc, name-defined]
        content = ""

        def set_content(self, content: str, content_type: str) -> None:
            self.content = content

        def set_status(self, status: int) -> None:
            pass

    def ask() -> str:
        response = Response()
        handler(Request(), response)
        return str(response.content)

    return ask


def unretired(text: str) -> list[dict[str, Any]]:
    """The entries under way; ValueError where the text is not what it was. Entries hold no objects, so that the rest,
    which is nearly all, need not be parsed."""
    found = []
    at = text.find(_UNRETIRED)
    while at >= 0:
        end = text.index("}", text.index(_LAST, at)) + 1
        found.append(json.loads(text[text.rindex(_FIRST, 0, at) : end]))
        at = text.find(_UNRETIRED, end)
    return found


def ended(text: str, group: str, newest: int, most: int) -> list[dict[str, Any]]:
    """The last entries of a group that are over, the last one first, if its newest entry has this number. Entries
    without a gap only: torch begins the numbers of a new group with an old one's name anew."""
    name = f'"process_group":[{json.dumps(group)},'
    found: list[dict[str, Any]] = []
    at, number = len(text), newest
    while number > 0 and len(found) < most and (at := text.rfind(name, 0, at)) >= 0:
        start = text.rindex(_FIRST, 0, at)
        if not text.startswith(f"{_FIRST}{number},", start):
            break
        # A group's name may hold an entry's last key.
        entry, _ = _DECODER.raw_decode(text, start)
        if entry["retired"]:
            found.append(entry)
        number, at = number - 1, start
    return found


def newest(text: str, slots: dict[str, int]) -> dict[int, int]:
    """By slot, how many collectives the newest entry of its group says were begun."""
    found = {}
    for name, slot in slots.items():
        at = text.rfind(f'"process_group":[{json.dumps(name)},')
        if at >= 0 and (start := text.rfind('"collective_seq_id":', 0, at)) >= 0:
            found[slot] = int(text[start + 20 : text.index(",", start)])
    return found


def kind_and_size(entry: dict[str, Any]) -> tuple[int, int]:
    """As OPERATION_KINDS (0: none of them) and `operation_size` have it."""
    name = str(entry["profiling_name"]).rpartition(":")[2]
    if name not in layout.OPERATION_KINDS:
        return 0, 0
    side = _SIDES.get(name)
    types = set(entry[f"{side}_dtypes"]) if side is not None else set()
    if len(types) != 1 or (known := _TYPES.get(types.pop())) is None:
        return layout.OPERATION_KINDS.index(name), 0
    elements = 0
    for shape in entry[f"{side}_sizes"]:
        count = 1
        for length in shape:
            count *= int(length)
        elements += count
    return layout.OPERATION_KINDS.index(name), pack(elements, TYPES.index(known))


def _is_short(group: Any, c10d: Any) -> bool:
    """Whether the script set a shorter timeout for it than torch's default."""
    by_nccl = getattr(c10d, "default_pg_nccl_timeout", None)
    defaults = {"ProcessGroupGloo": c10d.default_pg_timeout, "ProcessGroupNCCL": by_nccl}
    for device in group._device_types:
        backend = group._get_backend(device)
        default = defaults.get(type(backend).__name__)
        if default is not None and backend.options._timeout < default:
            return True
    return False
