"""One child process of a local cluster: its log, its ready line, its end."""

import json
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.base import private
from holdfast.base.errors import HoldfastError
from holdfast.base.plain import plain

QUICK_S = 3.0
POLL_S = 0.02


class LocalDaemon:
    """Standard output and error go to files in STATE/logs, so that nothing blocks on a full pipe."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], state_dir: Path) -> None:
        self.name = name
        self.argv = list(argv)
        self._env = dict(env)
        logs = state_dir / "logs"
        private.make_folder(logs)
        self.log = logs / f"{name}.log"
        self.out = logs / f"{name}.out"
        self._process: subprocess.Popen[bytes] | None = None
        self._starts: list[float] = []

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def code(self) -> int | None:
        return self._process.returncode if self._process is not None else None

    def start(self) -> None:
        opener = private.opener
        with open(self.log, "ab", opener=opener) as log, open(self.out, "wb", opener=opener) as out:
            self._process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env=self._env,
                # The command forwards Ctrl-C of the terminal itself, in order.
                start_new_session=True,
            )
        self._starts.append(time.monotonic())

    def ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    @property
    def starts(self) -> int:
        return len(self._starts)

    def quick_deaths(self) -> int:
        """The number of last starts that ended too early."""
        ends = [*self._starts[1:], time.monotonic()]
        count = 0
        for start, end in zip(reversed(self._starts), reversed(ends), strict=True):
            if end - start > QUICK_S:
                break
            count += 1
        return count

    def wait_ready(self, deadline: float) -> dict[str, str]:
        """The JSON line that the daemon prints when it is ready."""
        while time.monotonic() < deadline:
            line, newline, _ = self.out.read_text(errors="replace").partition("\n")
            if newline and line.startswith("{"):
                ready: dict[str, str] = json.loads(line)
                return ready
            if self.ended():
                raise HoldfastError(f"{self.name} did not start: {self.last_words()}")
            time.sleep(POLL_S)
        raise HoldfastError(f"{self.name} did not start in time; its log: {self.log}")

    def last_words(self) -> str:
        """The last line of its log, which has the reason of a crash."""
        lines = self.log.read_text(errors="replace").split("\n") if self.log.exists() else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return plain(last.removeprefix("holdfast: ")) or f"exit code {self.code}, nothing in {self.log}"

    def kill(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def terminate(self) -> None:
        """Send SIGTERM. A stopped process (after an injected fault) is continued first to receive it."""
        self.kill(signal.SIGTERM)
        self.kill(signal.SIGCONT)

    def wait_end(self, deadline: float) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
