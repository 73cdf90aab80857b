"""Stands in for controller and agents under a LocalCluster: the same flags, ready line and ends, and no torch.

An agent has one "worker", a process that outlives an agent that was killed. `ready_code=N` in FAKE_DAEMON ends with N
instead of starting.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from holdfast.base.service import follow_parent


def controller(flags: dict[str, str]) -> None:
    nodes = Path(flags["--state-dir"]).parent / "nodes"

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            found = [{"name": path.name, "state": "healthy"} for path in nodes.glob("*")]
            content = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    try:
        server = ThreadingHTTPServer(("127.0.0.1", int(flags["--http-port"])), Handler)
    except OSError:
        sys.exit(2)
    port = server.server_address[1]
    print(json.dumps({"grpc": "127.0.0.1:7", "http": f"127.0.0.1:{port}"}), flush=True)
    # The thread that asks a server to stop must not be the thread that serves.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever(poll_interval=0.01)


def agent(flags: dict[str, str]) -> None:
    state = Path(flags["--state-dir"])
    nodes = state.parent / "nodes"
    nodes.mkdir(exist_ok=True)
    command = [sys.executable, "-c", "import time; time.sleep(300)"]
    worker = subprocess.Popen(command, start_new_session=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # from here on it waits for us, whenever it comes
    state.mkdir(exist_ok=True)
    (state / "worker").write_text(str(worker.pid))
    (nodes / flags["--node-name"]).touch()
    signal.sigwait({signal.SIGTERM})
    worker.kill()
    worker.wait()


if __name__ == "__main__":
    follow_parent()
    name, *rest = sys.argv[1:]
    rest = [part for part in rest if part != "--end-with-workers"]
    wanted = os.environ.get("FAKE_DAEMON", "")
    if wanted.startswith(f"{name}="):
        print(f"holdfast: {name} will not start", file=sys.stderr)
        sys.exit(int(wanted.partition("=")[2]))
    {"controller": controller, "agent": agent}[name](dict(zip(rest[::2], rest[1::2], strict=True)))
