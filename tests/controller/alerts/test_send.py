"""Receivers over real sockets: each format arrives, a broken one delays no other, mail goes through an SMTP server."""

import asyncio
import dataclasses
import html
import http.server
import json
import re
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import markdown_it
import pytest

from holdfast.base.errors import UsageError
from holdfast.controller.alerts import formats, send
from holdfast.controller.alerts.decide import Decider, Message
from holdfast.controller.alerts.send import Receiver, Sender, parse_receiver
from holdfast.controller.state.model import Incident
from holdfast.wire import types as t
from tests.controller.alerts.test_decide import alert

MESSAGE = Message(
    "i7", t.Severity.CRITICAL, "worker-hang on rank3: over", "a < b & c", "worker-hang", "rank3", 10.0, 20.0
)


class Web:
    """Keeps what was posted; answers 500 as long as `broken`."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, Any]] = []
        self.broken = False
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if not web.broken:
                    web.posted.append((self.path, body))
                self.send_response(500 if web.broken else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

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


async def sent(receivers: list[Receiver], incidents: list[Incident], until: Any) -> None:
    known: list[Incident] = []
    sender = Sender(receivers, Decider(), lambda: known, "https://page.example/")
    task = asyncio.create_task(sender.run())
    await asyncio.sleep(0.05)
    known += incidents  # what is there from the start was sent by an earlier run
    async with asyncio.timeout(20):
        while not until():
            await asyncio.sleep(0.02)
    task.cancel()


def test_each_kind_gets_its_own_words(web: Web) -> None:
    receivers = [parse_receiver(f"{kind}={web.url}/{kind}") for kind in formats.JSON if kind != "alertmanager"]
    receivers.append(parse_receiver(f"alertmanager={web.url}"))
    asyncio.run(sent(receivers, [alert(1, 100.0)], lambda: len(web.posted) == 5))
    got = dict(web.posted)
    assert got.keys() == {"/webhook", "/slack", "/feishu", "/dingtalk", "/api/v2/alerts"}
    assert got["/webhook"]["title"] == "log-rule on rank3: alert"
    assert got["/api/v2/alerts"][0]["labels"]["severity"] == "warning"
    assert got["/slack"]["attachments"][0]["color"]
    assert got["/feishu"]["card"]["header"]["template"] == "orange"
    assert "page.example" in got["/dingtalk"]["markdown"]["text"]


def test_formats_escape_and_end() -> None:
    assert "a &lt; b &amp; c" in formats.slack(MESSAGE, "")["attachments"][0]["text"]
    (one,) = formats.alertmanager(MESSAGE, "")
    assert (one["startsAt"], one["endsAt"]) == ("1970-01-01T00:00:10+00:00", "1970-01-01T00:00:20+00:00")
    assert one["labels"]["severity"] == "page"
    assert formats.webhook(MESSAGE, "")["status"] == "resolved"


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
    sent = formats.slack(hostile(text), "https://page.example/")
    (body,) = sent["attachments"]
    assert (sent["mrkdwn"], sent["link_names"], sent["unfurl_links"], body["mrkdwn_in"]) == (False, False, False, [])
    assert (body["title"], body["title_link"]) == ("Open the incident", "https://page.example/")
    for shown in (sent["text"], body["text"], body["fallback"]):
        assert not set(shown) & set("<>\x1b\r")
        assert re.fullmatch(r"(?:[^&]|&(?:amp|lt|gt);)*", shown)
    printed = text.replace("\x1b", "\ufffd").replace("\r", " ")
    assert html.unescape(sent["text"]) == f"log-rule on {printed}: over"
    assert html.unescape(body["text"]) == f"{printed}\n{printed} {printed}"


@pytest.mark.parametrize("text", HOSTILE)
def test_dingtalk_shows_what_a_job_says_and_obeys_none_of_it(text: str) -> None:
    """A reader of Markdown makes one heading, the paragraphs and our own link of it, whatever is printed."""
    sent = formats.dingtalk(hostile(text), "https://page.example/")
    assert sent["at"] == {"isAtAll": False}
    printed = text.replace("\x1b", "\ufffd").replace("\r", " ")
    made = markdown_it.MarkdownIt("js-default").render(sent["markdown"]["text"])
    link = '<p><a href="https://page.example/">Open the incident</a></p>'
    whole = f"<h3>log-rule on {printed}: over</h3>|<p>{printed}</p>|<p>{printed} {printed}</p>"
    assert html.unescape(made.replace(link, "").replace(">\n<", ">|<").strip()) == whole
    assert made.count("<a ") == 1
    assert link in made
    assert "](h" not in sent["markdown"]["text"].replace("](https://page.example/)", "")  # for readers with no escapes


def test_a_broken_receiver_is_retried_and_delays_no_other(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "_RETRIES", send.Backoff(initial=0.02, cap=0.05, deadline=10.0))
    broken = Web()
    broken.broken = True
    with serving(broken.server):
        receivers = [parse_receiver(f"webhook={broken.url}/"), parse_receiver(f"webhook={web.url}/")]

        def both() -> bool:
            if web.posted:
                broken.broken = False
            return bool(broken.posted)

        asyncio.run(sent(receivers, [alert(1, 100.0)], both))


def test_what_was_given_up_is_counted(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "_RETRIES", send.Backoff(initial=0.02, cap=0.05, deadline=0.1))
    web.broken = True
    receiver = parse_receiver(f"webhook={web.url}/")
    name = receiver.name
    known: list[Incident] = []
    sender = Sender([receiver], Decider(), lambda: known, "")

    async def give_up() -> None:
        task = asyncio.create_task(sender.run())
        await asyncio.sleep(0.05)
        known.append(alert(1, 100.0))
        async with asyncio.timeout(20):
            while not sender.outcomes[name, "failed"]:
                await asyncio.sleep(0.02)
        task.cancel()

    asyncio.run(give_up())
    assert sender.outcomes == {(name, "sent"): 0, (name, "failed"): 1}


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
        asyncio.run(sent([parse_receiver(f"email={url}")], [alert(1, 100.0)], lambda: mails))
    assert "Subject: [holdfast] log-rule on rank3: alert" in mails[0]
    assert "To: a@example.com, b@example.com" in mails[0]
    assert "https://page.example/" in mails[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("slak=https://x", "did you mean slack"),
        ("slack", "names a host"),
        ("slack=ftp://x", "begins with http"),
        ("email=smtp://host:25", "from=ADDRESS"),
    ],
)
def test_a_receiver_that_cannot_be_is_one_line(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        parse_receiver(text)
    assert "\n" not in str(caught.value)


def test_a_name_for_logs_has_no_secret() -> None:
    assert parse_receiver("slack=https://hooks.example/T1/secret").name == "slack at hooks.example"
