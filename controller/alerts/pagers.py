"""One message in the format of each service that keeps the state of alerts and calls people. Pure."""

from typing import Any

from holdfast.controller.alerts.formats import Message, line, lines, time_of
from holdfast.wire import types as t

# Holdfast's severities are those of findings; Alertmanager's routing decides whom to page.
_ROUTED = {t.Severity.INFO: "info", t.Severity.WARNING: "warning", t.Severity.CRITICAL: "page"}
_PRIORITY = {t.Severity.INFO: "P5", t.Severity.WARNING: "P3", t.Severity.CRITICAL: "P1"}
_SUMMARY, _MESSAGE, _DESCRIPTION = 1024, 130, 15_000
"""The longest texts that PagerDuty and Opsgenie take."""


def alertmanager(m: Message) -> Any:
    """POST /api/v2/alerts: https://prometheus.io/docs/alerting/latest/alerts_api

    Labels identify an alert, annotations may change. Without `endsAt` it ends `resolve_timeout` after it was last sent.
    """
    links = {"runbook_url": m.runbook} if m.runbook else {}
    one: dict[str, Any] = {
        "labels": {"alertname": "HoldfastIncident", "severity": _ROUTED[m.severity], **m.labels},
        "annotations": {"summary": line(m.title), "description": m.text, **links},
        "startsAt": time_of(m.opened),
    }
    if m.page:
        one["generatorURL"] = m.page
    if m.closed is not None:
        one["endsAt"] = time_of(m.closed)
    return [one]


def pagerduty(m: Message, key: str) -> Any:
    """Events API v2: https://developer.pagerduty.com/docs/events-api-v2/trigger-events/

    `dedup_key` (255 characters) joins the trigger and the resolve; a trigger needs `payload`.
    """
    event: dict[str, Any] = {"routing_key": key, "dedup_key": alias(m), "event_action": "trigger"}
    if m.is_over:
        return event | {"event_action": "resolve"}
    payload = {
        "summary": line(m.title)[:_SUMMARY],
        "source": m.labels.get("subject") or "holdfast",
        "severity": m.severity.value,
        "timestamp": time_of(m.opened),
        "group": m.labels.get("job", ""),
        "class": m.labels.get("kind", ""),
        "custom_details": {"text": lines(m.text)},
    }
    links = [{"href": url, "text": name} for name, url in m.links]
    return event | {"payload": payload, "client": "Holdfast", "client_url": m.page, "links": links}


def opsgenie(m: Message) -> Any:
    """Create or close an alert: https://docs.opsgenie.com/docs/alert-api

    `alias` identifies an open alert: a second one with it is counted, not opened. A close has it in its path.
    """
    if m.is_over:
        return {"source": "holdfast", "note": line(m.title)[:_DESCRIPTION]}
    return {
        "message": line(m.title)[:_MESSAGE],
        "alias": alias(m),
        "description": "\n".join([lines(m.text), *(f"{name}: {url}" for name, url in m.links)])[:_DESCRIPTION],
        "source": "holdfast",
        "entity": m.labels.get("subject", ""),
        "priority": _PRIORITY[m.severity],
        "details": {**m.labels, "page": m.page, "runbook": m.runbook},
    }


def alias(m: Message) -> str:
    """Numbers of incidents begin again with a new journal; the moment does not."""
    return f"holdfast-{m.key}-{m.opened:.0f}"[:255]
