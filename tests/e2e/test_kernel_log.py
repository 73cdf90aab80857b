"""Faults of NVSwitches and NVLink in the kernel's log, through a real agent to incidents.

The agent has a mount namespace of its own, in which a file lies over /dev/kmsg.
"""

import subprocess
from pathlib import Path

import pytest

from tests.e2e.daemons import Commands, Json, events, incidents, ready, wait_for
from tests.e2e.test_bad_input import PORTS_0

pytestmark = pytest.mark.slow

_SXID = "nvidia-nvswitch3: SXid (PCI:0000:c8:00.0): "
_NVLINK = "NVRM: Xid (PCI:0018:01:00): 149, NETIR_"
HARMLESS = (
    "<30>" + _SXID + "20034, Fatal, Link 31 LTSSM Fault Up",  # a program wrote it
    _SXID + "12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
    _SXID + "24001, Correctable, Link 33 sourcetrack TCEN0 CrumbStore SBE",
    # Fatal by its word, and of those that are never.
    _SXID + "20012, Fatal, Link 34 DLTX fault",
    _NVLINK + "LINK_EVT  Fatal   XC0 i0 Link 09 (0x02600011 0x00000000 0x00000000)",  # software took it down
    _NVLINK + "BER_EVENT Nonfatal XC0 i0 Link 10 (0x00000013 0x00000001 0x00000000)",
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text("3,1,1,-;" + _SXID + "20034, Fatal, Link 29 from before the agent came up\n")
    return path


def over_kernel_log(path: Path) -> list[str]:
    """What makes a command see this file as the kernel's log."""
    through = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /dev/kmsg && exec "$@"', str(path)]
    if subprocess.run([*through, "true"], capture_output=True).returncode:
        pytest.skip("nothing can be mounted over /dev/kmsg here")
    return through


def write(path: Path, *lines: str) -> None:
    """As records of the device; a line may begin with a priority."""
    with open(path, "a") as file:
        for number, line in enumerate(lines, 2):
            priority, _, text = line[1:].partition(">") if line.startswith("<") else ("3", "", line)
            file.write(f"{priority},{number},{number},-;{text}\n")


# Line, kind, culprit, what it says.
SERIOUS = (
    (
        _SXID + "20034, Fatal, Link 30 LTSSM Fault Up",
        "gpu-sxid",
        "node0/nvswitch3/port30",
        "SXid 20034 (fatal) on node0, nvswitch3 port 30: LTSSM Fault Up; all GPUs of the host are concerned: reset",
    ),
    (
        _SXID + "10003, Fatal, unhandled interrupt in nvswitch_lib_service_interrupts(312)",
        "gpu-sxid",
        "node0/nvswitch3",
        "SXid 10003 (always fatal) on node0, nvswitch3: unhandled interrupt",
    ),
    (  # by its action, and not by the word
        _NVLINK + "MFDE_EVENT Nonfatal XC0 i0 Link 08 (0x00000014 0x00000004 0x00000000)",
        "gpu-xid",
        "node0/0018:01:00",
        "NVLink error in NETIR_MFDE_EVENT, link 8; reset the GPU",
    ),
)


def test_what_takes_gpus_away_is_an_incident_and_nothing_else(holdfast: Commands, log: Path, tmp_path: Path) -> None:
    through = over_kernel_log(log)
    controller = holdfast.start("controller", *PORTS_0, "--state-dir", str(tmp_path / "controller"))
    rpc, http = ready(controller)
    flags = ("--controller", rpc, "--node-name", "node0", "--no-warm", "--slots", "1")
    agent = holdfast.start("agent", *flags, "--state-dir", str(tmp_path / "a"), through=through)
    agent.says("agent.ready")
    agent.says("controller.joined")
    # In this order: the last ones' findings come after what the others would have given.
    write(log, *HARMLESS, *(line for line, *_ in SERIOUS))
    found: list[Json] = []

    def have_come() -> bool:
        found[:] = reversed(incidents(http))
        return len(found) >= len(SERIOUS)

    wait_for(have_come, 60, lambda: (found, agent.err[-2000:]))
    assert [(one["kind"], one["culprit"]) for one in found] == [(kind, culprit) for _, kind, culprit, _ in SERIOUS]
    for one, (*_, says) in zip(found, SERIOUS, strict=True):
        assert says in one["summary"]
    assert not [one for one in events(agent, "collector.absent") if one["collector"] == "kernel-log"]
