"""From a fresh or forked interpreter to the user's script running as `__main__`, watched.

The fork server calls `main` in a forked child; a worker that wants an interpreter of its own runs
`python -m holdfast.agent.forkserver.bootstrap SPECFILE`. Both end with the exit code that `python script.py` would
have.
"""

import atexit
import builtins
import faulthandler
import importlib.util
import io
import json
import os
import runpy
import signal
import sys
import threading
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import NoReturn

from holdfast.agent import observations, probe
from holdfast.agent.forkserver import error_file, patient_streams
from holdfast.agent.forkserver.worker_spec import WorkerSpec
from holdfast.agent.probe_file import layout as probe_layout
from holdfast.wire.types import Phase

MISSING = 2
"""Exit code when there is no such script or module."""


def main(spec: WorkerSpec) -> int:
    """Run the spec's program in this process, in its folder and environment; the exit code it ended with."""
    environment = spec.environment()
    os.environ.clear()
    os.environ.update(environment)
    if spec.program.stdin:
        _read_from(f"{spec.program.stdin}.{spec.generation}")
    if spec.program.executable:
        return _become(spec)
    _dress(spec)
    if probe.attach():
        _register_stacks(os.environ[probe_layout.ENV_PATH] + probe_layout.STACKS_SUFFIX)
    if spec.program.hooks:
        # Late: the hooks touch torch, which a script without it never loads.
        from holdfast.agent.hooks import torch_hooks

        torch_hooks.install_when_imported()
    observations.phase(Phase.SETUP)
    try:
        if spec.program.cwd:
            os.chdir(spec.program.cwd)
        run = _module(spec.program.target) if spec.program.module else _script(spec.program.target)
    except OSError as error:
        print(f"holdfast: cannot start {spec.program.target!r}: {error.strerror}: {error.filename}", file=sys.stderr)
        return MISSING
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{spec.program.target}.__main__.".startswith(f"{error.name}."):
            return _fail(spec, error)  # not the program is missing, but something that its package wants
        print(f"holdfast: cannot start module {spec.program.target!r}: {error}", file=sys.stderr)
        return MISSING
    except Exception as error:
        return _fail(spec, error)
    sys.argv[1:] = spec.program.args
    try:
        run()
    except SystemExit as error:
        return _exit_code(error)
    except KeyboardInterrupt as error:
        _fail(spec, error)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _flush()
        os.kill(os.getpid(), signal.SIGINT)
        return 128 + signal.SIGINT
    except BaseException as error:
        return _fail(spec, error)
    observations.phase(Phase.DONE)
    return 0


def _read_from(path: str) -> None:
    """Standard input from a named pipe, as soon as its other end is open; without the pipe it stays empty."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        print(f"holdfast: no standard input: {error.strerror}: {path}", file=sys.stderr)
        return
    os.dup2(fd, 0)
    os.close(fd)
    # The stream of before may have seen the end of another file.
    stream = io.TextIOWrapper(
        io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8", errors="surrogateescape"
    )
    sys.stdin = stream
    setattr(sys, "__stdin__", stream)  # noqa: B010


def _become(spec: WorkerSpec) -> int:
    """Execute the program in place of this interpreter; MISSING when that cannot be. Nothing in it reports steps."""
    target = spec.program.target
    try:
        if spec.program.cwd:
            os.chdir(spec.program.cwd)
        os.execvpe(target, [target, *spec.program.args], os.environ)
    except OSError as error:
        print(f"holdfast: cannot execute {target!r}: {error.strerror or error}", file=sys.stderr)
    return MISSING


def finish(code: int) -> NoReturn:
    """End the process the way an interpreter ends, but for tearing down what the parent, or torch, has set up."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # not public, yet the only way to wait as an exit does
        atexit._run_exitfuncs()
    finally:
        os._exit(code if _flush() else 120)


def _flush() -> bool:
    ok = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            ok = False
    return ok


def _dress(spec: WorkerSpec) -> None:
    """What an interpreter takes from the environment when it starts, for one that has started long ago."""
    patient_streams.install()
    faulthandler.enable(file=sys.stderr, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True, chain=False)
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()  # drawn at random in a new process: no two workers may share it
        if threads.isdigit() and int(threads) > 0:
            torch.set_num_threads(int(threads))
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()  # else all workers of a node would draw the same
    for entry in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if entry and entry not in sys.path:
            sys.path.insert(0, entry)
    if (processes := sys.modules.get("multiprocessing.process")) is not None:
        processes.ORIGINAL_DIR = spec.program.cwd or os.getcwd()  # type: ignore[attr-defined]  # spawned children go there


def _register_stacks(path: str) -> None:
    """Let the agent ask for this process's stacks at any time, even while the interpreter lock is held."""
    try:
        file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        print(f"holdfast: stack dumps of this process are not available: {error.strerror}", file=sys.stderr)
        return
    faulthandler.register(probe_layout.STACKS_SIGNAL, file=file, all_threads=True, chain=False)


class _Main:
    """A program ready to run: code to execute in a new module that stands as `__main__`."""

    def __init__(self, code: CodeType, module: ModuleType) -> None:
        self.code = code
        self.module = module

    def __call__(self) -> None:
        self.module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = self.module  # stays: exit handlers, threads and pickle look there later
        exec(self.code, self.module.__dict__)


class _Path:
    """A folder or zip file with a `__main__.py` inside."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self) -> None:
        runpy.run_path(self.path, run_name="__main__")


def _script(target: str) -> _Main | _Path:
    sys.argv[:] = [target]
    if os.path.isdir(target) or target.endswith((".zip", ".pyz")):
        return _Path(target)
    with io.open_code(os.path.abspath(target)) as file:
        code = compile(file.read(), target, "exec", dont_inherit=True)
    sys.path.insert(0, os.path.dirname(os.path.realpath(target)))
    module = ModuleType("__main__")
    module.__file__ = target
    module.__loader__ = SourceFileLoader("__main__", target)
    module.__dict__["__cached__"] = None
    return _Main(code, module)


def _module(target: str) -> _Main:
    sys.path.insert(0, os.getcwd())
    found = importlib.util.find_spec(target)
    if found is not None and found.submodule_search_locations is not None:
        found = importlib.util.find_spec(f"{target}.__main__")
    if found is None or found.loader is None:
        raise ModuleNotFoundError(f"not found in {os.getcwd()} or on the Python path", name=target)
    loader = found.loader
    code = loader.get_code(found.name) if hasattr(loader, "get_code") else None
    if code is None:
        raise ImportError(f"{target!r} has no Python code to run")
    module = ModuleType("__main__")
    module.__file__ = found.origin
    module.__spec__ = found
    module.__loader__ = loader
    module.__package__ = found.parent
    sys.argv[:] = [found.origin or target]
    return _Main(code, module)


def _exit_code(error: SystemExit) -> int:
    """The status that Python gives: None is 0, a number its low byte, any other value is printed and 1."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _fail(spec: WorkerSpec, error: BaseException) -> int:
    trace = _users(error.__traceback__)
    error = error.with_traceback(trace)  # the default hook prints what the exception holds, not what it is given
    if spec.error_file:
        error_file.write(spec.error_file, error, trace)
    try:
        sys.excepthook(type(error), error, trace)
    except Exception:
        traceback.print_exception(type(error), error, trace)
    return 1


def _users(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the user's first frame on: our own frames are left out."""
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        first = first.tb_next
    return first


def fresh(spec_path: str) -> int:
    """The way of a worker in an interpreter of its own: the spec from a file, which is removed (it holds secrets)."""
    patient_streams.install()
    spec = WorkerSpec.from_json(json.loads(Path(spec_path).read_text()))
    if spec_path.startswith("/proc/self/fd/"):
        os.close(int(spec_path.rpartition("/")[2]))
    else:
        os.unlink(spec_path)
    return main(spec)


if __name__ == "__main__":
    sys.exit(fresh(sys.argv[1]))
