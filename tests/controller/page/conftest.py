from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from holdfast.controller.http.auth import Auth
from tests.browser import Watched, chromium, watching
from tests.controller.page.served import Served
from tests.controller.support.fake_facade import FakeFacade


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


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
