"""When the expiry of a certificate is reported, how often, and the wording."""

import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.certs import write_cluster
from holdfast.base.config.controller import ControllerConfig
from holdfast.base.config.parts import Tls
from holdfast.base.errors import UsageError
from holdfast.controller.app import build
from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.shell.certificate_watch import CertificateWatch, Used, due, of_agent, own
from holdfast.controller.state.model import Instant
from holdfast.wire import types as t

DAY = 86400.0
LIMITS = {"days": 30.0, "critical_days": 7.0}
NOW = datetime.datetime.now(datetime.UTC)


def said(days: float, reported: set[str] | None = None) -> list[tuple[str, str]]:
    """(severity, text) of a certificate that ends so many days after its birth, at instant 1000 days."""
    used = Used("node1", (1000 + days) * DAY, "run this", "node1")
    found = due([used], reported if reported is not None else set(), LIMITS, Instant(5.0, 1000 * DAY))
    return [(one.severity.value, one.text) for one in found]


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (30.1, []),
        (30.0, [("warning", "the certificate of node1 expires in 30.0 days; run this")]),
        (7.1, [("warning", "the certificate of node1 expires in 7.1 days; run this")]),
        (7.0, [("critical", "the certificate of node1 expires in 7.0 days; run this")]),
        (0.5, [("critical", "the certificate of node1 expires in 0.5 days; run this")]),
        (0.0, [("critical", "the certificate of node1 expired 0.0 days ago; run this")]),
        (-2.0, [("critical", "the certificate of node1 expired 2.0 days ago; run this")]),
    ],
)
def test_when_it_is_reported(days: float, expected: list[tuple[str, str]]) -> None:
    assert said(days) == expected


@given(looks=st.lists(st.floats(0, 60), min_size=1, max_size=60))
def test_each_grade_is_reported_once_however_often_one_looks(looks: list[float]) -> None:
    ends, reported, grades = 40 * DAY, set[str](), []
    for passed in sorted(looks):
        for one in due([Used("controller", ends, "")], reported, LIMITS, Instant(0.0, passed * DAY)):
            reported.add(one.signature)
            grades.append("over" if "expired" in one.text else one.severity.value)
    assert len(grades) == len(set(grades)) <= 3
    assert grades == sorted(grades, key=["warning", "critical", "over"].index)
    assert ("over" in grades) == (max(looks) >= 40)


def test_a_renewed_one_is_another(tmp_path: Path) -> None:
    reported = {one.signature for one in due([Used("n", 10 * DAY, "")], set(), LIMITS, Instant(0.0, 0.0))}
    assert due([Used("n", 20 * DAY, "")], reported, LIMITS, Instant(0.0, 0.0))


def tls(folder: Path) -> Tls:
    its = folder / "controller"
    return Tls(its / "ca.pem", its / "controller.pem", its / "controller-key.pem")


def test_what_to_run_renews_just_that(tmp_path: Path) -> None:
    write_cluster(tmp_path, ["head.example", "10.0.0.1"], ["node0"], NOW)
    authority, controller = own(tls(tmp_path))
    assert "`holdfast certs --dir DIR --renew`" in authority.renew
    assert "`holdfast certs --dir DIR --renew --host head.example --host 10.0.0.1`" in controller.renew
    assert authority.ends - controller.ends == pytest.approx(3 * 825 * DAY, abs=5)
    agent = of_agent("node0", (tmp_path / "nodes" / "node0" / "node.pem").read_bytes())
    assert agent is not None
    assert "`holdfast certs --dir DIR --renew --node node0`" in agent.renew
    assert agent.ends == pytest.approx(controller.ends, abs=5)


def test_of_two_authorities_of_one_name_the_later_counts(tmp_path: Path) -> None:
    """While a renewed authority is handed out, files may have both."""
    old = NOW - datetime.timedelta(days=3290)
    write_cluster(tmp_path, ["head"], [], old)
    before = (tmp_path / "ca" / "ca.pem").read_bytes()
    assert own(tls(tmp_path))[0].ends < (NOW + datetime.timedelta(days=30)).timestamp()
    write_cluster(tmp_path, [], [], NOW, renew=True)
    path = tmp_path / "controller" / "ca.pem"
    path.write_bytes(before + path.read_bytes())
    assert own(tls(tmp_path))[0].ends > (NOW + datetime.timedelta(days=3000)).timestamp()


@pytest.mark.parametrize(
    "text", [b"", b"\x00\xff\xfe", b"-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n"]
)
def test_a_file_that_is_no_certificate_is_one_line(tmp_path: Path, text: bytes) -> None:
    write_cluster(tmp_path, ["head"], [], NOW)
    (tmp_path / "controller" / "controller.pem").write_bytes(text)
    with pytest.raises(UsageError, match=r"controller\.pem: not a certificate in PEM form") as caught:
        own(tls(tmp_path))
    assert "\n" not in str(caught.value)
    assert of_agent("node0", text) is None


def test_a_controller_that_comes_back_does_not_say_it_again(tmp_path: Path) -> None:
    write_cluster(tmp_path / "certs", ["head"], ["node0"], NOW - datetime.timedelta(days=800))
    shown = {"node0": (tmp_path / "certs" / "nodes" / "node0" / "node.pem").read_bytes()}
    texts = []
    for _ in range(2):
        shell = build(ControllerConfig(state_dir=tmp_path / "state"))
        watch = CertificateWatch(shell, Tuning(), tls(tmp_path / "certs"), shown)
        for _ in range(3):
            watch.look(Instant(1.0, NOW.timestamp()))
        assert watch.ends().keys() == {"authority", "controller", "node0"}
        assert (watch.ends()["node0"] - NOW.timestamp()) / 86400 < 30
        texts.append([one.cause.text for one in shell.brain.c.book.incidents.values()])
        kinds = {(one.cause.kind, one.cause.subject, one.action) for one in shell.brain.c.book.incidents.values()}
        assert kinds == {(t.FindingKind.CERTIFICATE_EXPIRES, who, "alert") for who in ("controller", "node0")}
        shell.journal.close()
    assert texts[0] == texts[1]
