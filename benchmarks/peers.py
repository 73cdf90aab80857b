"""Starts a peer that has no module to start, or whose release and PyTorch's do not fit together.

    python benchmarks/peers.py dlrover | torchft-lighthouse ARGS

`benchmarks/faults.py` runs it with the Python that the peer is installed for.
"""

import functools
import inspect
import signal
import sys


def dlrover() -> None:
    """`dlrover-run`. From PyTorch 2.9 on, SubprocessHandler has one more argument than DLRover 0.6.1 passes to it."""
    from torch.distributed.elastic.multiprocessing import api

    if "numa_options" in inspect.signature(api.SubprocessHandler).parameters:
        api.SubprocessHandler = functools.partial(api.SubprocessHandler, numa_options=None)  # type: ignore[assignment,misc]
    from dlrover.trainer.torch.elastic_run import main

    main()


def torchft_lighthouse() -> None:
    """With the options that torchft's own page starts one with. Its command reads the process' own arguments, past
    Python's, so it cannot be called from here."""
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(bind=sys.argv[1], min_replicas=1, quorum_tick_ms=100, join_timeout_ms=10_000)
    print(server.address(), flush=True)
    signal.pause()


if __name__ == "__main__":
    peer = {"dlrover": dlrover, "torchft-lighthouse": torchft_lighthouse}[sys.argv.pop(1)]
    peer()
