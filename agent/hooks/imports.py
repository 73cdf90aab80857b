"""Acts on a module as soon as a script has imported it, without importing it for the script."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Act = Callable[[ModuleType], None]


def when_imported(name: str, act: Act) -> None:
    """Call `act` with the module now if it is here already, else right after its import."""
    if (module := sys.modules.get(name)) is not None:
        act(module)
        return
    _finder.waiting[name] = act
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder(MetaPathFinder):
    """Finds a module in the usual way and acts once it has been loaded."""

    def __init__(self) -> None:
        self.waiting: dict[str, Act] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        act = self.waiting.pop(fullname, None)
        if act is None:
            return None
        spec = importlib.util.find_spec(fullname)
        loader = spec.loader if spec is not None else None
        if loader is not None and hasattr(loader, "exec_module"):
            load = loader.exec_module

            def load_and_act(module: ModuleType) -> None:
                load(module)
                act(module)

            loader.exec_module = load_and_act  # type: ignore[method-assign]  # on this one loader object
        return spec


_finder = _Finder()
