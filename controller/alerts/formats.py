"""One message in the format of each receiver. Pure: what to send, not how.

Slack: incoming webhooks, `text` and `attachments`. Feishu, DingTalk: custom bots, `interactive` cards, `markdown`.
Alertmanager: POST /api/v2/alerts. A webhook gets our own fields as JSON.
"""

import datetime
import re
from collections.abc import Callable
from email.message import EmailMessage
from typing import Any

from holdfast.controller.alerts.decide import Message
from holdfast.wire import types as t

_COLOUR = {t.Severity.INFO: "#3b7ddd", t.Severity.WARNING: "#e0a100", t.Severity.CRITICAL: "#c9302c"}
_FEISHU = {t.Severity.INFO: "blue", t.Severity.WARNING: "orange", t.Severity.CRITICAL: "red"}
# Holdfast's severities are those of findings; Alertmanager's routing decides whom to page.
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
    # Escaped, nothing calls a channel or hides where a link goes; without markup, a name with `*` or `_` stays a name.
    title, text = _entities(_line(message.title)), _entities(_lines(message.text))
    body: dict[str, Any] = {"color": _COLOUR[message.severity], "fallback": title, "text": text, "mrkdwn_in": []}
    if page:
        body |= {"title": "Open the incident", "title_link": page}
    quiet = {"mrkdwn": False, "link_names": False, "unfurl_links": False, "unfurl_media": False}
    return {"text": title, **quiet, "attachments": [body]}


def feishu(message: Message, page: str) -> Any:
    elements: list[dict[str, Any]] = [{"tag": "div", "text": {"tag": "plain_text", "content": message.text}}]
    if page:
        button = {"tag": "button", "text": {"tag": "plain_text", "content": "Open the incident"}, "url": page}
        elements.append({"tag": "action", "actions": [button]})
    header = {"title": {"tag": "plain_text", "content": message.title}, "template": _FEISHU[message.severity]}
    return {"msg_type": "interactive", "card": {"header": header, "elements": elements}}


def dingtalk(message: Message, page: str) -> Any:
    title, text = _line(message.title), _lines(message.text).replace("\n", "\n\n")
    link = f"\n\n[Open the incident]({page})" if page else ""
    body = f"### {_markdown(title)}\n\n{_markdown(text)}{link}"
    return {"msgtype": "markdown", "markdown": {"title": title, "text": body}, "at": {"isAtAll": False}}


def email(message: Message, page: str, sender: str, receivers: list[str]) -> EmailMessage:
    mail = EmailMessage()
    mail["Subject"] = f"[holdfast] {_line(message.title)}"
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


_MARKS = re.compile(r"[\\`*_{}\[\]()#+\-.!|~:@]")
"""What Markdown may read as markup, addresses and calls for people among it. A backslash before punctuation is that
character and no markup."""


def _entities(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _markdown(text: str) -> str:
    """The same text for a reader of Markdown, where names and lines of a log could be links, images or headings."""
    return _MARKS.sub(lambda found: f"\\{found[0]}", _entities(text))


def _lines(text: str) -> str:
    """Without control characters, which a receiver may act on or refuse; a line stays a line."""
    return "".join(c if c == "\n" or c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def _line(text: str) -> str:
    return " ".join(_lines(text).split())


def _time(wall: float) -> str:
    return datetime.datetime.fromtimestamp(wall, datetime.UTC).isoformat()
