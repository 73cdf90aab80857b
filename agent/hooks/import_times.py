"""How long the imports of a script took, up to its first step; and the frameworks among them. Cheap: only imports that
no other import asks for are timed, some tens in a script.

What was imported before the fork costs nothing and so is not counted.
"""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from holdfast.agent.probe_file import side_files

FRAMEWORKS = (
    "torch", "lightning", "pytorch_lightning", "transformers", "accelerate", "deepspeed", "datasets", "trl", "peft",
)  # fmt: skip
"""What `--preload` is worth naming for: they take seconds, and none of them changes during a job."""


class ImportTimes(MetaPathFinder):
    """Finds a module in the usual way and times its import, if this is the main thread's outermost one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = 0.0
        self._clock = clock
        self._depth = 0
        self._thread = threading.main_thread().ident
        self._before = frozenset(sys.modules)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._depth or threading.get_ident() != self._thread:
            return None
        began = self._clock()
        self._depth += 1
        try:
            spec = self._search(fullname, path, target)
        finally:
            self._depth -= 1
        loader = spec.loader if spec is not None else None
        # Of a loader that is a class (built-in modules) there is one for all, and nothing to time.
        if loader is None or isinstance(loader, type) or not hasattr(loader, "__dict__"):
            return spec
        load = getattr(loader, "exec_module", None)
        if load is None:
            return spec

        def timed(module: ModuleType) -> None:
            loader.exec_module = load  # type: ignore[method-assign]  # what the module keeps is as it was
            self._depth += 1
            try:
                load(module)
            finally:
                self._depth -= 1
                self.seconds += self._clock() - began

        loader.exec_module = timed  # type: ignore[method-assign]  # on this one loader object
        return spec

    def _search(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is self:
                continue
            if (spec := finder.find_spec(fullname, path, target)) is not None:
                return spec
        return None

    def frameworks(self) -> list[str]:
        """Those that this process has imported itself."""
        return [name for name in FRAMEWORKS if name in sys.modules and name not in self._before]


_times: ImportTimes | None = None


def watch() -> None:
    """Time the imports from here on."""
    global _times
    _times = ImportTimes()
    sys.meta_path.insert(0, _times)


def first_step() -> None:
    """The imports before it are those that a restart repeats: leave their sum for the agent."""
    global _times
    times, _times = _times, None
    if times is None:
        return
    if times in sys.meta_path:
        sys.meta_path.remove(times)
    side_files.leave_imports(times.seconds, times.frameworks())
