"""Delivery of notices: a task for each receiver, so that a broken one delays no other.

What a receiver has taken is in the journal. After a crash between its answer and that record one message may come
twice: Alertmanager, PagerDuty and Opsgenie join the two by their key.
"""

import asyncio
import smtplib
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import httpx

from holdfast.base import log
from holdfast.base.retry import Backoff
from holdfast.controller.alerts import formats
from holdfast.controller.alerts.book import Book, JobView
from holdfast.controller.alerts.formats import Message, message_of
from holdfast.controller.alerts.notice import Notice, Pace, Sent, is_due
from holdfast.controller.alerts.receivers import Receiver, is_final, request_of, said_no
from holdfast.controller.state.events import Record
from holdfast.controller.state.incidents import Incident
from holdfast.wire import types as t

_TIMEOUT = 10.0
_EVERY = 1.0
_RETRIES = Backoff(initial=1.0, cap=60.0)
_FAILURES = 3
"""Failed attempts in a row after which a receiver is a finding."""
OUTCOMES = ("sent", "failed", "refused")


@dataclass(frozen=True, slots=True)
class Answer:
    """`error`: empty when the message was taken. `is_final`: the same message would be refused again."""

    error: str = ""
    is_final: bool = False
    text: str = ""
    """What the receiver answered."""


class Sender:
    """`incidents`, `jobs`: all that the controller has in memory. `keep` writes to the journal, `report` makes a
    finding of a receiver's name and an error. `base`: the controller's own address, without a slash at its end."""

    def __init__(
        self,
        receivers: Sequence[Receiver],
        book: Book,
        pace: Pace,
        incidents: Callable[[], Sequence[Incident]],
        jobs: Callable[[], Sequence[JobView]],
        keep: Callable[[list[Record]], None],
        report: Callable[[str, str], None],
    ) -> None:
        self.receivers, self.book, self._pace, self.base = receivers, book, pace, ""
        self._incidents, self._jobs, self._keep, self._report = incidents, jobs, keep, report
        self.counts = {one.name: dict.fromkeys(OUTCOMES, 0) for one in receivers}
        """By receiver and outcome."""
        self._refused: set[tuple[str, str, str]] = set()  # receiver, notice, stage

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for receiver in self.receivers:
                tasks.create_task(self._serve(receiver))
            while True:
                self.book.look(self._incidents(), self._jobs(), time.time())
                self._save()
                await asyncio.sleep(_EVERY)

    def acknowledge(self, job: str) -> bool:
        found = self.book.acknowledge(job, time.time())
        self._save()
        return found

    async def test(self, name: str = "") -> list[tuple[str, Answer]]:
        """Send a marked test message to one receiver or to all. KeyError: there is none of this name."""
        chosen = [one for one in self.receivers if name in ("", one.name)]
        if not chosen:
            raise KeyError(name)
        now = time.time()
        answers = []
        for receiver in chosen:
            labels = {"incident": f"test-{now:.0f}", "kind": "test", "subject": "controller", "job": ""}
            text = "This is a test of the receiver. Nothing is wrong and nothing is to be done."
            message = Message(
                f"test-{now:.0f}", t.Severity.INFO, f"TEST: holdfast notify test to {receiver.name}", text, labels, now,
                page=f"{self.base}/#/overview", runbook=f"{self.base}/runbook",
            )  # fmt: skip
            async with httpx.AsyncClient(timeout=_TIMEOUT) as client:
                answers.append((receiver.name, await deliver(client, receiver, message)))
        return answers

    def _save(self) -> None:
        changed = self.book.take_changed()
        if changed:
            self._keep([Record("notice", key, doc) for key, doc in changed])

    def _due(self, receiver: Receiver) -> Iterator[Notice]:
        now, since = time.time(), self.book.meet(receiver.id, time.time())
        for notice in list(self.book.notices.values()):
            sent = notice.sent.get(receiver.id)
            is_refused = (receiver.id, notice.key, notice.stage) in self._refused
            if not is_refused and is_due(notice, sent, receiver.traits, self._pace, now, since):
                yield notice

    async def _serve(self, receiver: Receiver) -> None:
        failures, waits = 0, _RETRIES.delays()
        counts = self.counts[receiver.name]
        async with httpx.AsyncClient(timeout=_TIMEOUT) as client:
            while True:
                answer = Answer()
                for notice in self._due(receiver):
                    stage, before = notice.stage, notice.sent.get(receiver.id)
                    answer = await deliver(client, receiver, message_of(notice, self.base))
                    if not answer.error:
                        counts["sent"] += 1
                        failures, waits = 0, _RETRIES.delays()
                        notice.sent[receiver.id] = Sent(stage, time.time())
                        if before is None or before.stage != stage or not receiver.traits.forgets:
                            self.book.changed.add(notice.key)
                            self._save()
                        continue
                    counts["refused" if answer.is_final else "failed"] += 1
                    log.warning("alert.failed", receiver=receiver.name, incident=notice.key, error=answer.error)
                    failures += 1
                    if answer.is_final:
                        self._refused.add((receiver.id, notice.key, stage))
                    if failures == _FAILURES or answer.is_final:
                        self._report(receiver.name, answer.error)
                    if not answer.is_final:
                        break
                is_down = bool(answer.error) and not answer.is_final
                await asyncio.sleep(next(waits) if is_down else _EVERY)


async def deliver(client: httpx.AsyncClient, receiver: Receiver, message: Message) -> Answer:
    try:
        if receiver.kind == "email":
            await asyncio.to_thread(_mail, receiver, message)
            return Answer(text="accepted by the mail server")
        request = request_of(receiver, message)
        answer = await client.post(request.url, json=request.body, headers=dict(request.headers))
    except (httpx.HTTPError, httpx.InvalidURL, OSError, smtplib.SMTPException) as error:
        return Answer(_clean(f"{type(error).__name__}: {error}", receiver))
    text = _clean(f"HTTP {answer.status_code} {answer.text}", receiver)
    if not answer.is_success:
        return Answer(text, is_final(answer.status_code), text)
    try:
        refusal = said_no(receiver.kind, answer.json())
    except ValueError:  # "ok", or nothing
        refusal = ""
    return Answer(_clean(refusal, receiver), bool(refusal), text)


def _clean(text: str, receiver: Receiver) -> str:
    """One line without the receiver's secrets, which a server may repeat."""
    path = urllib.parse.urlsplit(receiver.url)
    for secret in (*receiver.options.values(), receiver.url, path.path, path.query, path.password or ""):
        if len(secret) > 3:
            text = text.replace(secret, "***")
    return formats.line(text)[:200]


def _mail(receiver: Receiver, message: Message) -> None:
    parts = urllib.parse.urlsplit(receiver.url)
    options = receiver.options
    kind = smtplib.SMTP_SSL if parts.scheme == "smtps" else smtplib.SMTP
    password = options.get("password") or urllib.parse.unquote(parts.password or "")
    with kind(parts.hostname or "", parts.port or 0, timeout=_TIMEOUT) as server:
        if parts.username:
            if parts.scheme == "smtp":
                server.starttls()
            server.login(urllib.parse.unquote(parts.username), password)
        server.send_message(formats.email(message, options["from"], list(receiver.to)))
