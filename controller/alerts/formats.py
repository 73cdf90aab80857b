"""One message in the words of each receiver. Pure: what to send, not how.

Slack: incoming webhooks, `text` and `attachments`. Feishu, DingTalk: custom bots, `interactive` cards, `markdown`.
Alertmanager: POST /api/v2/alerts. A webhook gets our own fields as JSON.
"""

import datetime
from collections.abc import Callable
from email.message import EmailMessage
from typing import Any

from holdfast import types as t
from holdfast.controller.alerts.decide import Message

_COLOUR = {t.Severity.INFO: "#3b7ddd", t.Severity.WARNING: "#e0a100", t.Severity.CRITICAL: "#c9302c"}
_FEISHU = {t.Severity.INFO: "blue", t.Severity.WARNING: "orange", t.Severity.CRITICAL: "red"}
# Holdfast's severities are those of findings; Alertmanager's routing knows who is woken.
_ROUTED = {t.Severity.INFO: "info", t.Severity.WARNING: "warning", t.Severity.CRITICAL: "page"}


def webhook(message: Message, page: str) -> Any:
    return {
        "id": message.key,
        "status": "resolved" if message.closed is not None else "firing",
        "severity": message.severity.value,
        "title": message.title,
        "text": message.text,
        "kind": message.kind,
        "subject": message.subject,
        "opened": message.opened,
        "closed": message.closed,
        "page": page,
    }


def alertmanager(message: Message, page: str) -> Any:
    one: dict[str, Any] = {
        "labels": {
            "alertname": "HoldfastIncident",
            "incident": message.key,
            "kind": message.kind,
            "subject": message.subject,
            "severity": _ROUTED[message.severity],
        },
        "annotations": {"summary": message.title, "description": message.text},
        "startsAt": _time(message.opened),
        "generatorURL": page,
    }
    if message.closed is not None:
        one["endsAt"] = _time(message.closed)
    return [one]


def slack(message: Message, page: str) -> Any:
    escaped = message.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    link = f"\n<{page}|Look at it>" if page else ""
    return {"text": message.title, "attachments": [{"color": _COLOUR[message.severity], "text": f"{escaped}{link}"}]}


def feishu(message: Message, page: str) -> Any:
    elements: list[dict[str, Any]] = [{"tag": "div", "text": {"tag": "plain_text", "content": message.text}}]
    if page:
        button = {"tag": "button", "text": {"tag": "plain_text", "content": "Look at it"}, "url": page}
        elements.append({"tag": "action", "actions": [button]})
    header = {"title": {"tag": "plain_text", "content": message.title}, "template": _FEISHU[message.severity]}
    return {"msg_type": "interactive", "card": {"header": header, "elements": elements}}


def dingtalk(message: Message, page: str) -> Any:
    link = f"\n\n[Look at it]({page})" if page else ""
    text = "### {}\n\n{}{}".format(message.title, message.text.replace("\n", "\n\n"), link)
    return {"msgtype": "markdown", "markdown": {"title": message.title, "text": text}}


def email(message: Message, page: str, sender: str, receivers: list[str]) -> EmailMessage:
    mail = EmailMessage()
    mail["Subject"] = f"[holdfast] {' '.join(message.title.split())}"
    mail["From"], mail["To"] = sender, ", ".join(receivers)
    # Mail programs put what belongs together in one thread.
    mail["References"] = f"<{message.key}.{message.opened:.0f}@holdfast>"
    mail.set_content(f"{message.text}\n\n{page}\n" if page else f"{message.text}\n")
    return mail


JSON: dict[str, Callable[[Message, str], Any]] = {
    "webhook": webhook,
    "alertmanager": alertmanager,
    "slack": slack,
    "feishu": feishu,
    "dingtalk": dingtalk,
}


def _time(wall: float) -> str:
    return datetime.datetime.fromtimestamp(wall, datetime.UTC).isoformat()
