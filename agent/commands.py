"""The controller's commands to this node: each is done once, and answered again when it is asked again."""

import asyncio
import time
from collections.abc import Callable, Coroutine

from holdfast.agent.node import death as node_death
from holdfast.agent.node.checkpoints import Checkpoints
from holdfast.agent.node.checks import Checks
from holdfast.agent.node.faults import NodeFaults
from holdfast.agent.node.peers import probe_peer
from holdfast.agent.processes.guard import PartGuard
from holdfast.agent.workers.unended import UnendedError
from holdfast.agent.workers.workers import Workers
from holdfast.base import log
from holdfast.base.errors import HoldfastError, Refused
from holdfast.wire import messages as msg
from holdfast.wire.holds import HOLD

_ANSWERS = 1000
"""Answers that are kept for a controller that asks again."""


class Commands:
    """`obey` takes a command; `run` does those that wait for one another."""

    def __init__(
        self,
        workers: Workers,
        checkpoints: Checkpoints,
        faults: NodeFaults,
        send: Callable[[msg.CommandResult], None],
        disturb: Callable[[], None],
        guard: PartGuard,
        state_dir: str,
    ) -> None:
        """`disturb`: called before workers are interrupted, so that this does not count as activity."""
        self._workers, self._checkpoints, self._faults = workers, checkpoints, faults
        self._send, self._disturb, self._guard = send, disturb, guard
        self._checks = Checks(state_dir, self._answer)
        self._waiting: asyncio.Queue[msg.Command] = asyncio.Queue()
        self._answers: dict[str, msg.CommandResult] = {}
        self._tasks: set[asyncio.Future[None]] = set()

    def obey(self, command: msg.Command) -> None:
        answer = self._answers.get(command.id)
        if answer is not None:
            self._send(answer)
            return
        if isinstance(command.order, msg.RunCheck):
            self._checks.begin(command, command.order)
        elif isinstance(command.order, msg.DumpStacks | msg.ProbePeer):
            if isinstance(command.order, msg.DumpStacks):
                self._disturb()
            self._spawn(self._do(command))  # a stop that follows must not wait for it
        else:
            self._waiting.put_nowait(command)

    async def run(self) -> None:
        """One after the other: a stop that came before a start is done before it. Until cancelled."""
        while True:
            command = await self._waiting.get()
            if isinstance(command.order, msg.StartWorkers):
                with self._guard("checkpoints"):
                    self._checkpoints.ensure()
            if isinstance(command.order, msg.Inject) and command.order.kind == "node-kill":
                leaders = [*self._workers.leaders(), self._checkpoints.daemon_pid()]
                node_death.die(leaders, [self._workers.shm, self._checkpoints.folder])
            await self._do(command)

    async def close(self) -> None:
        await self._checks.close()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _do(self, command: msg.Command) -> None:
        try:
            order = command.order
            if isinstance(order, msg.Inject) and self._faults.inject(order.kind):
                data = {"at": str(time.time_ns())}
            elif isinstance(order, msg.ProbePeer):
                data = {"behind": await probe_peer(order.host, order.port)}
            else:
                data = await self._workers.obey(command)
            answer = msg.CommandResult(command.id, True, data=data)
        except HoldfastError as error:
            data = {"refused": "1"} if isinstance(error, Refused) else {}
            if isinstance(error, UnendedError):
                data[HOLD] = error.hold.value
            answer = msg.CommandResult(command.id, False, str(error), data=data)
        except OSError as error:
            answer = msg.CommandResult(command.id, False, f"{type(error).__name__}: {error}")
        except Exception as error:
            self._guard.caught("commands", error)
            answer = msg.CommandResult(command.id, False, f"an error in Holdfast itself: {error!r}"[:1000])
        log.event("command", id=command.id, order=type(command.order).__name__, ok=answer.ok, error=answer.error)
        self._answer(answer)

    def _answer(self, answer: msg.CommandResult) -> None:
        self._answers[answer.id] = answer
        while len(self._answers) > _ANSWERS:
            self._answers.pop(next(iter(self._answers)))
        self._send(answer)
