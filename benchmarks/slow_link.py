"""One slow link among the ranks of a job on this host: a token bucket on the connections between two processes.

Everything that uses it runs in a network namespace of its own (`enter`), whose loopback has the kernel's token bucket
(HTB) in front of it. Traffic goes by untouched until `TokenBucket.limit` names two processes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass

INSIDE = "HOLDFAST_BENCHMARK_INSIDE"
_NAMESPACE = ["unshare", "--net", "--map-root-user", "sh", "-c"]
# Packets as on a wire: loopback's own hold 64 KiB, and a bucket lets a single one through whatever its size.
_READY = """ip link set lo mtu 4096 gso_max_segs 1 up && tc qdisc add dev lo root handle 1: htb default 0 &&
    exec "$@" """
_BURST = 4200
_USER = re.compile(r"pid=(\d+),")
_SENT = re.compile(r"\bbytes_sent:(\d+)")


def enter() -> None:
    """Go on in a namespace of our own: this program starts again in there, and ends when it does. No-op inside."""
    if INSIDE in os.environ:
        return
    if missing := [tool for tool in ("unshare", "ip", "tc", "ss") if shutil.which(tool) is None]:
        sys.exit(f"a slow link needs {', '.join(missing)}")
    again = [*_NAMESPACE, _READY, "sh", sys.executable, *sys.argv]
    raise SystemExit(subprocess.run(again, env={**os.environ, INSIDE: "1"}, check=False).returncode)


@dataclass(frozen=True, slots=True)
class Flow:
    """One direction of a connection. `sent`: bytes so far."""

    source: str
    target: str
    sent: int


def flows(first: int, second: int) -> list[Flow]:
    """All connections between two processes, each in both directions."""
    text = subprocess.run(["ss", "-HOtnpi", "state", "established"], capture_output=True, text=True, check=True).stdout
    owners: dict[str, set[int]] = {}
    found = []
    for line in text.splitlines():
        _, _, local, peer, *rest = line.split(maxsplit=4)
        more = "".join(rest)
        owners[local] = {int(pid) for pid in _USER.findall(more)}
        sent = _SENT.search(more)
        found.append(Flow(local, peer, int(sent[1]) if sent else 0))
    return [flow for flow in found if {first, second} <= owners[flow.source] | owners.get(flow.target, set())]


class TokenBucket:
    """What two processes send each other, both ways together, goes at a rate."""

    def limit(self, between: Iterable[Flow], bits_per_s: float) -> None:
        self.lift()
        rate = f"{max(round(bits_per_s), 8000)}bit"
        _tc("class", "add", "dev", "lo", "parent", "1:", "classid", "1:2", "htb", "rate", rate, "ceil", rate,
            "burst", str(_BURST), "cburst", str(_BURST), "quantum", str(_BURST))  # fmt: skip
        for flow in between:
            family = "ip6" if flow.source.startswith("[") else "ip"
            source, target = (end.rpartition(":")[2] for end in (flow.source, flow.target))
            _tc("filter", "add", "dev", "lo", "parent", "1:", "protocol", "ipv6" if family == "ip6" else "ip", "prio",
                "2" if family == "ip6" else "1", "u32", "match", family, "sport", source, "0xffff",
                "match", family, "dport", target, "0xffff", "flowid", "1:2")  # fmt: skip

    def lift(self) -> None:
        """Undo `limit`."""
        _tc("filter", "del", "dev", "lo", "parent", "1:", check=False)
        _tc("class", "del", "dev", "lo", "classid", "1:2", check=False)


def _tc(*words: str, check: bool = True) -> None:
    done = subprocess.run(["tc", *words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        sys.exit(f"tc {' '.join(words)}: {done.stderr.strip()}")
