"""What `holdfast run` gives to workers of the submitting shell's environment."""

import re

import pytest

from holdfast.base.errors import UsageError
from holdfast.cli.job.launch import environment

SHELL = {
    "HF_HOME": "/data/hf", "WANDB_API_KEY": "secret", "NCCL_DEBUG": "INFO", "PATH": "/venv/bin:/bin",
    "LD_LIBRARY_PATH": "/opt/lib", "PYTHONPATH": "/src", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}  # fmt: skip
HERE_ONLY = (
    "MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "PET_NNODES",
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "SLURM_PROCID", "SLURMD_NODENAME", "OMPI_COMM_WORLD_RANK",
    "SSH_AUTH_SOCK", "SSH_CONNECTION", "DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "TMUX", "TMUX_PANE",
    "PWD", "OLDPWD", "SHLVL", "_", "HOME", "USER", "TMPDIR", "KRB5CCNAME", "HOSTNAME", "NOTIFY_SOCKET",
    "BASH_FUNC_module%%", "HOLDFAST_API_TOKEN", "HOLDFAST_CONTROLLER",
)  # fmt: skip


def test_what_is_true_of_this_host_or_session_only_stays_here() -> None:
    env, unsendable = environment.of_workers([], False, 1, SHELL | dict.fromkeys(HERE_ONLY, "x"))
    assert env == SHELL
    assert unsendable == []


def test_named_variables_are_added_also_those_that_would_stay_here() -> None:
    shell = SHELL | {"CUDA_VISIBLE_DEVICES": "3", "HOME": "/home/me"}
    env, _ = environment.of_workers(["HOME", "CUDA_VISIBLE_DEVICES", "A=b=c", "NCCL_DEBUG="], False, 1, shell)
    assert env == SHELL | {"HOME": "/home/me", "CUDA_VISIBLE_DEVICES": "3", "A": "b=c", "NCCL_DEBUG": ""}


def test_a_clean_environment_has_the_named_ones_only() -> None:
    assert environment.of_workers(["HF_HOME", "A=1"], True, 1, SHELL) == ({"HF_HOME": "/data/hf", "A": "1"}, [])


@pytest.mark.parametrize(("given", "threads"), [({}, "1"), ({"OMP_NUM_THREADS": "4"}, "4")])
def test_workers_side_by_side_have_one_thread_unless_the_shell_says_otherwise(
    given: dict[str, str], threads: str
) -> None:
    assert environment.of_workers([], False, 2, given)[0]["OMP_NUM_THREADS"] == threads
    assert environment.of_workers(["OMP_NUM_THREADS=8"], False, 2, given)[0]["OMP_NUM_THREADS"] == "8"
    assert environment.of_workers([], False, 1, given)[0] == given


def test_what_is_no_text_is_named_and_left_out() -> None:
    assert environment.of_workers([], False, 1, {"A": "\udcff", "B": "b"}) == ({"B": "b"}, ["A"])


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("GONE", "there is no such variable here"),
        ("=hush", "NAME or NAME=VALUE"),
        ("KEY=hush\udcff", "--env KEY: its value is not UTF-8"),
    ],
)
def test_a_variable_that_cannot_be_given_and_no_value_in_the_message(pair: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)) as caught:
        environment.given([pair], SHELL)
    assert "hush" not in str(caught.value)
