"""Which agent owns a node's name when two agents claim it. Pure.

An agent that was started again shows that by its lock: it has the state folder of the one before it, which the kernel
gives to no other while that one runs. Any other newcomer waits until the holder is silent: a host that was cloned, a
second agent on the same host, but also a node that was installed anew, and an agent that lost its folder.
"""

from dataclasses import dataclass
from typing import Any

from holdfast.controller.detectors.base.table import finding
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.wire import types as t

FRESH_S = 3.0
"""A holder heard within so many seconds is alive, whatever its stream looks like ..."""
FRESH_BEATS = 6.0
"""... or within so many heartbeat intervals: in a big cluster they are longer."""
RETRY_S = 2.0
"""When a newcomer that was refused asks again."""


@dataclass(frozen=True, slots=True)
class Claim:
    """An agent that says a node's name. `peer`: the address that its stream comes from."""

    identity: t.Identity
    peer: str = ""

    @property
    def address(self) -> str:
        return self.identity.address or self.peer


def judge(holder: Claim, silent_s: float, heartbeat_interval: float, newcomer: Claim) -> str:
    """Why the newcomer is refused, in one line; empty when the name is its own.

    `silent_s`: seconds since the holder's last frame; `heartbeat_interval`: the interval that it was asked for.
    """
    if silent_s > max(FRESH_S, FRESH_BEATS * heartbeat_interval):
        return ""  # half an open connection, a node that was installed anew under its name, a host that is gone
    old, new = holder.identity, newcomer.identity
    here = _is_same_host(holder, newcomer)
    if here and (new.incarnation == old.incarnation or old.incarnation in new.predecessors):
        return ""  # its stream broke and that is not noticed yet; or its successor, by the lock of its state folder
    where = "this host" if here else f"{old.hostname} ({holder.address or 'address unknown'})"
    what = "end one of the two, or give this one another --node-name and --state-dir" if here else (
        "give another --node-name, or end that one"
    )  # fmt: skip
    return f"the node name {old.node!r} is used by an agent on {where}: {what}"


def taken_finding(holder: Claim, newcomer: Claim, now: Instant) -> Finding:
    """Two agents say the same name; the newcomer was refused."""
    old, new = holder.identity, newcomer.identity
    hosts = [f"{claim.identity.hostname} ({claim.address or 'address unknown'})" for claim in (holder, newcomer)]
    second = "a second agent there" if _is_same_host(holder, newcomer) else f"an agent on {hosts[1]}"
    return finding(
        t.FindingKind.NODE_NAME_TAKEN,
        old.node,
        f"{old.node} is the agent on {hosts[0]}; {second} uses the same name and is refused",
        now,
        node=old.node,
        signature=f"{new.hostname} {newcomer.address}",
        evidence={"holder": _said(holder), "newcomer": _said(newcomer)},
    )


def _is_same_host(one: Claim, other: Claim) -> bool:
    """A clone has the host's name, and may have its boot id (containers, a machine's snapshot), but not its address."""
    a, b = one.identity, other.identity
    # Not the peer: behind a load balancer each stream may come from another one.
    return (a.boot_id, a.hostname, a.address) == (b.boot_id, b.hostname, b.address)


def _said(claim: Claim) -> dict[str, Any]:
    i = claim.identity
    return {"hostname": i.hostname, "address": claim.address, "boot_id": i.boot_id, "incarnation": i.incarnation}
