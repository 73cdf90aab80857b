"""The batch script for Slurm, with stand-ins for Slurm's and our own commands: what it calls, in which order."""

import os
import shlex
import subprocess
from pathlib import Path

from tests.deploy.parse import parse

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "holdfast.sbatch"
# The controller replies to the second request, and stays until it is stopped. A call is one write: others run beside,
# and what runs beside may come late.
HOLDFAST = """#!/bin/bash
printf -v line "%q " "$@"
echo "$line" >> calls
echo "$1 $HOLDFAST_CONTROLLER $HOLDFAST_CLIENT_TLS_CA $HOLDFAST_CLIENT_API_TOKEN_FILE" >> environments
case $1 in
    certs) mkdir -p "$3/ca" "$3/controller" ;;
    controller) exec /bin/sleep 60 ;;
    status) until grep -q ^controller calls; do /bin/sleep 0.01; done; [ "$(grep -c ^status calls)" -gt 1 ] ;;
    run) until grep -q ^agent calls; do /bin/sleep 0.01; done; exit 3 ;;
esac
"""
SRUN = '#!/bin/bash\nwhile [ "$1" != bash ]; do echo "$1" >> srun; shift; done\nSLURMD_NODENAME=n1 exec "$@"\n'
SCONTROL = """#!/bin/bash
case $2 in
    hostnames) printf 'n1\\nn2\\n' ;;
    topology) echo "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]" ;;
esac
"""


def submit(tmp_path: Path, **more: str) -> tuple[int, list[list[str]]]:
    """The script's exit code, and the words of each command of ours."""
    commands = tmp_path / "bin"
    commands.mkdir()
    programs = {"holdfast": HOLDFAST, "srun": SRUN, "scontrol": SCONTROL, "sleep": "#!/bin/bash\n"}
    for name, text in programs.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "TMPDIR": str(tmp_path)}
    env = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", **slurm, **more}
    words = ["bash", str(SCRIPT), "train.py", "--lr", "1"]
    done = subprocess.run(words, cwd=tmp_path, env=env, timeout=30, check=False)
    return done.returncode, [shlex.split(line) for line in (tmp_path / "calls").read_text().splitlines()]


def test_it_waits_for_the_controller_and_ends_with_the_jobs_code(tmp_path: Path) -> None:
    code, calls = submit(tmp_path)
    assert code == 3
    assert sorted(call[0] for call in calls) == ["agent", "certs", "controller", "run", "status", "status"]
    in_turn = [call for call in calls if call[0] not in ("agent", "controller")]  # those run beside the others
    assert [call[0] for call in in_turn] == ["certs", "status", "status", "run"]
    assert in_turn[-1][-3:] == ["train.py", "--lr", "1"]
    by_name = {call[0]: parse(call) for call in calls}
    assert (by_name["run"]["nnodes"], by_name["run"]["nproc_per_node"]) == ("1", "8")  # one of two is the spare
    assert (by_name["agent"]["node_name"], by_name["agent"]["switch"]) == ("n1", "leaf1")
    assert by_name["agent"]["tls_key"].endswith("/nodes/n1/node-key.pem")
    assert {"--kill-on-bad-exit=0", "--wait=0"} <= set((tmp_path / "srun").read_text().split())


def test_it_needs_no_rights_of_an_operator(tmp_path: Path) -> None:
    _, calls = submit(tmp_path)
    by_name = {call[0]: parse(call) for call in calls}
    assert by_name["controller"]["scheduler"] == "none"
    # Its own certificates, for the nodes of this allocation; the authority's key is gone when they are made.
    state = tmp_path / "holdfast-7"
    assert by_name["certs"]["folder"] == str(state / "certs")
    assert by_name["certs"]["node"] == ["n1", "n2"]
    assert not (state / "certs" / "ca").exists()
    assert state.stat().st_mode & 0o777 == 0o700


def test_an_operator_has_nodes_drained_and_brings_certificates(tmp_path: Path) -> None:
    (tmp_path / "mine" / "controller").mkdir(parents=True)
    (tmp_path / "mine" / "ca").mkdir()
    _, calls = submit(tmp_path, SCHEDULER="slurm", CERTS=str(tmp_path / "mine"))
    assert "certs" not in [call[0] for call in calls]
    assert (tmp_path / "mine" / "ca").exists()
    assert parse(next(call for call in calls if call[0] == "controller"))["scheduler"] == "slurm"


def test_clients_reach_this_controller_and_no_other(tmp_path: Path) -> None:
    submit(tmp_path, HTTP_PORT="7181", HOLDFAST_CONTROLLER="elsewhere:7080")
    rows = [line.split() for line in (tmp_path / "environments").read_text().splitlines()]
    [row] = [row for row in rows if row[0] == "run"]
    certs = tmp_path / "holdfast-7" / "certs" / "operator"
    assert row[1].endswith(":7181")
    assert row[2:] == [str(certs / "ca.pem"), str(certs / "api-token")]
