"""`holdfast profile`: seconds of a model's layers and of this machine's links, kept in a file for the planner."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.base.errors import UsageError
from holdfast.base.settings import parse_whole
from holdfast.cli.common import output
from holdfast.cli.common.extras import needs, require
from holdfast.cli.common.options import Json
from holdfast.cli.common.progress import progress

_INSTEAD = ("--sample", "--export-hf", "--traffic")
_MOST_RANKS = 64
_MOST_REPEATS = 1000


def profile(
    context: typer.Context,
    output_file: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where the profile goes.")] = Path(
        "profile.json"
    ),
    tps: Annotated[
        str, typer.Option("--tps", metavar="LIST", help="Shares of a layer that are measured, as 1,2,4.")
    ] = "1,2",
    ranks: Annotated[
        int, typer.Option(metavar="N", help="Ranks on this machine among which links are measured; 0: none.")
    ] = 0,
    repeats: Annotated[
        int, typer.Option(metavar="N", help="Repetitions of each; the least counts. More hold off other load.")
    ] = 10,
    as_json: Json = False,
) -> int:
    """Measure a model's layers and this machine's links, and keep them for the planner.

    Takes the settings of `holdfast train` (--config FILE, --model NAME, --set) for the model, the micro-batch and the
    precision. On GPUs if there are any, else on one core; links with NCCL or gloo.
    """
    require("trainer,planner", "torch", "numpy")
    wanted = _numbers(tps)
    if not 0 <= ranks <= _MOST_RANKS or ranks == 1:
        raise UsageError(f"--ranks is {ranks}: must be 0, or from 2 to {_MOST_RANKS}")
    if not 1 <= repeats <= _MOST_REPEATS:
        raise UsageError(f"--repeats is {repeats}: must be from 1 to {_MOST_REPEATS}")
    _check_writable(output_file)
    if any(word.partition("=")[0] in _INSTEAD for word in context.args):
        raise UsageError("holdfast profile takes settings only: leave out --sample, --export-hf and --traffic")
    with needs("trainer,planner"):
        from holdfast.trainer.__main__ import parse_all
    config, instead = parse_all(context.args)
    assert instead is None
    if config.module.build:
        raise UsageError(f"module.build = {config.module.build}: the trainer's own model is measured, leave it out")
    document, seconds = _measure(config, wanted, ranks, repeats, output_file)
    if as_json:
        output.print_json(document)
    else:
        _print(document, output_file, seconds)
    return 0


def _measure(config: Any, tps: list[int], ranks: int, repeats: int, out: Path) -> tuple[dict[str, Any], float]:
    import torch

    from holdfast.planner.cost.measured import Profile, write
    from holdfast.trainer.determinism import fix_products
    from holdfast.trainer.mesh.mesh import only_deterministic
    from holdfast.trainer.profile import layers, links
    from holdfast.trainer.settings.layout import vocab_of
    from holdfast.trainer.settings.shape import shape_of

    layers.check(config, tps)
    fix_products()  # as in training: the kernels that are timed are those that it uses
    is_gpu = torch.cuda.device_count() > 0 and config.parallel.device != "cpu"
    if is_gpu and ranks > torch.cuda.device_count():
        raise UsageError(
            f"--ranks is {ranks}, this machine has {torch.cuda.device_count()} GPUs: take as many or fewer"
        )
    if is_gpu and config.train.deterministic:
        only_deterministic(os.environ)  # the kernels that the trainer will take
    torch.set_num_threads(1)
    began = time.monotonic()
    with progress("measuring links") as report:
        report(0, 2)
        found = links.measure_links(ranks, "nccl" if is_gpu else "gloo", repeats)
        report(1, 2)
        device = torch.device("cuda", 0) if is_gpu else torch.device("cpu")
        vocab = vocab_of(config.data.tokenizer)
        parts = layers.measure_parts(config, tps, vocab, device, repeats)
        update = layers.measure_update(device, repeats)
        report(2, 2)
    name = torch.cuda.get_device_name(device) if is_gpu else "cpu"
    shape = {k: v for k, v in asdict(shape_of(config.model, vocab, config.data.seq_len)).items() if k != "layers"}
    cores = 0 if is_gpu else len(os.sched_getaffinity(0))
    made = Profile(shape, config.train.dtype, config.train.micro_batch_size, name, parts, update, found, ranks, cores)
    try:
        out.write_text(write(made))
    except OSError as error:
        raise UsageError(f"--output is {out}, which cannot be written: {error.strerror}") from None
    return asdict(made), time.monotonic() - began


def _check_writable(path: Path) -> None:
    """UsageError now, instead of after minutes of measuring."""
    try:
        if path.is_dir():
            raise UsageError(f"--output is {str(path)[:200]!r}, a folder: name a file")
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".holdfast-"):
            pass
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"--output is {str(path)[:200]!r}: no file can be made there ({reason})") from None


def _print(document: dict[str, Any], out: Path, seconds: float) -> None:
    table = output.table("SHARE", "PART", ">FORWARD MS", ">BACKWARD MS")
    for share, each in document["parts"].items():
        for part, times in each.items():
            table.add_row(share, part, f"{times['forward'] * 1e3:.3f}", f"{times['backward'] * 1e3:.3f}")
    output.out().print(table)
    if document["links"]:
        table = output.table("COLLECTIVE", ">RANKS", ">LATENCY US", ">GB/S")
        for op, each in document["links"].items():
            for size, line in each.items():
                rate = f"{1e-9 / line['beta']:.2f}" if line["beta"] else "-"
                table.add_row(op, str(size), f"{line['alpha'] * 1e6:.0f}", rate)
        output.out().print(table)
    output.say(f"{document['device']}, {document['dtype']}: measured in {seconds:.0f} s, kept in {out}")


def _numbers(text: str) -> list[int]:
    found = {parse_whole(word.strip()) for word in text.split(",")}
    if not all(number and number <= 1024 for number in found):
        raise UsageError(f"--tps is {text[:60]!r}: write numbers from 1 to 1024, as 1,2,4")
    return sorted(number for number in found if number)
