"""torchrun's options: which work, which are not needed, and which are refused, each with its reason. A test holds the
table to torchrun's own parser."""

import signal
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from holdfast.base.errors import UsageError
from holdfast.base.settings import parse_whole
from holdfast.cli.job.console import Choice
from holdfast.cli.job.torchrun import check_text
from holdfast.wire import std_streams
from holdfast.wire.std_streams import StdStreams


class Kind(StrEnum):
    WORKS = "works"
    NOT_NEEDED = "not needed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Option:
    kind: Kind
    text: str
    harmless: tuple[str, ...] = ()
    """Values of a refused option that ask for nothing."""


_W, _N, _R = Kind.WORKS, Kind.NOT_NEEDED, Kind.REFUSED
_RENDEZVOUS = "the controller places the ranks, and an agent hosts the rendezvous; accepted and ignored"
TABLE: dict[str, Option] = {
    "--nnodes": Option(_W, "nodes of the job, `N` or `MIN:MAX`; with a range the job goes on with fewer nodes"),
    "--nproc-per-node": Option(_W, "a number, `auto`, `gpu` or `cpu`; `auto` is a worker for each slot of the agents"),
    "--rdzv-backend": Option(_N, _RENDEZVOUS),
    "--rdzv-endpoint": Option(_N, _RENDEZVOUS),
    "--rdzv-id": Option(_N, "the job's id takes its place, also in `TORCHELASTIC_RUN_ID`; `--name` names a job"),
    "--rdzv-conf": Option(_N, _RENDEZVOUS),
    "--standalone": Option(_N, "without a controller `run` starts one on this host"),
    "--max-restarts": Option(
        _W, "the default differs: without it Holdfast restarts while the job advances; exit code 2 is final"
    ),
    "--monitor-interval": Option(_N, "the kernel reports a worker's exit at once"),
    "--start-method": Option(_N, "workers are forked from the fork server; `--fresh` starts new interpreters"),
    "--event-log-handler": Option(
        _R, "events are the controller's: `/api/v1/events`, `/metrics`, incidents", ("null",)
    ),
    "--role": Option(_W, "`ROLE_NAME` of the workers"),
    "--module": Option(_W, "as with `python -m`"),
    "--no-python": Option(_W, "executes the program itself; its steps are not observed, its end and its output are"),
    "--run-path": Option(_W, "every script is run in the worker's interpreter, as with `runpy.run_path`"),
    "--log-dir": Option(
        _W, "folder on the nodes; `--redirects` and `--tee` write `JOB_GROUP/attempt_N/LOCAL_RANK/stdout.log` there"
    ),
    "--redirects": Option(_W, "streams that go to files and not to the console; the live log of the page has them too"),
    "--tee": Option(_W, "streams that go to files and to the console"),
    "--local-ranks-filter": Option(_W, "local ranks that the console shows; files and the page have all"),
    "--duplicate-stdout-filters": Option(
        _W, "lines of `--tee` with one of these texts, in `JOB/attempt_N/filtered_stdout.log` below `--log-dir` here"
    ),
    "--duplicate-stderr-filters": Option(_W, "the same of standard error, in `filtered_stderr.log`"),
    "--node-rank": Option(
        _R, "the command is given once, not on each node: it starts the workers of all nodes", ("0",)
    ),
    "--master-addr": Option(_N, _RENDEZVOUS),
    "--master-port": Option(_N, _RENDEZVOUS),
    "--local-addr": Option(_N, "an agent's `--address` says where its node is reached"),
    "--logs-specs": Option(
        _R, "agents write and follow the workers' output; see `--log-dir`, `--redirects`, `--tee`", ("default",)
    ),
    "--numa-binding": Option(
        _R, "agents do not bind workers; bind in the script, or with `--no-python numactl --cpunodebind=N python ...`"
    ),
    "--signals-to-handle": Option(_W, "signals to the command that stop the job; default SIGTERM, SIGINT, SIGHUP"),
    "--shutdown-timeout": Option(_W, "seconds from SIGTERM to SIGKILL when the command stops the job; default 10"),
    "--virtual-local-rank": Option(_W, "`LOCAL_RANK` is 0, and `CUDA_VISIBLE_DEVICES` has the worker's GPU only"),
}
"""torchrun's options by their long name, in the order of its help."""


def check(given: Mapping[str, str]) -> list[str]:
    """Options that were given and are not needed. UsageError with the reason for one that is refused. `given`: values
    by option, empty where it was not given."""
    for name, value in given.items():
        option = TABLE[name]
        if value and option.kind is Kind.REFUSED and value not in option.harmless:
            raise UsageError(f"{name} {value}: {option.text.replace('`', '')}")
    return [name for name, value in given.items() if value and TABLE[name].kind is Kind.NOT_NEEDED]


@dataclass(frozen=True, slots=True)
class Files:
    """`--log-dir`, `--redirects` and `--tee`. False where no stream goes to a file."""

    log_dir: str
    redirects: StdStreams
    tee: StdStreams

    def __bool__(self) -> bool:
        return bool(self.redirects) or bool(self.tee)

    def streams(self, nproc: int) -> StdStreams:
        return self.redirects.joined(self.tee, nproc)

    def folder(self, cwd: Path) -> str:
        """An absolute one; a new name below the temporary folder where none was given, as with torchrun."""
        name = self.log_dir or Path(tempfile.gettempdir()) / f"holdfast-logs-{uuid.uuid4().hex[:8]}"
        return str(cwd / name)


def parse_files(log_dir: str, redirects: str, tee: str) -> Files:
    check_text(log_dir, "--log-dir")
    return Files(log_dir, parse_streams("--redirects", redirects), parse_streams("--tee", tee))


def parse_streams(name: str, text: str) -> StdStreams:
    try:
        return std_streams.parse(text or "0")
    except ValueError as error:
        raise UsageError(f"{name} {error}") from None


def parse_ranks(text: str) -> frozenset[int]:
    """Local ranks, separated by commas."""
    ranks = [parse_whole(one) for one in text.split(",")] if text else []
    if None in ranks:
        raise UsageError(f"--local-ranks-filter must be local ranks such as 0,1,2, not {text!r}")
    return frozenset(rank for rank in ranks if rank is not None)


def parse_filters(text: str) -> list[str]:
    """Texts separated by commas; a double comma stands for one.

    >>> parse_filters("loss,a,,b")
    ['loss', 'a,b']
    """
    return [one.replace("\0", ",") for one in text.replace(",,", "\0").split(",") if one]


def parse_signals(text: str) -> tuple[signal.Signals, ...]:
    """The signals that stop the job; empty for the usual ones."""
    found = []
    for name in filter(None, (one.strip() for one in text.split(","))):
        number = signal.Signals.__members__.get(name)
        if number is None or number in (signal.SIGKILL, signal.SIGSTOP):
            raise UsageError(f"--signals-to-handle: {name} is no signal that a process can handle")
        found.append(number)
    return tuple(found)


def parse_shutdown(text: str) -> float:
    """Seconds from SIGTERM to SIGKILL."""
    seconds = parse_whole(text) if text else 10
    if seconds is None or seconds > 3600:
        raise UsageError(f"--shutdown-timeout must be whole seconds up to 3600, not {text!r}")
    return float(seconds)


def choice(nproc: int, files: Files, ranks: frozenset[int], filters: Mapping[str, Sequence[str]]) -> Choice:
    """UsageError for what would have no effect: a rank that no node has, a filter of a stream that is not in --tee."""
    if ranks and max(ranks) >= nproc:
        raise UsageError(f"--local-ranks-filter: local ranks are 0 to {nproc - 1}, not {max(ranks)}")
    for name, number in (("out", std_streams.OUT), ("err", std_streams.ERR)):
        if filters.get(name) and not any(files.tee.has(rank, number) for rank in range(nproc)):
            raise UsageError(f"--duplicate-std{name}-filters: std{name} is not in --tee, so no line would be written")
    hidden = StdStreams(of={rank: files.redirects.at(rank) & ~files.tee.at(rank) for rank in range(nproc)})
    return Choice(nproc, hidden, files.tee, ranks, filters)
