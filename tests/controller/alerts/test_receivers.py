"""Receivers as they are configured: what is refused, where secrets come from, where requests go."""

from pathlib import Path

import pytest

from holdfast.base.errors import UsageError
from holdfast.controller.alerts.formats import Message
from holdfast.controller.alerts.receivers import is_final, parse_receivers, request_of
from holdfast.wire import types as t


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("slak=https://x", "did you mean slack"),
        ("slack", "names a host"),
        ("slack=ftp://x", "begins with http"),
        ("slack=http://[x", "no URL"),
        ("email=smtp://host:25", "from=ADDRESS"),
        ("slack=@/nowhere/at/all", "/nowhere/at/all"),
        ("slack=$HOLDFAST_TEST_UNSET", "environment variable HOLDFAST_TEST_UNSET must hold one line"),
        ("pagerduty=https://x", r"lacks key: write pagerduty=https://events.pagerduty.com/v2/enqueue\?key=@FILE"),
        ("pagerduty=https://x?key=abc", "key=@FILE"),
        ("telegram=https://x?token=@/dev/null&chat=1", "must hold one line"),
        ("telegram=https://x?chat=1", "lacks token"),
        ("email=smtp://me@h/?from=a&to=b&password=abc", "password=@FILE"),
    ],
)
def test_a_receiver_that_cannot_be_is_one_line(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        parse_receivers([text])
    assert "\n" not in str(caught.value)
    assert "abc" not in str(caught.value)


def test_secrets_come_from_files_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hook").write_text("https://hooks.example/T1/secret\n")
    (tmp_path / "pd").write_text("https://events.example/v2/enqueue?key=secret\n")
    monkeypatch.setenv("HOLDFAST_TEST_KEY", "secret")
    first, second, third, fourth = parse_receivers(
        [f"slack=@{tmp_path / 'hook'}", "slack=https://other.example/secret", f"pagerduty=@{tmp_path / 'pd'}",
         "opsgenie=https://api.example/v2/alerts?key=$HOLDFAST_TEST_KEY"]
    )  # fmt: skip
    assert [one.name for one in (first, second, third, fourth)] == ["slack", "slack-2", "pagerduty", "opsgenie"]
    assert first.url == "https://hooks.example/T1/secret"
    assert (third.url, third.options["key"]) == ("https://events.example/v2/enqueue", "secret")
    assert fourth.options["key"] == "secret"
    for one in (first, second, third, fourth):
        assert "secret" not in f"{one!r} {one.id}"
    assert first.id != second.id


def test_an_end_goes_to_opsgenies_own_address() -> None:
    (opsgenie,) = parse_receivers(["opsgenie=https://api.example/v2/alerts?key=$HOME"])
    opened = Message("i7", t.Severity.CRITICAL, "title", "text", {}, 10.0)
    over = Message("i7", t.Severity.CRITICAL, "title", "text", {}, 10.0, 20.0)
    assert request_of(opsgenie, opened).url == "https://api.example/v2/alerts"
    closing = request_of(opsgenie, over)
    assert closing.url == "https://api.example/v2/alerts/holdfast-i7-10/close?identifierType=alias"
    assert request_of(opsgenie, opened).body["alias"] in closing.url


@pytest.mark.parametrize(("status", "final"), [(400, True), (404, True), (408, False), (429, False), (503, False)])
def test_what_is_worth_another_attempt(status: int, final: bool) -> None:
    assert is_final(status) is final
