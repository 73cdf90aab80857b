"""The systemd units: what systemd itself says about them, and what workers that outlive their agent need."""

import configparser
import datetime
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.base.certs import write_cluster
from holdfast.base.config.agent import AgentConfig
from holdfast.base.config.controller import ControllerConfig
from holdfast.base.config.load import load
from holdfast.base.service import _FIRST
from tests.deploy.parse import parse

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = ("holdfast-agent", "holdfast-controller")
ANALYZE = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((FOLDER / f"{name}.service").read_text())
    return parser


def installed(name: str, folder: Path) -> Path:
    """A copy whose program exists, which systemd checks."""
    path = folder / f"{name}.service"
    program = Path(shutil.which("true") or "/bin/true")
    path.write_text((FOLDER / path.name).read_text().replace("/opt/holdfast/bin/holdfast", str(program)))
    return path


@ANALYZE
@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_to_object_to(name: str, tmp_path: Path) -> None:
    path = installed(name, tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    ours = [line for line in done.stderr.splitlines() if path.name in line]
    assert (done.returncode, ours) == (0, [])


@ANALYZE
@pytest.mark.parametrize(("name", "most"), [("holdfast-controller", 20), ("holdfast-agent", 60)])
def test_exposure_stays_low(name: str, most: int, tmp_path: Path) -> None:
    """systemd's own account of what a unit may do, 0 to 100. The agent's has to admit training code."""
    path = installed(name, tmp_path)
    argv = ["systemd-analyze", "security", "--offline=true", f"--threshold={most}", "--no-pager", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


@pytest.mark.parametrize("name", UNITS)
def test_the_command_lines_parse(name: str) -> None:
    program, *words = unit(name)["Service"]["ExecStart"].split()
    assert program == "/opt/holdfast/bin/holdfast"
    values = parse(words)
    assert values["state_dir"] == f"%S/{unit(name)['Service']['StateDirectory']}"


@pytest.mark.parametrize("name", UNITS)
def test_a_daemon_is_restarted_unless_its_settings_are_wrong(name: str) -> None:
    service = unit(name)["Service"]
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("always", "2")
    assert service["User"] != "root"
    assert (service["NoNewPrivileges"], service["CapabilityBoundingSet"]) == ("yes", "")
    assert service["LimitNICE"] == str(_FIRST)
    assert service["StateDirectoryMode"] == "0700"


def test_the_users_are_two_and_both_are_made() -> None:
    users = re.findall(r"^u (\S+) ", (FOLDER / "holdfast.sysusers").read_text(), re.MULTILINE)
    assert sorted(users) == sorted(unit(name)["Service"]["User"] for name in UNITS)
    assert len(set(users)) == 2


def test_workers_outlive_their_agent_and_keep_what_they_use() -> None:
    service = unit("holdfast-agent")["Service"]
    assert (service["KillMode"], service["OOMPolicy"], service["TasksMax"]) == ("process", "continue", "infinity")
    assert service["LimitMEMLOCK"] == "infinity"
    # Each of these takes devices, /tmp, homes or system calls from workers, which run in this unit. The unit says why.
    harmful = {
        "PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", "ProtectKernelLogs", "PrivateTmp",
        "ProtectHome", "ProtectProc", "PrivateUsers", "SystemCallFilter", "RestrictNamespaces", "MemoryMax",
        "MemoryDenyWriteExecute", "RestrictRealtime", "RestrictAddressFamilies",
    }  # fmt: skip
    assert not harmful & set(service)
    explained = (FOLDER / "holdfast-agent.service").read_text().partition("# Left out on purpose:")[2]
    assert not [name for name in harmful if name not in explained]
    assert service["ProtectSystem"] == "full"


@pytest.mark.parametrize(("file", "config"), [("agent", AgentConfig), ("controller", ControllerConfig)])
def test_the_examples_of_settings_load_and_may_listen(
    file: str, config: type[AgentConfig | ControllerConfig], tmp_path: Path
) -> None:
    """With the files that `holdfast certs` writes beside them, each daemon would start."""
    write_cluster(tmp_path, ["controller.example"], ["node7"], datetime.datetime.now(datetime.UTC))
    folder = tmp_path / ("nodes/node7" if file == "agent" else file)
    (folder / "holdfast.toml").write_text((FOLDER / f"{file}.toml").read_text())
    loaded = load(config, {}, file=folder / "holdfast.toml")
    loaded.check()
    assert loaded.tls_key is not None
    assert loaded.tls_key.parent == folder
