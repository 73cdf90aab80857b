"""The scripted controller behind the API."""

import pytest

from tests.controller.support.fake_facade import FakeFacade


@pytest.fixture
def facade() -> FakeFacade:
    facade = FakeFacade()
    facade.warm_up(20)
    return facade
