"""The order of the network timeouts: kept, or refused with settings that would keep it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.planner.network.retransmission import ib_tolerance_s
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.load import load
from holdfast.trainer.settings.transport import Transport, environment, export, heeding, obstacle

GOOD = Transport(flap_s=5, ib_timeout=20, ib_retries=7, group_s=300, driver_s=600)


@pytest.mark.parametrize(("timeout", "seconds"), [(14, 0.5), (18, 7.5), (20, 30), (22, 120), (23, 240)])
def test_infinibands_patience(timeout: int, seconds: float) -> None:
    assert ib_tolerance_s(timeout, 7) == pytest.approx(seconds, rel=0.07)


def test_a_flap_of_three_seconds() -> None:
    """Survived with 7.5 s of patience, refused with half a second."""
    assert obstacle(replace(GOOD, flap_s=3, ib_timeout=18), infiniband=True) is None
    assert obstacle(replace(GOOD, flap_s=3, ib_timeout=14), infiniband=True) == (
        "transport.flap_s is 3, but InfiniBand gives up after 0.47 s (transport.ib_timeout = 14, ib_retries = 7): "
        "set transport.ib_timeout to 17 or more"
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"group_s": 20}, "parallel.timeout_s is 20, but InfiniBand tries for 30.1 s"),
        ({"driver_s": 200}, "transport.driver_s is 200, but a process group waits parallel.timeout_s = 300 s"),
        ({"driver_s": 300}, "raise the first above the second"),
        ({"ib_timeout": 0}, "must be from 1 to 31"),
        ({"ib_timeout": 32}, "must be from 1 to 31"),
        ({"ib_retries": 8}, "must be from 0 to 7"),
        ({"flap_s": 1e9}, "no exponent reaches that far"),
    ],
)
def test_each_wrong_order_is_named(change: dict[str, float], says: str) -> None:
    reason = obstacle(replace(GOOD, **change), infiniband=True)  # type: ignore[arg-type]
    assert reason is not None
    assert says in reason


times = st.floats(0, 1e5)


@given(flap=times, timeout=st.integers(-1, 33), retries=st.integers(-1, 9), group=times, driver=times)
def test_what_passes_is_in_order(flap: float, timeout: int, retries: int, group: float, driver: float) -> None:
    policy = Transport(flap, timeout, retries, group, driver)
    if obstacle(policy, infiniband=True) is None:
        assert flap < ib_tolerance_s(timeout, retries) < group
        assert driver == 0 or group < driver
        assert obstacle(policy, infiniband=False) is None
    elif timeout in range(1, 32) and retries in range(8):
        assert not (flap < policy.ib_s < group and (driver == 0 or group < driver))


@given(flap=st.floats(1e-4, 1e4), timeout=st.integers(1, 31), retries=st.integers(0, 7))
def test_the_advice_works_and_no_less_would(flap: float, timeout: int, retries: int) -> None:
    policy = Transport(flap, timeout, retries, 1e9, 0)
    reason = obstacle(policy, infiniband=True)
    if reason is not None and "ib_timeout to" in reason:
        advised = int(reason.rpartition("ib_timeout to ")[2].split()[0])
        assert ib_tolerance_s(advised, retries) > flap
        assert ib_tolerance_s(advised - 1, retries) <= flap * (1 + 1e-9)


def test_the_environment_is_one_policy_and_yields_to_what_is_set() -> None:
    env = {"NCCL_IB_TIMEOUT": "22", "NCCL_IB_RETRY_CNT": "7"}
    assert heeding(GOOD, env) == replace(GOOD, ib_timeout=22)
    assert heeding(GOOD, {"NCCL_IB_TIMEOUT": "", "NCCL_IB_RETRY_CNT": "x"}) == GOOD
    export(GOOD, env)
    assert env == environment(GOOD) | {"NCCL_IB_TIMEOUT": "22"}
    assert environment(GOOD)["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "300"


def test_settings_are_checked_when_they_are_read() -> None:
    assert load() == Config()
    with pytest.raises(ConfigError, match=r"transport\.flap_s is 60.*InfiniBand gives up after 30\.1 s"):
        load(overrides=[("transport.flap_s", 60), ("parallel.device", "cuda")])
    load(overrides=[("transport.flap_s", 60), ("parallel.device", "cpu")])  # no InfiniBand there
    with pytest.raises(ConfigError, match=r"transport\.driver_s is 100"):
        load(overrides=[("transport.driver_s", 100)])
