"""The environment that `holdfast run` gives to workers: that of the submitting shell, as with torchrun. Pure.

Left out is what is true of the submitting host or session only: workers run on other hosts, and start again after the
session has ended.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from holdfast.base.errors import UsageError
from holdfast.cli.job.launch.torchrun import check_text

LEFT_OUT: dict[str, tuple[str, ...]] = {
    "places of workers, which each gets from Holdfast": (
        "MASTER_*", "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_*", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
        "TORCHELASTIC_*", "PET_*",
    ),
    "the same of other launchers, which libraries would take for theirs": (
        "SLURM*", "SBATCH_*", "SRUN_*", "PMI_*", "PMIX_*", "OMPI_*", "PRTE_*", "HYDRA_*", "I_MPI_*", "PALS_*",
        "KUBERNETES_*",
    ),
    "addresses and names of the submitting host": ("HOST", "HOSTNAME", "HOSTTYPE", "MACHTYPE", "OSTYPE"),
    "GPUs of the submitting host": (
        "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK", "CUDA_MPS_*",
    ),
    "the user, who is the agents' on the nodes": ("HOME", "USER", "USERNAME", "LOGNAME", "MAIL", "SHELL", "SUDO_*"),
    "files and sockets of the submitting host": (
        "TMPDIR", "TMP", "TEMP", "TEMPDIR", "KRB5CCNAME", "SSH_*", "GPG_*", "DBUS_*", "XDG_*", "ICEAUTHORITY",
        "DOCKER_HOST", "GIT_ASKPASS", "VSCODE_*",
    ),
    "the session": (
        "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "SESSION_MANAGER", "DESKTOP_SESSION", "GNOME_*", "KDE_*", "GTK_*",
        "TERM", "TERM_*", "TERMCAP", "COLORTERM", "COLUMNS", "LINES", "WINDOWID", "TMUX", "TMUX_*", "STY", "WINDOW",
        "PWD", "OLDPWD", "SHLVL", "_", "PS[0-9]", "PROMPT*", "HIST*", "LS_COLORS", "LESS*", "BASH_*", "ZSH*",
    ),
    "services that started the command": (
        "NOTIFY_SOCKET", "LISTEN_*", "WATCHDOG_*", "INVOCATION_ID", "JOURNAL_STREAM", "MANAGERPID", "SYSTEMD_*",
        "CREDENTIALS_DIRECTORY",
    ),
    "Holdfast's own settings and tokens": ("HOLDFAST_*",),
}  # fmt: skip
"""Patterns of names by the reason why they are left out."""


def is_left_out(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for patterns in LEFT_OUT.values() for pattern in patterns)


def inherited(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """What the workers get of the submitter's environment, and names that cannot be sent: they are no text."""
    env, unsendable = {}, []
    for name, value in sorted(environ.items()):
        if is_left_out(name):
            continue
        try:
            check_text(name + value, name)
        except UsageError:
            unsendable.append(name.encode(errors="backslashreplace").decode())
            continue
        env[name] = value
    return env, unsendable


def given(pairs: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of `--env NAME` and `--env NAME=VALUE`. UsageError does not repeat a value."""
    env = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name:
            raise UsageError("--env must be NAME or NAME=VALUE, but there is no name before the =")
        check_text(name, "--env")
        if not equals:
            if name not in environ:
                raise UsageError(f"--env {name}: there is no such variable here; give --env {name}=VALUE")
            value = environ[name]
        try:
            check_text(value, "--env")
        except UsageError:
            raise UsageError(f"--env {name}: its value is not UTF-8") from None
        env[name] = value
    return env


def of_workers(
    pairs: Sequence[str], is_clean: bool, nproc: int, environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """What a job's workers get, and the names that were left out since they are no text. `is_clean`: `--no-env`."""
    env, unsendable = ({}, []) if is_clean else inherited(environ)
    if nproc > 1:
        # Several workers on a host would each start a thread per core, as torchrun's users know.
        env.setdefault("OMP_NUM_THREADS", "1")
    return env | given(pairs, environ), unsendable
