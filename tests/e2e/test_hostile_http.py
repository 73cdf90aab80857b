"""Hostile clients, as raw sockets against a real controller: what they cost it, and that others are served."""

import contextlib
import select
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from holdfast.controller.http.connections import HEAD_S, MOST, WRITE_S
from holdfast.controller.http.guard import BODY_BYTES, BODY_S
from tests.e2e.daemons import Running, commands, ready

pytestmark = [pytest.mark.slow, pytest.mark.calm]
TOKEN = "s3cret"
MINE = f"Authorization: Bearer {TOKEN}"
LATE_S = 30.0  # what a busy machine may add to a deadline


@dataclass
class Victim:
    controller: Running
    address: tuple[str, int]
    tls: Path | None = None

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=30)

    def opened(self, head: str) -> socket.socket:
        """A connection that has sent this much of a request."""
        one = self.connect()
        one.sendall(head.replace("\n", "\r\n").encode())
        return one

    def is_well(self) -> None:
        scheme = "https" if self.tls else "http"
        trust = ssl.create_default_context(cafile=str(self.tls)) if self.tls else False
        with httpx.Client(verify=trust, trust_env=False, timeout=10) as client:
            url = f"{scheme}://127.0.0.1:{self.address[1]}/api/v1/status"
            assert client.get(url, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200

    def memory(self) -> int:
        return int(psutil.Process(self.controller.process.pid).memory_info().rss)


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Victim]]:
    folder = tmp_path_factory.mktemp("victims")
    with commands(folder / "commands") as one:
        files = folder / "certs"
        assert one.run("certs", "--dir", str(files)).process.returncode == 0
        tls = ["--tls-ca", "ca.pem", "--tls-cert", "controller.pem", "--tls-key", "controller-key.pem"]
        tls = [str(files / "controller" / part) if part.endswith(".pem") else part for part in tls]
        found = {}
        for name, more in (("http", []), ("https", tls)):
            controller = one.start(
                "controller", "--grpc-port", "0", "--http-port", "0", "--api-token", TOKEN,
                "--state-dir", str(folder / name), *more,
            )  # fmt: skip
            found[name] = Victim(controller, ("127.0.0.1", 0), files / "controller" / "ca.pem" if more else None)
        for victim in found.values():
            host, _, port = ready(victim.controller)[1].rpartition(":")
            victim.address = (host, int(port))
        yield found
        for victim in found.values():
            assert victim.controller.process.poll() is None
            assert "Traceback" not in victim.controller.err


@pytest.fixture
def victim(victims: dict[str, Victim]) -> Victim:
    return victims["http"]


def answer(one: socket.socket, within: float = 30.0) -> bytes:
    """All that comes until the server ends the connection."""
    one.settimeout(within)
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := one.recv(1 << 16):
            found += piece
    return found


def head(path: str, *fields: str, method: str = "POST") -> str:
    return "\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *fields, "", ""])


@pytest.mark.parametrize("framing", ["Content-Length: 600000000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("token", ["", "Authorization: Bearer wrong"])
def test_without_the_token_no_body_is_taken(victim: Victim, framing: str, token: str) -> None:
    """600 MB of an unauthorized request: the answer is there at once, and the rest is discarded."""
    before = victim.memory()
    fields = [field for field in (framing, token) if field]
    with victim.opened(head("/api/v1/jobs", *fields)) as one:
        piece = b"x" * (1 << 20)
        piece = b"100000\r\n" + piece + b"\r\n" if "chunked" in framing else piece
        sent = 0
        with contextlib.suppress(ConnectionError, TimeoutError):
            one.settimeout(5)
            for _ in range(600):
                one.sendall(piece)
                sent += len(piece)
        assert sent < 30 << 20  # what the kernels of both ends keep, and no more
    assert victim.memory() - before < 20 << 20
    with victim.opened(head("/api/v1/jobs", *fields)) as one:
        assert answer(one).startswith(b"HTTP/1.1 401 ")
    victim.is_well()


def test_who_waits_to_be_asked_for_the_body_is_not_asked(victim: Victim) -> None:
    with victim.opened(head("/api/v1/jobs", "Content-Length: 5", "Expect: 100-continue")) as one:
        assert answer(one).startswith(b"HTTP/1.1 401 ")


def test_a_body_of_more_than_a_megabyte_is_taken_nowhere(victim: Victim) -> None:
    paths = ("/", "/static/app.js", "/healthz", "/nowhere", "/api/v1/inject")
    asked = [(method, path) for method in ("GET", "POST", "DELETE") for path in paths]
    long = f"Content-Length: {BODY_BYTES + 1}"
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(victim.opened(head(path, MINE, long, method=method))) for method, path in asked]
        for one, (method, path) in zip(opened, asked, strict=True):
            said = answer(one)
            assert said.startswith(b"HTTP/1.1 413 "), (method, path, said)
            assert b"the body is longer than 1 MiB" in said


def test_nor_one_that_does_not_say_how_long_it_is(victim: Victim) -> None:
    with victim.opened(head("/api/v1/inject", MINE, "Transfer-Encoding: chunked")) as one:
        with contextlib.suppress(ConnectionError):
            for _ in range(20):
                one.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
        assert answer(one).startswith(b"HTTP/1.1 413 ")


def test_one_of_nearly_a_megabyte_is_taken(victim: Victim) -> None:
    fault = b'{"fault": "kill@1:rank0' + b" " * (BODY_BYTES - 25) + b'"}'
    fields = [MINE, "Content-Type: application/json", f"Content-Length: {len(fault)}", "Connection: close"]
    with victim.opened(head("/api/v1/inject", *fields)) as one:
        one.sendall(fault)
        assert answer(one).split(b" ")[1] in (b"400", b"409", b"503")  # it was read: there is no job


def is_over(one: socket.socket) -> bool:
    """Whether the server has ended it; what it said before is read and forgotten."""
    one.settimeout(0)
    try:
        return not one.recv(1 << 16)
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True


def shaken(victim: Victim) -> ssl.SSLSocket:
    trust = ssl.create_default_context(cafile=str(victim.tls))
    return trust.wrap_socket(victim.connect(), server_hostname="127.0.0.1")


def deaf(victim: Victim) -> socket.socket:
    """One that has asked for much and reads nothing of it."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(victim.address)
    one.settimeout(1)
    asked = head("/static/overview/mesh3d.js", method="GET").replace("\n", "\r\n").encode()
    with contextlib.suppress(OSError):
        for _ in range(2000):
            one.sendall(asked)
    return one


def has_open(victim: Victim, one: socket.socket) -> bool:
    process = psutil.Process(victim.controller.process.pid)
    return any(found.raddr == one.getsockname() for found in process.net_connections() if found.status != "LISTEN")


def test_slow_ones_have_a_deadline(victims: dict[str, Victim]) -> None:
    """All at once, over HTTP and HTTPS: each is gone in its time, and others are served all the while."""
    slow: dict[str, socket.socket] = {}
    first = time.monotonic()
    for name, victim in victims.items():
        slow[f"{name} silent"] = victim.connect()
    slow["half a hello"] = victims["https"].connect()
    slow["half a hello"].sendall(b"\x16\x03\x01\x02\x00\x01")
    slow["nothing after the hello"] = shaken(victims["https"])
    plain = victims["http"]
    slow["half a line"] = plain.opened("GET /api")
    slow["no end of fields"] = plain.opened("GET / HTTP/1.1\nHost: x\n")
    slow["body"] = plain.opened(head("/api/v1/inject", MINE, "Content-Length: 100"))
    slow["answered once"] = plain.opened(head("/healthz", method="GET") + "GET /api")
    slow["body of a refused one"] = plain.opened(head("/api/v1/jobs", "Content-Length: 5"))
    reads_nothing = deaf(plain)
    try:
        while not has_open(plain, reads_nothing):  # the kernel takes all it sends before the server accepts it
            assert time.monotonic() - first < HEAD_S + LATE_S
            time.sleep(0.05)
        begin = time.monotonic()
        ended: dict[str, float] = {}
        left = dict(slow)
        while left and time.monotonic() - begin < max(HEAD_S, BODY_S) + LATE_S:
            for name in ("no end of fields", "body", "answered once"):  # a byte extends no deadline
                if name in left:
                    with contextlib.suppress(OSError):
                        left[name].sendall(b"X")
            readable, _, _ = select.select(list(left.values()), [], [], 0.5)
            for name, one in list(left.items()):
                if one in readable and is_over(one):
                    ended[name] = time.monotonic() - first
                    del left[name]
            for victim in victims.values():
                victim.is_well()
        assert not left, f"still open: {sorted(left)}"
        refused = ended.pop("body of a refused one")
        assert min(ended.values()) > max(HEAD_S - 1, refused), (ended, refused)
        while has_open(plain, reads_nothing):
            assert time.monotonic() - begin < WRITE_S + LATE_S
            time.sleep(0.1)
    finally:
        for one in (*slow.values(), reads_nothing):
            one.close()


@pytest.mark.parametrize("name", ["http", "https"])
def test_idle_connections_keep_no_client_out(victims: dict[str, Victim], name: str) -> None:
    """Twice as many as there are places: those that have waited longest make room for clients with a request."""
    victim = victims[name]
    process = psutil.Process(victim.controller.process.pid)
    idle = [victim.connect() for _ in range(2 * MOST)]
    try:
        victim.is_well()
        assert process.num_fds() < MOST + 150
    finally:
        for each in idle:
            each.close()
    victim.is_well()
