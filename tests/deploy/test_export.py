"""`holdfast deploy export`: all of deploy/, or the parts that are wanted; what somebody has edited stays."""

from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.deploy.export import PARTS

DEPLOY = Path(__file__).parents[2] / "deploy"


def names(folder: Path) -> set[str]:
    found = [path for path in folder.rglob("*") if "__pycache__" not in path.parts]  # Python writes there at any time
    return {str(path.relative_to(folder)) for path in found if path.is_file()}


def test_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "export", str(tmp_path)]) == 0
    wanted = {name for name in names(DEPLOY) if not name.endswith(".py")}
    assert names(tmp_path) == wanted
    assert len(capsys.readouterr().out.splitlines()) == len(wanted)
    for name in wanted:
        assert (tmp_path / name).read_bytes() == (DEPLOY / name).read_bytes()
    assert (tmp_path / "systemd" / "install-with-pdsh.sh").stat().st_mode & 0o111


def test_every_folder_belongs_to_a_part() -> None:
    folders = {path.name for path in DEPLOY.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert {folder for part in PARTS.values() for folder in part} == folders


@pytest.mark.parametrize(("part", "folders"), PARTS.items())
def test_one_part(part: str, folders: tuple[str, ...], tmp_path: Path) -> None:
    assert main(["deploy", "export", str(tmp_path), "--what", part]) == 0
    assert {path.name for path in tmp_path.iterdir()} == set(folders)


def test_what_was_edited_stays_unless_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["deploy", "export", str(tmp_path), "--what", "slurm"]
    assert main(words) == 0
    assert main(words) == 0  # the same again is no conflict
    script = tmp_path / "slurm" / "holdfast.sbatch"
    script.write_text("edited")
    capsys.readouterr()
    assert main(words) == 2
    assert capsys.readouterr().err == (
        f"holdfast: {script} exists and differs: name another folder, or give --force to overwrite\n"
    )
    assert script.read_text() == "edited"
    assert main([*words, "--force"]) == 0
    assert script.read_text() != "edited"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["/dev/null/x"], "cannot write to /dev/null/x: Not a directory; name a folder that can be written to"),
        (["here", "--what", "helmet"], "--what: unknown part 'helmet'; known: "),
        (["here", "--what", "kubernets"], "--what: unknown part 'kubernets'; did you mean kubernetes?"),
    ],
)
def test_bad_input_is_one_line(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "export", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"holdfast: {error}")
    assert len(err.splitlines()) == 1
