"""What the fork server imports before it forks, and what it must leave to the workers. Runs in its only thread.

A module that starts threads, asks for GPUs or makes a process group while it is imported would break every worker that
is forked afterwards. The import cannot be undone: the fork server starts again without that module.
"""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from holdfast.agent.forkserver import forked_children
from holdfast.agent.processes import inherited

ASKED_FOR_GPUS = "initialised the GPUs on import, so that no forked worker could use them: skipped"
STARTED_THREADS = "started threads on import, which no forked worker would have: skipped"
MADE_A_GROUP = "made a process group on import, which no forked worker could use: skipped"
REASONS = {"gpus": ASKED_FOR_GPUS, "threads": STARTED_THREADS, "group": MADE_A_GROUP}
"""Why a module is left out, by the word that a restart of the fork server passes on."""

BeginAnew = Callable[[Mapping[str, str]], None]
"""Replace this process by one that leaves out these modules (words of REASONS by name). Does not return."""


@dataclass(slots=True)
class Preloaded:
    errors: dict[str, str] = field(default_factory=dict)
    """What went wrong, by module."""
    missing: list[str] = field(default_factory=list)
    """Those of the job that are not installed here."""
    packages: str = field(default_factory=inherited.packages)
    """What was installed when it all was imported."""


def preload(
    modules: Sequence[str], wanted: Sequence[str], left_out: Mapping[str, str], begin_anew: BeginAnew
) -> Preloaded:
    """Import the agent's `modules`, and call their `preload()` where they have one; then those that a job `wanted`.

    If one of `wanted` is not installed, nothing is imported: the job is refused.
    """
    done = Preloaded({name: REASONS[why] for name, why in left_out.items()})
    done.missing = [name for name in wanted if not _is_there(name)]
    if done.missing:
        return done
    for name in dict.fromkeys([*modules, *wanted]):
        if name in left_out:
            continue
        before = forked_children.threads()
        try:
            module = importlib.import_module(name)
            if name in modules and callable(hook := getattr(module, "preload", None)):
                hook()
        except BaseException as error:  # whatever it is, scripts that do not need this module can still run
            done.errors[name] = f"{type(error).__name__}: {error}".partition("\n")[0]
            if name in wanted and isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
                done.missing.append(name)
            traceback.print_exc()
        if why := _spoilt(before):
            print(f"preload {name}: {REASONS[why]}", file=sys.stderr, flush=True)
            begin_anew({**left_out, name: why})
    return done


@contextmanager
def looked_up_in(folder: str) -> Iterator[None]:
    """The folder that the job's program has first on its path is first here too; a worker puts it there itself."""
    if not folder:
        yield
        return
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)


def to_text(left_out: Mapping[str, str]) -> str:
    return ",".join(f"{name}:{why}" for name, why in left_out.items())


def from_text(text: str) -> dict[str, str]:
    return {name: why for name, _, why in (pair.partition(":") for pair in text.split(",") if pair)}


def _is_there(name: str) -> bool:
    """Whether the module's package is installed, found out without an import. What is inside only an import says."""
    package = name.partition(".")[0]
    try:
        return package in sys.modules or importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return True  # a finder of someone's cannot say


def _spoilt(threads_before: int) -> str:
    """What the newest import did that no worker can be forked after; "" for nothing."""
    if forked_children.have_asked_for_gpus():
        return "gpus"
    if forked_children.threads() > max(threads_before, 1):
        return "threads"
    distributed = sys.modules.get("torch.distributed")
    is_made = getattr(distributed, "is_initialized", None)
    return "group" if is_made is not None and is_made() else ""
