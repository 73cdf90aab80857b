"""One message in the format of each chat service and webhook. Pure: what to send, not how."""

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any

from holdfast.controller.alerts.notice import Notice, Stage
from holdfast.wire import types as t

_COLOUR = {t.Severity.INFO: "#3b7ddd", t.Severity.WARNING: "#e0a100", t.Severity.CRITICAL: "#c9302c"}
_FEISHU = {t.Severity.INFO: "blue", t.Severity.WARNING: "orange", t.Severity.CRITICAL: "red"}
_TEAMS = {t.Severity.INFO: "accent", t.Severity.WARNING: "warning", t.Severity.CRITICAL: "attention"}
_TELEGRAM_TEXT, _WECOM_BYTES = 4096, 2048
_OPEN, _RUNBOOK = "Open the incident", "Runbook"


@dataclass(frozen=True, slots=True)
class Message:
    """One notice in one of its stages. `key` and `labels` are the same in all of them."""

    key: str
    severity: t.Severity
    title: str
    text: str
    labels: dict[str, str]
    opened: float
    closed: float | None = None
    page: str = ""
    """Address of the incident."""
    runbook: str = ""

    @property
    def is_over(self) -> bool:
        return self.closed is not None

    @property
    def links(self) -> list[tuple[str, str]]:
        return [(name, url) for name, url in ((_OPEN, self.page), (_RUNBOOK, self.runbook)) if url]


def message_of(notice: Notice, base: str) -> Message:
    """`base`: the controller's address without a slash at its end."""
    page = f"{base}/#/incidents/{notice.incident}" if notice.incident else f"{base}/#/overview"
    runbook = f"{base}/runbook#{notice.kind}" if notice.incident else f"{base}/runbook"
    closed = notice.closed if notice.stage is Stage.RESOLVED else None
    return Message(
        notice.key, notice.severity, notice.title, notice.text, notice.labels, notice.opened, closed, page, runbook
    )


def webhook(m: Message) -> Any:
    """Holdfast's own fields."""
    return {
        "id": m.key,
        "status": "resolved" if m.is_over else "firing",
        "severity": m.severity.value,
        "title": m.title,
        "text": m.text,
        "kind": m.labels.get("kind", ""),
        "subject": m.labels.get("subject", ""),
        "job": m.labels.get("job", ""),
        "opened": m.opened,
        "closed": m.closed,
        "page": m.page,
        "runbook": m.runbook,
    }


def slack(m: Message) -> Any:
    """Incoming webhook, `text` and `attachments`: https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks"""
    # Escaped, nothing calls a channel or hides where a link goes; without markup, a name with `*` or `_` stays a name.
    title, text = _entities(line(m.title)), _entities(lines(m.text))
    body: dict[str, Any] = {"color": _COLOUR[m.severity], "fallback": title, "text": text, "mrkdwn_in": []}
    if m.page:
        body |= {"title": _OPEN, "title_link": m.page}
    if m.runbook:
        body["footer"] = f"{_RUNBOOK}: {m.runbook}"
    quiet = {"mrkdwn": False, "link_names": False, "unfurl_links": False, "unfurl_media": False}
    return {"text": title, **quiet, "attachments": [body]}


def feishu(m: Message) -> Any:
    """Custom bot, `interactive` card: https://open.feishu.cn/document/client-docs/bot-v3/add-custom-bot"""
    elements: list[dict[str, Any]] = [{"tag": "div", "text": {"tag": "plain_text", "content": m.text}}]
    buttons = [{"tag": "button", "text": {"tag": "plain_text", "content": name}, "url": url} for name, url in m.links]
    if buttons:
        elements.append({"tag": "action", "actions": buttons})
    header = {"title": {"tag": "plain_text", "content": m.title}, "template": _FEISHU[m.severity]}
    return {"msg_type": "interactive", "card": {"header": header, "elements": elements}}


def dingtalk(m: Message) -> Any:
    """Custom robot, `markdown`: https://open.dingtalk.com/document/robots/custom-robot-access"""
    title, text = line(m.title), lines(m.text).replace("\n", "\n\n")
    links = "".join(f"\n\n[{name}]({url})" for name, url in m.links)
    body = f"### {_markdown(title)}\n\n{_markdown(text)}{links}"
    return {"msgtype": "markdown", "markdown": {"title": title, "text": body}, "at": {"isAtAll": False}}


def wecom(m: Message) -> Any:
    """Group robot, `text`, which has no markup: https://developer.work.weixin.qq.com/document/path/91770

    A text has at most 2,048 bytes. Longer ones lose the end of what is said, never the links.
    """
    return {"msgtype": "text", "text": {"content": _plain(m, _WECOM_BYTES, in_bytes=True)}}


def telegram(m: Message, chat: str) -> Any:
    """Bot API, `sendMessage` without a parse mode: 1 to 4,096 characters. https://core.telegram.org/bots/api#sendmessage"""
    return {
        "chat_id": chat,
        "text": _plain(m, _TELEGRAM_TEXT, in_bytes=False),
        "link_preview_options": {"is_disabled": True},
    }


def teams(m: Message) -> Any:
    """An Adaptive Card for the workflow "when a Teams webhook request is received".

    https://learn.microsoft.com/en-us/microsoftteams/platform/webhooks-and-connectors/how-to/connectors-using
    """
    # A TextRun is no Markdown, a TextBlock is: names and lines of a log must not become links.
    head = {"type": "TextRun", "text": line(m.title), "weight": "bolder", "size": "medium", "color": _TEAMS[m.severity]}
    runs = [[head], *([{"type": "TextRun", "text": text}] for text in lines(m.text).split("\n") if text)]
    card = {
        "type": "AdaptiveCard",
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "version": "1.4",
        "body": [{"type": "RichTextBlock", "inlines": inlines} for inlines in runs],
        "actions": [{"type": "Action.OpenUrl", "title": name, "url": url} for name, url in m.links],
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def email(m: Message, sender: str, receivers: list[str]) -> EmailMessage:
    mail = EmailMessage()
    mail["Subject"] = f"[holdfast] {line(m.title)}"
    mail["From"], mail["To"] = sender, ", ".join(receivers)
    # Mail programs put what belongs together in one thread.
    mail["References"] = f"<{m.key}.{m.opened:.0f}@holdfast>"
    mail.set_content("\n".join([m.text, "", *(f"{name}: {url}" for name, url in m.links), ""]))
    return mail


JSON: dict[str, Callable[[Message], Any]] = {
    "webhook": webhook,
    "slack": slack,
    "feishu": feishu,
    "dingtalk": dingtalk,
    "wecom": wecom,
    "teams": teams,
}
"""Services for which the URL is all that is needed."""


_MARKS = re.compile(r"[\\`*_{}\[\]()#+\-.!|~:@]")
"""What Markdown may read as markup, addresses and calls for people among it. A backslash before punctuation is that
character and no markup."""


def _plain(m: Message, most: int, in_bytes: bool) -> str:
    end = "".join(f"\n{name}: {url}" for name, url in m.links)
    text = f"{line(m.title)}\n{lines(m.text)}"
    room = most - len(end.encode() if in_bytes else end)
    kept = text.encode()[:room].decode(errors="ignore") if in_bytes else text[:room]
    return kept + end


def _entities(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _markdown(text: str) -> str:
    """The same text for a reader of Markdown, where names and lines of a log could be links, images or headings."""
    return _MARKS.sub(lambda found: f"\\{found[0]}", _entities(text))


def lines(text: str) -> str:
    """Without control characters, which a receiver may act on or refuse; a line stays a line."""
    return "".join(c if c == "\n" or c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def line(text: str) -> str:
    return " ".join(lines(text).split())


def time_of(wall: float) -> str:
    return datetime.datetime.fromtimestamp(wall, datetime.UTC).isoformat()
