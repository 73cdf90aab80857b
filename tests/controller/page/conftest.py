from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from holdfast.controller.auth import Auth
from tests.browser import Watched, chromium, watching
from tests.controller.fake_facade import FakeFacade
from tests.controller.page.served import Served


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
    facade = FakeFacade()
    facade.warm_up(50)
    served = Served(facade, Auth())
    yield served
    served.stop()
