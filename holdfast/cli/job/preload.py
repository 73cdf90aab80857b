"""`holdfast run --preload`: the modules that are imported once on each node. Pure."""

import keyword

from holdfast.base.errors import UsageError

_MOST = 100


def parse_preload(text: str, is_fresh: bool, is_program: bool) -> list[str]:
    """The modules, in their order. UsageError for what is no module's name, and where nothing is forked."""
    if not text:
        return []
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if len(name) > 200 or not all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split(".")):
            raise UsageError(f"--preload needs names of modules, as torch,lightning.pytorch, but one is {name[:200]!r}")
    if len(names) > _MOST:
        raise UsageError(f"--preload has at most {_MOST} modules, but here are {len(names)}")
    if is_fresh or is_program:
        option = "--fresh" if is_fresh else "--no-python"
        raise UsageError(f"--preload with {option}: such workers are not forked, so nothing can be imported for them")
    return names
