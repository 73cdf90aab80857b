from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from holdfast.controller.http.auth import Auth
from tests.browser import Watched, chromium, watching
from tests.controller.page.served import Served
from tests.controller.support.fake_facade import FakeFacade

_STARTED = pytest.StashKey[tuple[ExitStack, Browser]]()


@pytest.fixture
def browser(request: pytest.FixtureRequest) -> Browser:
    """One for all tests of this folder, which is what they cost least with."""
    expect.set_options(timeout=30_000)  # ms, on a busy machine
    stash = request.session.stash
    if _STARTED not in stash:
        stack = ExitStack()
        stash[_STARTED] = stack, stack.enter_context(chromium())
    return stash[_STARTED][1]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """It ends with the folder's last test, not with the session: while it is there, its event loop runs in this thread,
    and no other can."""
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        started = item.session.stash.get(_STARTED, None)
        if started is not None:
            del item.session.stash[_STARTED]
            started[0].close()


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    with watching(browser) as watched:
        yield watched


@pytest.fixture
def served() -> Iterator[Served]:
    yield from serve(live=True)


@pytest.fixture
def held() -> Iterator[Served]:
    """One whose time only passes by `tick`, for what is to be seen before it is over."""
    yield from serve(live=False)


def serve(live: bool) -> Iterator[Served]:
    facade = FakeFacade()
    facade.warm_up(50)
    served = Served(facade, Auth(), live=live)
    yield served
    served.end()
