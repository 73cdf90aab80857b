"""A controller's HTTP API as the command line sees it: real sockets, scripted answers."""

import json
import queue
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote

Json = dict[str, Any]


def health_as(condition: str, sentence: str, **more: object) -> Json:
    base: Json = {
        "condition": condition, "sentence": sentence, "since": 1.0, "action": "Nothing to do.", "needs_person": False,
        "doing": "", "usual_s": None, "basis": [], "others": [],
    }  # fmt: skip
    return base | more


def job_as(state: str, **more: object) -> Json:
    program = {"target": "/x/train.py", "args": ["--lr", "1"], "module": False}
    base: Json = {
        "id": "j1", "name": "train", "state": state, "reason": None, "generation": 1, "world_size": 4, "nnodes": 2,
        "nproc_per_node": 2, "program": program, "submitted_at": 1.0, "started_at": 2.0, "ended_at": None,
        "exit_code": None, "step": 7, "loss": 2.5, "tokens_per_s": 1000.0, "step_seconds": 0.05, "restarts": 0,
        "mfu": 0.4, "goodput": 0.97,
        "time": {"wall": 12.0, "productive": 9.0, "unsaved": 0.5, "queued": 2.0, "lost": {"restore": 0.5}},
        "sizes": [1, 2, 2], "assignment": [{"node": "node0", "ranks": [0, 1]}], "nodes": ["node0"],
        "max_steps": 10, "priority": 0, "preempt": False, "health": health_as("well", f"The job is {state}."),
    }  # fmt: skip
    return base | more


def node_as(name: str, **more: object) -> Json:
    base: Json = {
        "name": name, "state": "healthy", "reason": None, "connected": True, "hostname": name, "switch": "s0",
        "slots": 4, "cpus": 2, "ranks": [0, 1, 3], "frame_age": 0.05, "tx_bytes_per_s": 2.5e6, "rx_bytes_per_s": None,
        "gpus": [], "job": "j1",
    }  # fmt: skip
    return base | more


INCIDENT: Json = {
    "id": "i1", "job": "j1", "kind": "worker-killed", "culprit": "rank3", "severity": "critical", "state": "closed",
    "summary": "rank 3 was killed [by SIGKILL]", "opened": 10.0, "closed": 12.0, "action": "restart",
    "reason": "its node is well", "detect_s": 0.02, "recover_s": 1.5, "source": "memory", "generation_from": 1,
    "generation_to": 2, "step_at_fault": 20, "step_resumed": 19,
    "phases": [{"name": "stop", "start": 10.0, "end": 10.5}, {"name": "start", "start": 10.5, "end": None}],
    "findings": [{"kind": "worker-killed", "severity": "critical", "subject": "rank3", "text": "signal 9", "at": 10.0,
                  "evidence": {}}],
}  # fmt: skip


def verdict_as(node: str, grade: str, **more: object) -> Json:
    base: Json = {
        "node": node, "check": "gemm", "grade": grade, "severity": "info", "metric": "flops", "component": "cpu",
        "value": 4e10, "unit": "FLOP/s", "bar": None, "against": "peers", "baseline": 1e11, "baseline_n": 7,
        "baseline_since": 0.0, "text": "", "action": "", "evidence": {},
    }  # fmt: skip
    return base | more


def diagnosis_as(*verdicts: Json) -> Json:
    failed = sorted({v["node"] for v in verdicts if v["grade"] == "fail"})
    return {
        "id": "d1", "why": "by hand", "state": "done", "suite": "quick", "tests": ["gemm"], "nodes": ["node0", "node1"],
        "stage": "done", "rounds": 2, "jobs_done": 3, "jobs_open": 0, "began": 1.0, "ended": 9.5, "failed": failed,
        "cleared": ["node1"], "verdicts": list(verdicts),
    }  # fmt: skip


def ranks_as(world: int, nodes: list[str], **columns: object) -> Json:
    """All ranks run step 7; `columns` replace those of the same name."""
    each: Json = {
        "rank": list(range(world)), "node": [rank * len(nodes) // world for rank in range(world)],
        "step": [7] * world, "phase": [0] * world, "state": [0] * world, "step_seconds": [0.5] * world,
        "progress_age": [0.1] * world, "memory_bytes": [2e9] * world, "operation": [0] * world,
    }  # fmt: skip
    words = {
        "phases": ["train", "restore"],
        "states": ["running", "stalled", "exited"],
        "operations": ["", "all_reduce"],
    }
    return each | words | {"nodes": nodes, "sizes": None} | columns


STACKS: Json = {
    "at": 1_700_000_000.0, "job": "j1", "generation": 3, "missing": {"node1": "away"},
    "states": {"0": "S in futex_wait", "1": "S in futex_wait", "2": "T in do_signal_stop"},
    "rows": [
        {"depth": 0, "ranks": "0-2", "frame": "[main thread]"},
        {"depth": 0, "ranks": "0-2", "frame": "train.py:9 <module>"},
        {"depth": 1, "ranks": "0-1", "frame": "train.py:12 wait"},
        {"depth": 1, "ranks": "2", "frame": "train.py:7 load"},
    ],
}  # fmt: skip


BARE = ("ranks", "steps", "incidents", "inject", "timeline", "spans")
"""What is asked of the newest job without `/job` before it."""


class FakeController:
    """Set the attributes, look at `asked`. `log` feeds the log stream: a line, or "end", or "cut"."""

    def __init__(self, port: int = 0, token: str = "") -> None:
        self.token = token
        self.job: Json | None = job_as("running")
        """The newest, with what reads and commands without a job are about."""
        self.others: list[Json] = []
        """Further jobs; what is asked of one by id or name, or done to it, goes to the same answers."""
        self.nodes = [node_as("node0"), node_as("node1", state="cordoned", reason="by hand")]
        self.incidents = [INCIDENT]
        self.ranks = ranks_as(4, ["node0", "node1"])
        self.blame: Json | None = None
        """The newest look."""
        self.diagnosis = diagnosis_as(verdict_as("node0", "pass"), verdict_as("node1", "pass"))
        self.receivers: list[Json] = []
        self.asked: list[tuple[str, str, Json | None]] = []
        self.log: queue.Queue[Json | str] = queue.Queue()
        self.log_asked: list[dict[str, str]] = []
        """Which lines each reader of the log asked for."""
        self.submit_error: tuple[int, str] | None = None
        outer = self

        class Handler(_Handler):
            fake = outer

        self._server = _Server(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.address = f"127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def line(self, rank: int, text: str, stream: str = "out", generation: int = 1) -> None:
        self.log.put({
            "at": 1.0, "node": "node0", "rank": rank, "stream": stream, "text": text, "generation": generation,
            "dropped": 0,
        })  # fmt: skip

    def end(self, state: str, **more: object) -> None:
        self.job = job_as(state, **more)
        self.log.put("end")

    def jobs(self) -> list[Json]:
        return [job for job in (self.job, *self.others) if job is not None]

    def alias(self, path: str) -> tuple[str, Json | None]:
        """The path without the job that is named in it, and that job."""
        if not path.startswith("/jobs/"):
            return path, self.job
        key, _, rest = path.removeprefix("/jobs/").partition("/")
        job = next((job for job in self.jobs() if unquote(key) in (job["id"], job["name"])), None)
        bare = "" if rest in BARE or rest.startswith("blame") else "/job"
        return f"{bare}/{rest}".rstrip("/"), job

    def answer(self, method: str, path: str, body: Json | None) -> tuple[int, object]:
        known = path
        path, job = self.alias(path)
        if job is None and path != known:
            return 404, {"error": f"no job is called {known.split('/')[2]!r}; GET /api/v1/jobs lists them"}
        status = {
            "version": 3, "now": 1.0, "started_at": 0.5, "job": self.job, "jobs": self.jobs(),
            "counts": {"healthy": 1, "cordoned": 1}, "open_incidents": 0, "incidents": self.incidents,
            "nodes": {node["name"]: node["state"] for node in self.nodes},
        }  # fmt: skip
        reads: dict[str, object] = {
            "/status": status, "/job": job, "/jobs": self.jobs(), "/nodes": self.nodes,
            "/incidents": [one for one in self.incidents if path == known or (job and one["job"] == job["id"])],
            **{f"/incidents/{one['id']}": one for one in self.incidents},
            "/diagnoses/d1": self.diagnosis, "/ranks": self.ranks, "/blame/newest": self.blame,
        }  # fmt: skip
        if method == "GET" and path in reads:
            return 200, reads[path]
        if path == "/jobs" and self.submit_error:
            return self.submit_error[0], {"error": self.submit_error[1]}
        if path == "/diagnose":
            missing = [name for name in (body or {})["nodes"] if name not in [node["name"] for node in self.nodes]]
            return (404, {"error": f"there is no node {missing[0]}"}) if missing else (201, {"id": "d1"})
        done: dict[str, object] = {
            "/jobs": {"id": "j1"},
            "/job/stop": {"ok": True},
            "/job/restart": {"ok": True},
            "/job/ack": {"ok": True},
            "/notify/test": self.receivers,
            "/job/checkpoint": {"ok": True},
            "/inject": {"id": "f1", "armed": True},
            "/job/stacks": STACKS,
        }
        if method == "POST" and path in done:
            return 200, done[path]
        if method == "POST" and path.startswith("/nodes/node0/"):
            return 200, {"ok": True}
        return 404, {"error": f"there is no {path}"}


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client may leave; a later test's output stays its own
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    fake: FakeController
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path, _, query = self.path.removeprefix("/api/v1").partition("?")
        if self.fake.alias(path)[0] == "/job/logs":
            asked = dict(parse_qsl(query))
            self.fake.log_asked.append(asked)
            self._stream(asked.get("follow", "true").lower() == "true")
        else:
            self._answer("GET", path, None)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self._answer("POST", self.path.removeprefix("/api/v1"), body)

    def _answer(self, method: str, path: str, body: Json | None) -> None:
        self.fake.asked.append((method, path, body))
        if self.fake.token and self.headers.get("Authorization") != f"Bearer {self.fake.token}":
            code, data = 401, {"error": "this request needs the API token"}
        else:
            code, data = self.fake.answer(method, path, body)  # type: ignore[assignment]
        content = json.dumps(data).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, follow: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if not follow and self.fake.log.empty():
            self.fake.log.put("end")
        while (item := self.fake.log.get()) != "cut":
            name, data = ("end", {}) if isinstance(item, str) else ("line", item)
            self.wfile.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
            if name == "end":
                return
