"""A rendezvous store in a process of its own: it survives workers, agent and generations, one per job.

Runs in a child of the fork server, because the store starts a thread and the fork server may have none.
"""

import importlib
import json
import os
import signal
import socket


def serve(host: str, pipe: int) -> int:
    """Serve a torch TCPStore on `host`, answer `{"port": N}` or `{"error": TEXT}` through the pipe, and stay."""
    answer, keep = _start(host)
    os.write(pipe, json.dumps(answer).encode())
    os.close(pipe)
    if keep is None:
        return 1
    while True:
        signal.pause()


def _start(host: str) -> tuple[dict[str, object], object]:
    try:
        distributed = importlib.import_module("torch.distributed")
    except ImportError as error:
        return {"error": f"no rendezvous endpoint without torch on this node: {error}"}, None
    try:
        # Bound here and handed over: by itself a TCPStore listens on every address of the host.
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.bind(address)
        port = listener.getsockname()[1]
        store = distributed.TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
    except (OSError, RuntimeError) as error:
        return {"error": f"cannot serve a rendezvous endpoint on {host}: {error}".splitlines()[0]}, None
    return {"port": port}, store
