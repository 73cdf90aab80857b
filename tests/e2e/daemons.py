"""The `holdfast` command as people start it: in processes of its own, each found again at the test's end."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from holdfast.agent.forkserver.fork_from import VARIABLE
from holdfast.cli.common.client import Client
from holdfast.cli.local import leftovers

ROOT = Path(__file__).parents[2]
HOLDFAST = (sys.executable, "-m", "holdfast")
SMALL_MODEL = tuple(
    word
    for one in ("model.layers=2", "model.d_model=32", "model.heads=4", "data.seq_len=32", "train.micro_batches=4")
    for word in ("--set", one)
)
"""Of the embedded trainer: its steps take a tenth of the processor time of the default's."""
PATIENCE_S = 60.0
"""For what takes a second or two on a quiet machine, as the start of a daemon does."""
_FOREIGN = ("HOLDFAST_", "OMP_", "MASTER_", "TORCHELASTIC_")

Json = dict[str, Any]


def wait_for(
    what: Callable[[], object], deadline_s: float = PATIENCE_S, says: Callable[[], object] = lambda: ""
) -> None:
    end = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < end, f"not so within {deadline_s:g} s: {says()}"
        time.sleep(0.05)  # most ask a controller: each look takes milliseconds of the processor, here and there


@dataclass
class Running:
    """One command at work: its output goes to files, so that nothing blocks on a full pipe."""

    process: subprocess.Popen[bytes]
    out_path: Path
    err_path: Path

    @property
    def out(self) -> str:
        return self.out_path.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self.err_path.read_text(errors="replace")

    def wait(self, deadline_s: float = 60.0) -> int:
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {deadline_s:g} s; it said:\n{self.err[-4000:]}") from None

    def says(self, text: str, deadline_s: float = PATIENCE_S) -> None:
        """Wait until it said so, on either stream."""

        def said() -> bool:
            has_ended = self.process.poll() is not None  # asked first: it may say so and end
            if text in self.err or text in self.out:
                return True
            assert not has_ended, f"ended with {self.process.returncode}:\n{self.err[-4000:]}"
            return False

        wait_for(said, deadline_s, lambda: f"{text!r} in\n{self.out[-2000:]}\n{self.err[-4000:]}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@dataclass
class Commands:
    """Starts commands that share a mark, by which all that they started is found."""

    folder: Path
    mark: str = field(default_factory=lambda: f"HOLDFAST_E2E={uuid.uuid4().hex}")
    running: list[Running] = field(default_factory=list)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
        name, _, value = self.mark.partition("=")
        own = {name: value, "HOLDFAST_CONFIG": "", "PYTHONPATH": str(ROOT), "HOLDFAST_LOG_FORMAT": "json"}
        shared = {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
        return env | own | shared | dict(more or {})

    def start(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        umask: int = -1,
        through: Sequence[str] = (),
    ) -> Running:
        """`through`: a command that becomes it, as `env` and `unshare` do."""
        number = len(self.running)
        out, err = self.folder / f"{number}.out", self.folder / f"{number}.err"
        with open(out, "wb") as to_out, open(err, "wb") as to_err:
            process = subprocess.Popen(
                [*through, *HOLDFAST, *argv],
                stdin=subprocess.DEVNULL,
                stdout=to_out,
                stderr=to_err,
                cwd=cwd,
                env=self.environment(env),
                start_new_session=True,
                umask=umask,
            )
        self.running.append(Running(process, out, err))
        return self.running[-1]

    def run(self, *argv: str, deadline_s: float = 60.0, **more: Any) -> Running:
        command = self.start(*argv, **more)
        command.wait(deadline_s)
        return command

    def left(self) -> list[int]:
        return leftovers.marked(self.mark)

    def end(self) -> None:
        for command in self.running:
            if command.process.poll() is None:
                command.process.terminate()
        deadline = time.monotonic() + 15
        for command in self.running:
            with suppress(subprocess.TimeoutExpired):
                command.process.wait(max(0.1, deadline - time.monotonic()))
        leftovers.end_marked(self.mark)
        for command in self.running:
            command.process.wait(30)


@contextmanager
def commands(folder: Path) -> Iterator[Commands]:
    folder.mkdir(parents=True, exist_ok=True)
    one = Commands(folder)
    try:
        yield one
    finally:
        one.end()


def ready(command: Running, deadline_s: float = PATIENCE_S) -> tuple[str, str]:
    """(gRPC, HTTP) addresses of a controller that was just started."""
    command.says("\n", deadline_s) if not command.out else None
    wait_for(lambda: command.out.endswith("\n"), deadline_s)
    addresses = json.loads(command.out.splitlines()[0])
    return addresses["grpc"], addresses["http"]


def acted_on(incidents: Iterable[Json]) -> list[Json]:
    """Those that something was done about. A busy machine rightly has others: an agent that was kept from speaking, a
    worker that its host is slow for."""
    return [one for one in incidents if one["action"] not in (None, "", "watch", "alert")]


def beside_load(incidents: Iterable[Json]) -> list[Json]:
    """Without what a busy machine rightly has and nothing was done about: the suspicion of an agent that was kept from
    speaking, workers or steps that were slow."""
    slow = ("straggler", "step-time-jump", "step-time-drift", "worker-paused")
    idle = ("node-silent", "watch"), *((kind, "alert") for kind in slow)
    return [one for one in incidents if (one["kind"], one["action"]) not in idle]


def stop_job(client: Client) -> None:
    """End what a test that failed has left, so that the next one finds a free cluster."""
    job = client.job()
    if job and job["state"] not in ("finished", "failed", "stopped"):
        client.stop(0.0)
        wait_for(lambda: (client.job() or {})["state"] == "stopped", 60)


def one_line(text: str) -> str:
    """The output of a command that fails: one line, and no traceback."""
    lines = text.splitlines()
    assert len(lines) == 1, text
    assert lines[0].startswith("holdfast"), text
    return lines[0]


def log_events(text: str) -> list[Json]:
    """The structured log of a daemon."""
    found = []
    for line in text.splitlines():
        with suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict):
                found.append(value)
    return found


def events(daemon: Running, name: str) -> list[Json]:
    """Those of this name in a daemon's structured log."""
    return [event for event in log_events(daemon.err) if event["event"] == name]


def incidents(http: str) -> list[Json]:
    """All that the controller at this address has."""
    found: list[Json] = plain_get(f"http://{http}/api/v1/incidents").json()
    return found


def plain_get(url: str, **more: Any) -> httpx.Response:
    """GET without TLS, nor the web proxy of the environment. Certificates to trust, read at each request otherwise,
    would take fifteen times as long as the rest of it."""
    return httpx.get(url, **{"trust_env": False, "verify": False, "timeout": 10.0, **more})
