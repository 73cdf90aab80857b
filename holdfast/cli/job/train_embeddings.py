"""`holdfast train-embeddings`: a model of clicks whose tables lie on servers, with exact prefetch (Bagpipe)."""

import itertools
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.base.address import parse_address
from holdfast.base.errors import HoldfastError, Unavailable, UsageError
from holdfast.base.files import read_bytes
from holdfast.cli.common import interrupts, output
from holdfast.cli.common.extras import require
from holdfast.cli.common.options import Json

if TYPE_CHECKING:  # numpy is imported when the command runs
    from holdfast.trainer.embeddings.launch import Outcome
    from holdfast.trainer.embeddings.settings import Run

CHECKED_SAMPLES = 1000
"""Samples of the data that are read before any process starts."""
SHOWN_STEPS = 10
CACHE_ROWS = 1_000_000
MOST_LOOKAHEAD = 100_000
DEFAULT_NAME = "clicks"


def train_embeddings(
    data: Annotated[
        Path,
        typer.Option(metavar="PATH", help="A file, or a folder of files, in Criteo's schema: see docs/embeddings.md."),
    ],
    steps: Annotated[
        int, typer.Option(metavar="N", min=1, max=10**8, help="Steps in all, those before a restore among them.")
    ] = 100,
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, max=10**6, help="Samples of a step, over all trainers.")
    ] = 128,
    lookahead: Annotated[
        str,
        typer.Option(
            metavar="N|auto",
            help="Batches looked at, the one that is trained among them. More: fewer fetches, a larger cache; 1: no"
            " row outlives its batch; auto: as many as fit --cache-rows.",
        ),
    ] = "10",
    cache_rows: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=10**9,
            help="With --lookahead auto: the most rows in a trainer's cache, and on their way to it (default:"
            f" {CACHE_ROWS:,}).",
        ),
    ] = None,
    servers: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=64, help="Servers to start on this machine (default: 1).")
    ] = None,
    server: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="A server that runs already; repeat it for each. Needs --secret-file."),
    ] = None,
    secret_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The secret with which the servers of --server were started.")
    ] = None,
    tables: Annotated[
        str, typer.Option(metavar="URL", help="Redis that has the servers' rows, as redis://HOST:PORT/DB.")
    ] = "",
    tables_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --tables: the rows' name there, one for each run (default: clicks)."),
    ] = None,
    trainers: Annotated[int, typer.Option(metavar="N", min=1, max=64, help="Trainers to start on this machine.")] = 1,
    dim: Annotated[int, typer.Option(metavar="N", min=1, max=4096, help="Columns of a row.")] = 16,
    dtype: Annotated[str, typer.Option(metavar="float32|float64", help="Type of rows and parameters.")] = "float32",
    optimizer: Annotated[
        str, typer.Option(metavar="sgd|rowwise-adagrad", help="What updates the tables; all else has SGD.")
    ] = "sgd",
    lr: Annotated[float, typer.Option(metavar="X", min=0.0, max=1e6, help="Learning rate.")] = 0.1,
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**31, help="Rows and parameters begin from it.")] = 0,
    store: Annotated[
        str, typer.Option(metavar="URL", help="Where snapshots go, as file:///path; the newest one is gone on from.")
    ] = "",
    snapshot_every: Annotated[
        int, typer.Option(metavar="N", min=0, max=10**8, help="Steps between snapshots; 0: one after the last step.")
    ] = 0,
    keep: Annotated[int, typer.Option(metavar="N", min=1, max=10**6, help="Newest snapshots that stay.")] = 3,
    max_restarts: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=10**6,
            help="Restarts, of all processes from the newest snapshot, after one of them died.",
        ),
    ] = 3,
    as_json: Json = False,
) -> int:
    """Train a model of clicks whose embedding tables lie on servers; rows are prefetched and cached exactly.

    Prints the loss, what was fetched and written back, and whether the fetches are as many as the formula expects.
    Results equal those of training without a cache, also after a process died. Exit code 1 if the fetches differ, or
    processes die more often than --max-restarts.
    """
    require("trainer", "torch", "numpy")
    from holdfast.trainer.embeddings.launch import run_all
    from holdfast.trainer.embeddings.supervise import NothingLeft, supervised

    addresses, secret = _servers(servers, server or [], secret_file)
    if snapshot_every and not store:
        raise UsageError("--snapshot-every needs --store: where snapshots go, as file:///path")
    if trainers > batch:
        raise UsageError(f"--trainers {trainers} cannot share --batch {batch}: a batch needs a sample for each trainer")
    if tables_name is not None and not tables:
        raise UsageError("--tables-name goes with --tables: servers' own memory has no names")
    window, rows = _window(lookahead, cache_rows, batch)
    run = _run(
        data,
        steps,
        batch,
        window,
        rows,
        trainers,
        dim,
        dtype,
        seed,
        lr,
        optimizer,
        store,
        snapshot_every,
        keep,
        addresses,
    )
    if tables:
        run = replace(run, tables=tables, tables_name=DEFAULT_NAME if tables_name is None else tables_name)
        _claim(run)
    every = -(-steps // SHOWN_STEPS)

    def on_step(step: int, loss: float) -> None:
        if not as_json and (step % every == 0 or step == steps):
            print(f"step {step} loss {loss:.6f}", flush=True)

    def attempt(one: "Run") -> "Outcome":
        if one.tables:
            _claim(one)  # again: a Redis that was started anew knows nothing
        return run_all(one, 0 if addresses else servers or 1, secret, on_step)

    def body() -> int:
        with interrupts.allowed():
            outcome = supervised(
                run,
                attempt,
                max_restarts,
                lambda line: print("holdfast:", line, file=sys.stderr, flush=True),
            )
        if as_json:
            output.print_json({**asdict(outcome), "is_exact": outcome.is_exact})
        else:
            _print(outcome, run)
        return 0 if outcome.is_exact else 1

    try:
        return interrupts.guarded(body)
    except (UsageError, Unavailable, NothingLeft):  # nothing was trained yet, or all of it was
        raise
    except HoldfastError as error:
        advice = "the same command goes on from the newest snapshot" if store else "give --store URL to keep snapshots"
        raise HoldfastError(f"{error}; {advice}") from None


def _claim(run: "Run") -> None:
    from holdfast.trainer.embeddings.servers.redis_rows import claim

    claim(run.tables, run.tables_name, {**run.fixed, "store": run.store})


def _servers(count: int | None, addresses: list[str], secret_file: Path | None) -> tuple[list[str], bytes]:
    if not addresses:
        if secret_file is not None:
            raise UsageError("--secret-file goes with --server HOST:PORT: servers started here get their own")
        return [], b""
    for address in addresses:
        parse_address(address)
    if count is not None:
        raise UsageError("--servers N starts servers here, --server HOST:PORT names running ones: give one of the two")
    if len(set(addresses)) < len(addresses):
        raise UsageError("--server: an address is there twice; give each server once")
    if secret_file is None:
        raise UsageError("--server needs --secret-file FILE: the secret with which the servers were started")
    secret = read_bytes(secret_file, "a file with the secret").strip()
    if len(secret) < 16 or not secret.isascii():
        raise UsageError(f"{secret_file}: a secret has 16 bytes of ASCII or more")
    return addresses, secret


def _window(text: str, cache_rows: int | None, batch: int) -> tuple[int, int]:
    """Batches, and the most rows that a cache may hold; 0: what the other one allows."""
    from holdfast.trainer.embeddings.criteo import CATEGORIES

    if text != "auto":
        if not (text.isascii() and text.isdigit() and len(text) < 7 and 1 <= int(text) <= MOST_LOOKAHEAD):
            raise UsageError(f"--lookahead {text[:100]!r}: a whole number from 1 to {MOST_LOOKAHEAD:,}, or auto")
        if cache_rows is not None:
            raise UsageError("--cache-rows goes with --lookahead auto: with a number the cache grows as it needs")
        return int(text), 0
    least = 2 * batch * CATEGORIES
    if (cache_rows or CACHE_ROWS) < least:
        raise UsageError(
            f"--cache-rows {cache_rows or CACHE_ROWS:,}: two batches of {batch:,} samples may need"
            f" 2 x {batch:,} x {CATEGORIES} rows; give {least} or more, or a smaller --batch"
        )
    return 0, cache_rows or CACHE_ROWS


def _run(
    data: Path,
    steps: int,
    batch: int,
    lookahead: int,
    cache_rows: int,
    trainers: int,
    dim: int,
    dtype: str,
    seed: int,
    lr: float,
    optimizer: str,
    store: str,
    snapshot_every: int,
    keep: int,
    servers: list[str],
) -> "Run":
    """The run, from the newest snapshot if there is one. UsageError for what cannot be trained."""
    import secrets

    from holdfast.checkpoint.stores.opening import check_place
    from holdfast.trainer.embeddings.criteo import batches, files_of
    from holdfast.trainer.embeddings.servers import snapshots
    from holdfast.trainer.embeddings.servers.keys import DTYPES
    from holdfast.trainer.embeddings.servers.tables import OPTIMIZERS
    from holdfast.trainer.embeddings.settings import Run

    if optimizer not in OPTIMIZERS:
        raise UsageError(f"--optimizer {optimizer[:100]!r}: {' or '.join(OPTIMIZERS)}")
    if dtype not in DTYPES:
        raise UsageError(f"--dtype {dtype[:100]!r}: {' or '.join(DTYPES)}")
    if store:
        check_place(store)
    files = files_of(data)
    for _ in itertools.islice(batches(files, 1), CHECKED_SAMPLES):
        pass
    first = snapshots.newest(store) if store else 0
    run = Run(
        secrets.token_hex(8),
        [str(file.absolute()) for file in files],
        steps,
        batch,
        lookahead,
        trainers,
        dim,
        dtype,
        seed,
        lr,
        cache_rows,
        first,
        store,
        snapshot_every or (steps if store else 0),
        keep,
        servers,
        optimizer=optimizer,
    )
    if first:
        snapshots.check_settings(store, first, run.fixed)
    if first >= steps:
        raise UsageError(f"the snapshot in --store {store} has {first} steps already: give more than --steps {steps}")
    return run


def _print(outcome: "Outcome", run: "Run") -> None:
    table = output.table("", ">ROWS", ">BYTES")
    beside = f"formula {outcome.formula:,}: {'equal' if outcome.is_exact else 'DIFFERENT'}"
    table.add_row(f"fetched ({beside})", f"{outcome.fetches:,}", f"{outcome.fetched_bytes:,}")
    table.add_row("written back", f"{outcome.write_backs:,}", f"{outcome.written_bytes:,}")
    table.add_row("gradients given to other trainers before the next batch", "", f"{outcome.sync_now_bytes:,}")
    table.add_row("gradients given beside the next batch", "", f"{outcome.sync_later_bytes:,}")
    limit = f" (of {run.cache_rows:,})" if run.cache_rows else ""
    table.add_row(f"most in a trainer's cache{limit}", f"{outcome.peak_rows:,}", "")
    table.add_row("in the tables", f"{outcome.rows:,}", "")
    output.out().print(table)
    if not run.lookahead:
        print(
            f"look-ahead {outcome.lookahead_least} to {outcome.lookahead_most} batches, {outcome.lookahead} at the end,"
            f" halved {outcome.halvings} times"
        )
    if outcome.restarts:
        print(f"{outcome.restarts} restarts; figures are of the last attempt")
    span = f"steps {outcome.first} to {outcome.steps}"
    print(f"{span}, loss {outcome.loss:.6f}; tables {outcome.tables}, model {outcome.model}")
