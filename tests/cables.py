"""Simulated hosts on one machine: a network namespace each, under bridges ("switches") that are joined.

Root only. Changes nothing outside of the namespaces made here; `close()` removes them.
"""

import ctypes
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

RATE = "200mbit"
HEADERS = 66
"""Bytes of Ethernet, IP and TCP with its timestamps, of each packet that an interface counts."""
_CLONE_NEWNET = 0x40000000


def missing() -> str:
    """Why such hosts cannot be created here; empty when they can."""
    if os.geteuid() != 0:
        return "needs root"
    if not shutil.which("ip") or not shutil.which("tc"):
        return "needs ip and tc (iproute2)"
    name = f"hf{uuid.uuid4().hex[:6]}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "cannot make network namespaces"
    try:
        return "" if _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", RATE,
                          "burst", "64kb", "latency", "1s") else "tc has no token bucket here"  # fmt: skip
    finally:
        _run("ip", "netns", "del", name)


def can_filter() -> bool:
    return shutil.which("nft") is not None


def crossed_bytes(switches: str) -> int:
    """Sent over the link between the switches so far, both ways, without headers. `switches`: `Cables.space("sw")`."""
    return _payload(switches, ("up0", "up1").__contains__, "tx")


def sent_bytes(switches: str, device: str) -> int:
    """By all hosts over their `device` of a `Cables.network` so far, without headers."""
    return _payload(switches, lambda port: port.startswith(f"{device}-"), "rx")


def _payload(space: str, wanted: Callable[[str], bool], way: str) -> int:
    """Bytes that interfaces of a namespace counted one way, without headers."""
    words = ["ip", "-n", space, "-s", "-j", "link", "show"]
    links = json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout)
    counted = [link["stats64"][way] for link in links if wanted(link["ifname"])]
    assert len(counted) > 1, "a network has several ends"
    return sum(int(one["bytes"]) - HEADERS * int(one["packets"]) for one in counted)


def _run(*words: str) -> bool:
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def _must(*words: str, stdin: str = "") -> None:
    done = subprocess.run(words, input=stdin, text=True, capture_output=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"


class Cables:
    """Every host has one link, eth0, to its switch; the switches are joined in a row."""

    def __init__(self, switch_of: Mapping[str, str], subnet: str = "10.77.0") -> None:
        """`switch_of`: host -> switch, of which there are one or two."""
        self.switch_of = dict(switch_of)
        self.addresses = {name: f"{subnet}.{number}" for number, name in enumerate(switch_of, 1)}
        self._mark = f"hf{uuid.uuid4().hex[:5]}"

    def space(self, name: str) -> str:
        """The network namespace of a host."""
        return f"{self._mark}-{name}"

    @property
    def _switches(self) -> str:
        return self.space("sw")

    def lay(self) -> None:
        _must("ip", "netns", "add", self._switches)
        inside = ("ip", "-n", self._switches, "link")
        bridges = sorted(set(self.switch_of.values()))
        for bridge in bridges:
            _must(*inside, "add", bridge, "type", "bridge")
            _must(*inside, "set", bridge, "up")
        if len(bridges) > 1:
            _must(*inside, "add", "up0", "type", "veth", "peer", "name", "up1")
            for uplink, bridge in zip(("up0", "up1"), bridges, strict=True):
                _must(*inside, "set", uplink, "master", bridge, "up")
        for name, switch in self.switch_of.items():
            self._plug(name, switch)

    def _plug(self, name: str, switch: str) -> None:
        space = self.space(name)
        _must("ip", "netns", "add", space)
        peer = ("peer", "name", f"p-{name}", "netns", self._switches)
        _must("ip", "-n", space, "link", "add", "eth0", "type", "veth", *peer)
        _must("ip", "-n", self._switches, "link", "set", f"p-{name}", "master", switch, "up")
        _must("ip", "-n", space, "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _must("ip", "-n", space, "link", "set", device, "up")

    def network(self, device: str, subnet: str, bridge_of: Mapping[str, str]) -> dict[str, str]:
        """One more network of these hosts, or several that nothing joins: host -> bridge. Each host has `device` there,
        with its address as in the first network under this subnet. Host -> address."""
        for bridge in sorted(set(bridge_of.values())):
            _must("ip", "-n", self._switches, "link", "add", bridge, "type", "bridge")
            _must("ip", "-n", self._switches, "link", "set", bridge, "up")
        found = {}
        for name, bridge in bridge_of.items():
            found[name] = f"{subnet}.{self.addresses[name].rpartition('.')[2]}"
            port, space = f"{device}-{name}", self.space(name)
            peer = ("peer", "name", port, "netns", self._switches)
            _must("ip", "-n", space, "link", "add", device, "type", "veth", *peer)
            _must("ip", "-n", self._switches, "link", "set", port, "master", bridge, "up")
            _must("ip", "-n", space, "addr", "add", f"{found[name]}/24", "dev", device)
            _must("ip", "-n", space, "link", "set", device, "up")
        return found

    def close(self) -> None:
        spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
        for line in spaces.splitlines():
            if line.startswith(f"{self._mark}-"):
                _run("ip", "netns", "del", line.split()[0])

    # --- troubles --------------------------------------------------------------------------------------------------

    def limit(self, name: str, rate: str) -> None:
        """Both ways of a host's link."""
        shape = ("root", "tbf", "rate", rate, "burst", "64kb", "latency", "1s")
        _must("tc", "-n", self.space(name), "qdisc", "replace", "dev", "eth0", *shape)
        _must("tc", "-n", self._switches, "qdisc", "replace", "dev", f"p-{name}", *shape)

    def narrow(self, rate: str) -> None:
        """Both ways of the link between the two switches; empty: as wide as it can be."""
        for uplink in ("up0", "up1"):
            if rate:
                shape = ("root", "tbf", "rate", rate, "burst", "64kb", "latency", "1s")
                _must("tc", "-n", self._switches, "qdisc", "replace", "dev", uplink, *shape)
            else:
                _run("tc", "-n", self._switches, "qdisc", "del", "dev", uplink, "root")

    def lose(self, name: str, per_thousand: int) -> None:
        """The number of lost packets per thousand to this host; 0: none."""
        self._filter(name, "loss", f"chain in {{ type filter hook input priority 0; iif eth0 numgen random mod 1000 "
                     f"< {per_thousand} drop; }}" if per_thousand else "")  # fmt: skip

    def refuse(self, name: str, peers: Sequence[str]) -> None:
        """Block all packets between this host and these others; no others: unblock."""
        others = ", ".join(self.addresses[peer] for peer in peers)
        self._filter(name, "cut", f"chain in {{ type filter hook input priority 0; ip saddr {{ {others} }} drop; }}\n"
                     f"chain out {{ type filter hook output priority 0; ip daddr {{ {others} }} drop; }}"
                     if peers else "")  # fmt: skip

    def part(self, one: str, other: str, on: bool) -> None:
        """Lose all packets between these hosts on their way, or no more: a sender is not told, unlike by `refuse`."""
        for name, peer in ((one, other), (other, one)):
            drop = f"chain in {{ type filter hook input priority 0; ip saddr {self.addresses[peer]} drop; }}"
            self._filter(name, "part", drop if on else "")

    def _filter(self, name: str, table: str, chains: str) -> None:
        nft = ("ip", "netns", "exec", self.space(name), "nft")
        _run(*nft, "delete", "table", "inet", table)
        if chains:
            _must(*nft, "-f", "-", stdin=f"table inet {table} {{\n{chains}\n}}\n")

    def plug(self, name: str, on: bool) -> None:
        """Pull a host's cable out of its switch, or put it back: both ends lose their carrier."""
        _must("ip", "-n", self._switches, "link", "set", f"p-{name}", "up" if on else "down")

    def join(self, on: bool) -> None:
        """Cut the link between the two switches, or restore it."""
        _must("ip", "-n", self._switches, "link", "set", "up0", "up" if on else "down")


@contextmanager
def inside(space: str) -> Iterator[None]:
    """This thread, and the processes that it starts meanwhile, run in that network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(descriptor: int) -> None:
        if libc.setns(descriptor, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {space}")

    with Path("/proc/thread-self/ns/net").open() as home, Path(f"/run/netns/{space}").open() as there:
        enter(there.fileno())
        try:
            yield
        finally:
            enter(home.fileno())
