"""Receivers over real sockets: each format arrives, a broken one delays no other, mail goes through an SMTP server."""

import asyncio
import dataclasses
import html
import http.server
import json
import re
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import markdown_it
import pytest

from holdfast.controller.alerts import formats, send
from holdfast.controller.alerts.book import Book
from holdfast.controller.alerts.formats import Message
from holdfast.controller.alerts.notice import Pace
from holdfast.controller.alerts.receivers import Receiver, parse_receivers
from holdfast.controller.alerts.send import Sender
from holdfast.controller.state.incidents import Incident
from holdfast.wire import types as t
from tests.controller.alerts.test_book import alert

LABELS = {"incident": "i7", "kind": "worker-hang", "subject": "rank3", "job": "llm"}
PAGE, RUNBOOK = "https://page.example/#/incidents/i7", "https://page.example/runbook#worker-hang"
MESSAGE = Message(
    "i7", t.Severity.CRITICAL, "worker-hang on rank3: over", "a < b & c", LABELS, 10.0, 20.0, PAGE, RUNBOOK
)


class Web:
    """Keeps what was posted, and answers as it is set to."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, Any]] = []
        self.authorization: dict[str, str | None] = {}
        self.status, self.answer = 200, b""
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                web.authorization[self.path] = self.headers["Authorization"]
                web.posted.append((self.path, body))  # last: a test may wait for it
                self.send_response(web.status)
                self.send_header("Content-Length", str(len(web.answer)))
                self.end_headers()
                self.wfile.write(web.answer)

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.fixture
def web() -> Iterator[Web]:
    one = Web()
    with serving(one.server):
        yield one


def parse(*texts: str) -> list[Receiver]:
    return parse_receivers(texts)


def made(receivers: list[Receiver], known: list[Incident], reported: list[tuple[str, str]] | None = None) -> Sender:
    said: list[tuple[str, str]] = [] if reported is None else reported
    sender = Sender(
        receivers, Book(), Pace(), lambda: known, list, lambda records: None, lambda *what: said.append(what)
    )
    sender.base = "https://page.example"
    return sender


async def sent(receivers: list[Receiver], until: Callable[[], Any], reported: list[Any] | None = None) -> Sender:
    """Sends one alert, until something is so and what each receiver answered has been counted."""
    known: list[Incident] = []
    sender = made(receivers, known, reported)
    sender.book.look(known, [], time.time())  # what is there from the start is not sent
    known.append(alert(1, time.time() + 0.001))
    task = asyncio.create_task(sender.run())
    async with asyncio.timeout(60):
        while not until() or not all(any(outcomes.values()) for outcomes in sender.counts.values()):
            await asyncio.sleep(0.02)
    task.cancel()
    return sender


def test_each_kind_gets_its_own_words(web: Web) -> None:
    kinds = list(formats.JSON)
    asyncio.run(sent(parse(*(f"{kind}={web.url}/{kind}" for kind in kinds)), lambda: len(web.posted) == len(kinds)))
    got = dict(web.posted)
    assert got.keys() == {f"/{kind}" for kind in kinds}
    assert got["/webhook"]["title"] == "log-rule on rank3: alert"
    assert got["/slack"]["attachments"][0]["color"]
    assert got["/feishu"]["card"]["header"]["template"] == "orange"
    assert "page.example" in got["/dingtalk"]["markdown"]["text"]


def test_pagers_and_telegram_get_theirs_where_they_want_it(web: Web, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret-key\n")
    secret = f"@{tmp_path / 'key'}"
    receivers = parse(
        f"alertmanager={web.url}", f"pagerduty={web.url}/v2/enqueue?key={secret}",
        f"opsgenie={web.url}/v2/alerts?key={secret}", f"telegram={web.url}?token={secret}&chat=-42",
    )  # fmt: skip
    sender = asyncio.run(sent(receivers, lambda: len(web.posted) == 4))
    got = dict(web.posted)
    assert got["/api/v2/alerts"][0]["labels"]["severity"] == "warning"
    assert got["/v2/enqueue"]["routing_key"] == "s3cret-key"
    assert got["/v2/alerts"]["alias"].startswith("holdfast-i1-")
    assert got["/bots3cret-key/sendMessage"]["chat_id"] == "-42"
    assert web.authorization["/v2/alerts"] == "GenieKey s3cret-key"
    assert "s3cret" not in repr(sender.receivers)
    assert "s3cret" not in json.dumps(sender.book.take_changed())


def test_a_refusal_is_not_repeated_and_is_a_finding(web: Web) -> None:
    web.status, web.answer = 403, b"no such bot /hook/s3cret"
    reported: list[tuple[str, str]] = []
    sender = asyncio.run(sent(parse(f"slack={web.url}/hook/s3cret"), lambda: reported, reported))
    assert reported == [("slack", "HTTP 403 no such bot ***")]
    assert sender.counts == {"slack": {"sent": 0, "failed": 0, "refused": 1}}


@pytest.mark.parametrize("kind", ["wecom", "dingtalk", "feishu"])
def test_services_that_refuse_with_200_are_understood(web: Web, kind: str) -> None:
    code, text = ("code", "msg") if kind == "feishu" else ("errcode", "errmsg")
    web.answer = json.dumps({code: 93000, text: "invalid webhook url"}).encode()
    (answer,) = asyncio.run(made(parse(f"{kind}={web.url}/x"), []).test())
    assert (answer[0], answer[1].error) == (kind, f"{code} 93000: invalid webhook url")
    web.answer = json.dumps({code: 0, text: "ok"}).encode()
    ((_, taken),) = asyncio.run(made(parse(f"{kind}={web.url}/x"), []).test(kind))
    assert not taken.error
    assert "TEST" in json.dumps(web.posted[-1][1])
    with pytest.raises(KeyError):
        asyncio.run(made(parse(f"{kind}={web.url}/x"), []).test("other"))


HOSTILE = [
    "<!channel>", "<!here|here>", "<@U123>", "<https://evil.example|the page>", "a & b", "&lt;!channel&gt;", "*bold*",
    "_it_", "~gone~", "`code`", "```", "[the page](https://evil.example)", "![x](https://evil.example/x.png)",
    "[x]: https://evil.example", "[the page][x]", "# heading", "> quote", "- item", "1. item", "+ item", "---", "***",
    "<b>b</b>", "<img src=https://evil.example>", "<https://evil.example>", "https://evil.example", "@all", "\\[x](y)",
    "| a | b |", "a\\", "\x1b[31mred", "a\rb", "{x}", "node-1.example_2",
]  # fmt: skip
"""Names of nodes, scripts and functions, and lines that workers print."""


def hostile(text: str) -> Message:
    return dataclasses.replace(MESSAGE, title=f"log-rule on {text}: over", text=f"{text}\n{text} {text}")


@pytest.mark.parametrize("text", HOSTILE)
def test_slack_shows_what_a_job_says_and_obeys_none_of_it(text: str) -> None:
    """In its markup `<` begins all that acts, `&` an entity; the rest is switched off by name."""
    sent = formats.slack(hostile(text))
    (body,) = sent["attachments"]
    assert (sent["mrkdwn"], sent["link_names"], sent["unfurl_links"], body["mrkdwn_in"]) == (False, False, False, [])
    assert (body["title"], body["title_link"]) == ("Open the incident", PAGE)
    for shown in (sent["text"], body["text"], body["fallback"]):
        assert not set(shown) & set("<>\x1b\r")
        assert re.fullmatch(r"(?:[^&]|&(?:amp|lt|gt);)*", shown)
    printed = text.replace("\x1b", "\ufffd").replace("\r", " ")
    assert html.unescape(sent["text"]) == f"log-rule on {printed}: over"
    assert html.unescape(body["text"]) == f"{printed}\n{printed} {printed}"


@pytest.mark.parametrize("text", HOSTILE)
def test_dingtalk_shows_what_a_job_says_and_obeys_none_of_it(text: str) -> None:
    """A reader of Markdown makes one heading, the paragraphs and our own link of it, whatever is printed."""
    sent = formats.dingtalk(hostile(text))
    assert sent["at"] == {"isAtAll": False}
    printed = text.replace("\x1b", "\ufffd").replace("\r", " ")
    html_of = markdown_it.MarkdownIt("js-default").render(sent["markdown"]["text"])
    links = f'<p><a href="{PAGE}">Open the incident</a></p>\n<p><a href="{RUNBOOK}">Runbook</a></p>'
    whole = f"<h3>log-rule on {printed}: over</h3>|<p>{printed}</p>|<p>{printed} {printed}</p>"
    assert links in html_of
    assert html.unescape(html_of.replace(links, "").replace(">\n<", ">|<").strip()) == whole
    assert html_of.count("<a ") == 2
    plain = sent["markdown"]["text"].replace(f"]({PAGE})", "").replace(f"]({RUNBOOK})", "")
    assert "](h" not in plain  # for readers with no escapes


def test_a_broken_receiver_is_retried_and_delays_no_other(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "_RETRIES", send.Backoff(initial=0.02, cap=0.05))
    broken, reported = Web(), list[Any]()
    broken.status = 500
    with serving(broken.server):

        def both() -> bool:
            if web.posted and reported:
                broken.status = 200
            return broken.status == 200 and len(broken.posted) > 3

        sender = asyncio.run(sent(parse(f"webhook={broken.url}/", f"webhook={web.url}/"), both, reported))
    assert [name for name, _ in reported] == ["webhook"]
    assert sender.counts["webhook"]["failed"] >= 3
    assert sender.counts["webhook-2"] == {"sent": 1, "failed": 0, "refused": 0}


def test_mail_goes_through_a_server() -> None:
    mails: list[str] = []

    class Smtp(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline().decode().strip():
                if line.upper() == "DATA":
                    self.wfile.write(b"354 go on\r\n")
                    lines = []
                    while (text := self.rfile.readline().decode().rstrip("\r\n")) != ".":
                        lines.append(text)
                    mails.append("\n".join(lines))
                self.wfile.write(b"221 bye\r\n" if line.upper() == "QUIT" else b"250 fine\r\n")
                if line.upper() == "QUIT":
                    return

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Smtp)
    with serving(server):
        url = (
            f"smtp://127.0.0.1:{server.server_address[1]}/?from=holdfast@example.com&to=a@example.com&to=b@example.com"
        )
        asyncio.run(sent(parse(f"email={url}"), lambda: mails))
    assert "Subject: [holdfast] log-rule on rank3: alert" in mails[0]
    assert "To: a@example.com, b@example.com" in mails[0]
    assert "https://page.example/#/incidents/i1" in mails[0]
    assert "https://page.example/runbook#log-rule" in mails[0]
