"""`python -m holdfast.trainer`: train under `holdfast run`, under torchrun, or alone."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.errors import HoldfastError, UsageError
from holdfast.base.plain import one_line, plain
from holdfast.base.service import gc_paused
from holdfast.trainer.determinism import fix_products
from holdfast.trainer.run.preflight import check_job
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.launch import Launch, from_environment
from holdfast.trainer.settings.layout import plan, vocab_of, world_of
from holdfast.trainer.settings.load import load, parse_override
from holdfast.trainer.settings.models import MODELS, settings_of
from holdfast.trainer.settings.own_module import is_named_by
from holdfast.trainer.settings.written import toml

# Flags that stand for one setting each.
_FLAGS: dict[str, tuple[str, type, str]] = {
    "--steps": ("train.steps", int, "steps in all, counted from the very first"),
    "--seed": ("train.seed", int, "initial weights, data order and dropout follow from it"),
    "--pp": ("parallel.pp", int, "pipeline stages"),
    "--dp": ("parallel.dp", int, "replicas; default: world size / (pp x tp)"),
    "--tp": ("parallel.tp", int, "ranks that share every layer"),
    "--zero": ("parallel.zero", int, "ZeRO stage, 0 to 3: what replicas share of the model's state"),
    "--schedule": ("parallel.schedule", str, "order of the pipeline's computations: see holdfast schedules"),
    "--optimizer": ("optim.name", str, "how parameters change: adamw, lamb, sgd or dp-kfac"),
    "--rendezvous": ("parallel.rendezvous", str, "where ranks meet: env, or redis://HOST:PORT/DB"),
    "--data": ("data.path", str, "folder of text; default: Python's own library"),
    "--store": ("checkpoint.store", str, "where checkpoints go, as file:///path"),
    "--checkpoint-every": ("checkpoint.every", int, "steps between checkpoints; 0: only at the end"),
}


NOT_STORED = 74
"""Exit code when all steps are done and the last checkpoint is not in the store: EX_IOERR of sysexits.h."""
_EXIT_CODES = (
    "exit codes: 0 all steps are done; 1 training failed; 2 the input was wrong; 74 all steps are done, but the last "
    "checkpoint could not be stored; 143 ended by SIGTERM, after a checkpoint"
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ConfigError(f"{message}, on the command line; see --help")


@dataclass(frozen=True, slots=True)
class Instead:
    """What to do instead of training, mostly with the newest checkpoint."""

    sample: str | None
    """Print text that follows on this."""
    tokens: int
    temperature: float
    export_hf: Path | None
    """Write its weights and tokenizer here for Hugging Face's transformers."""
    traffic: bool = False
    """Say what a step would send. Needs no checkpoint."""


def parse(argv: Sequence[str]) -> Config:
    """The settings that the command line and its file describe. Raises ConfigError."""
    return parse_all(argv)[0]


def parse_all(argv: Sequence[str]) -> tuple[Config, Instead | None]:
    """As `parse`, and what is wanted instead of training."""
    options = vars(build_parser().parse_args(argv))
    flags = [(key, options[key]) for key, _, _ in _FLAGS.values() if options[key] is not None]
    theirs = [] if options["import_hf"] is None else _imported(options["import_hf"])
    shape = [] if options["model"] is None else _named(options["model"])
    config = load(options["config"], [*shape, *options["set"], *flags, *theirs])
    if config.module.build and (options["sample"] is not None or options["export_hf"]):
        raise ConfigError(
            f"module.build = {config.module.build} with --sample, --export-hf: they are for the transformer"
        )
    if options["traffic"]:
        return config, Instead(None, 0, 0.0, None, traffic=True)
    if options["sample"] is None and options["export_hf"] is None:
        return config, None
    if not config.checkpoint.store:
        raise ConfigError("--sample and --export-hf need --store: where the checkpoint lies, as file:///path")
    if options["tokens"] < 0 or not 0 <= options["temperature"] < math.inf:
        raise ConfigError("--tokens and --temperature must be 0 or more, and finite")
    return config, Instead(options["sample"], options["tokens"], options["temperature"], options["export_hf"])


def arguments(settings: Iterable[tuple[str, Any]]) -> list[str]:
    """Arguments that set ("section.key", value), whatever was given before them: flags outrank --set, so what has a
    flag is given by it."""
    flags = {key: flag for flag, (key, _, _) in _FLAGS.items()}
    found: list[str] = []
    for key, value in settings:
        found += [flags[key], str(value)] if key in flags else ["--set", f"{key}={toml(value)}"]
    return found


def build_parser() -> argparse.ArgumentParser:
    """All options of `holdfast train`."""
    parser = _Parser(prog="holdfast train", description=__doc__, epilog=_EXIT_CODES, allow_abbrev=False)
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings as TOML")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=parse_override,
        metavar="SECTION.KEY=VALUE",
        help="override one setting; may be repeated",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="the shape of a published model: " + ", ".join(MODELS) + "; or MODULE:FUNCTION that makes one of your own",
    )
    for flag, (key, kind, text) in _FLAGS.items():
        parser.add_argument(flag, type=kind, dest=key, metavar=kind.__name__.upper(), help=text)
    parser.add_argument(
        "--sample", metavar="TEXT", help="print a continuation of TEXT by the newest checkpoint in --store"
    )
    parser.add_argument("--tokens", type=int, default=200, metavar="N", help="tokens to print (default: 200)")
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        metavar="T",
        help="sampling temperature; 0: always the likeliest token",
    )
    parser.add_argument("--export-hf", type=Path, metavar="DIR", help="write the newest checkpoint for transformers")
    parser.add_argument("--import-hf", type=Path, metavar="DIR", help="continue from a HF Llama: its shape and weights")
    parser.add_argument("--traffic", action="store_true", help="print the bytes that a step sends, instead of training")
    return parser


def _named(model: str) -> list[tuple[str, Any]]:
    """Settings of a --model."""
    return [("module.build", model)] if is_named_by(model) else settings_of(model)


def _imported(folder: Path) -> list[tuple[str, Any]]:
    from holdfast.trainer.weights import hugging_face

    found, _ = hugging_face.settings_of(folder)
    return [*((f"model.{key}", value) for key, value in found.items()), ("train.start_from", str(folder))]


def _print_traffic(config: Config) -> None:
    from dataclasses import asdict

    import torch

    from holdfast.trainer.modules.stage import look_at, sizes_of
    from holdfast.trainer.optim.traffic import traffic
    from holdfast.trainer.pipeline.pipeline import build_plan

    launch = from_environment(os.environ)
    world = launch.world if launch.is_distributed else world_of(config.parallel)
    vocab = vocab_of(config.data.tokenizer)
    layout = plan(config, world, vocab)
    own = sizes_of(look_at(config, layout.stages)) if config.module.build else None
    of_a_step = traffic(config, layout, build_plan(config, layout, torch.device("cpu")), vocab, own)
    if launch.rank == 0:
        print(f"{layout.text}: bytes of a step, over all ranks")
        for cause, size in (*asdict(of_a_step).items(), ("total", of_a_step.total)):
            print(f"{cause:>9} {size:>16,}")


def _do_instead(config: Config, wanted: Instead) -> None:
    if wanted.traffic:
        _print_traffic(config)
        return
    from holdfast.trainer.weights.hugging_face import export
    from holdfast.trainer.weights.sample import sample
    from holdfast.trainer.weights.weights import newest, tokenizer_of

    def note(line: str) -> None:
        print(f"holdfast train: {one_line(line)}", file=sys.stderr)

    trained = newest(config.checkpoint.store, note)
    if wanted.export_hf is not None:
        tokenizer = tokenizer_of(trained, config.data)
        if tokenizer is None:
            note(f"no tokenizer files: for those of {trained.tokenizer}, give the settings and the text of its run")
        vocab = vocab_of(trained.tokenizer)
        try:
            export(wanted.export_hf, trained.model, vocab, trained.seq_len, trained.weights, tokenizer)
        except OSError as error:
            raise ConfigError(f"--export-hf {wanted.export_hf}: {error.strerror}; name a folder to write") from None
        print(f"step {trained.step} is in {plain(wanted.export_hf)}", flush=True)
    if wanted.sample is not None:
        print(wanted.sample + sample(config, trained, wanted.sample, wanted.tokens, wanted.temperature), flush=True)


def main(argv: list[str] | None = None) -> int:
    """Train; 0 when all steps are done, 1 when training failed, 2 when the input was wrong, NOT_STORED."""
    fix_products()  # in a forked process, too: its environment is the job's, and its fork server may not have computed
    try:
        config, instead = parse_all(sys.argv[1:] if argv is None else argv)
        if instead is not None:
            _do_instead(config, instead)
            return 0
        launch = from_environment(os.environ)
        check_job(config, launch.world)
        # Only now: a wrong setting should be reported at once, and torch takes seconds to import.
        with gc_paused():
            from holdfast.trainer.run.loop import run

        if launch.rank == 0 and not config.checkpoint.store and os.environ.get("HOLDFAST_PROBE"):
            _warn("no checkpoint store is set (--store): after a fault the job begins again at step 0")
        outcome = run(config, launch)
    except UsageError as error:
        return _fail_together(error, 2)
    except HoldfastError as error:
        return _fail_together(error, 1)
    except RuntimeError as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported here
            return _out_of_memory(config, launch, error)
        reason = _lost_peer(error)
        if reason is None:
            raise
        return _fail(f"rank {os.environ.get('RANK', 0)} lost a peer: {reason}", 1)
    if outcome.is_stored:
        return 0
    text = f"all {config.train.steps} steps are done, but {config.checkpoint.store} does not have the last checkpoint"
    return _fail_together(HoldfastError(text), NOT_STORED)


def _out_of_memory(config: Config, launch: Launch, error: RuntimeError) -> int:
    """The table of what each rank needs, and last the line that a finding quotes."""
    error.__traceback__ = None  # its frames hold the tensors of the run
    from holdfast.trainer.memory.exhausted import explain

    lines, reason = explain(config, launch, error)
    print(*lines, sep="\n", file=sys.stderr)
    return _fail(reason, 1)


def _lost_peer(error: BaseException | None) -> str | None:
    """What was said when another rank or the rendezvous went away, None for any other error.

    The pipeline wraps such errors in its own, hence the walk through the causes.
    """
    signs = ("Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Broken pipe")
    kinds = ("DistNetworkError", "DistStoreError")
    while error is not None:
        text = str(error)
        if any(sign in text for sign in signs) or type(error).__name__ in kinds:
            return text.strip().partition("\n")[0]
        error = error.__cause__
    return None


def _fail_together(error: HoldfastError, code: int) -> int:
    """Every rank fails alike: one on each node says so, the others only end."""
    if os.environ.get("LOCAL_RANK", "0") == "0" or getattr(error, "is_local", False):
        return _fail(str(error), code)
    return code


def _warn(text: str) -> None:
    print(f"\x1b[31mholdfast train: {text}\x1b[0m", file=sys.stderr, flush=True)


def _fail(text: str, code: int) -> int:
    print(f"holdfast train: {one_line(text)}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    ended = main()
    if os.environ.get("HOLDFAST_PROBE"):  # the agent's bootstrap ends this process
        sys.exit(ended)
    # torch's threads may outlive the interpreter, and then abort a process whose work is done: -6 in place of its code.
    from holdfast.agent.forkserver.bootstrap import finish

    finish(ended)
