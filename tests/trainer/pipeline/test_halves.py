"""Schedules that take a backward in two halves are refused where torch cannot do that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from holdfast.trainer.__main__ import parse
from holdfast.trainer.pipeline import halves
from holdfast.trainer.run import loop
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.launch import Launch

ZBV = ["--pp", "2", "--set", "parallel.schedule=zbv"]


def test_a_torch_that_cannot_is_named_before_ranks_meet(tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: object) -> None:
        raise RuntimeError("Attribute '_input_metadata' is invalid for this instance of _C._FunctionBase")

    # As torch 2.11 fails, in the half that comes second.
    monkeypatch.setattr(halves, "stage_backward_weight", failing)
    halves.goes_through_functions.cache_clear()
    try:
        with pytest.raises(ConfigError, match=rf"zbv takes.* torch {torch.__version__.split('+')[0]}.*set .* = 1f1b$"):
            loop.run(parse([*tiny, *ZBV]), Launch(0, 2))
        halves.check(parse([*tiny, "--pp", "2"]))
    finally:
        halves.goes_through_functions.cache_clear()


def test_gradients_of_two_outputs_are_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch 2.11 would, if it did not fail before."""
    second: Callable[..., None] = vars(halves)["stage_backward_weight"]

    def adding(weights: object, groups: list[dict[str, object]]) -> None:
        parameters = list(weights)  # type: ignore[call-overload]
        second(iter(parameters), groups)
        for parameter in parameters:
            parameter.grad.fill_(5)

    monkeypatch.setattr(halves, "stage_backward_weight", adding)
    halves.goes_through_functions.cache_clear()
    try:
        assert not halves.goes_through_functions()
    finally:
        halves.goes_through_functions.cache_clear()


@pytest.mark.skipif(torch.__version__ < "2.13", reason="older than what is known to do it")
def test_the_installed_torch_can(tiny: list[str]) -> None:
    assert halves.goes_through_functions()
    halves.check(parse([*tiny, *ZBV]))
