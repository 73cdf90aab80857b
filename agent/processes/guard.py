"""An `except` of its own around each part of what an agent does again and again: one bug ends that part for once, and
never the agent.

What workers write, and what kernels and drivers answer, is other people's; so is the memory that is left for it.
"""

from collections.abc import Callable
from types import TracebackType

from holdfast.base import log

_MOST = 1000
"""Causes that are remembered."""


class PartGuard:
    """`with guard("logs"): ...` ends with whatever went wrong in it, but for cancellation and exits."""

    def __init__(self, on_bug: Callable[[str, Exception], None] = lambda part, error: None) -> None:
        """`on_bug` gets the part and the error, once for each cause: an error's type, and the line that raised it."""
        self._on_bug = on_bug
        self._known: set[tuple[str, str, str, int]] = set()

    def __call__(self, part: str) -> "_Part":
        return _Part(self, part)

    def caught(self, part: str, error: Exception) -> None:
        """Log it, with its traceback, if its cause is new. Within the `except` that caught it."""
        cause = (part, type(error).__name__, *_origin(error.__traceback__))
        if cause in self._known or len(self._known) >= _MOST:
            return
        self._known.add(cause)
        log.exception("agent.bug", part=part, error=repr(error)[:1000])
        self._on_bug(part, error)


class _Part:
    __slots__ = ("_guard", "_part")

    def __init__(self, guard: PartGuard, part: str) -> None:
        self._guard, self._part = guard, part

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._guard.caught(self._part, error)
        return True


def _origin(trace: TracebackType | None) -> tuple[str, int]:
    """The file and the line where it was raised."""
    if trace is None:
        return "", 0
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename, trace.tb_lineno
