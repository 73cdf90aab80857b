"""The packages that are installed are the folders that exist: a new one that is not listed would be left out."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
TOP = ("agent", "checkpoint", "controller", "dashboards", "diagnostics", "trainer")


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
