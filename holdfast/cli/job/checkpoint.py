"""`holdfast checkpoint`: list, verify, convert and remove the checkpoints of a store."""

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.base.errors import HoldfastError, UsageError
from holdfast.cli.common import output
from holdfast.cli.common.extras import require
from holdfast.cli.common.options import Json
from holdfast.cli.common.progress import progress
from holdfast.cli.common.usage import example
from holdfast.cli.job.checkpoint_now import now

app = typer.Typer(help="List, verify, convert and remove the checkpoints of a store.", no_args_is_help=True)
app.command("now", epilog=example("holdfast checkpoint now --wait 120"))(now)

Url = Annotated[
    str, typer.Argument(metavar="URL", help="A store: file:///data/checkpoints, hdfs://host:port/folder, webhdfs://…")
]
Step = Annotated[int | None, typer.Option("--step", metavar="N", min=0, help="Only this step (default: the newest).")]
OneStep = Annotated[int, typer.Option("--step", metavar="N", min=0, help="The step.")]


_PATIENCE_S = 2.0


class Format(StrEnum):
    """Formats of `checkpoint export`."""

    hf = "hf"
    dcp = "dcp"


@app.command("list", epilog=example("holdfast checkpoint list file:///data/checkpoints"))
def list_(url: Url, as_json: Json = False) -> int:
    """List the committed checkpoints, newest first."""
    from holdfast.checkpoint.restore.inspect import list_checkpoints

    with _store(url, quick=True):
        found = list_checkpoints(url, _passed_over)
    if as_json:
        output.print_json([asdict(one) for one in found])
        return 0
    table = output.table(">STEP", "JOB", ">GENERATION", "CREATED", ">SIZE", ">PARTS", "MESH", "FOLDER", "")
    for one in found:
        table.add_row(
            str(one.step),
            output.text(one.job),
            str(one.generation),
            output.clock(one.created),
            output.size(one.num_bytes),
            str(one.num_parts),
            output.text(_mesh(one.mesh)),
            output.text(one.folder),
            "protected" if one.protected else "",
        )
    output.out().print(table if found else f"no checkpoints in {output.text(url)}")
    return 0


@app.command(epilog=example("holdfast checkpoint show file:///data/checkpoints --step 100"))
def show(url: Url, step: Step = None, as_json: Json = False) -> int:
    """Show the content of a checkpoint: its tensors, settings and other state."""
    from holdfast.checkpoint.restore.inspect import find
    from holdfast.checkpoint.stores.opening import open_store

    with _store(url, quick=True):
        slot, manifest = find(open_store(url), step, _passed_over)
    parts = {part.file: part.bytes for part in manifest.parts}
    shards: dict[str, int] = {}
    for entry in (entry for part in manifest.parts for entry in part.entries):
        shards[entry.tensor] = shards.get(entry.tensor, 0) + 1
    if as_json:
        tensors = {
            name: {"dtype": t.dtype, "shape": list(t.shape), "bytes": t.num_bytes, "shards": shards.get(name, 0)}
            for name, t in manifest.tensors.items()
        }
        head = {key: getattr(manifest, key) for key in ("step", "term", "generation", "job", "attempt", "created")}
        more = {"mesh": manifest.mesh, "state": manifest.state, "values": manifest.values, "parts": parts}
        output.print_json({**head, "folder": slot.folder, **more, "tensors": tensors})
        return 0
    out = output.out()
    out.print(f"step {manifest.step}, {output.text(slot.folder)}, written {output.clock(manifest.created)}")
    mesh = output.text(_mesh(manifest.mesh))
    out.print(f"job {output.text(manifest.job)}, generation {manifest.generation}, mesh {mesh}")
    out.print(f"{len(parts)} parts, {output.size(manifest.num_bytes)}")
    for title, values in (("settings", manifest.state), ("other state", manifest.values)):
        out.print(f"{title}: " + output.text(", ".join(f"{key} = {value}" for key, value in values.items())))
    table = output.table("TENSOR", "TYPE", "SHAPE", ">SIZE", ">SHARDS")
    for name, tensor in manifest.tensors.items():
        shape = "x".join(map(str, tensor.shape)) or "-"
        table.add_row(
            output.text(name), output.text(tensor.dtype), shape, output.size(tensor.num_bytes), str(shards.get(name, 0))
        )
    out.print(table)
    return 0


@app.command(epilog=example("holdfast checkpoint verify file:///data/checkpoints"))
def verify(url: Url, step: Step = None, as_json: Json = False) -> int:
    """Read every byte of a checkpoint; exit code 1 if a part or a manifest is damaged."""
    from holdfast.checkpoint.restore import inspect

    damaged: list[str] = []
    with _store(url):
        if step is None:
            found = inspect.list_checkpoints(url, damaged.append)
            if not found:
                raise HoldfastError(damaged[0] if damaged else f"no checkpoints in {url}")
            step = found[0].step
        with progress("reading") as report:
            problems = inspect.verify(url, step, report)
    problems = [*(line for line in damaged if line not in problems), *problems]
    if as_json:
        output.print_json({"step": step, "problems": problems})
    else:
        for problem in problems:
            output.say(problem)
        output.say(f"step {step}: {f'{len(problems)} problems' if problems else 'whole'}")
    return 1 if problems else 0


@app.command(epilog=example("holdfast checkpoint prune file:///data/checkpoints --keep 3 --dry-run"))
def prune(
    url: Url,
    keep: Annotated[int, typer.Option("--keep", metavar="N", min=1, help="Newest checkpoints to keep.")],
    keep_every: Annotated[
        int,
        typer.Option(
            "--keep-every", metavar="K", min=0, help="Also keep checkpoints after a multiple of K steps (0: none)."
        ),
    ] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
    as_json: Json = False,
) -> int:
    """Remove old checkpoints. The newest and the protected ones are kept."""
    from holdfast.checkpoint.commit.retention import Retention, discard, is_protected
    from holdfast.checkpoint.stores.folder import committed
    from holdfast.checkpoint.stores.opening import open_store

    with _store(url):
        store = open_store(url)
        gone = Retention(keep, keep_every).expired(
            (slot, is_protected(store, slot)) for slot, _ in committed(store, _passed_over)
        )
        with progress("removing") as report:
            for count, slot in enumerate([] if dry_run else gone, 1):
                discard(store, slot)
                report(count, len(gone))
    if as_json:
        output.print_json({"removed": [slot.folder for slot in gone], "dry_run": dry_run})
        return 0
    for slot in gone:
        output.say(f"{'would remove' if dry_run else 'removed'} {slot.folder}")
    if not gone:
        output.say("nothing to remove")
    return 0


@app.command(epilog=example("holdfast checkpoint protect file:///data/checkpoints --step 100"))
def protect(
    url: Url,
    step: OneStep,
    off: Annotated[bool, typer.Option("--off", help="Remove the protection.")] = False,
    as_json: Json = False,
) -> int:
    """Protect the checkpoints of a step from retention."""
    from holdfast.checkpoint.commit import retention
    from holdfast.checkpoint.restore.inspect import find
    from holdfast.checkpoint.stores.opening import open_store

    with _store(url):
        store = open_store(url)
        slot, _ = find(store, step, _passed_over)
        retention.protect(store, slot, not off)
    if as_json:
        output.print_json({"step": step, "folder": slot.folder, "protected": not off})
    else:
        output.say(f"{slot.folder} is {'no longer ' if off else ''}protected")
    return 0


@app.command(epilog=example("holdfast checkpoint export file:///data/checkpoints llama --to hf"))
def export(
    url: Url,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    to: Annotated[
        Format,
        typer.Option("--to", metavar="hf|dcp", help="hf: for Hugging Face's transformers; dcp: for torch's loader."),
    ],
    step: Step = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Settings of the run, as for holdfast train: of an imported checkpoint, or of a bpe tokenizer.",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Write a checkpoint in another format; every byte is checked."""
    from holdfast.checkpoint.restore.inspect import check_store, find
    from holdfast.checkpoint.stores.opening import open_store

    with _clear(str(folder)):
        _check_new(folder)
    if config is not None and to is not Format.hf:
        raise UsageError("--config goes with --to hf: DCP needs no settings")
    require("trainer", "torch")
    given = _settings(config)
    with _store(url):
        store = open_store(url)
        check_store(store)
        slot, manifest = find(store, step, _passed_over)
        if to is Format.hf:
            _export_hf(folder, store, slot, manifest, given)
        else:
            _export_dcp(folder, store, slot, manifest)
    if as_json:
        output.print_json({"step": manifest.step, "folder": str(folder), "format": str(to)})
    else:
        output.say(f"step {manifest.step} is in {folder}")
    return 0


@app.command("import", epilog=example("holdfast checkpoint import dcp file:///data/checkpoints --step 100"))
def import_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A checkpoint of torch.distributed.checkpoint.")],
    url: Url,
    step: OneStep,
    as_json: Json = False,
) -> int:
    """Import a checkpoint of torch.distributed.checkpoint into a store, as the checkpoint of a step."""
    from holdfast.checkpoint.stores.opening import open_store

    require("trainer", "torch")
    with _store(url, may_lack=True):
        pass  # checked before anything is read
    with _clear(str(folder)):
        if not (folder / ".metadata").is_file():  # reported before the import of torch, which takes seconds
            raise UsageError(f"{folder} is no DCP checkpoint: there is no .metadata")
    from holdfast.checkpoint.errors import CheckpointError
    from holdfast.checkpoint.tools import dcp
    from holdfast.checkpoint.tools.convert import write_whole

    with _clear(str(folder)):
        try:
            tensors, left_out = dcp.tensors_of(folder), dcp.objects_of(folder)
            state, values = dcp.notes_of(folder)
        except CheckpointError as error:
            raise UsageError(f"{error}; name another folder") from error
        total, done = sum(tensor.num_bytes for tensor in tensors.values()), 0
        with progress("reading") as report:

            def read(name: str) -> None:
                nonlocal done
                done += tensors[name].num_bytes
                report(done, total)

            whole = dcp.read(folder, tensors, read)
    if left_out:
        output.note(f"left out what is no tensor: {', '.join(left_out[:5])}{' ...' if len(left_out) > 5 else ''}")
    with _store(url, may_lack=True), progress("writing") as report:
        saved = write_whole(open_store(url), step, whole, state, values, report)
    if as_json:
        output.print_json({"step": step, "tensors": len(tensors), "bytes": saved.num_bytes, "left_out": left_out})
    else:
        output.say(f"step {step}: {len(tensors)} tensors, {output.size(saved.num_bytes)}, in {url}")
    return 0


def _check_new(folder: Path) -> None:
    """UsageError unless it is an empty folder, or one can be made."""
    above = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise UsageError(f"{folder}: {above} is no folder that can be written: name another one")
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty: name a new folder")


def _settings(path: Path | None) -> Any:
    if path is None:
        return None
    from holdfast.trainer.settings.load import load

    return load(path)


def _export_hf(folder: Path, store: Any, slot: Any, manifest: Any, given: Any) -> None:
    from holdfast.trainer.settings.config import DataConfig
    from holdfast.trainer.settings.layout import vocab_of
    from holdfast.trainer.weights.architectures import architecture_of
    from holdfast.trainer.weights.hugging_face import export as write
    from holdfast.trainer.weights.weights import settings, tokenizer_of, trained

    architecture_of(settings(slot, manifest, given)[0])  # refused before gigabytes are read
    with progress("reading") as report:
        found = trained(store, slot, manifest, report, given)
    tokenizer = tokenizer_of(found, DataConfig() if given is None else given.data)
    if tokenizer is None:
        output.note(f"no tokenizer files: for those of {found.tokenizer}, name the settings of its run (--config FILE)")
    with _clear(str(folder)), progress("writing"):
        write(folder, found.model, vocab_of(found.tokenizer), found.seq_len, found.weights, tokenizer)


def _export_dcp(folder: Path, store: Any, slot: Any, manifest: Any) -> None:
    from holdfast.checkpoint.restore.restore import load_whole
    from holdfast.checkpoint.tools import dcp

    with progress("reading") as report:
        whole = load_whole(store, slot, manifest, manifest.tensors, report, output.note)
    with _clear(str(folder)), progress("writing"):
        dcp.write(folder, whole, manifest.state, manifest.values)


def _passed_over(line: str) -> None:
    output.note(f"checkpoint passed over: {line}")


def _mesh(mesh: Any) -> str:
    return " ".join(f"{axis} {n}" for axis, n in mesh.items())


@contextlib.contextmanager
def _store(url: str, quick: bool = False, may_lack: bool = False) -> Iterator[None]:
    """Wraps requests to a store: it must be reachable and there, and its errors are one line. `quick`: requests are
    short. `may_lack`: its folder is made."""
    from holdfast.checkpoint.stores.reach import check_there, reach

    with _clear(url), contextlib.ExitStack() as waiting:
        waiting.enter_context(_patience(url))
        reach(url)
        if not may_lack:
            check_there(url)
        if not quick:
            waiting.close()
        yield


@contextlib.contextmanager
def _patience(url: str) -> Iterator[None]:
    """Report a slow store on standard error; a dead store is an error after some seconds."""
    timer = threading.Timer(_PATIENCE_S, output.note, [f"waiting for an answer from {url}"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _clear:
    """Errors of a store as one line."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise HoldfastError(f"{self.url}: {error.strerror or error}") from error
        if isinstance(error, ValueError):
            raise UsageError(f"{self.url}: {error}") from error
