"""What is firing, given up and over: examples, then any history with restarts in it."""

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.alerts.book import Book, JobView
from holdfast.controller.alerts.notice import Notice, Pace, Sent, Stage, Traits, is_due
from holdfast.controller.job.policy import Move
from holdfast.controller.state.incidents import Finding, Incident, IncidentState
from holdfast.wire import types as t

KIND = t.FindingKind
PAGER, CHAT = Traits(keeps_state=True, forgets=True), Traits()


def incident(number: int, opened: float, kind: KIND = KIND.WORKER_HANG, severity: str = "critical") -> Incident:
    finding = Finding(kind, t.Severity(severity), "rank3", "rank 3 made no progress", opened, opened, "node1", 3)
    return Incident(f"i{number}", opened, [finding], action=Move.RESTART.value, reason="start again", job="j1")


def alert(number: int, at: float, kind: KIND = KIND.LOG_RULE) -> Incident:
    one = incident(number, at, kind, "warning")
    one.action = Move.ALERT.value
    one.end(IncidentState.CLOSED, at)
    return one


def job(condition: str = "well", since: float = 0.0, id: str = "j1", submitted: float = 0.0) -> JobView:
    return JobView(id, "llm", submitted, {**condition_doc(condition, since), "others": []})


def condition_doc(condition: str, since: float, needs_person: bool = True) -> dict[str, Any]:
    said = {"sentence": f"It is {condition}.", "doing": "", "action": "Act."}
    return {"condition": condition, "since": since, "needs_person": needs_person, **said}


def begun(digest: float = 0.0) -> Book:
    book = Book(digest=digest)
    book.look([], [], 50.0)
    return book


def restarted(book: Book) -> Book:
    """What the next controller reads from the journal."""
    book.changed.update(book.notices, ["mark"])
    docs = json.loads(json.dumps(book.take_changed()))
    again = Book(book.patience, book.window, book.digest)
    assert again.restore(("notice", key, doc) for key, doc in docs) == []
    return again


def test_an_incident_that_lasts_is_firing_then_over_with_the_same_labels() -> None:
    book, one = begun(), incident(1, 100.0)
    book.look([one], [job("recovering", 100.0)], 109.0)
    assert not book.notices
    book.look([one], [job("recovering", 100.0)], 110.0)
    notice = book.notices["i1"]
    labels = dict(notice.labels)
    assert (notice.stage, notice.severity) == (Stage.FIRING, t.Severity.CRITICAL)
    assert "It is recovering." in notice.text
    assert "Act." in notice.text
    one.findings.append(Finding(KIND.WORKER_OOM, t.Severity.CRITICAL, "rank9", "out of memory", 1.0, 1.0))
    one.root, one.source, one.step_resumed = 1, "memory", 42
    one.end(IncidentState.CLOSED, 210.0)
    book.look([one], [job()], 211.0)
    assert (notice.stage, notice.closed, notice.labels) == (Stage.RESOLVED, 210.0, labels)
    assert "training resumed at step 42 from memory" in notice.text


def test_a_job_that_is_given_up_is_firing_until_it_is_acknowledged() -> None:
    book, one = begun(), incident(1, 100.0)
    book.look([one], [job("recovering")], 120.0)
    one.end(IncidentState.FAILED, 130.0)
    for now in (131.0, 100_000.0):
        book.look([one], [job("failed", 130.0)], now)
        assert book.notices["i1"].stage is Stage.GIVEN_UP
    assert len(book.notices) == 1  # the health's condition is the same matter
    assert not book.acknowledge("j2", 200_000.0)
    assert book.acknowledge("j1", 200_000.0)
    assert not book.acknowledge("j1", 200_000.0)
    book.look([one], [job("failed", 130.0)], 200_001.0)
    assert book.notices["i1"].stage is Stage.RESOLVED


def test_a_job_that_failed_is_reported_when_its_workers_have_ended() -> None:
    """Until then its health is that of a job which trains: nobody is paged with that."""
    book, one = begun(), incident(1, 100.0)
    one.end(IncidentState.FAILED, 101.0)
    book.look([one], [job("well", 60.0)], 102.0)
    assert not book.notices
    book.look([one], [job("failed", 103.0)], 103.0)
    assert book.notices["i1"].stage is Stage.GIVEN_UP
    assert book.notices["i1"].text.startswith("It is failed.")


def test_a_job_whose_workers_do_not_end_is_reported_all_the_same() -> None:
    book, one = begun(), incident(1, 100.0)
    one.end(IncidentState.FAILED, 101.0)
    book.look([one], [job("well", 60.0)], 160.0)
    assert not book.notices
    book.look([one], [job("well", 60.0)], 162.0)
    assert book.notices["i1"].stage is Stage.GIVEN_UP


def test_a_new_job_of_the_same_name_ends_it_too() -> None:
    book, one = begun(), incident(1, 100.0)
    one.end(IncidentState.FAILED, 101.0)
    book.look([one], [job("failed", 101.0)], 101.0)
    assert book.notices["i1"].stage is Stage.GIVEN_UP
    book.look([one], [job("failed", 101.0), job("starting", 300.0, "j2", 300.0)], 301.0)
    assert book.notices["i1"].title.endswith("started again as j2")
    assert book.notices["i1"].stage is Stage.RESOLVED


def test_conditions_without_an_incident_are_notices_too() -> None:
    book = begun()
    book.look([], [job("failed", 60.0)], 61.0)
    assert book.notices["failed-j1"].stage is Stage.GIVEN_UP
    book.look([], [job("no progress", 100.0, "j2")], 105.0)
    assert "no-progress-j2" not in book.notices
    book.look([], [job("no progress", 100.0, "j2")], 111.0)
    assert book.notices["no-progress-j2"].stage is Stage.FIRING
    book.look([], [job("well", 120.0, "j2")], 121.0)
    assert book.notices["no-progress-j2"].stage is Stage.RESOLVED


def test_a_risk_that_needs_a_person_is_a_notice_also_beside_a_worse_condition() -> None:
    book = begun()
    risky = job("slow", 60.0)
    risky.health["others"].append(condition_doc("at risk", 100.0, needs_person=False))  # type: ignore[index]
    book.look([], [risky], 200.0)
    assert not book.notices
    risky.health["others"][0] = condition_doc("at risk", 100.0)  # type: ignore[index]
    book.look([], [risky], 109.0)
    assert not book.notices
    book.look([], [risky], 111.0)
    notice = book.notices["at-risk-j1"]
    assert (notice.stage, notice.severity, notice.kind) == (Stage.FIRING, t.Severity.WARNING, "job-at-risk")
    assert notice.text == "It is at risk.\nAct."
    book.look([], [job("slow", 60.0)], 120.0)
    assert notice.stage is Stage.RESOLVED


def test_a_storm_of_the_same_alert_is_one_notice_and_a_count() -> None:
    book = begun()
    storm = [alert(n, 100.0 + n) for n in range(1, 51)]
    book.look(storm, [], 151.0)
    book.look([*storm, alert(60, 151.0, KIND.CLOCK_OFFSET)], [], 152.0)
    assert sorted(one.kind for one in book.notices.values()) == ["clock-offset", "log-rule"]
    book.look([*storm, alert(70, 800.0)], [], 800.0)
    assert "49 more of this kind" in book.notices["i70"].text
    assert book.notices["i1"].stage is Stage.RESOLVED


def test_short_incidents_are_in_one_digest() -> None:
    book = begun(digest=600.0)
    short = [incident(n, 100.0 + 20 * n) for n in range(1, 31)]
    for one in short:
        one.end(IncidentState.CLOSED, one.opened + 1.3)
    book.look(short[:15], [], 500.0)
    assert not book.notices
    book.look(short, [], 702.0)
    (digest,) = book.notices.values()
    assert digest.title == "30 short incidents in 11 min, each over within 10 s"
    assert "i1: worker-hang on rank3, 1.3 s" in digest.text
    assert digest.text.endswith("and 10 more")
    again = restarted(book)
    again.look(short, [], 1400.0)
    assert [key for key in again.notices if key != digest.key] == []
    assert is_due(digest, None, CHAT, Pace(), 702.0)
    assert not is_due(digest, None, PAGER, Pace(), 702.0)


def test_what_was_over_before_the_first_run_is_no_matter() -> None:
    over, live = alert(1, 100.0), incident(2, 100.0)
    book = Book()
    book.look([over, live], [job("failed", 90.0, "j0")], 200.0)
    assert list(book.notices) == ["i2"]


def test_an_alert_is_over_only_after_the_window_and_after_a_restart_again() -> None:
    book, one = begun(), alert(1, 100.0)
    book.look([one], [], 101.0)
    book.look([one], [], 699.0)
    assert book.notices["i1"].stage is Stage.FIRING
    again = restarted(book)
    again.look([one], [], 5000.0)
    assert again.notices["i1"].stage is Stage.FIRING
    again.look([one], [], 5601.0)
    assert again.notices["i1"].stage is Stage.RESOLVED


def test_damaged_rows_are_named_and_skipped() -> None:
    assert len(Book().restore([("notice", "i1", {"key": 1}), ("notice", "mark", {}), ("job", "x", {})])) == 2


def test_reminders() -> None:
    notice, pace = Notice("i1", t.Severity.CRITICAL, "k", "s", "j1", "llm", 0.0), Pace(resend=60.0, remind=3600.0)
    sent = Sent(Stage.FIRING, 0.0)
    assert not is_due(notice, sent, PAGER, pace, 59.0)
    assert is_due(notice, sent, PAGER, pace, 60.0)
    assert not is_due(notice, sent, CHAT, pace, 1e6)
    notice.stage = Stage.GIVEN_UP
    assert is_due(notice, sent, CHAT, pace, 1.0)
    sent = Sent(Stage.GIVEN_UP, 0.0)
    assert not is_due(notice, sent, CHAT, pace, 3599.0)
    assert is_due(notice, sent, CHAT, pace, 3600.0)
    notice.stage, notice.closed = Stage.RESOLVED, 10.0
    assert is_due(notice, sent, CHAT, pace, 11.0)
    assert not is_due(notice, None, PAGER, pace, 11.0)  # it never knew of it
    assert not is_due(notice, None, CHAT, pace, 50.0, since=40.0)  # nor was it configured then
    notice.severity = t.Severity.WARNING
    assert not is_due(notice, sent, CHAT, Pace(least=t.Severity.CRITICAL), 11.0)


@dataclass
class World:
    """Incidents of one job, a receiver of each sort, and all that they got."""

    book: Book
    now: float = 1000.0
    incidents: list[Incident] = field(default_factory=list)
    got: dict[str, list[tuple[str, Stage, dict[str, str], float]]] = field(
        default_factory=lambda: {"pager": [], "chat": []}
    )
    acknowledged: bool = False

    @property
    def failed(self) -> Incident | None:
        return next((one for one in self.incidents if one.state is IncidentState.FAILED), None)

    def look(self) -> None:
        failed = self.failed
        health = job("failed", failed.closed or 0.0) if failed is not None else job()
        self.book.look(self.incidents, [health], self.now)
        for name, traits in (("pager", PAGER), ("chat", CHAT)):
            since = self.book.meet(name, self.now)
            for notice in self.book.notices.values() if name == "pager" else ():
                sent = notice.sent.get(name)  # else the pager takes it for over, after five minutes
                # It is due after 60 s, and the controller may be away for 30 s just then.
                assert notice.stage is Stage.RESOLVED or sent is None or self.now - sent.at < 95.0
            for notice in self.book.notices.values():
                if is_due(notice, notice.sent.get(name), traits, Pace(), self.now, since):
                    self.got[name].append((notice.key, notice.stage, dict(notice.labels), self.now))
                    notice.sent[name] = Sent(notice.stage, self.now)

    def do(self, what: str) -> None:
        live = next((one for one in self.incidents if one.live), None)
        if what == "restart":
            self.book = restarted(self.book)
        elif what == "open" and live is None and self.failed is None:
            self.incidents.append(incident(len(self.incidents) + 1, self.now))
        elif what == "alert" and self.failed is None:
            self.incidents.append(alert(len(self.incidents) + 1, self.now))
        elif what == "close" and live is not None:
            live.end(IncidentState.CLOSED, self.now)
        elif what == "fail" and live is not None:
            live.end(IncidentState.FAILED, self.now)
        elif what == "ack" and self.book.acknowledge("j1", self.now):
            self.acknowledged = True
        elif what == "outage":  # of the controller: what is live ends meanwhile
            if live is not None:
                self.now += 30.0
                live.end(IncidentState.CLOSED, self.now)
            self.book = restarted(self.book)
        elif what == "minute":
            for _ in range(30):
                self.now += 2.0
                self.look()
        self.now += 1.0
        self.look()


MOVES = st.lists(st.sampled_from(["restart", "open", "alert", "close", "fail", "ack", "outage", "minute"]), max_size=25)


@given(MOVES)
def test_any_history_is_reported_once_in_order_and_nothing_is_lost(moves: list[str]) -> None:
    world = World(Book(digest=300.0))
    world.look()
    for what in moves:
        world.do(what)
        if world.failed is not None and not world.acknowledged:
            assert world.book.notices[world.failed.id].stage is Stage.GIVEN_UP
    world.do("minute")
    order = list(Stage)
    for name, got in world.got.items():
        for key in {key for key, *_ in got}:
            stages = [order.index(stage) for other, stage, *_ in got if other == key]
            labels = [labels for other, _, labels, _ in got if other == key]
            assert stages == sorted(stages)
            assert all(one == labels[0] for one in labels)
            if name == "chat":
                assert len(set(stages)) == len(stages)  # nothing twice
            else:
                assert stages[0] != order.index(Stage.RESOLVED)  # no end without an opening
    chat: dict[str, Any] = {key: stage for key, stage, *_ in world.got["chat"]}
    for one in world.incidents:
        if one.action == Move.ALERT:
            continue
        if one.state is IncidentState.FAILED:
            assert chat[one.id] is (Stage.RESOLVED if world.acknowledged else Stage.GIVEN_UP)
        elif one.live or (one.closed or 0.0) - one.opened >= 10.0:
            assert chat[one.id] is (Stage.FIRING if one.live else Stage.RESOLVED)
        else:
            assert one.id not in chat
