"""NCCL's RAS without NCCL: a real TCP server that speaks as src/ras/client_support.cc, about made-up ranks."""

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FakeRas:
    """What the server answers. `ranks` of one communicator: rank, host, pid, counts by kind."""

    ranks: list[tuple[int, str, int, dict[str, int]]] = field(default_factory=list)
    communicator: str = "0xfa93daea854b060b"
    has_json: bool = True
    silent: bool = False
    drips: bool = False
    """One byte at a time, for ever."""
    answer: str | None = None
    """In place of a status."""
    heard: list[str] = field(default_factory=list)
    address: str = ""

    def json(self) -> str:
        ranks = [
            {
                "rank": rank, "host": host, "pid": pid, "cuda_dev": rank % 8, "nvml_dev": rank % 8,
                "status": {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False,
                           "abort_flag": False},
                "collective_counts": counts,
            }
            for rank, host, pid, counts in self.ranks
        ]  # fmt: skip
        communicator = {
            "hash": self.communicator, "secondary_hash": "0x1:0x2", "size": len(ranks), "ranks_count": len(ranks),
            "missing_ranks_count": 0, "ranks": ranks, "missing_ranks": [],
        }  # fmt: skip
        whole = {
            "nccl_version": "2.28.3", "cuda_runtime_version": 12080, "cuda_driver_version": 12080,
            "timestamp": "2026-01-01 00:00:00", "communicators_count": 1, "communicators": [communicator],
            "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
        }  # fmt: skip
        return json.dumps(whole, indent=2) + "\n"

    def text(self) -> str:
        """As of 2.26: counts only where they differ, and the few by name."""
        lines = ["NCCL version 2.26.2 compiled with CUDA 12.6", "", "Warnings", "========", ""]
        for kind in sorted({kind for *_, counts in self.ranks for kind in counts}):
            by_count: dict[int, list[tuple[int, str, int]]] = {}
            for rank, host, pid, counts in self.ranks:
                by_count.setdefault(counts[kind], []).append((rank, host, pid))
            if len(by_count) < 2:
                continue
            lines.append(f"#0-0 ({self.communicator[2:]}) MISMATCH")
            lines.append(f"  Communicator ranks have different {kind} operation counts")
            for count, theirs in sorted(by_count.items(), key=lambda one: -len(one[1])):
                launched = f"launched up to operation {count}" if count else "not launched any operations"
                if len(theirs) > 1:
                    lines.append(f"  {len(theirs)} ranks have {launched}")
                if len(theirs) == 1 or len(theirs) * 2 < len(self.ranks):
                    said = f" has {launched}" if len(theirs) == 1 else ""
                    lines += [
                        f"  Rank {rank}{said} -- GPU {rank % 8} managed by process {pid} on node {host}"
                        for rank, host, pid in theirs
                    ]
            lines.append("")
        return "\n".join(lines) + "\n"


@contextmanager
def serve(ras: FakeRas, host: str = "127.0.0.1", port: int = 0) -> Iterator[FakeRas]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            is_json = False
            while line := self.rfile.readline().decode().strip():
                ras.heard.append(line)
                if ras.silent:
                    continue
                command = line.lower()
                if command.startswith("client protocol "):
                    self.wfile.write(b"SERVER PROTOCOL 2\n")
                elif command.startswith("timeout "):
                    self.wfile.write(b"OK\n")
                elif command == "set format json" and ras.has_json:
                    is_json = True
                    self.wfile.write(b"OK\n")
                elif command == "verbose status":
                    self.report(ras.answer if ras.answer is not None else ras.json() if is_json else ras.text())
                    return
                else:
                    self.wfile.write(f"ERROR: Unknown command {line}\n".encode())

        def report(self, text: str) -> None:
            if not ras.drips:
                self.wfile.write(text.encode())
                return
            while True:
                self.wfile.write(b" ")
                time.sleep(0.01)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that hangs up

    with Server((host, port), Handler) as server:
        ras.address = f"{host}:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield ras
        server.shutdown()
