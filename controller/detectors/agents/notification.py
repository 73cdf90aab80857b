"""The finding for a receiver that takes no notifications."""

from holdfast.controller.detectors.base.table import finding
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.wire import types as t


def notification_finding(receiver: str, error: str, now: Instant) -> Finding:
    return finding(
        t.FindingKind.NOTIFICATION_FAILED,
        "controller",
        f"the receiver {receiver} takes no notifications: {error}",
        now,
        signature=f"receiver:{receiver}",
        evidence={"receiver": receiver, "error": error},
    )
