"""Workers of an old generation that do not end, not even by SIGKILL: what that says of their node. Pure.

What a debugger or a frozen cgroup holds, and what is still exiting, is waited for and says nothing against the node.
Else the next generation begins without the node: it has a rendezvous store of its own, which those workers do not know.
"""

from holdfast.controller.cluster import incidents as books
from holdfast.controller.job.lifecycle import Failure
from holdfast.controller.job.recovery import Recovery
from holdfast.controller.job.stages import Stage
from holdfast.controller.state.events import Action
from holdfast.controller.state.model import Instant
from holdfast.wire import types as t
from holdfast.wire.holds import PASSES, Hold


def would_not_end(recovery: Recovery, failure: Failure, now: Instant) -> list[Action]:
    """The answer to an order to stop workers, or that there was none."""
    name, error, c = failure.node, failure.error, recovery.c
    blocked = recovery.command_finding(t.FindingKind.WORKER_BLOCKED, name, f"its workers do not stop: {error}", now)
    if failure.hold in PASSES and c.life.stage is Stage.DRAINING:
        return [*recovery.found(blocked, now), *_wait_for(recovery, failure, now)]
    reason = f"did not stop its workers: {error}"
    out: list[Action] = []
    if failure.hold == Hold.SERVER:  # which other nodes wait for, too: it is not counted
        out = recovery.alerts.evict(name, reason, now, quarantined=False, by_hand=True)
    elif c.evictions(now) < c.options.max_evictions:  # so many go that it cannot be the nodes
        out = recovery.evict(name, reason, now, quarantined=False)
    return [*out, *recovery.found(blocked, now)]


def _wait_for(recovery: Recovery, failure: Failure, now: Instant) -> list[Action]:
    """Stop them again until they have ended, and report once what is waited for."""
    c = recovery.c
    actions = c.life.stop_again(c.job, failure.node, now)
    begin, live = f"waiting for {failure.node}: ", c.book.live()
    is_known, c.job.reason = c.job.reason.startswith(begin), begin + failure.error
    if live is None or is_known:
        return actions
    live.reason = f"{live.reason}; {c.job.reason}" if live.reason else c.job.reason
    return [*actions, books.saved(live)]
