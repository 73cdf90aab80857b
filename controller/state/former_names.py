"""Names that keys of documents had in earlier versions: their journals and recordings are still read."""

from collections.abc import Mapping
from typing import Any

FORMER = {
    "barred": "quarantined",
    "cadence": "heartbeat_interval",
    "lives": "attempts",
    "offence_window": "failure_window",
    "offences": "node_failures",
    "tells": "reports",
    "told": "reported",
    "tries_fault": "restart_attempts_fault",
    "tries_node": "fruitless_node",
    "tries_step": "fruitless_step",
}
"""Earlier key -> the one of now."""


def current(doc: Mapping[str, Any], more: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The same document with the keys of now. `more`: earlier keys that only documents of its kind have."""
    now = {**FORMER, **(more or {})}
    return {now.get(key, key): value for key, value in doc.items()}
