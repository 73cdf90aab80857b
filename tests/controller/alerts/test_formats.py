"""Each format against what the service documents: the functions name the page."""

import datetime
import json

import pytest

from holdfast.controller.alerts import formats, pagers
from holdfast.controller.alerts.formats import Message, message_of
from holdfast.controller.alerts.notice import Notice, Stage
from holdfast.wire import types as t

LABELS = {"incident": "i7", "kind": "worker-hang", "subject": "rank3", "job": "llm"}
PAGE, RUNBOOK = "https://h/#/incidents/i7", "https://h/runbook#worker-hang"


def message(closed: float | None = None, text: str = "a < b & c\nline two", title: str = "hang") -> Message:
    return Message("i7", t.Severity.CRITICAL, title, text, LABELS, 10.0, closed, PAGE, RUNBOOK)


@pytest.mark.parametrize("kind", [*formats.JSON, "telegram", "alertmanager", "pagerduty", "opsgenie", "email"])
def test_every_format_has_both_links(kind: str) -> None:
    if kind == "email":
        said = formats.email(message(), "a@b", ["c@d"]).get_content()
    else:
        bodies = {
            "telegram": lambda: formats.telegram(message(), "1"),
            "alertmanager": lambda: pagers.alertmanager(message()),
            "pagerduty": lambda: pagers.pagerduty(message(), "key"),
            "opsgenie": lambda: pagers.opsgenie(message()),
        }
        said = json.dumps(bodies[kind]() if kind in bodies else formats.JSON[kind](message()))
    assert PAGE in said
    assert RUNBOOK in said


def test_alertmanager_identifies_by_labels_and_ends_by_time() -> None:
    (firing,), (over,) = pagers.alertmanager(message()), pagers.alertmanager(message(20.0))
    assert firing["labels"] == over["labels"] == {"alertname": "HoldfastIncident", "severity": "page", **LABELS}
    assert "endsAt" not in firing
    assert datetime.datetime.fromisoformat(over["startsAt"]).timestamp() == 10.0
    assert datetime.datetime.fromisoformat(over["endsAt"]).timestamp() == 20.0
    assert firing["annotations"]["runbook_url"] == RUNBOOK
    for one in (firing, over):
        assert all(isinstance(value, str) for value in (*one["labels"].values(), *one["annotations"].values()))


def test_pagerduty_triggers_and_resolves_with_one_key() -> None:
    trigger = pagers.pagerduty(message(title="x" * 2000), "routing")
    assert trigger["event_action"] == "trigger"
    assert {"summary", "source", "severity"} <= trigger["payload"].keys()
    assert trigger["payload"]["severity"] in ("critical", "error", "warning", "info")
    assert len(trigger["payload"]["summary"]) == 1024
    assert pagers.pagerduty(message(20.0), "routing") == {
        "routing_key": "routing", "dedup_key": trigger["dedup_key"], "event_action": "resolve",
    }  # fmt: skip
    assert len(trigger["dedup_key"]) <= 255


def test_opsgenie_keeps_within_its_limits() -> None:
    body = pagers.opsgenie(message(title="x" * 500, text="y" * 20_000))
    assert (len(body["message"]), len(body["description"]), body["priority"]) == (130, 15_000, "P1")
    assert all(isinstance(value, str) for value in body["details"].values())


def test_teams_gets_an_adaptive_card_without_markdown() -> None:
    body = formats.teams(message(text="[x](https://evil.example)\nsecond"))
    (attachment,) = body["attachments"]
    card = attachment["content"]
    assert (body["type"], attachment["contentType"]) == ("message", "application/vnd.microsoft.card.adaptive")
    assert (card["type"], card["version"]) == ("AdaptiveCard", "1.4")
    assert {block["type"] for block in card["body"]} == {"RichTextBlock"}
    assert [block["inlines"][0]["text"] for block in card["body"]] == ["hang", "[x](https://evil.example)", "second"]
    assert [(one["type"], one["url"]) for one in card["actions"]] == [
        ("Action.OpenUrl", PAGE), ("Action.OpenUrl", RUNBOOK),
    ]  # fmt: skip


def test_wecom_and_telegram_cut_the_text_and_never_the_links() -> None:
    long = message(text="ä" * 9000)
    wecom = formats.wecom(long)
    assert wecom["msgtype"] == "text"
    assert len(wecom["text"]["content"].encode()) <= 2048
    assert wecom["text"]["content"].endswith(RUNBOOK)
    telegram = formats.telegram(long, "-42")
    assert len(telegram["text"]) == 4096
    assert telegram["text"].endswith(RUNBOOK)
    assert "parse_mode" not in telegram


def test_a_webhook_says_whether_it_is_over() -> None:
    assert formats.webhook(message())["status"] == "firing"
    assert formats.webhook(message(20.0))["status"] == "resolved"
    assert "a &lt; b &amp; c" in formats.slack(message())["attachments"][0]["text"]


def test_a_job_given_up_is_never_posted_as_resolved() -> None:
    notice = Notice("i7", t.Severity.CRITICAL, "worker-hang", "rank3", "j1", "llm", 10.0, closed=20.0, incident="i7")
    notice.stage = Stage.GIVEN_UP
    made = message_of(notice, "https://h")
    assert not made.is_over
    assert (made.page, made.runbook) == (PAGE, RUNBOOK)
