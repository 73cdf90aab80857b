"""Numbers of steps that Lightning and transformers know, with modules that have their shape."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.hooks import global_steps
from holdfast.agent.hooks.global_steps import GlobalSteps

Numbers = list[int]


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lightning's Trainer, which begins at the step of its checkpoint, and transformers' callbacks."""

    class Trainer:
        global_step = 0

        def fit(self, step: Any, first: int, last: int) -> str:
            self.global_step = first
            while self.global_step < last:
                step()
                self.global_step += 1
            return "fitted"

    class CallbackHandler:
        def on_train_begin(self, args: object, state: object, control: object) -> str:
            return "begun"

        def on_train_end(self, args: object, state: object, control: object) -> str:
            return "ended"

    lightning, transformers = ModuleType("lightning.pytorch.trainer.trainer"), ModuleType("transformers.callbacks")
    lightning.Trainer, transformers.CallbackHandler = Trainer, CallbackHandler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, global_steps._TRAINERS[0], lightning)
    monkeypatch.setitem(sys.modules, global_steps._TRAINERS[1], ModuleType("no_trainer_in_it"))
    monkeypatch.setitem(sys.modules, global_steps._CALLBACKS, transformers)
    return SimpleNamespace(Trainer=Trainer, CallbackHandler=CallbackHandler)


def test_lightning_goes_on_from_its_checkpoint(modules: Any, capsys: pytest.CaptureFixture[str]) -> None:
    steps = GlobalSteps()
    global_steps.watch(steps)
    assert "the steps of this no_trainer_in_it are not known: AttributeError" in capsys.readouterr().err
    assert not steps.is_known
    seen: Numbers = []
    assert modules.Trainer().fit(lambda: seen.append(steps.number()), 10, 13) == "fitted"
    assert seen == [10, 11, 12]


def test_a_training_after_another_goes_on_and_so_do_steps_by_hand(modules: Any) -> None:
    steps, seen = GlobalSteps(), Numbers()
    global_steps.watch(steps)
    modules.Trainer().fit(lambda: seen.append(steps.number()), 0, 2)
    assert steps.is_known
    seen.append(steps.number())
    modules.Trainer().fit(lambda: seen.append(steps.number()), 0, 2)
    assert seen == [0, 1, 2, 3, 4]


def test_a_training_that_fails_is_over(modules: Any) -> None:
    steps = GlobalSteps()
    global_steps.watch(steps)

    def fails() -> None:
        assert steps.is_known
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        modules.Trainer().fit(fails, 5, 6)
    assert not steps.is_known  # no step of it ended


def test_transformers_state_is_read_at_each_step(modules: Any) -> None:
    steps, seen = GlobalSteps(), Numbers()
    global_steps.watch(steps)
    handler, state = modules.CallbackHandler(), SimpleNamespace(global_step=500)
    assert handler.on_train_begin(None, state, None) == "begun"
    for _ in range(3):
        seen.append(steps.number())
        state.global_step += 2  # a step that the scaler skipped is one of the Trainer's, too
    assert seen == [500, 502, 504]
    assert handler.on_train_end(None, state, None) == "ended"
    assert steps.number() == 505


def test_what_is_no_number_is_counted_on() -> None:
    steps = GlobalSteps()
    steps.begin(lambda: "many")
    assert [steps.number(), steps.number()] == [0, 1]
