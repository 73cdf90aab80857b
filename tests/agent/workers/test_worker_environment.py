"""The environment of a worker: torchrun's variables, its GPU, and nothing of the agent's own."""

import pytest

from holdfast.agent.workers.environment import worker_environment
from holdfast.base.errors import UsageError
from holdfast.wire import messages as msg


def environment(
    base: dict[str, str] | None = None, generation: int = 1, is_virtual: bool = False, **program: str
) -> dict[str, str]:
    order = msg.StartWorkers(
        msg.Program("train.py", env=program, virtual_local_rank=is_virtual),
        tuple(msg.Rank(4 + local, local, 1) for local in range(4)),
        world_size=8,
        nnodes=2,
        master_addr="10.0.0.7",
        master_port=29400,
        max_restarts=3,
    )
    command = msg.Command("c", "job7", generation, order)
    return worker_environment(base or {}, command, order, order.ranks[2])


@pytest.mark.parametrize(("visible", "gpu"), [(None, "2"), ("4,5,6,7", "6"), ("GPU-a, GPU-b, GPU-c", "GPU-c")])
def test_each_worker_sees_its_gpu_as_local_rank_0(visible: str | None, gpu: str) -> None:
    base = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    env = environment(base, is_virtual=True)
    assert (env["LOCAL_RANK"], env["CUDA_VISIBLE_DEVICES"], env["RANK"]) == ("0", gpu, "6")
    assert environment(base).get("CUDA_VISIBLE_DEVICES") == visible


def test_a_worker_without_a_gpu_of_its_own_does_not_start() -> None:
    with pytest.raises(UsageError, match="no GPU for local rank 2 in CUDA_VISIBLE_DEVICES=0,1"):
        environment({"CUDA_VISIBLE_DEVICES": "0,1"}, is_virtual=True)


def test_a_role_has_a_name() -> None:
    assert environment(ROLE_NAME="trainer")["ROLE_NAME"] == "trainer"


def test_the_variables_are_torchruns() -> None:
    """Names and meaning as torch.distributed.elastic's LocalElasticAgent sets them."""
    assert environment(generation=3) == {
        "RANK": "6",
        "LOCAL_RANK": "2",
        "GROUP_RANK": "1",
        "ROLE_RANK": "6",
        "ROLE_NAME": "default",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_WORLD_SIZE": "8",
        "MASTER_ADDR": "10.0.0.7",
        "MASTER_PORT": "29400",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "job7",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
        "NCCL_SET_THREAD_NAME": "1",
        "HOLDFAST_JOB": "job7",
        "HOLDFAST_GENERATION": "3",
    }


@pytest.mark.slow
def test_no_variable_of_torchruns_is_missing() -> None:
    """Asked of torch itself: what its agent puts into a worker's environment."""
    import inspect
    import re

    from torch.distributed.elastic.agent.server import local_elastic_agent

    source = inspect.getsource(local_elastic_agent.LocalElasticAgent._start_workers)
    names = set(re.findall(r'^\s+"([A-Z_]+)": ', source, re.MULTILINE))
    assert {"RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"} <= names
    # How torch handles errors of NCCL by default, in its own agent only.
    assert names - set(environment()) <= {"TORCH_NCCL_ASYNC_ERROR_HANDLING"}


def test_settings_of_the_agent_are_not_the_workers_and_the_jobs_own_win() -> None:
    base = {
        "PATH": "/bin",
        "HOLDFAST_AGENT_SLOTS": "4",
        "HOLDFAST_CONTROLLER_GRPC_PORT": "1",
        "A": "agent",
        "RANK": "99",
    }
    env = environment(base, A="job", OMP_NUM_THREADS="5", NCCL_SET_THREAD_NAME="0")
    assert (env["PATH"], env["A"], env["OMP_NUM_THREADS"], env["RANK"]) == ("/bin", "job", "5", "6")
    assert env["NCCL_SET_THREAD_NAME"] == "0"
    assert not {"HOLDFAST_AGENT_SLOTS", "HOLDFAST_CONTROLLER_GRPC_PORT"} & set(env)
    assert "GLOO_SOCKET_IFNAME" not in env
