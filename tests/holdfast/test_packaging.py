"""What a process loads: a node's agent carries no torch, `--help` carries next to nothing."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def loaded_by(code: str) -> set[str]:
    """Top-level modules, and those of ours in full, that a fresh interpreter has after running the code."""
    script = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stderr
    names = json.loads(done.stdout.splitlines()[-1])
    return {name if name.startswith("holdfast") else name.partition(".")[0] for name in names}


def test_an_agent_imports_no_torch_no_web_server_no_parquet() -> None:
    loaded = loaded_by("import holdfast.agent.app")
    assert not loaded & {"torch", "fastapi", "starlette", "uvicorn", "pyarrow", "numpy", "typer", "httpx"}
    assert not {name for name in loaded if name.startswith(("holdfast.controller", "holdfast.trainer", "holdfast.cli"))}


def test_a_controller_imports_no_torch() -> None:
    loaded = loaded_by("import holdfast.controller.app")
    assert not loaded & {"torch", "pyarrow", "typer"}
    assert not {name for name in loaded if name.startswith(("holdfast.agent", "holdfast.trainer", "holdfast.cli"))}


def test_the_command_line_is_light_until_a_command_runs() -> None:
    loaded = loaded_by("import holdfast.cli.main as m; from typer.main import get_command; get_command(m.build())")
    heavy = {"httpx", "grpc", "google", "fastapi", "torch", "numpy", "cryptography", "psutil"}
    assert not loaded & heavy
    assert not {name for name in loaded if re.match(r"holdfast\.(agent|controller|trainer|checkpoint|proto)\b", name)}


@pytest.mark.parametrize(("words", "own"), [(["ack", "--help"], {"job", "job.ack"}), (["--version"], set())])
def test_a_command_imports_no_other(words: list[str], own: set[str]) -> None:
    loaded = loaded_by(f"from holdfast.cli.main import main; main({words!r})")
    rooms = re.compile(r"holdfast\.cli\.((demo|job|look|node|serve|study)\b.*)")
    found = {match[1] for name in loaded if (match := rooms.fullmatch(name))}
    assert found == own | {"serve", "serve.daemons"}  # the short way in, which every start takes


def test_one_torch_for_all() -> None:
    """Any other spelling than the pinned one may fetch gigabytes."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = [line for line in lines if line.startswith("torch")]
    assert pins == ["torch==2.13.0"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert [name for name, needs in extras.items() if any(n.startswith("torch") for n in needs)] == ["trainer"]
    assert not any(n.startswith(("torch", "grpc", "fastapi")) for n in project["dependencies"])


@pytest.mark.parametrize("script", ["run", "setup", "protoc", "proto-check", "wheel-check"])
def test_scripts_of_ci_are_sound_and_executable(script: str) -> None:
    path = ROOT / ".ci" / script
    assert path.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(path)], check=True)
