"""Agents on many nodes with pdsh: each node gets its own key and no other's, and is restarted with its own settings."""

import datetime
import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from holdfast.base.certs import write_cluster

DEPLOY = Path(__file__).parents[2] / "deploy"
SCRIPT = DEPLOY / "systemd" / "install-with-pdsh.sh"
# Records the words of a call in one write: calls may be in parallel.
RECORD = '#!/bin/bash\necho "${0##*/} $* " >> "$CALLS/calls"\n'
INSTALL = 'case "$*" in *%h*) echo failing >&2; exit "${FAILS:-0}";; esac\n'


def stand_ins(folder: Path, **programs: str) -> str:
    """A PATH whose first folder has these programs."""
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def install(tmp_path: Path, *nodes: str, fails: int = 0) -> tuple[int, list[str], str]:
    path = stand_ins(tmp_path / "bin", pdsh=RECORD + INSTALL, pdcp=RECORD, scp=RECORD)
    env = {**os.environ, "PATH": path, "CALLS": str(tmp_path), "FAILS": str(fails)}
    words = ["bash", str(SCRIPT), str(tmp_path / "certs"), "w/holdfast-0.1.0-x.whl", "c.example:7070", *nodes]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    calls = tmp_path / "calls"
    return done.returncode, calls.read_text().splitlines() if calls.exists() else [], done.stderr


def test_sixty_four_nodes_get_their_own_certificate_each(tmp_path: Path) -> None:
    nodes = [f"node{number:02}" for number in range(1, 65)]
    for node in nodes:
        (tmp_path / "certs" / "nodes" / node).mkdir(parents=True)
        (tmp_path / "certs" / "nodes" / node / "node.pem").touch()
    code, calls, _ = install(tmp_path)
    assert code == 0
    copies = [call.split() for call in calls if call.startswith("scp")]
    assert sorted(copy[-1] for copy in copies) == [f"root@{node}:/etc/holdfast/node/" for node in nodes]
    for copy in copies:
        own = copy[-1].removeprefix("root@").partition(":")[0]
        assert {Path(word).parent.name for word in copy if word.endswith(".pem")} == {own}
    others = [call for call in calls if not call.startswith("scp")]
    assert [call.split()[0] for call in others] == ["pdsh", "pdcp", "pdsh"]
    assert all(f"-w {','.join(nodes)} " in call for call in others)
    assert "node-key.pem" not in "".join(others)
    assert others[-1].endswith("install-node.sh %h c.example:7070 holdfast-0.1.0-x.whl ")


def test_a_node_without_a_certificate_is_named_before_anything_is_copied(tmp_path: Path) -> None:
    write_cluster(tmp_path / "certs", [], ["node1"], datetime.datetime.now(datetime.UTC))
    code, calls, error = install(tmp_path, "node1", "node2")
    assert (code, calls) == (2, [])
    assert error == f"no certificate for node2: holdfast certs --dir {tmp_path}/certs --node node2\n"


def test_a_node_that_fails_is_the_scripts_exit_code(tmp_path: Path) -> None:
    write_cluster(tmp_path / "certs", [], ["node1"], datetime.datetime.now(datetime.UTC))
    code, _, _ = install(tmp_path, fails=7)
    assert code == 7


def test_on_the_node_settings_have_its_name_and_its_controller(tmp_path: Path) -> None:
    """The script itself, with a root folder of its own and stand-ins for what changes the machine."""
    target = tmp_path / "var"
    target.mkdir()
    for name in ("holdfast-agent.service", "holdfast.sysusers", "agent.toml"):
        (target / name).write_bytes((DEPLOY / "systemd" / name).read_bytes())
    text = (DEPLOY / "systemd" / "install-node.sh").read_text()
    for place in ("/etc/", "/usr/lib/sysusers.d"):
        text = text.replace(place, f"{tmp_path}{place}")
    (target / "install-node.sh").write_text(text)
    for place in ("etc/holdfast/node", "etc/systemd/system", "usr/lib/sysusers.d", "opt/bin"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "etc" / "holdfast" / "node" / "node-key.pem").touch(mode=0o644)
    (tmp_path / "opt" / "bin" / "python").write_text(RECORD)
    (tmp_path / "opt" / "bin" / "python").chmod(0o755)
    path = stand_ins(tmp_path / "bin", **{name: RECORD for name in ("systemctl", "systemd-sysusers", "chown")})
    env = {**os.environ, "PATH": path, "CALLS": str(tmp_path), "PREFIX": str(tmp_path / "opt")}
    words = ["bash", str(target / "install-node.sh"), "node7", "c.example:7070", "h.whl"]
    subprocess.run(words, env=env, check=True, timeout=30)
    folder = tmp_path / "etc" / "holdfast" / "node"
    settings = tomllib.loads((folder / "holdfast.toml").read_text())["agent"]
    assert (settings["node_name"], settings["controller"]) == ("node7", "c.example:7070")
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0] == "python -m pip install --quiet --upgrade ./h.whl[node] "
    assert calls[-1] == "systemctl restart holdfast-agent "


@pytest.mark.parametrize("path", [*DEPLOY.rglob("*.sh"), *DEPLOY.rglob("*.sbatch")], ids=lambda path: path.name)
def test_scripts_are_sound_and_stop_at_an_error(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True)
    text = path.read_text()
    assert text.startswith("#!/bin/bash\n")
    assert "\nset -euo pipefail\n" in text
