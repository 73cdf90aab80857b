"""The faults of `chaos.py`, as data: how each is injected and ended, and which findings and actions are right."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos_hosts import Hosts
from common import child_pids


@dataclass
class Strike:
    """One fault at one place."""

    hosts: Hosts
    kind: str
    rank: int
    node: str
    index: int
    """Of the node in the job, as `holdfast inject` counts."""
    draw: random.Random
    job: dict[str, Any]
    undo: Callable[[], None] = lambda: None

    @property
    def host(self) -> Any:
        return self.hosts.hosts[self.node]

    def inject(self, kind: str, place: str = "") -> None:
        """As an operator does: `holdfast inject`."""
        at_rank = kind.partition("=")[0] in _OF_RANKS
        target = f"rank{self.rank}" if at_rank else f"node{self.index}"
        self.hosts.client.inject(f"{kind}:{target}" + (f"/{place}" if place else ""))


@dataclass(frozen=True)
class Kind:
    """What is right of one kind of fault. Texts may name {rank}, {node}, {switch} and {port} of the place."""

    strike: Callable[[Strike], None]
    finds: tuple[str, ...]
    """Kinds of findings of which one must be the incident's cause."""
    culprit: str
    moves: tuple[str, ...]
    """Rungs of the ladder that are right: what the incident's action may be."""
    evidence: tuple[str, ...] = ()
    """Kinds of findings that must join them in the same incident."""
    beside: tuple[str, ...] = ()
    """Kinds that may come as incidents of their own, since they are true, too."""
    end: str = "acted"
    """When the fault itself ends: "found", or "acted": when all is over."""
    patience_s: float = 45.0
    slows: bool = False
    """Whether training is slower for it."""
    drawn: bool = True
    """Whether it is drawn, or only when asked for by name: some take minutes by their nature."""

    @property
    def ends_generation(self) -> bool:
        """Whether the job starts again because of it, though the fault stays."""
        return not {*self.moves}.isdisjoint(RESTART + EVICT) and self.end != "found"


_OF_RANKS = ("kill", "stop", "segfault", "oom", "exception", "nan", "hang", "gil", "exit", "sigterm", "slow")
_RANK, _NODE, _PORT, _GPU = "rank{rank}", "{node}", "{node}/mlx5_0", "{node}/gpu0"
RESTART, EVICT, _ALERT, _WATCH = ("restart",), ("evict",), ("alert",), ("watch",)
_APP_XIDS, _RESET_XIDS, _REBOOT_XIDS = (13, 31, 94), (46, 64, 74, 95, 119, 140), (79,)
_HOST_LINES = ("mlx5-fatal", "nvidia-driver", "machine-check", "block-error", "kernel-hang")
_AXES, _WHERE = ("tp", "dp", "pp"), ("", "before-", "after-")


def _injects(kind: str) -> Callable[[Strike], None]:
    return lambda strike: strike.inject(kind)


def _hang(strike: Strike) -> None:
    strike.inject(strike.draw.choice(("hang", "stop")), strike.draw.choice(_WHERE) + strike.draw.choice(_AXES))


def _slow(strike: Strike) -> None:
    work = strike.draw.choice(("forward", "backward"))
    strike.inject("slow", f"{work}+200")
    strike.undo = lambda: strike.inject("slow", f"{work}+0")


def _agent_stop(strike: Strike) -> None:
    strike.inject("agent-stop")
    strike.undo = strike.host.go_on


def _frozen(strike: Strike) -> None:
    strike.hosts.freeze(strike.host.processes(f"-rank{strike.rank}", "maps"))
    strike.undo = strike.hosts.thaw


def _kills(word: str) -> Callable[[Strike], None]:
    """Of the processes with this word, the one from which the others come. Numbers say nothing of that: they begin
    again. Nor do parents alone: workers outlive the process that they came from."""

    def strike_it(strike: Strike) -> None:
        found = strike.host.processes(word)
        forked = {child for pid in found for child in child_pids(pid)}
        names = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in found if pid not in forked}
        os.kill(next(pid for pid, name in names.items() if not name.startswith("holdfast-r")), signal.SIGKILL)

    return strike_it


def _power(strike: Strike) -> None:
    strike.hosts.cables.plug(strike.node, False)  # first: a dead host sends no farewells
    strike.host.power_off()


def _unplug(strike: Strike) -> None:
    strike.hosts.cables.plug(strike.node, False)
    strike.undo = lambda: strike.hosts.cables.plug(strike.node, True)


def _from_controller(strike: Strike) -> None:
    strike.hosts.cables.refuse(strike.node, ["ctl"])
    strike.undo = lambda: strike.hosts.cables.refuse(strike.node, [])


def _from_peers(strike: Strike) -> None:
    strike.hosts.cables.refuse(strike.node, [name for name in strike.hosts.names if name != strike.node])
    strike.undo = lambda: strike.hosts.cables.refuse(strike.node, [])


def _uplink(strike: Strike) -> None:
    strike.hosts.cables.join(False)
    strike.undo = lambda: strike.hosts.cables.join(True)


def _flaps(strike: Strike) -> None:
    for _ in range(3):
        strike.hosts.cables.plug(strike.node, False)
        time.sleep(0.05 + 0.1 * strike.draw.random())
        strike.hosts.cables.plug(strike.node, True)
        time.sleep(0.3)


def _port_down(strike: Strike) -> None:
    strike.inject("link-down")
    strike.undo = lambda: _write(strike, "state", "4: ACTIVE")


def _write(strike: Strike, file: str, text: str) -> None:
    strike.host.counter(file).write_text(f"{text}\n")


def _congested(strike: Strike) -> None:
    """Ten thousand notifications every tenth of a second."""
    done, path = threading.Event(), strike.host.counter("hw_counters/np_cnp_sent")

    def count() -> None:
        while not done.wait(0.1):
            path.write_text(f"{int(path.read_text()) + 2000}\n")

    counting = threading.Thread(target=count, daemon=True)
    counting.start()

    def undo() -> None:
        done.set()
        counting.join()

    strike.undo = undo


def _line(strike: Strike) -> None:
    strike.inject(f"log={strike.draw.choice(_HOST_LINES)}")


def _xid(codes: tuple[int, ...]) -> Callable[[Strike], None]:
    return lambda strike: strike.inject(f"xid={strike.draw.choice(codes)}")


def _gpu(**said: object) -> Callable[[Strike], None]:
    def strike_it(strike: Strike) -> None:
        strike.host.gpus(**said)
        strike.undo = strike.host.gpus

    return strike_it


def _disk(strike: Strike) -> None:
    strike.inject("disk-full")
    strike.undo = lambda: (strike.host.disk / "injected-fill").unlink()


def _clock(strike: Strike) -> None:
    strike.host.clock(strike.draw.choice((-1, 1)) * strike.draw.uniform(2, 60))
    strike.undo = lambda: strike.host.clock(0)


def _controller(strike: Strike) -> None:
    strike.hosts.kill_controller()


_LOST = {"fail": {"nvmlDeviceGetMemoryInfo": 15}}  # NVML_ERROR_GPU_IS_LOST

KINDS: dict[str, Kind] = {
    # A worker.
    "kill": Kind(_injects("kill"), ("worker-killed",), _RANK, RESTART),
    "segfault": Kind(_injects("segfault"), ("worker-segfault",), _RANK, RESTART),
    "oom": Kind(_injects("oom"), ("worker-oom",), _RANK, RESTART),
    "exception": Kind(_injects("exception"), ("worker-exception",), _RANK, RESTART),
    "exit": Kind(_injects("exit"), ("worker-exit",), _RANK, RESTART),
    "sigterm": Kind(_injects("sigterm"), ("worker-preempted",), _RANK, RESTART),
    "nan": Kind(_injects("nan"), ("loss-nonfinite",), _RANK, RESTART),
    "stop": Kind(_injects("stop"), ("worker-stopped",), _RANK, RESTART),
    "hang in an operation": Kind(_hang, ("worker-hang", "worker-stopped"), _RANK, RESTART),
    "interpreter held": Kind(_injects("gil"), ("worker-hang",), _RANK, RESTART),
    "slow worker": Kind(_slow, ("straggler",), _RANK, _ALERT, beside=("step-time-jump",), end="found",
                        patience_s=60, slows=True),
    "frozen by the kernel": Kind(_frozen, ("worker-hang",), _RANK, EVICT, beside=("worker-blocked",),
                                 patience_s=60),
    # What watches it.
    "agent killed": Kind(_injects("agent-kill"), ("agent-exit",), _NODE, _WATCH),
    "agent stopped": Kind(_agent_stop, ("node-silent",), _NODE, _WATCH, end="found"),
    "controller killed": Kind(_controller, ("controller-restart",), "controller", _WATCH),
    "checkpoint daemon killed": Kind(_kills("holdfast.checkpoint.daemon.daemon"), ("agent",), _NODE, _ALERT,
                                     beside=("traffic-decline", "traffic-unsteady")),  # copies pause
    "fork server killed": Kind(_kills("holdfast.agent.forkserver.fork_server"), ("agent",), _NODE, _ALERT),
    # A host.
    "host restarts": Kind(_injects("node-kill"), ("agent-exit",), _NODE, RESTART + EVICT),  # by how soon it is back
    "power lost": Kind(_power, ("node-silent", "agent-exit"), _NODE, EVICT, ("node-unreachable",)),
    "disk full": Kind(_disk, ("disk-full",), _NODE, _ALERT, end="found"),
    "clock jumps": Kind(_clock, ("clock-offset",), _NODE, _ALERT, end="found", patience_s=60),
    "kernel log": Kind(_line, ("log-rule",), _NODE, _ALERT),
    # The network.
    "cable pulled": Kind(_unplug, ("node-silent", "agent-exit"), _NODE, EVICT, ("node-unreachable",)),
    "cut from the controller": Kind(_from_controller, ("node-silent", "agent-exit"), _NODE, _WATCH,
                                    ("node-partitioned",), end="found"),
    "cut from its peers": Kind(_from_peers, ("node-cut-off",), _NODE, EVICT),
    "switch cut off": Kind(_uplink, ("nodes-away",), "switch {switch}", ("watch", "restart"), end="found"),
    "link flaps": Kind(_flaps, ("link-flap",), "{node}/eth0", _ALERT, beside=("node-silent",)),
    "port down": Kind(_port_down, ("link-down",), _PORT, _ALERT, end="found"),
    "symbol errors": Kind(_injects("counter=symbol_error"), ("network-errors",), _PORT, _ALERT),
    "congestion": Kind(_congested, ("network-congestion",), _PORT, _ALERT, end="found", patience_s=60),
    # A GPU.
    "Xid: restart the application": Kind(_xid(_APP_XIDS), ("gpu-xid-app",), _GPU, _ALERT),
    "Xid: reset the GPU": Kind(_xid(_RESET_XIDS), ("gpu-xid",), _GPU, EVICT),
    "Xid: off the bus": Kind(_xid(_REBOOT_XIDS), ("gpu-xid",), _GPU, EVICT),
    "GPU lost": Kind(_gpu(**_LOST), ("gpu-lost",), _GPU, EVICT),
    "GPU asks for a reset": Kind(_gpu(recovery=1), ("gpu-recovery",), _GPU, EVICT, patience_s=60),
    "ECC errors": Kind(_gpu(ecc=5), ("gpu-ecc",), _GPU, _ALERT, end="found", patience_s=60),
    "row to be remapped": Kind(_gpu(rows=(0, 1, 1, 0)), ("gpu-row-remap",), _GPU, _ALERT, end="found", patience_s=60),
    "NVLink down": Kind(_gpu(links_off=1), ("gpu-nvlink",), _GPU, _ALERT, end="found", patience_s=60),
    "heat": Kind(_gpu(reasons=0x40), ("gpu-throttle",), _GPU, _ALERT, end="found", patience_s=120, drawn=False),
}  # fmt: skip
LIMITS = {
    "clock-offset.seconds": 5, "link-down.seconds": 5, "network-congestion.seconds": 5, "gpu-nvlink.seconds": 5,
    "gpu-throttle.seconds": 10, "traffic-stopped.seconds": 5, "worker-blocked.seconds": 10,
}  # fmt: skip
"""Limits of detectors that wait for longer by default, shortened for the campaign's sake."""


AT_ONCE = 4


def schedule(kinds: Sequence[str], seed: int) -> Iterator[tuple[list[str], random.Random]]:
    """Kinds for ever, each as often as any other; with each the chance that draws place and time.

    Those that only alert, and do not touch training, come several at once, at different places.
    """
    shuffled = random.Random(seed)
    number = 0
    while True:
        deck = shuffled.sample(kinds, len(kinds))
        quiet = [name for name in deck if KINDS[name].moves == _ALERT and not KINDS[name].slows]
        volleys = [[name] for name in deck if name not in quiet]
        volleys += [quiet[i : i + AT_ONCE] for i in range(0, len(quiet), AT_ONCE)]
        shuffled.shuffle(volleys)
        for volley in volleys:
            yield volley, random.Random(f"{seed}/{number}")
            number += len(volley)
