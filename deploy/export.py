"""Copies the files beside this module to a folder of the user's, where they are edited."""

from collections.abc import Collection
from pathlib import Path

from holdfast.base.errors import UsageError

HERE = Path(__file__).parent
PARTS = {
    "systemd": ("systemd",),
    "docker": ("docker",),
    "kubernetes": ("kubernetes",),
    "slurm": ("slurm",),
    "ansible": ("ansible", "systemd"),  # the role installs the units
    "monitoring": ("monitoring",),
}
"""What can be asked for, and the folders that belong to it."""


def files(parts: Collection[str]) -> dict[str, bytes]:
    """Path to content of all files of these parts."""
    folders = sorted({folder for part in parts for folder in PARTS[part]})
    found = [path for folder in folders for path in sorted((HERE / folder).rglob("*")) if path.is_file()]
    return {str(path.relative_to(HERE)): path.read_bytes() for path in found}


def write(folder: Path, parts: Collection[str], *, force: bool = False) -> list[Path]:
    """Write them all. UsageError, before anything is written, when an existing file differs; `force` overwrites it."""
    wanted = {folder / name: content for name, content in files(parts).items()}
    if not force:
        for path, content in wanted.items():
            if path.exists() and path.read_bytes() != content:
                raise UsageError(f"{path} exists and differs: name another folder, or give --force to overwrite")
    for path, content in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if content.startswith(b"#!"):
            path.chmod(path.stat().st_mode | 0o111)
    return list(wanted)
