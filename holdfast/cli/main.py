"""The `holdfast` command. Each command is in its own file; heavy modules are imported when it runs."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
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

Command = Callable[..., int]

_VERBATIM = {"allow_interspersed_args": False}


def _version(wanted: bool) -> None:
    import typer

    if wanted:
        print(f"holdfast {holdfast.__version__}")
        raise typer.Exit


def build() -> "typer.Typer":
    import typer

    from holdfast.cli.demo import demo
    from holdfast.cli.job import ack, checkpoint, inject, job, run
    from holdfast.cli.job import train as train_command
    from holdfast.cli.look import blame, incidents, jobs, logs, nodes, stacks, status, timeline, top
    from holdfast.cli.node import cordon, diagnose, evict, notify
    from holdfast.cli.serve import agent, certs, controller, dashboards, deploy
    from holdfast.cli.study import memory, replay, rows, schedules, simulate

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

    def add(group: str, body: Command, line: str, **more: Any) -> None:
        app.command(rich_help_panel=group, epilog=usage.example(line), **more)(body)

    # The trainer has options of its own, --help among them.
    own = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    add(usage.TRY, demo.demo, "holdfast demo --fault kill@20:rank3")
    add(usage.TRY, simulate.simulate, "holdfast simulate --nodes 1536 --days 30 --compare")
    add(usage.TRY, replay.replay, "holdfast replay controller.jsonl --through")
    add(usage.TRY, schedules.schedules, "holdfast schedules --pp 8 --micro-batches 16 --message 0.1")
    add(
        usage.TRY,
        memory.memory,
        "holdfast memory --model gpt-175b --pp 8 --tp 8 --set train.dtype=bfloat16 --limit 80GB",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    add(usage.TRY, rows.rows, "holdfast rows C1")
    add(
        usage.RUN,
        run.run,
        "holdfast run --nnodes 2 --nproc-per-node 8 train.py --epochs 3",
        context_settings=_VERBATIM | {"token_normalize_func": run.normalize},
    )
    add(
        usage.RUN,
        train_command.train,
        "holdfast train --steps 100 --checkpoint-dir /data/checkpoints",
        context_settings=own,
        add_help_option=False,
    )
    app.add_typer(checkpoint.app, name="checkpoint", rich_help_panel=usage.RUN)
    add(usage.WATCH, status.status, "holdfast status --watch")
    add(usage.WATCH, top.top, "holdfast top --nodes")
    add(usage.WATCH, jobs.jobs, "holdfast jobs --json")
    add(usage.WATCH, incidents.incidents, "holdfast incidents i3")
    add(usage.WATCH, nodes.nodes, "holdfast nodes --controller gpu0:7080")
    add(usage.WATCH, logs.logs, "holdfast logs 3 --since 30m")
    add(usage.WATCH, blame.blame, "holdfast blame --steps 100:200")
    add(usage.WATCH, timeline.timeline, "holdfast timeline --steps 100:110 -o trace.json")
    add(usage.WATCH, stacks.stacks, "holdfast stacks --job llm-70b")
    app.add_typer(job.app, name="job", rich_help_panel=usage.ACT, epilog=usage.example("holdfast job --job llm-70b"))
    add(usage.ACT, ack.ack, "holdfast ack llm-70b")
    add(usage.ACT, inject.inject, "holdfast inject kill@20:rank3")
    add(usage.ACT, cordon.cordon, "holdfast cordon node17")
    add(usage.ACT, cordon.uncordon, "holdfast uncordon node17")
    add(usage.ACT, evict.evict, "holdfast evict node17")
    add(usage.ACT, diagnose.diagnose, "holdfast diagnose node17 node18 --suite full")
    add(usage.OPERATE, controller.controller, "holdfast controller --state-dir /var/lib/holdfast")
    add(usage.OPERATE, agent.agent, "holdfast agent --controller gpu0:7070 --node-name node17")
    add(usage.OPERATE, certs.certs, "holdfast certs --dir certs --host gpu0 --node node17")
    app.add_typer(dashboards.app, name="dashboards", rich_help_panel=usage.OPERATE)
    app.add_typer(notify.app, name="notify", rich_help_panel=usage.OPERATE)
    app.add_typer(deploy.app, name="deploy", rich_help_panel=usage.OPERATE)
    return app


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
        code = usage.without_types(get_command(build()), words).main(words, "holdfast", standalone_mode=False)
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
        where = getattr(getattr(error, "ctx", None), "command_path", "holdfast")
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
