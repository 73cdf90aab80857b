"""The batch script for Slurm, with stand-ins for Slurm's and our own commands: what it calls, in which order."""

import os
import subprocess
from pathlib import Path

from typer.main import get_command

from holdfast.cli.main import build

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "holdfast.sbatch"
# The controller answers at the second time of asking, and stays until it is ended.
HOLDFAST = """#!/bin/bash
echo "$*" >> calls
case $1 in
    controller) exec /bin/sleep 60 ;;
    status) [ "$(grep -c ^status calls)" -gt 1 ] ;;
    run) exit 3 ;;
esac
"""


def test_it_waits_for_the_controller_and_ends_with_the_jobs_code(tmp_path: Path) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in (("holdfast", HOLDFAST), ("srun", "#!/bin/bash\n"), ("sleep", "#!/bin/bash\n")):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n0"}
    done = subprocess.run(
        ["bash", str(SCRIPT), "train.py", "--lr", "1"], cwd=tmp_path, env=env, timeout=30, check=False
    )
    assert done.returncode == 3
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    assert sorted(call[0] for call in calls) == ["controller", "run", "status", "status"]
    assert calls[-1][0] == "run"
    assert calls[-1][-3:] == ["train.py", "--lr", "1"]
    known = get_command(build()).commands  # type: ignore[attr-defined]  # typer's group is not typed as one
    for name, *words in calls:
        options = {option for parameter in known[name].params for option in parameter.opts}
        ours = words[:-3] if name == "run" else words
        assert {word for word in ours if word.startswith("--")} <= options
