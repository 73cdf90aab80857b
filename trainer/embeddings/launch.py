"""A whole run on this machine: servers (or those that run elsewhere), the cacher, the trainers. Imports no torch."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.base.errors import Unavailable
from holdfast.trainer.embeddings.processes import SETTLE_S, Processes
from holdfast.trainer.embeddings.servers.link import SECRET, ask
from holdfast.trainer.embeddings.settings import Run

OPEN_S = 600.0
"""A server reads its share of a snapshot in this time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one run, since its start or restore."""

    first: int
    steps: int
    loss: float
    """Of the last step."""
    fetches: int
    """As the servers counted them."""
    formula: int
    """What the formula expects; `planned` is what the look-ahead wanted."""
    planned: int
    fetched_bytes: int
    write_backs: int
    written_bytes: int
    sync_now_bytes: int
    """Given by each trainer to the others on the critical path."""
    sync_later_bytes: int
    peak_rows: int
    """The most rows in a trainer's cache."""
    lookahead: int
    """Batches at the end; their least and most number, and how often it was halved."""
    lookahead_least: int
    lookahead_most: int
    halvings: int
    rows: int
    """In the tables."""
    tables: str
    """A hash of all tables, whichever servers hold them."""
    model: str
    restarts: int = 0
    """Attempts before this one; all figures are of the last."""

    @property
    def is_exact(self) -> bool:
        return self.fetches == self.formula == self.planned


def run_all(
    run: Run,
    local_servers: int,
    secret: bytes = b"",
    on_step: Callable[[int, float], None] = lambda step, loss: None,
    on_start: Callable[[Mapping[str, int]], None] = lambda pids: None,
) -> Outcome:
    """Train. `local_servers`: how many to start here; 0: those of `run.servers` serve, who know `secret`.

    `on_start` gets the process numbers by name. HoldfastError, in one line, when a process dies.
    """
    secret = secret or secrets.token_hex(32).encode()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-embeddings-") as folder,
        Processes(Path(folder), {SECRET: secret.decode(), "OMP_NUM_THREADS": "1"}) as processes,
    ):
        names = [f"embedding server {number}" for number in range(local_servers)]
        for name in names:
            processes.start(name, "servers.server")
        file = Path(folder) / "run.json"
        run.write(file)
        processes.start("cacher", "cacher", str(file))
        if local_servers:
            run = replace(run, servers=processes.addresses(names))
        run = replace(run, cacher=processes.addresses(["cacher"])[0])
        run.write(file)
        for number, address in enumerate(run.servers):
            with _or_cause(processes):
                _open(run, number, address, secret)
        trainers = [f"trainer {rank}" for rank in range(run.trainers)]
        for rank, name in enumerate(trainers):
            processes.start(name, "trainer_process", str(file), str(rank))
        on_start(processes.pids())
        last: dict[str, Any] = {"loss": float("nan")}

        def on_line(line: dict[str, Any]) -> None:
            last.update(line)
            if "step" in line:
                on_step(line["step"], line["loss"])

        processes.follow(trainers, on_line)
        with _or_cause(processes):
            return _outcome(run, last, _figures(run, secret), ask(run.cacher, secret, {"do": "figures"}).head)


@contextmanager
def _or_cause(processes: Processes) -> Iterator[None]:
    """Of a process that does not reply because it died, its death is the error."""
    try:
        yield
    except Unavailable:
        processes.watch(SETTLE_S)
        raise


def _open(run: Run, number: int, address: str, secret: bytes) -> None:
    head = {
        "do": "open",
        "run": run.name,
        "spec": asdict(run.spec),
        "number": number,
        "servers": len(run.servers),
        "store": run.store,
        "step": run.first,
        "tables": run.tables,
        "tables_name": run.tables_name,
    }
    try:
        ask(address, secret, head, OPEN_S)
    except Unavailable as error:
        raise Unavailable(f"embedding server {number}: {error}") from None


def _figures(run: Run, secret: bytes) -> Sequence[Mapping[str, int]]:
    return [ask(address, secret, {"do": "figures", "run": run.name}, OPEN_S).head for address in run.servers]


def _outcome(
    run: Run, last: Mapping[str, Any], servers: Sequence[Mapping[str, int]], cacher: Mapping[str, Any]
) -> Outcome:
    summed = {name: sum(one[name] for one in servers) for name in servers[0]}
    size, least, most, halvings = cacher["lookahead"]
    return Outcome(
        run.first,
        run.steps,
        last["loss"],
        summed["fetches"],
        cacher["formula"],
        cacher["planned"],
        summed["fetched_bytes"],
        summed["write_backs"],
        summed["written_bytes"],
        last["sync_now_bytes"],
        last["sync_later_bytes"],
        last["peak_rows"],
        size,
        least,
        most,
        halvings,
        summed["rows"],
        f"{summed['digest'] % (1 << 64):016x}",
        last["model"],
    )
