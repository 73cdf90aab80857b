"""The `holdfast` command. Each command is in its own file; heavy modules are imported when it runs."""

import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import holdfast
from holdfast.base.errors import HoldfastError, exit_code
from holdfast.base.plain import forgive, one_line
from holdfast.base.service import follow_parent
from holdfast.cli.common import usage
from holdfast.cli.common.interrupts import code_of
from holdfast.cli.serve import daemons

if TYPE_CHECKING:  # a daemon does not need it, which saves a third of its memory
    import typer

_VERBATIM = {"allow_interspersed_args": False}
# The trainer has options of its own, --help among them.
_OWN = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@dataclass(frozen=True)
class _Entry:
    """A command, or a group of commands, by where it is: it is imported only when it is to run."""

    panel: str
    place: str
    """The function of the command, or the app of the group, as MODULE:NAME under `holdfast.cli`."""
    example: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Any:
        module, _, name = self.place.partition(":")
        return getattr(import_module(f"holdfast.cli.{module}"), name)


def _normalize(word: str) -> str:
    from holdfast.cli.job import run

    return run.normalize(word)


def _version(wanted: bool) -> None:
    import typer

    if wanted:
        print(f"holdfast {holdfast.__version__}")
        raise typer.Exit


_ENTRIES = {
    "demo": _Entry(usage.TRY, "demo.demo:demo", "holdfast demo --fault kill@20:rank3"),
    "simulate": _Entry(usage.TRY, "study.simulate:simulate", "holdfast simulate --nodes 1536 --days 30 --compare"),
    "replay": _Entry(usage.TRY, "study.replay:replay", "holdfast replay controller.jsonl --through"),
    "schedules": _Entry(
        usage.TRY, "study.schedules:schedules", "holdfast schedules --pp 8 --micro-batches 16 --message 0.1"
    ),
    "memory": _Entry(
        usage.TRY,
        "study.memory:memory",
        "holdfast memory --model gpt-175b --pp 8 --tp 8 --set train.dtype=bfloat16 --limit 80GB",
        {"context_settings": {"ignore_unknown_options": True, "allow_extra_args": True}},
    ),
    "plan": _Entry(
        usage.TRY,
        "study.plan:plan",
        "holdfast plan --model gpt-175b --set train.dtype=bfloat16 --cluster cluster.toml -o best.toml",
        {"context_settings": {"ignore_unknown_options": True, "allow_extra_args": True}},
    ),
    "profile": _Entry(
        usage.TRY,
        "study.profile:profile",
        "holdfast profile --model gpt2 --tps 1,2,4 --ranks 8 -o profile.json",
        {"context_settings": {"ignore_unknown_options": True, "allow_extra_args": True}},
    ),
    "share": _Entry(usage.TRY, "study.share:share", "holdfast share jobs.toml --first 16"),
    "rows": _Entry(usage.TRY, "study.rows:rows", "holdfast rows C1"),
    "run": _Entry(
        usage.RUN,
        "job.run:run",
        "holdfast run --nnodes 2 --nproc-per-node 8 train.py --epochs 3",
        {"context_settings": _VERBATIM | {"token_normalize_func": _normalize}},
    ),
    "train": _Entry(
        usage.RUN,
        "job.train:train",
        "holdfast train --steps 100 --checkpoint-dir /data/checkpoints",
        {"context_settings": _OWN, "add_help_option": False},
    ),
    "train-embeddings": _Entry(
        usage.RUN,
        "job.train_embeddings:train_embeddings",
        "holdfast train-embeddings --data day_0.tsv --lookahead 20 --servers 2 --trainers 2",
    ),
    "checkpoint": _Entry(usage.RUN, "job.checkpoint:app"),
    "status": _Entry(usage.WATCH, "look.status:status", "holdfast status --watch"),
    "top": _Entry(usage.WATCH, "look.top:top", "holdfast top --nodes"),
    "jobs": _Entry(usage.WATCH, "look.jobs:jobs", "holdfast jobs --json"),
    "incidents": _Entry(usage.WATCH, "look.incidents:incidents", "holdfast incidents i3"),
    "nodes": _Entry(usage.WATCH, "look.nodes:nodes", "holdfast nodes --controller gpu0:7080"),
    "logs": _Entry(usage.WATCH, "look.logs:logs", "holdfast logs 3 --since 30m"),
    "blame": _Entry(usage.WATCH, "look.blame:blame", "holdfast blame --steps 100:200"),
    "timeline": _Entry(usage.WATCH, "look.timeline:timeline", "holdfast timeline --steps 100:110 -o trace.json"),
    "stacks": _Entry(usage.WATCH, "look.stacks:stacks", "holdfast stacks --job llm-70b"),
    "job": _Entry(usage.ACT, "job.job:app", "holdfast job --job llm-70b"),
    "ack": _Entry(usage.ACT, "job.ack:ack", "holdfast ack llm-70b"),
    "inject": _Entry(usage.ACT, "job.inject:inject", "holdfast inject kill@20:rank3"),
    "cordon": _Entry(usage.ACT, "node.cordon:cordon", "holdfast cordon node17"),
    "uncordon": _Entry(usage.ACT, "node.cordon:uncordon", "holdfast uncordon node17"),
    "evict": _Entry(usage.ACT, "node.evict:evict", "holdfast evict node17"),
    "diagnose": _Entry(usage.ACT, "node.diagnose:diagnose", "holdfast diagnose node17 node18 --suite full"),
    "controller": _Entry(
        usage.OPERATE, "serve.controller:controller", "holdfast controller --state-dir /var/lib/holdfast"
    ),
    "agent": _Entry(usage.OPERATE, "serve.agent:agent", "holdfast agent --controller gpu0:7070 --node-name node17"),
    "certs": _Entry(usage.OPERATE, "serve.certs:certs", "holdfast certs --dir certs --host gpu0 --node node17"),
    "dashboards": _Entry(usage.OPERATE, "serve.dashboards:app"),
    "notify": _Entry(usage.OPERATE, "node.notify:app"),
    "deploy": _Entry(usage.OPERATE, "serve.deploy:app"),
}


def build(names: Iterable[str] = tuple(_ENTRIES)) -> "typer.Typer":
    """The program with the commands of these names. Typer takes longer to make all than most of them take to run."""
    import typer

    app = typer.Typer(
        help=holdfast.__doc__,
        epilog=usage.exit_codes(),
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def root(
        version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    ) -> None:
        pass

    for name in names:
        entry = _ENTRIES[name]
        more = dict(entry.more, rich_help_panel=entry.panel)
        if entry.example:
            more["epilog"] = usage.example(entry.example)
        body = entry.load()
        if isinstance(body, typer.Typer):
            app.add_typer(body, name=name, **more)
        else:
            app.command(name, **more)(body)
    return app


def _needed(words: Sequence[str]) -> Iterable[str]:
    """Names of the commands that these words may lead to: all, unless they begin with one that leads to no other."""
    first = words[0] if words else ""
    if first == "--version":
        return ()
    return [first] if first in _ENTRIES else tuple(_ENTRIES)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 success, 1 failure, 2 bad input, 130 interrupted; `run` exits with the job's code."""
    follow_parent()
    forgive()
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on Ctrl-C is no traceback
        daemon = daemons.find(words)
        return _command(words) if daemon is None else daemon()
    except HoldfastError as error:
        return _fail(str(error), exit_code(error))
    except KeyboardInterrupt as error:
        return code_of(error)
    except BrokenPipeError:  # `holdfast nodes | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        what = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return _fail(f"{what}{error.strerror or error}", 1)


def _command(words: list[str]) -> int:
    import typer
    from typer.main import get_command

    try:
        code = usage.without_types(get_command(build(_needed(words))), words).main(
            words, "holdfast", standalone_mode=False
        )
        return code if isinstance(code, int) else 0
    except typer.Abort as error:
        return code_of(error.__cause__)
    except (HoldfastError, KeyboardInterrupt):
        raise
    except Exception as error:
        # Typer has changed the home of its usage errors over time; all of them can say what is wrong.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        command = f"holdfast {words[0]}" if words and words[0] in _ENTRIES else "holdfast"
        where = getattr(getattr(error, "ctx", None), "command_path", command)
        return _fail(f"{message()} See `{where} --help`.", getattr(error, "exit_code", 2))


def _fail(message: str, code: int) -> int:
    with suppress(OSError):  # the terminal is closed
        print("holdfast:", one_line(message), file=sys.stderr)
    return code


def quiet() -> None:
    """Let Ctrl-C end the process silently where no work is in progress."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def entry() -> NoReturn:
    """The `holdfast` program."""
    quiet()
    code = main()
    quiet()
    if "torch" in sys.modules:
        # Its threads may outlive the interpreter, and then abort a finished process.
        from holdfast.agent.forkserver.bootstrap import finish

        finish(code)
    sys.exit(code)


if __name__ == "__main__":
    entry()
