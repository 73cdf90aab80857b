"""The packages that are installed are the folders that exist: a new one that is not listed would be left out."""

import ast
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
TOP = ("agent", "checkpoint", "controller", "dashboards", "deploy", "diagnostics", "planner", "trainer")


def packages_on_disk() -> set[str]:
    found = {"holdfast"}
    for top in (*TOP, "holdfast"):
        for init in (ROOT / top).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT).parts
            if (ROOT / top).is_symlink() or any(
                (ROOT / Path(*parts[:n])).is_symlink() for n in range(2, len(parts) + 1)
            ):
                continue  # holdfast/agent is a link to agent
            found.add(".".join(parts if parts[0] == "holdfast" else ("holdfast", *parts)))
    return found


def test_every_package_is_listed() -> None:
    assert set(SETUP["packages"]) == packages_on_disk()


def test_every_top_folder_is_mapped_and_linked() -> None:
    mapped = {name.removeprefix("holdfast."): path for name, path in SETUP["package-dir"].items()}
    for top in TOP:
        link = ROOT / "holdfast" / top
        assert link.is_symlink(), f"holdfast/{top} must link to ../{top}: type checkers start there"
        assert link.resolve() == ROOT / top
        if (ROOT / top / "__init__.py").exists():
            assert mapped[top] == top


def test_schemas_hold_no_python() -> None:
    # A package called `proto` in the clone would shadow proto-plus for anyone who runs from here.
    assert not list((ROOT / "proto").glob("*.py"))


def test_no_file_grew_past_what_one_subject_needs() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {count}"
        for top in (*TOP, "holdfast")
        for path in (ROOT / top).rglob("*.py")
        if "proto" not in path.parts and (count := len(path.read_text().splitlines())) > 450
    ]
    assert not long, long


def modules() -> dict[str, Path]:
    """All of ours by import name; a package is its `__init__`."""
    found: dict[str, Path] = {}
    for top in (*TOP, "holdfast"):
        for path in (ROOT / top).rglob("*.py"):
            if path.is_relative_to(ROOT / "holdfast" / "proto"):
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts if parts[0] == "holdfast" else ("holdfast", *parts))
            found[name.removesuffix(".__init__")] = path
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All below it, at any depth. An expression holds none, so none is looked into."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for part in getattr(node, name, None) or ():
            yield part
            yield from statements(part)


def imported(path: Path, known: Collection[str]) -> set[str]:
    """What a module imports of ours, anywhere in it: also late, and for type checkers only."""
    found: set[str] = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(known)


def test_no_room_has_more_modules_than_one_can_take_in() -> None:
    rooms = Counter(path.parent for path in modules().values() if path.name not in ("__init__.py", "__main__.py"))
    full = {str(room.relative_to(ROOT)): count for room, count in rooms.items() if count > 16}
    assert not full, full


def test_every_room_says_in_one_sentence_what_it_holds() -> None:
    packages = [path for path in modules().values() if path.name == "__init__.py"]
    silent = [
        str(path.parent.relative_to(ROOT)) for path in packages if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent, silent


def test_an_import_is_seen_wherever_it_stands(tmp_path: Path) -> None:
    places = (
        "if TYPE_CHECKING:\n    {}", "class A:\n    def f(self):\n        {}", "try:\n    pass\nexcept E:\n    {}",
        "try:\n    pass\nfinally:\n    {}", "for x in y:\n    pass\nelse:\n    with z:\n        {}",
        "match x:\n    case 1:\n        {}", "async def f():\n    while x:\n        {}",
    )  # fmt: skip
    path = tmp_path / "module.py"
    for place in places:
        path.write_text(place.format("from a import b") + "\n")
        assert imported(path, ["a"]) == {"a"}, place


def test_no_module_imports_itself_by_a_detour() -> None:
    known = modules()
    graph = {name: imported(path, known) - {name} for name, path in known.items()}
    # A cycle needs members that import and are imported; others are removed until none is left.
    while ends := {name for name, to in graph.items() if not to}:
        graph = {name: to - ends for name, to in graph.items() if name not in ends}
    while starts := graph.keys() - set().union(*graph.values()):
        graph = {name: to for name, to in graph.items() if name not in starts}
    assert not graph, graph
