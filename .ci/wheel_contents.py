"""Every module and data file of the packages is in the wheel, and nothing lands beside `holdfast`."""

import sys
import tomllib
import zipfile
from pathlib import Path

DATA = {".toml", ".json", ".yml", ".pyi", ".html", ".css", ".js", ".svg", ".py", ".typed"}


def folder_of(package: str, mapped: dict[str, str]) -> Path:
    """The folder of a package: mapped itself, or below the nearest parent that is."""
    if package in mapped:
        return Path(mapped[package])
    parent, _, name = package.rpartition(".")
    return folder_of(parent, mapped) / name


def expected() -> set[str]:
    setup = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["setuptools"]
    found = set()
    for package in setup["packages"]:
        folder = folder_of(package, setup["package-dir"])
        files = {file for file in folder.iterdir() if file.suffix in DATA}
        # What a package names as its data, whatever it is called: a Dockerfile has no suffix.
        files |= {file for glob in setup["package-data"].get(package, []) for file in folder.glob(glob)}
        for file in files:
            if file.is_file():
                found.add(f"{package.replace('.', '/')}/{file.relative_to(folder)}")
    return found


def main(wheel: str) -> int:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    missing = sorted(expected() - names)
    foreign = sorted(name for name in names if not name.startswith("holdfast/"))
    for name in missing:
        print(f"not in the wheel: {name}", file=sys.stderr)
    for name in foreign:
        print(f"lands outside of holdfast: {name}", file=sys.stderr)
    print(f"{Path(wheel).name}: {len(names)} files")
    return 1 if missing or foreign else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
