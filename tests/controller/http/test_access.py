"""Access to the HTTP API: tokens, pages of other sites, bodies without end."""

import asyncio

import httpx
import pytest
from starlette.types import Message

from holdfast.base.errors import UsageError
from holdfast.controller.http.auth import Auth, is_loopback
from tests.controller.support.asking import TOKEN, app_of, ask, error, talk
from tests.controller.support.fake_facade import FakeFacade


def test_all_that_reports_or_changes_needs_the_token(facade: FakeFacade) -> None:
    app = app_of(facade, Auth(TOKEN))
    everything = [(m, p) for p, methods in app.openapi()["paths"].items() for m in methods]
    assert len(everything) > 15

    async def story(client: httpx.AsyncClient) -> None:
        for method, path in [*everything, ("get", "/openapi.json")]:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
                answer = await client.request(method, path, headers=headers)
                assert answer.status_code == (200 if path == "/healthz" else 401), path
        answer = await client.get("/api/v1/status", headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 200
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/static/style.css")).status_code == 200

    talk(app, story)
    assert facade.graces == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://127.0.0.1:7080"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "rebound.example:7080"}, 403),
    ],
)
def test_an_open_server_refuses_foreign_pages(facade: FakeFacade, headers: dict[str, str], status: int) -> None:
    answer = ask(facade, "POST", "/api/v1/job/stop", headers=headers)
    assert answer.status_code == status
    assert bool(facade.graces) == (status == 200)


def test_insecure_answers_to_any_name(facade: FakeFacade) -> None:
    headers = {"Host": "controller.example"}
    assert ask(facade, "GET", "/api/v1/job", Auth(any_host=True), headers=headers).status_code == 200


def test_loopback_names() -> None:
    assert all(map(is_loopback, ["localhost", "localhost:7080", "127.1.2.3:1", "[::1]:7080", "x.localhost"]))
    assert not any(map(is_loopback, ["", "evil.example", "localhost.evil.example", "10.0.0.1", "[::2]", "[bad"]))


def test_an_empty_token_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="token is empty"):
        Auth(" ")
    with pytest.raises(ValueError, match="token is empty"):
        Auth("a", "")


def test_a_reader_alone_would_leave_the_door_open() -> None:
    with pytest.raises(UsageError, match="needs an operator token"):
        Auth(reader_token="r")
    with pytest.raises(UsageError, match="equals the operator token"):
        Auth("same", "same")


def test_a_reader_looks_and_an_operator_acts(facade: FakeFacade) -> None:
    app = app_of(facade, Auth(TOKEN, "reader"))
    everything = [(m, p) for p, methods in app.openapi()["paths"].items() for m in methods]

    async def story(client: httpx.AsyncClient) -> None:
        reader = {"Authorization": "Bearer reader"}
        for method, path in everything:
            if method == "get" and not path.endswith(("/events", "/logs")):
                assert (await client.get(path, headers=reader)).status_code in (200, 400, 404), path
            if method != "get":
                answer = await client.request(method, path, headers=reader)
                assert (answer.status_code, error(answer)) == (
                    403,
                    "a reader token permits no changes: use an operator's",
                )
        for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            assert (await client.send(raw(method, reader))).status_code == 403
        stop = await client.post("/api/v1/job/stop", headers={"Authorization": f"Bearer {TOKEN}"})
        assert stop.status_code == 200

    def raw(method: str, headers: dict[str, str]) -> httpx.Request:
        return httpx.Request(method, "http://127.0.0.1:7080/api/v1/job", headers=headers)

    talk(app, story)
    assert len(facade.graces) == 1


SITES = [None, "none", "same-origin", "same-site", "cross-site", "Cross-Site", "", "else"]


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize(
    ("method", "path", "is_open"),
    [
        ("GET", "/", True),
        ("HEAD", "/", True),
        ("GET", "/static/app.js", True),
        ("GET", "/healthz", True),
        ("POST", "/", False),
        ("POST", "/static/app.js", False),
        ("GET", "/api/v1/status", False),
        ("GET", "/api/v1/events", False),
        ("GET", "/metrics", False),
        ("GET", "/openapi.json", False),
        ("POST", "/api/v1/job/stop", False),
        ("OPTIONS", "/api/v1/job/stop", False),
        ("GET", "/static", False),
        ("GET", "//", False),
    ],
)
def test_pages_of_other_sites_may_open_the_page_and_no_more(
    site: str | None, token: str | None, method: str, path: str, is_open: bool
) -> None:
    headers = {"host": "127.0.0.1:7080", "authorization": f"Bearer {TOKEN}"}
    if site is not None:
        headers["sec-fetch-site"] = site
    refusal = Auth(token).refusal(method, path, headers)
    assert (refusal is None) == (is_open or site in (None, "none", "same-origin"))
    assert refusal is None or refusal.status == 403


def test_a_link_from_elsewhere_opens_the_page(facade: FakeFacade) -> None:
    """What Chromium sends for a link on another site, and then for what the page loads and asks by itself."""
    app = app_of(facade)
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    own = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}
    image = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}

    async def story(client: httpx.AsyncClient) -> None:
        assert (await client.get("/", headers=link)).status_code == 200
        for path in ("/static/app.js", "/api/v1/status"):
            assert (await client.get(path, headers=own)).status_code == 200
        for headers in (link, image):
            answer = await client.get("/api/v1/status", headers=headers)
            assert (answer.status_code, "other sites" in error(answer)) == (403, True)

    talk(app, story)


def test_a_body_ends_at_a_megabyte(facade: FakeFacade) -> None:
    fault = b'{"fault": "kill@20:rank3' + b" " * ((1 << 20) - 26) + b'"}'
    headers = {"content-type": "application/json"}
    for body, status in ((fault, 200), (fault + b" ", 413)):
        answer = ask(facade, "POST", "/api/v1/inject", content=body, headers=headers)
        assert answer.status_code == status, answer.text[:200]


def test_an_unauthorized_request_is_refused_before_the_body_is_touched(facade: FakeFacade) -> None:
    events: list[str] = []

    async def receive() -> Message:
        events.append("body")
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Message) -> None:
        events.append(str(message.get("status", "rest")))

    headers = [(b"host", b"127.0.0.1"), (b"content-length", b"2"), (b"content-type", b"application/json")]
    scope = {
        "type": "http", "method": "POST", "path": "/api/v1/jobs", "raw_path": b"/api/v1/jobs", "query_string": b"",
        "root_path": "", "headers": headers, "http_version": "1.1", "scheme": "http",
    }  # fmt: skip
    asyncio.run(app_of(facade, Auth(TOKEN))(scope, receive, send))
    assert events[0] == "401"
    events.clear()
    asyncio.run(app_of(facade)(scope, receive, send))
    assert events[:2] == ["body", "400"]
