"""Routes about notifications, and the runbook in a browser."""

import pytest

from tests.controller.support.asking import ask
from tests.controller.support.fake_facade import FakeFacade


@pytest.fixture
def facade() -> FakeFacade:
    facade = FakeFacade()
    facade.warm_up(5)
    return facade


def test_a_failed_job_is_acknowledged_once_by_id_or_name(facade: FakeFacade) -> None:
    id = str(facade.jobs()[0]["id"])
    assert ask(facade, "POST", "/api/v1/jobs/demo/ack").json() == {"ok": True}
    assert facade.acknowledged == [id]
    assert ask(facade, "POST", f"/api/v1/jobs/{id}/ack").status_code == 409
    assert ask(facade, "POST", "/api/v1/jobs/gone/ack").status_code == 404


def test_a_test_message_says_what_was_answered(facade: FakeFacade) -> None:
    answered = [{"receiver": "slack", "ok": True, "answer": "HTTP 200 ok"}]
    assert ask(facade, "POST", "/api/v1/notify/test").json() == answered
    assert ask(facade, "POST", "/api/v1/notify/test", json={"receiver": "slack"}).json() == answered
    missing = ask(facade, "POST", "/api/v1/notify/test", json={"receiver": "teams"})
    assert (missing.status_code, "teams" in missing.text) == (404, True)


def test_attempts_are_counted_by_receiver_and_outcome(facade: FakeFacade) -> None:
    metrics = ask(facade, "GET", "/metrics").text
    assert 'holdfast_notifications_total{outcome="sent",receiver="slack"} 4.0' in metrics


def test_the_runbook_is_a_page_with_an_anchor_for_each_finding_and_alert(facade: FakeFacade) -> None:
    answer = ask(facade, "GET", "/runbook")
    assert answer.headers["content-type"].startswith("text/html")
    assert '<h3 id="worker-hang">' in answer.text or '<h2 id="worker-hang">' in answer.text
    assert 'id="holdfastlossnotfinite"' in answer.text
    assert ".md" not in answer.text.replace("README.md", "")
    assert ask(facade, "POST", "/runbook").status_code == 405
