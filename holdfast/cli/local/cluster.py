"""A whole cluster on this machine: controller and agents as child processes on free loopback ports.

What a service manager would do for real daemons is done here: one that dies is started again. What must hold: nothing
that was started outlives `stop()`, nor the death of this process by any signal.
"""

import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.agent.forkserver.fork_from import VARIABLE
from holdfast.base import log, private
from holdfast.base.config.client import ClientConfig
from holdfast.base.errors import HoldfastError, Unavailable
from holdfast.base.service import PARENT
from holdfast.cli.common import interrupts
from holdfast.cli.common.client import Client
from holdfast.cli.local import leftovers
from holdfast.cli.local.daemon import LocalDaemon
from holdfast.cli.local.ports import free_ports

RESTART_DELAY_S = 0.3
POLL_S = 0.05
ANSWER_S = 20.0
"""For the controller to answer: it shares this machine with the workers, and with whatever else keeps it busy. One that
died refuses at once."""
QUICK_DEATHS = 5
"""Early deaths in a row after which a daemon is not restarted."""


class LocalCluster:
    """`with LocalCluster(state_dir, nodes=2, slots=4) as cluster:` gives healthy agents called node0, node1, ..."""

    def __init__(
        self,
        state_dir: Path,
        *,
        nodes: int = 1,
        spares: int = 0,
        mortal: Collection[str] = (),
        slots: int = 1,
        http_port: int = 0,
        controller_flags: Sequence[str] = (),
        agent_flags: Sequence[str] = (),
        switches: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        command: Sequence[str] = (sys.executable, "-m", "holdfast"),
    ) -> None:
        """`mortal`: nodes whose agent is not restarted, like a lost host. `switches`: of those not under switch0."""
        self.state_dir = state_dir
        self.slots = slots
        self.node_names = [f"node{n}" for n in range(nodes + spares)]
        self._mortal = frozenset(mortal)
        self._switches = dict(switches or {})
        self.grpc = ""
        self.http = ""
        self.failure = ""
        """Why the cluster has failed; empty while it runs."""
        self._mark = f"{leftovers.MARK}={uuid.uuid4().hex}"
        self._http_port = http_port
        self._controller_flags, self._agent_flags = controller_flags, agent_flags
        self._env = self._environment(env or {})
        self._command = list(command)
        self._daemons: list[LocalDaemon] = []
        self._stopping = False
        self._is_up = False
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._quit = threading.Event()
        self._jobs: list[Callable[[], None]] = []
        self._keeper = threading.Thread(target=self._keep, name="local-cluster", daemon=True)
        self._client: Client | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def client(self) -> Client:
        """A client of this cluster's controller, also after a restart: the ports stay."""
        if self._client is None:
            self._client = Client(ClientConfig(controller=self.http), timeout=ANSWER_S)
        return self._client

    @property
    def url(self) -> str:
        return f"http://{self.http}/"

    def pids(self) -> dict[str, int]:
        return {daemon.name: daemon.pid for daemon in self._daemons}

    def start(self, timeout: float = 60.0) -> None:
        """Returns when every agent is healthy. HoldfastError with the daemon's last line if one does not start."""
        deadline = time.monotonic() + timeout
        private.state_folder(self.state_dir)
        self._keeper.start()
        # Clients expect the controller at the same address after its restart.
        grpc, http = free_ports(2)
        controller = LocalDaemon(
            "controller", self._controller_argv(grpc, self._http_port or http), self._env, self.state_dir
        )
        self._begin(controller)
        with interrupts.allowed():
            addresses = controller.wait_ready(deadline)
        self.grpc, self.http = addresses["grpc"], addresses["http"]
        shared = {} if self._env.get(VARIABLE) else self._shared_imports()
        for name in self.node_names:
            env = self._env | (shared if name != self.node_names[0] else {})
            self._begin(LocalDaemon(name, self._agent_argv(name), env, self.state_dir))
        with interrupts.allowed():
            self._wait_healthy(deadline)

    def _shared_imports(self) -> dict[str, str]:
        """The fork server of the first agent imports torch and the trainer, and those of the others are forked from it:
        on few processors that is sooner than all of them at once."""
        folder = self.state_dir / self.node_names[0] / "run"
        private.make_folder(folder)  # it is there before the others look for it
        return {VARIABLE: str(folder)}

    def kill_controller(self) -> None:
        """Kill it with SIGKILL. It is restarted like any daemon that dies."""
        self._daemons[0].kill(signal.SIGKILL)

    def bring_back(self, name: str) -> None:
        """A node that was lost returns: start its agent, and do so again whenever it dies."""
        with self._lock:
            self._mortal -= {name}
        self._wake.set()

    def stop(self, grace: float = 10.0) -> None:
        """Stop all processes, agents first: they stop their workers. Safe to repeat."""
        if self._client is not None:
            self._client.close()
        with self._lock:
            self._stopping = True
        agents, controllers = self._daemons[1:], self._daemons[:1]
        for group in (agents, controllers):
            deadline = time.monotonic() + grace
            for daemon in group:
                daemon.terminate()
            for daemon in group:
                daemon.wait_end(deadline)
        # An agent that was just killed leaves workers that only its successor would adopt.
        left = leftovers.end_marked(self._mark)
        if left:
            log.warning("leftovers_ended", pids=left)
        for name in self.node_names:
            leftovers.remove_shared_memory(self.state_dir / name, name)
        self._quit.set()
        self._wake.set()
        if self._keeper.is_alive():
            self._keeper.join(timeout=grace)

    def _begin(self, daemon: LocalDaemon) -> None:
        self._daemons.append(daemon)
        # The kernel's "die with your parent" means the thread that forked: it must be one that stays.
        started = threading.Event()
        errors: list[OSError] = []

        def start() -> None:
            try:
                daemon.start()
            except OSError as error:
                errors.append(error)
            started.set()

        self._jobs.append(start)
        self._wake.set()
        started.wait()
        if errors:
            raise HoldfastError(f"cannot start {daemon.name}: {errors[0].strerror or errors[0]}")

    def _keep(self) -> None:
        """The supervisor thread: start the requested daemons, and restart dead ones."""
        due: dict[str, float] = {}
        while not self._quit.is_set():
            self._wake.wait(POLL_S)
            self._wake.clear()
            while self._jobs:
                self._jobs.pop(0)()
            with self._lock:  # stop() must not overlook a daemon that is just being started again
                for daemon in () if self._stopping else list(self._daemons):
                    self._mend(daemon, due)

    def _mend(self, daemon: LocalDaemon, due: dict[str, float]) -> None:
        now = time.monotonic()
        if daemon.name in due:
            if now >= due[daemon.name]:
                del due[daemon.name]
                daemon.start()
                log.event("daemon_restarted", name=daemon.name, pid=daemon.pid)
        elif daemon.ended() and not self.failure and daemon.name not in self._mortal:
            log.warning("daemon_died", name=daemon.name, code=daemon.code)
            # Until the cluster is up each death counts: on a starved host even a start that fails takes its time.
            deaths = daemon.quick_deaths() if self._is_up else daemon.starts
            # What came up once was started as it should be: then it is the world that refuses it, a port for one.
            is_refused = daemon.code == 2 and not self._is_up
            if is_refused or deaths >= QUICK_DEATHS or not self.http:
                self.failure = f"{daemon.name} does not stay up: {daemon.last_words()}"
            else:
                due[daemon.name] = now + RESTART_DELAY_S

    def _wait_healthy(self, deadline: float) -> None:
        missing: list[str] = self.node_names
        while time.monotonic() < deadline:
            if self.failure:
                raise HoldfastError(self.failure)
            try:
                states = {node["name"]: node["state"] for node in self.client.nodes()}
            except Unavailable:
                states = {}
            missing = [name for name in self.node_names if states.get(name) not in ("healthy", "spare")]
            if not missing:
                self._is_up = True
                return
            time.sleep(POLL_S)
        raise HoldfastError(f"not healthy in time: {', '.join(missing)}; logs lie in {self.state_dir / 'logs'}")

    def _controller_argv(self, grpc_port: int, http_port: int) -> list[str]:
        ports = ["--grpc-port", str(grpc_port), "--http-port", str(http_port)]
        state = ["--state-dir", str(self.state_dir / "controller")]
        return [*self._command, "controller", *ports, *state, *self._controller_flags]

    def _agent_argv(self, name: str) -> list[str]:
        switch = self._switches.get(name, "switch0")
        flags = ["--controller", self.grpc, "--node-name", name, "--switch", switch, "--slots", str(self.slots)]
        # The workers of one host speak to each other over loopback: that is the traffic worth seeing.
        state = ["--state-dir", str(self.state_dir / name), "--end-with-workers", "--nics", "lo"]
        return [*self._command, "agent", *flags, *state, *self._agent_flags]

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        # Settings of real daemons on this host must not apply to these.
        own = ("HOLDFAST_CONTROLLER", "HOLDFAST_AGENT_", "HOLDFAST_API_TOKEN", "HOLDFAST_CLIENT_")
        env = {key: value for key, value in os.environ.items() if not key.startswith(own)}
        env |= {"HOLDFAST_CONFIG": "", "HOLDFAST_LOG_FORMAT": "json", PARENT: str(os.getpid())}
        name, _, value = self._mark.partition("=")
        return env | {name: value} | dict(more)
