"""Scripts and modules in a process of their own, against what `python` itself would do."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.agent.forkserver import error_file
from holdfast.agent.forkserver.worker_spec import WorkerSpec
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.wire.messages import Program
from holdfast.wire.types import Phase
from tests.agent.support.processes import ROOT


def start(spec: WorkerSpec, folder: Path) -> "subprocess.CompletedProcess[str]":
    """The worker in a fresh interpreter, as `warm=False` would run it."""
    path = folder / "spec.json"
    path.write_text(json.dumps(spec.to_json()))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "holdfast.agent.forkserver.bootstrap", str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not path.exists()
    return done


def spec(folder: Path, target: str, *args: str, **changes: object) -> WorkerSpec:
    program = Program(target, args, cwd=str(folder), **changes)  # type: ignore[arg-type]  # a test's own changes
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    error = str(folder / "error.json")
    return WorkerSpec("j", 2, 3, 1, env, program, "", "", error, str(folder / "probe"))


def test_a_script_sees_what_python_would_show_it(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("name = 'mine'")
    (tmp_path / "train.py").write_text(
        "import sys, os, helper, pickle\n"
        "class C: pass\n"
        "print(sys.argv, __name__, __file__, __spec__, sys.path[0], helper.name, os.environ.get('WHAT'))\n"
        "print(type(pickle.loads(pickle.dumps(C()))) is C, 'HOLDFAST_WORKER' in os.environ)"
    )
    done = start(spec(tmp_path, "train.py", "-x", "1"), tmp_path)
    assert done.returncode == 0, done.stderr
    plain = subprocess.run(
        [sys.executable, "train.py", "-x", "1"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    ours, theirs = done.stdout.splitlines(), plain.stdout.splitlines()
    assert ours[1] == "True True"
    # Python spells __file__ of a script in full since 3.9; either way it leads to the same file.
    assert ours[0].replace(f"{tmp_path}/", "") == theirs[0].replace(f"{tmp_path}/", "")


def test_a_module_and_a_package(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("import sys; print(__name__, __package__, sys.argv[1:], __spec__.name)")
    (package / "part.py").write_text("from . import __name__ as parent; print(__name__, parent)")
    assert start(spec(tmp_path, "pkg", "a", module=True), tmp_path).stdout == "__main__ pkg ['a'] pkg.__main__\n"
    assert start(spec(tmp_path, "pkg.part", module=True), tmp_path).stdout == "__main__ pkg\n"


@pytest.mark.parametrize(
    ("target", "module", "text"),
    [
        ("nothing.py", False, "holdfast: cannot start 'nothing.py': No such file or directory"),
        ("nothing", True, "holdfast: cannot start module 'nothing': not found"),
        ("nothing.below", True, "holdfast: cannot start module 'nothing.below': No module named 'nothing'"),
    ],
)
def test_what_is_not_there_is_one_line_and_code_2(target: str, module: bool, text: str, tmp_path: Path) -> None:
    done = start(spec(tmp_path, target, module=module), tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(text)
    assert done.stderr.count("\n") == 1


def test_a_missing_folder_is_one_line_and_code_2(tmp_path: Path) -> None:
    one = spec(tmp_path, "train.py")
    done = start(replace(one, program=replace(one.program, cwd=str(tmp_path / "gone"))), tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "gone" in done.stderr


@pytest.mark.parametrize(
    ("code", "last"),
    [
        ("x = (", "SyntaxError: '(' was never closed"),
        ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_the_users_own_errors_keep_their_traceback(code: str, last: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(code)
    one = spec(tmp_path, "train.py")
    done = start(one, tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith(f"{last}\n")
    assert "bootstrap" not in done.stderr
    assert error_file.read(one.error_file) == done.stderr
    assert json.loads((tmp_path / "error.json").read_text())["message"]["message"] == last


def test_an_error_file_left_by_the_script_is_kept(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os\nopen(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('{\"message\": \"mine\"}')\n1 / 0"
    )
    one = spec(tmp_path, "train.py")
    assert start(one, tmp_path).returncode == 1
    assert error_file.read(one.error_file) == "mine"


def test_an_unreadable_error_file_is_no_error(tmp_path: Path) -> None:
    for number, text in enumerate(["", "{", "[]", '{"message": 3}', '{"message": {"extraInfo": 1}}']):
        path = tmp_path / str(number)
        path.write_text(text)
        assert error_file.read(str(path)) == ""
    assert error_file.read(str(tmp_path / "none")) == ""


def test_the_phases_of_a_script_that_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from holdfast.agent import probe\nassert probe.attached()")
    one = spec(tmp_path, "train.py")
    assert start(one, tmp_path).returncode == 0
    reader = ProbeReader(one.probe_path)
    sample = reader.sample(0)
    assert (sample.phase, sample.rank, sample.generation) == (Phase.DONE, 3, 2)
    reader.close()


@pytest.mark.parametrize(("unbuffered", "out"), [("", "line\n"), ("1", "line\npiece")])
def test_output_goes_out_as_with_python_itself(unbuffered: str, out: str, tmp_path: Path) -> None:
    """Also when the worker is killed: lines as they end, and everything at once where the job wants that."""
    (tmp_path / "t.py").write_text(
        "import os, sys\n"
        "for file in (sys.stdout, sys.stderr):\n"
        "    print('line', file=file)\n"
        "    file.write('piece')\n"
        "os._exit(3)"
    )
    one = spec(tmp_path, "t.py")
    done = start(replace(one, env={**one.env, "PYTHONUNBUFFERED": unbuffered}), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3, out, out)


def test_a_program_that_is_not_python_takes_the_workers_place(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("#!/bin/sh\necho $RANK $PWD $1; exit 7\n")
    (tmp_path / "a.sh").chmod(0o755)
    done = start(spec(tmp_path, "./a.sh", "one two", executable=True), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (7, f"3 {tmp_path} one two\n", "")
    done = start(spec(tmp_path, "sh", "-c", "echo $0 $LOCAL_RANK", executable=True), tmp_path)
    assert (done.returncode, done.stdout) == (0, "sh 1\n")
    done = start(spec(tmp_path, "no-such-program", executable=True), tmp_path)
    assert done.returncode == 2
    assert done.stderr == "holdfast: cannot execute 'no-such-program': No such file or directory\n"


def test_a_spec_has_no_field_that_an_older_fork_server_does_not_know_unless_it_is_used(tmp_path: Path) -> None:
    known = {"target", "args", "module", "cwd", "env", "hooks", "warm"}
    assert set(spec(tmp_path, "t.py").to_json()["program"]) == known
    assert set(spec(tmp_path, "t.py", preload=("json",)).to_json()["program"]) == known
    assert set(spec(tmp_path, "t.py", executable=True).to_json()["program"]) == {*known, "executable"}


def test_a_spec_survives_json() -> None:
    one = spec(Path("/x"), "train.py", "a", "b", module=True, hooks=False)
    assert WorkerSpec.from_json(json.loads(json.dumps(one.to_json()))) == one
