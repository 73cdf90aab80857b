"""Which moments of a job are worth keeping."""

from typing import Any

from holdfast.controller.past.moment import is_worth_keeping, moment
from tests.controller.support.fake_facade import FakeFacade

Json = dict[str, Any]


def of(facade: FakeFacade, **more: Any) -> Json:
    return moment(facade.document() | more, 10.0, None, 1, {})


def test_one_a_minute_and_each_that_differs() -> None:
    facade = FakeFacade()
    facade.warm_up(20)
    well = of(facade)
    assert is_worth_keeping(None, 0.0, well)
    assert not is_worth_keeping((0.0, well), 59.0, well)
    assert is_worth_keeping((0.0, well), 60.0, well)
    facade.warm_up(5)
    assert not is_worth_keeping((0.0, well), 5.0, of(facade))  # a step is no change of what it is
    facade.fault(3)
    assert is_worth_keeping((0.0, well), 5.0, of(facade))
    assert is_worth_keeping((0.0, well), 5.0, well | {"doubtful": {"node1": "lost"}})


def test_a_clock_that_goes_back_stops_nothing() -> None:
    facade = FakeFacade()
    facade.warm_up(20)
    assert is_worth_keeping((1000.0, of(facade)), 400.0, of(facade))


def test_at_ten_thousand_nodes_that_are_lost_it_stays_small() -> None:
    facade = FakeFacade()
    facade.warm_up(20)
    doc = moment(facade.document(), 0.0, None, 0, {f"node{i:05}": "lost" for i in range(10_000)})
    assert (len(doc["doubtful"]), doc["doubtful_many"]) == (200, 10_000)
    assert len(str(doc)) < 8000
