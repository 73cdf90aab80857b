"""Signals for which the script has a handler: one that comes may let its main thread go on."""

import signal
from contextlib import suppress

_OURS = ("holdfast.", "torch.", "signal")
"""Modules whose handlers let no wait go on: a loader's says that its worker died, ours that this one shall end."""


def script_handlers() -> int:
    """A bit for each, from SIGHUP (1) on. SIGINT's own handler is none of the script's. Takes 20 us."""
    mask = 0
    for number in range(1, 64):
        with suppress(ValueError):  # not every number is a signal's
            handler = signal.getsignal(number)
            is_own = callable(handler) and handler is not signal.default_int_handler
            if is_own and not str(getattr(handler, "__module__", "")).startswith(_OURS):
                mask |= 1 << (number - 1)
    return mask
