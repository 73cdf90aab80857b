"""The rendezvous stores that this node hosts: one for each generation of a job, in a process of its own.

torch gives an agent's store no prefix for each restart, so one store for all would hand out dead addresses.
"""

from collections.abc import Iterable

from holdfast.agent.forkserver.client import ForkServer


class RendezvousStores:
    """Names of those that run. The fork server starts and stops them."""

    def __init__(self) -> None:
        self._running: set[str] = set()

    def adopt(self, names: Iterable[str]) -> None:
        self._running |= set(names)

    async def start(self, warm: ForkServer, job: str, generation: int, host: str) -> int:
        """Its port. Raises HoldfastError."""
        name = f"{job}@{generation}"
        port = await warm.start_store(name, host)
        self._running.add(name)
        return port

    async def stop(self, warm: ForkServer | None, job: str, generation: int) -> None:
        """Those of the job up to this generation."""
        for name in [one for one in self._running if one.startswith(f"{job}@") and _generation(one) <= generation]:
            self._running.discard(name)
            if warm is not None:
                await warm.stop_store(name)

    def exited(self, name: str) -> bool:
        """Note the end of a store. Whether it was unexpected."""
        if name not in self._running:
            return False
        self._running.discard(name)
        return True


def _generation(name: str) -> int:
    return int(name.rpartition("@")[2])
