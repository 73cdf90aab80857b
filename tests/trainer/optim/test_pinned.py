"""Host memory that the GPU's driver takes, or refuses."""

from __future__ import annotations

import gc

import pytest
import torch

from holdfast.trainer.optim.host.pinned import pin, zeros
from holdfast.trainer.settings.errors import ConfigError
from tests.checkpoint.support.page_locks import Driver


class Owner:
    """Of memory."""


def test_a_refusal_names_what_to_set_and_leaves_no_error_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(1).install(monkeypatch)
    owner, tensors = Owner(), [zeros(10, torch.float32) for _ in range(2)]
    with pytest.raises(ConfigError, match=r"error 2\); raise the limit of locked memory, or set optim.state = device"):
        pin(tensors, owner)
    assert not driver.last_errors, "torch raises it behind the next kernel"
    assert list(driver.ranges) == [tensors[0].data_ptr()]
    del owner
    gc.collect()
    assert not driver.ranges


def test_memory_that_was_given_back_already_leaves_no_error_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(1).install(monkeypatch)
    owner, tensors = Owner(), [zeros(10, torch.float32)]
    pin(tensors, owner)
    driver.ranges.clear()
    del owner
    gc.collect()
    assert not driver.last_errors
