"""Delivery of messages: a queue for each receiver, so that a broken one delays no other; retried, then dropped."""

import asyncio
import smtplib
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import httpx

from holdfast.base import log
from holdfast.base.errors import UsageError
from holdfast.base.retry import Backoff
from holdfast.base.settings import nearest
from holdfast.controller.alerts import formats
from holdfast.controller.alerts.decide import Decider, Message
from holdfast.controller.state.model import Incident, Instant

KINDS = (*formats.JSON, "email")
SENT, FAILED = "sent", "failed"
_TIMEOUT = 10.0
_RETRIES = Backoff(initial=1.0, cap=60.0, deadline=600.0)
_QUEUE = 100


@dataclass(frozen=True, slots=True)
class Receiver:
    kind: str
    url: str

    @property
    def name(self) -> str:
        """For logs: without what may be a secret."""
        return f"{self.kind} at {urllib.parse.urlsplit(self.url).hostname}"


def parse_receiver(text: str) -> Receiver:
    """`KIND=URL`. UsageError says what would be right."""
    kind, _, url = text.partition("=")
    if kind not in KINDS:
        raise UsageError(f"notify {text!r}: unknown kind {kind!r}{nearest(kind, KINDS)}; write KIND=URL")
    parts = urllib.parse.urlsplit(url)
    schemes = ("smtp", "smtps") if kind == "email" else ("http", "https")
    if parts.scheme not in schemes or not parts.hostname:
        raise UsageError(f"notify {text!r}: {kind} needs a URL that begins with {schemes[0]}:// and names a host")
    if kind == "email":
        asked = urllib.parse.parse_qs(parts.query)
        if not asked.get("from") or not asked.get("to"):
            raise UsageError(f"notify {text!r}: write email=smtp://HOST:PORT/?from=ADDRESS&to=ADDRESS,ADDRESS")
    return Receiver(kind, url)


class Sender:
    """`incidents`: all incidents of the controller. `page`: the address of the page, for links; empty when unknown."""

    def __init__(
        self, receivers: Iterable[Receiver], decider: Decider, incidents: Callable[[], Iterable[Incident]], page: str
    ) -> None:
        self._receivers, self._decider, self._incidents, self._page = list(receivers), decider, incidents, page
        self._queues: list[asyncio.Queue[Message]] = []
        self.outcomes = Counter({(one.name, outcome): 0 for one in self._receivers for outcome in (SENT, FAILED)})
        """Messages by receiver and outcome."""

    async def run(self) -> None:
        """Until cancelled."""
        self._decider.forget(self._incidents())
        self._queues = [asyncio.Queue(_QUEUE) for _ in self._receivers]
        async with asyncio.TaskGroup() as tasks:
            for receiver, queue in zip(self._receivers, self._queues, strict=True):
                tasks.create_task(self._serve(receiver, queue))
            while True:
                for message in self._decider.look(self._incidents(), Instant(time.monotonic(), time.time())):
                    self._put(message)
                await asyncio.sleep(1.0)

    def _put(self, message: Message) -> None:
        for receiver, queue in zip(self._receivers, self._queues, strict=True):
            if queue.full():
                queue.get_nowait()  # the oldest matters least
                self.outcomes[receiver.name, FAILED] += 1
            queue.put_nowait(message)

    async def _serve(self, receiver: Receiver, queue: asyncio.Queue[Message]) -> None:
        async with httpx.AsyncClient(timeout=_TIMEOUT) as client:
            while True:
                message = await queue.get()
                for wait in (*_RETRIES.plan(), None):
                    error = await self._send(client, receiver, message)
                    if not error:
                        self.outcomes[receiver.name, SENT] += 1
                        break
                    log.warning("alert.failed", receiver=receiver.name, incident=message.key, error=error)
                    if wait is None:
                        self.outcomes[receiver.name, FAILED] += 1
                        break
                    await asyncio.sleep(wait)

    async def _send(self, client: httpx.AsyncClient, receiver: Receiver, message: Message) -> str:
        """Empty, or why it did not arrive."""
        try:
            if receiver.kind == "email":
                await asyncio.to_thread(_mail, receiver, message, self._page)
                return ""
            url = receiver.url
            if receiver.kind == "alertmanager" and urllib.parse.urlsplit(url).path in ("", "/"):
                url = f"{url.rstrip('/')}/api/v2/alerts"
            answer = await client.post(url, json=formats.JSON[receiver.kind](message, self._page))
        except (httpx.HTTPError, OSError, smtplib.SMTPException) as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return "" if answer.is_success else f"HTTP {answer.status_code}: {' '.join(answer.text.split())[:200]}"


def _mail(receiver: Receiver, message: Message, page: str) -> None:
    parts = urllib.parse.urlsplit(receiver.url)
    asked = urllib.parse.parse_qs(parts.query)
    to = [one for text in asked["to"] for one in text.split(",")]
    kind = smtplib.SMTP_SSL if parts.scheme == "smtps" else smtplib.SMTP
    with kind(parts.hostname or "", parts.port or 0, timeout=_TIMEOUT) as server:
        if parts.username:
            if parts.scheme == "smtp":
                server.starttls()
            server.login(urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or ""))
        server.send_message(formats.email(message, page, asked["from"][0], to))
