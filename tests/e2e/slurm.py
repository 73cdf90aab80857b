"""A Slurm cluster of this host's own: munge, slurmctld, and a slurmd for each of the nodes it plays."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.cli.local.ports import free_ports
from tests.e2e.daemons import wait_for

TOOLS = ("munged", "slurmctld-wlm", "slurmd-wlm", "scontrol", "sinfo", "srun")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]
CAN = not MISSING and os.geteuid() == 0
WHY = f"Slurm needs root and {', '.join(MISSING or TOOLS)} (Debian: slurmctld slurmd slurm-client munge)"

_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/linear
ReturnToService=1
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:8
"""


@contextmanager
def cluster(folder: Path, nodes: list[str]) -> Iterator[dict[str, str]]:
    """Gives what the environment needs for Slurm's commands. `folder` must be short: it holds a socket."""
    for part in ("state", "munge", *(f"spool-{node}" for node in nodes)):
        (folder / part).mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "munge").chmod(0o700)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    host, ports = socket.gethostname(), free_ports(1 + len(nodes))
    lines = [
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1"
        for node, port in zip(nodes, ports[1:], strict=True)
    ]
    conf = folder / "slurm.conf"
    conf.write_text(_CONF.format(host=host, port=ports[0], folder=folder, nodes="\n".join(lines)))
    env = {"SLURM_CONF": str(conf)}
    munge = [f"--{name}={folder}/munge/{name}" for name in ("pid-file", "log-file", "seed-file")]
    commands = [
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.sock", f"--key-file={key}", *munge],
        ["slurmctld-wlm", "-D", "-c", "-f", str(conf)],
        *(["slurmd-wlm", "-D", "-N", node, "-f", str(conf)] for node in nodes),
    ]
    servers: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands):
            with open(folder / f"{number}.out", "wb") as out:
                servers.append(subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **env}))
            if number == 0:
                wait_for((folder / "munge.sock").exists, 60)
        wait_for(lambda: states(env) == dict.fromkeys(nodes, "idle"), 60, lambda: states(env))
        yield env
    finally:
        for server in reversed(servers):
            server.terminate()
        for server in reversed(servers):
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def states(env: dict[str, str]) -> dict[str, str]:
    """State by node; nothing while the controller does not answer."""
    return {name: state for name, state, _ in _sinfo(env)}


def reasons(env: dict[str, str]) -> dict[str, str]:
    return {name: reason for name, _, reason in _sinfo(env) if reason != "none"}


def _sinfo(env: dict[str, str]) -> list[list[str]]:
    argv = ["sinfo", "--noheader", "--Node", "--format=%N|%T|%E"]
    done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, timeout=60)
    return [line.split("|", 2) for line in done.stdout.splitlines()] if done.returncode == 0 else []
