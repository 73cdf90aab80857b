"""A page of another site, in a real browser: what it may do with a controller without a token."""

import functools
import http.server
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from playwright.sync_api import Browser, expect

from holdfast.controller.http.auth import Auth, Refusal
from tests.conftest import Until
from tests.controller.page.served import Served
from tests.controller.support.fake_facade import FakeFacade

pytestmark = [pytest.mark.slow, pytest.mark.calm]
PAGE = """<!doctype html><title>Another site</title>
<a id="link" href="{url}">the cluster</a>
<img src="{url}api/v1/nodes"><script src="{url}api/v1/job"></script>
<form id="form" method="post" action="{url}api/v1/job/stop" target="frame"></form><iframe name="frame"></iframe>
<script>
  fetch("{url}api/v1/status", {{ mode: "no-cors" }}).catch(() => 0);
  fetch("{url}api/v1/job/checkpoint", {{ method: "POST", mode: "no-cors" }}).catch(() => 0);
  document.getElementById("form").submit();
</script>"""


class Noting(Auth):
    """Keeps its answer to each request: a page of another site does not see it, nor does a test of that page."""

    said: ClassVar[dict[str, int]] = {}

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        found = super().refusal(method, path, headers)
        self.said[f"{method} {path}"] = 200 if found is None else found.status
        return found


@pytest.fixture
def noting() -> Iterator[Served]:
    Noting.said.clear()
    facade = FakeFacade()
    facade.warm_up(50)
    served = Served(facade, Noting())
    yield served
    served.stop()


@pytest.fixture
def elsewhere(noting: Served, tmp_path: Path) -> Iterator[str]:
    """The address of a page on `localhost`, which is another site than 127.0.0.1."""
    (tmp_path / "index.html").write_text(PAGE.format(url=noting.url))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_port}/index.html"
        server.shutdown()
        thread.join()


def test_its_requests_are_refused_and_its_link_opens_the_page(
    browser: Browser, noting: Served, elsewhere: str, until: Until
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(elsewhere)
    api = "/api/v1"
    asked = {f"GET {api}/{what}" for what in ("nodes", "job", "status")}
    asked |= {f"POST {api}/job/{what}" for what in ("stop", "checkpoint")}
    until(lambda: asked <= Noting.said.keys(), says=f"only {Noting.said}")
    assert {request: Noting.said[request] for request in asked} == dict.fromkeys(asked, 403)
    assert noting.facade.graces == []
    assert noting.facade.checkpoints == 0
    Noting.said.clear()
    page.click("#link")
    expect(page.locator("#connection")).to_have_text("live")  # what it loads and asks by itself is its own
    assert set(Noting.said.values()) == {200}, Noting.said
    context.close()
