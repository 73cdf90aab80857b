"""Threads of Holdfast in a watched process take no part in what the program does with signals."""

import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.agent.probe_file import layout
from holdfast.agent.probe_file.layout import ENV_PATH
from holdfast.agent.probe_file.service_threads import ServiceThreads, understand

WAITS = """
import os, signal
from holdfast.agent import probe
probe.attach()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.{name}])
os.kill(os.getpid(), signal.{name})
assert signal.sigwait([signal.{name}]) == signal.{name}
assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == {{signal.{name}}}
print("waited for")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR2", "SIGALRM", "SIGHUP"])
def test_a_signal_that_the_program_blocks_is_left_to_it(tmp_path: Path, name: str) -> None:
    """To a thread that does not block it the kernel would give it, and end the process."""
    env = os.environ | {ENV_PATH: str(tmp_path / "probe")}
    code = [sys.executable, "-c", WAITS.format(name=name)]
    found = subprocess.run(code, env=env, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (0, "waited for\n"), found.stderr


def noted(memory: mmap.mmap) -> frozenset[int]:
    return understand(layout.open_sealed(memory, layout.AT_SERVICES, layout.SERVICES.size) or b"")


def test_threads_are_noted_while_torch_still_makes_a_group() -> None:
    """It waits for its peers in that, and its loop runs already."""
    with mmap.mmap(-1, layout.SIZE) as memory:
        services, end, began = ServiceThreads(memory), threading.Event(), threading.Barrier(4)
        threads = [threading.Thread(target=lambda: (began.wait(), end.wait())) for _ in range(3)]
        threads[0].start()
        services.note()
        with services.starting():
            threads[1].start()
            with services.starting():
                threads[2].start()
                began.wait()
                services.note()
                assert noted(memory) == {threads[1].native_id, threads[2].native_id}
            assert noted(memory) == {threads[1].native_id, threads[2].native_id}
        end.set()
        for thread in threads:
            thread.join()
        services.note()
        with services.starting():
            pass
        assert noted(memory) == frozenset()
