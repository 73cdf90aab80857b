"""The environment of one worker: torchrun's variables, so that a script written for it needs no change."""

import os
from collections.abc import Mapping

from holdfast.base.errors import UsageError
from holdfast.wire import messages as msg

_NOT_FOR_WORKERS = ("HOLDFAST_AGENT_", "HOLDFAST_CONTROLLER_", "HOLDFAST_DEMO_", "HOLDFAST_FORK_FROM")


def job_environment(base: Mapping[str, str], program: msg.Program) -> dict[str, str]:
    """What all workers of a job have in common, of which their fork server may know."""
    return {k: v for k, v in base.items() if not k.startswith(_NOT_FOR_WORKERS)} | program.env


def program_folder(program: msg.Program) -> str:
    """The folder that Python puts first on the path of this program."""
    if program.module:
        return program.cwd
    path = os.path.join(program.cwd, program.target)
    is_whole = os.path.isdir(path) or path.endswith((".zip", ".pyz"))
    return path if is_whole else os.path.dirname(os.path.realpath(path))


def worker_environment(
    base: Mapping[str, str], command: msg.Command, order: msg.StartWorkers, place: msg.Rank
) -> dict[str, str]:
    """torchrun's variables for one worker, so that a script written for it needs no change.

    The store runs outside of all workers (`TORCHELASTIC_USE_AGENT_STORE`): each is a client of it, rank 0 too.
    """
    local_world = sum(r.group_rank == place.group_rank for r in order.ranks)
    env = job_environment(base, order.program)
    if local_world > 1:
        env.setdefault("OMP_NUM_THREADS", "1")
    if order.master_addr in ("127.0.0.1", "::1", "localhost"):
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # The agent knows RAS threads, whose traffic is no activity, by the name that NCCL gives them only if asked to.
    env.setdefault("NCCL_SET_THREAD_NAME", "1")
    restarts = command.generation - 1
    env |= {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "GROUP_RANK": str(place.group_rank),
        "ROLE_RANK": str(place.rank),
        "ROLE_NAME": order.program.env.get("ROLE_NAME", "default"),
        "WORLD_SIZE": str(order.world_size),
        "LOCAL_WORLD_SIZE": str(local_world),
        "GROUP_WORLD_SIZE": str(order.nnodes),
        "ROLE_WORLD_SIZE": str(order.world_size),
        "MASTER_ADDR": order.master_addr,
        "MASTER_PORT": str(order.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(max(order.max_restarts, restarts)),
        "TORCHELASTIC_RUN_ID": command.job,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "HOLDFAST_JOB": command.job,
        "HOLDFAST_GENERATION": str(command.generation),
    }
    if order.program.virtual_local_rank:
        env |= {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": _gpu(env.get("CUDA_VISIBLE_DEVICES"), place.local_rank)}
    return env


def _gpu(visible: str | None, local_rank: int) -> str:
    """The one that is this worker's, of those that the node offers. UsageError where there are too few."""
    if visible is None:
        return str(local_rank)
    gpus = visible.split(",")
    if local_rank >= len(gpus):
        raise UsageError(f"--virtual-local-rank: no GPU for local rank {local_rank} in CUDA_VISIBLE_DEVICES={visible}")
    return gpus[local_rank].strip()
