"""What a process has from the one that forked or started it, so that two can be compared: is a fork of one as good as a
new process that the other starts?"""

import hashlib
import os
import resource
import site
import sys
from collections.abc import Mapping
from pathlib import Path

import holdfast
from holdfast.base.service import NICENESS

IGNORED = frozenset((
    "COLUMNS", "INVOCATION_ID", "JOURNAL_STREAM", "LINES", "OLDPWD", "PWD", "SHLVL", "TERM", "_",
    "MKL_NUM_THREADS", "OMP_NUM_THREADS",  # each fork server sets these itself
    "PYTEST_CURRENT_TEST", "TMPDIR", "XDG_STATE_HOME",
))  # fmt: skip
"""Variables that no import reads; of TMPDIR only `tempfile` keeps what it found. Our own, HOLDFAST_*, are read when
they are needed."""
PACKAGES = "set of installed packages"
_STATUS = (
    "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
    "Cpus_allowed_list", "Mems_allowed_list",
)  # fmt: skip


def situation(environ: Mapping[str, str]) -> dict[str, str]:
    """By name: what a fork has from its parent and a new process from whoever starts it, or found in `environ` when
    it imported its modules. This process's own; the environment may be another's."""
    python = (sys.version, os.path.realpath(sys.executable), sys.prefix)
    root = os.stat("/")
    found = {
        "Python": " ".join(python),
        "holdfast": f"{holdfast.__version__} {os.path.realpath(holdfast.__file__)}",
        PACKAGES: packages(),
        "niceness": environ.get(NICENESS) or str(os.getpriority(os.PRIO_PROCESS, 0)),
        "scheduling policy": str(os.sched_getscheduler(0)),
        "root folder": f"{root.st_dev} {root.st_ino}",
        "cgroup": Path("/proc/self/cgroup").read_text(),
        "OOM score": Path("/proc/self/oom_score_adj").read_text(),
    }
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in _STATUS:
            found[name] = value.strip()
    for name in sorted(os.listdir("/proc/self/ns")):
        found[f"namespace {name}"] = os.readlink(f"/proc/self/ns/{name}")
    for name in filter(lambda name: name.startswith("RLIMIT_"), dir(resource)):
        found[name] = str(resource.getrlimit(getattr(resource, name)))
    variables = (name for name in environ if name not in IGNORED and not name.startswith("HOLDFAST_"))
    return found | {f"variable {name}": environ[name] for name in variables}


def packages() -> str:
    """Stands for the names and versions of what is installed at this moment."""
    folders = [folder for folder in (*site.getsitepackages(), site.getusersitepackages()) if os.path.isdir(folder)]
    names = [name for folder in folders for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info"))]
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """The name of what is not equal, the first of several; empty if all is."""
    return next((name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)), "")


def umask() -> int:
    """As /proc has it: to read it by a system call is to change it for a moment, for all threads."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask:"))
    return int(line.split()[1], 8)
