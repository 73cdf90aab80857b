"""Which step of the job an optimizer step is, where the script's framework knows it: Lightning, transformers.Trainer.

Both go on counting from their own checkpoint after a restart. A hook alone would begin at 0 in every attempt.
"""

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from holdfast.agent.hooks.imports import when_imported

_TRAINERS = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
_CALLBACKS = "transformers.trainer_callback"


class GlobalSteps:
    """`number` at every optimizer step that ended; numbers only go up, also from one training to the next."""

    def __init__(self) -> None:
        self._source: Callable[[], object] | None = None  # steps that the framework has counted so far
        self._last = -1

    @property
    def is_known(self) -> bool:
        return self._source is not None or self._last >= 0

    def begin(self, source: Callable[[], object]) -> None:
        self._source = source

    def end(self) -> None:
        self._source = None

    def number(self) -> int:
        """Of the step that just ended, from 0; call it only while `is_known`. The framework counts it afterwards, so
        what it has counted is this step's number."""
        done = self._source() if self._source is not None else -1
        self._last = max(self._last + 1, done if isinstance(done, int) else -1)
        return self._last


def watch(steps: GlobalSteps) -> None:
    """Install for what is imported already, and for what the script will import."""
    for name in _TRAINERS:
        when_imported(name, lambda module: _guarded(_watch_lightning, module, steps))
    when_imported(_CALLBACKS, lambda module: _guarded(_watch_transformers, module, steps))


def _guarded(install: Callable[[ModuleType, GlobalSteps], None], module: ModuleType, steps: GlobalSteps) -> None:
    """An unexpected version is reported in one line; its steps are counted by the optimizer then."""
    try:
        install(module, steps)
    except Exception as error:
        text = f"holdfast: the steps of this {module.__name__} are not known: {type(error).__name__}: {error}"
        print(text, file=sys.stderr)


def _watch_lightning(module: ModuleType, steps: GlobalSteps) -> None:
    trainer = module.Trainer
    fit = trainer.fit

    @functools.wraps(fit)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps.begin(lambda: self.global_step)
        try:
            return fit(self, *args, **kwargs)
        finally:
            steps.end()

    trainer.fit = watched


def _watch_transformers(module: ModuleType, steps: GlobalSteps) -> None:
    """All of a Trainer's callbacks are called with its state, after it was loaded from a checkpoint."""
    handler = module.CallbackHandler
    begin, end = handler.on_train_begin, handler.on_train_end

    @functools.wraps(begin)
    def watched_begin(self: Any, args: Any, state: Any, *more: Any, **kwargs: Any) -> Any:
        steps.begin(lambda: state.global_step)
        return begin(self, args, state, *more, **kwargs)

    @functools.wraps(end)
    def watched_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps.end()
        return end(self, *args, **kwargs)

    handler.on_train_begin, handler.on_train_end = watched_begin, watched_end
