"""Which handlers of a script's signals are reported."""

import signal

import pytest

from holdfast.agent.probe_file.handlers import script_handlers


def bit(number: int) -> int:
    return 1 << (number - 1)


def test_a_handler_of_the_script_is_reported_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = script_handlers()
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert script_handlers() == usual | bit(signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.default_int_handler)
        assert script_handlers() == usual & ~bit(signal.SIGUSR2)

        def take(*_: object) -> None:
            """As Holdfast's own handler of SIGTERM."""

        take.__module__ = "holdfast.checkpoint.worker.preemption"
        signal.signal(signal.SIGUSR2, take)
        assert script_handlers() == usual & ~bit(signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        assert script_handlers() == usual & ~bit(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
