"""docs/security.md, line by line, against a real controller with the files that `holdfast certs` makes."""

import datetime
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from holdfast.base.bounds import MAX_MESSAGE, MAX_PIECE
from holdfast.base.certs import Credential, issue, make_authority, write_cluster
from holdfast.base.errors import ProtocolError
from holdfast.controller.http.connections import HEAD_S, MOST, WRITE_S
from holdfast.controller.http.guard import BODY_BYTES, BODY_S
from holdfast.controller.shell import ingest
from holdfast.wire import codec as wire
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.e2e.daemons import ROOT, commands, ready, wait_for
from tests.e2e.secured import METHOD, Agent, Cluster, a_job, read

PAGE = (ROOT / "docs" / "security.md").read_text()
NOW = datetime.datetime.now(datetime.UTC)


def table(heading: str) -> list[list[str]]:
    """The rows of the one table of a section, without its head."""
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None, heading
    lines = [line for line in section[1].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


# --- what the page promises of figures and files -----------------------------------------------------------------


def test_the_limits_are_those_of_the_code() -> None:
    """tests/e2e/test_hostile_http.py and test_hostile_grpc.py try them."""
    said = {what: limit for what, limit in table("Resource limits of connections")}
    assert (BODY_BYTES, BODY_S) == (1 << 20, 10)
    assert said == {
        "a body without a valid token": "not read",
        "a body with a valid token": f"1 MiB, within {BODY_S:g} s",
        "a header, or the TLS handshake before it": f"{HEAD_S:g} s, 16 KiB",
        "a response that the client does not read": f"{WRITE_S:g} s without progress",
        "connections over HTTP at the same time": f"{MOST}; the connection that has been idle longest is "
        "closed for a new one",
        "the TLS handshake of an agent": f"{ingest.HANDSHAKE_S:g} s",
        "a message of an agent, including the hello": f"{MAX_PIECE >> 20} MiB; "
        f"after the hello {MAX_MESSAGE >> 20} MiB, in pieces",
        "streams without a hello, per certificate": f"{ingest.MOST_WAITING}, for {ingest.HELLO_S:g} s",
        "streams on one connection of an agent": f"{ingest.STREAMS_EACH}",
        "connections of agents at the same time": f"{ingest.MOST_STREAMS:,}",
    }


def test_the_folders_are_those_that_are_written(tmp_path: Path) -> None:
    write_cluster(tmp_path / "certs", [], ["NAME"], NOW)
    named = {row[0].strip("`") for row in table("Files and their worth")}
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_dir()}
    assert named == written - {"certs", "certs/nodes"}


# --- a real controller ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("page")
    certs = folder / "certs"
    with commands(folder / "commands") as one:
        made = one.run("certs", "--dir", str(certs), "--node", "node0", "--node", "node1")
        assert made.process.returncode == 0, made.err
        its = certs / "controller"
        controller = one.start(
            "controller", "--listen-host", "0.0.0.0", "--grpc-port", "0", "--http-port", "0",
            "--tls-ca", str(its / "ca.pem"), "--tls-cert", str(its / "controller.pem"),
            "--tls-key", str(its / "controller-key.pem"), "--api-token-file", str(its / "api-token"),
            "--reader-token-file", str(its / "reader-token"), "--state-dir", str(folder / "state"),
        )  # fmt: skip
        rpc, http = (address.replace("0.0.0.0", "127.0.0.1") for address in ready(controller))
        yield Cluster(certs, rpc, http, folder)
        assert controller.process.poll() is None
        assert "Traceback" not in controller.err


# --- an agent's certificate ------------------------------------------------------------------------------------------


def joins_as(cluster: Cluster, name: str, made: Credential) -> bool:
    return cluster.joins(name, made.certificate_pem(), made.key_pem())


def reports(cluster: Cluster) -> bool:
    notice = t.AgentNotice(time.time_ns(), "disk", t.Severity.WARNING, "said by node0")
    if not cluster.joins("node0", *read(cluster.node()), [msg.Numbered(1, notice)]):
        return False
    with cluster.api(cluster.token("reader")) as api:
        wait_for(lambda: "said by node0" in api.get("/api/v1/incidents").text)
        return True


def refused(api: httpx.Client, reason: str) -> float:
    wanted = f'holdfast_ingest_malformed_total{{reason="{reason}"}}'
    return next(float(line.split()[-1]) for line in api.get("/metrics").text.splitlines() if line.startswith(wanted))


Reported = Callable[[str], msg.AgentMessage | t.Event]
Seen = Callable[[httpx.Client], bool]


def speaks_for_another(cluster: Cluster, said: Reported, is_seen: Seen) -> bool:
    """Said by node1 of the rank that node0 holds. From node0 the same is seen."""
    with a_job(cluster) as (holder, job, api), Agent(cluster, "node1") as other:
        before = refused(api, "foreign")
        other.say(said(job))
        wait_for(lambda: refused(api, "foreign") > before or is_seen(api))
        found = is_seen(api)
        holder.say(said(job))
        wait_for(lambda: is_seen(api))
        return found


def step(job: str) -> t.Frame:
    return t.Frame(0, 1, 1, steps=(t.StepRecord(0, 1, 5, time.time_ns(), 0.3, 1.0, 128, False, job),))


def has_step(api: httpx.Client) -> bool:
    return bool(api.get("/api/v1/steps").json()) and api.get("/api/v1/job").json()["step"] == 5


def reports_steps(cluster: Cluster) -> bool:
    with a_job(cluster) as (holder, job, api):
        holder.say(step(job))
        wait_for(lambda: has_step(api))
        return True


def has_failed(api: httpx.Client) -> bool:
    return bool(api.get("/api/v1/job").json()["restarts"])


def has_line(api: httpx.Client) -> bool:
    """Is it among those that are kept? They come first, and nothing after them."""
    try:
        with api.stream("GET", "/api/v1/job/logs", timeout=httpx.Timeout(30.0, read=1.0)) as answer:
            return any("a line of rank 0" in line for line in answer.iter_lines())
    except httpx.ReadTimeout:
        return False


def answers_for_another(cluster: Cluster) -> bool:
    """The rendezvous address that node0 was asked for: the first order to start the workers shows whose answer won."""
    with a_job(cluster, answers=False) as (holder, _, api), Agent(cluster, "node1") as other:
        asked, _ = holder.order(msg.StartStore)
        before = refused(api, "answer")
        other.answer(asked, "203.0.113.9")
        started = (one for one in list(holder.commands) if isinstance(one.order, msg.StartWorkers))
        wait_for(lambda: refused(api, "answer") > before or any(started))
        holder.answer(asked)
        _, order = holder.order(msg.StartWorkers)
        return order.master_addr == "203.0.113.9"


def displaces(cluster: Cluster) -> bool:
    """While the agent of that name speaks, from another host with a copy of its certificate."""
    ca = (cluster.certs / "reader" / "ca.pem").read_bytes()
    cert, key = read(cluster.node("node1"))
    leave = threading.Event()

    def speak() -> Iterator[bytes]:
        yield wire.encode_agent(msg.Hello(t.Identity("node1", "host", "holder")))
        leave.wait(20)

    with grpc.secure_channel(cluster.grpc, grpc.ssl_channel_credentials(ca, key, cert)) as channel:
        session: Any = channel.stream_stream(METHOD)
        answers = session(speak(), timeout=20)
        try:
            assert isinstance(wire.decode_controller(next(answers)), msg.Welcome)
            return cluster.joins("node1", cert, key)
        finally:
            leave.set()
            answers.cancel()


def over_http(cluster: Cluster, method: str, path: str) -> bool:
    """With the certificate on the connection, and with its name or key where the token belongs."""
    cert, key = cluster.node()
    lines = key.read_text().splitlines()
    for token in ("", "node0", lines[1]):
        with cluster.api(token, (cert, key)) as api:
            if api.request(method, path).status_code not in (401, 403):
                return True
    return False


def poses_to_agents(cluster: Cluster) -> bool:
    """Under the very name that is in the certificate, so that only its purpose is wrong."""
    its = cluster.certs / "controller"
    assert is_taken_for_controller(cluster, (its / "controller.pem", its / "controller-key.pem"), "localhost", 30.0)
    return is_taken_for_controller(cluster, cluster.node("node1"), "node1", 2.0)


def is_taken_for_controller(cluster: Cluster, serves: tuple[Path, Path], name: str, within_s: float) -> bool:
    ca = (cluster.certs / "ca" / "ca.pem").read_bytes()
    server = grpc.server(ThreadPoolExecutor(1))
    cert, key = read(serves)
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, cert)], ca, True))
    server.start()
    cert, key = read(cluster.node("node0"))
    trust = grpc.ssl_channel_credentials(ca, key, cert)
    try:
        with grpc.secure_channel(f"127.0.0.1:{port}", trust, [("grpc.ssl_target_name_override", name)]) as channel:
            grpc.channel_ready_future(channel).result(timeout=within_s)
            return True
    except grpc.FutureTimeoutError:
        return False
    finally:
        server.stop(0)


def poses_to_people(cluster: Cluster) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*cluster.node("node1"))
    trust = ssl.create_default_context(cafile=str(cluster.certs / "operator" / "ca.pem"))
    left, right = socket.socketpair()

    def serve() -> None:
        try:
            context.wrap_socket(left, server_side=True).close()
        except OSError:
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        trust.wrap_socket(right, server_hostname="node1").close()
        return True
    except ssl.SSLCertVerificationError as error:
        if "purpose" not in str(error):
            raise
        return False
    finally:
        right.close()
        thread.join()


def signs(cluster: Cluster) -> bool:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    cert, key = cluster.node()
    loaded: Any = serialization.load_pem_private_key(key.read_bytes(), None)
    own = Credential(x509.load_pem_x509_certificate(cert.read_bytes()), loaded)
    made = issue(own, "node9", ["node9"], NOW, server=False)
    return cluster.joins("node9", made.certificate_pem() + cert.read_bytes(), made.key_pem())


OLD = NOW - datetime.timedelta(days=30)
AGENT: dict[str, Callable[[Cluster], bool]] = {
    "join the cluster as the node that it names": lambda c: c.joins("node0", *read(c.node())),
    "report steps": reports_steps,
    "report events of that node": reports,
    "report for another node's ranks (steps)": lambda c: speaks_for_another(c, step, has_step),
    "report for another node's ranks (exits)": lambda c: speaks_for_another(
        c, lambda job: t.WorkerExited(job, 1, 0, 7, 1, 1, error="no"), has_failed
    ),
    "report for another node's ranks (logs)": lambda c: speaks_for_another(
        c, lambda job: msg.LogChunk(job, 1, 0, "out", "a line of rank 0\n"), has_line
    ),
    "reply to another node's commands": answers_for_another,
    "take the name of a connected agent": displaces,
    "join as another node": lambda c: c.joins("node1", *read(c.node())),
    "join after it has expired": lambda c: joins_as(
        c, "node1", issue(c.ours(), "node1", ["node1"], OLD, server=False, days=2)
    ),
    "join with a certificate of another authority": lambda c: joins_as(
        c, "node1", issue(make_authority(NOW), "node1", ["node1"], NOW, server=False)
    ),
    "join without a certificate": lambda c: c.joins("node1", None, None),
    "read anything over HTTP": lambda c: over_http(c, "GET", "/api/v1/status"),
    "change anything over HTTP": lambda c: over_http(c, "POST", "/api/v1/job/stop"),
    "pose as the controller to other agents": poses_to_agents,
    "pose as the controller to people and their tokens": poses_to_people,
    "make certificates that the cluster trusts": signs,
}


@pytest.mark.slow
@pytest.mark.parametrize(("what", "said"), table("What an agent's certificate may do"), ids=lambda text: text[:40])
def test_an_agents_certificate(cluster: Cluster, what: str, said: str) -> None:
    try:
        may = AGENT[what](cluster)
    except ProtocolError:
        may = False
    assert ("yes" if may else "no") == said


# --- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("row", table("What the tokens may do"), ids=lambda row: row[0].strip("`"))
def test_a_token(cluster: Cluster, row: list[str]) -> None:
    """Yes: it is answered, even if there is no such node or job. No: the caller is refused."""
    request, *said = row[:4]
    method, path = request.strip("`").split(" ")
    path = path.replace("{name}", "none").replace("{incident}", "i0").replace("{id}", "d0")
    for token, may in zip(("", cluster.token("reader"), cluster.token("operator")), said, strict=True):
        with cluster.api(token) as api, api.stream(method, path) as answer:
            expected = "no" if answer.status_code in (401, 403) else "yes"
            assert expected == may, (token and "with a token", answer.status_code)
            assert answer.status_code < 500


@pytest.mark.slow
def test_the_page_has_all_that_can_be_asked(cluster: Cluster) -> None:
    with cluster.api(cluster.token("reader")) as api:
        schema = api.get("/openapi.json").json()
    asked = {f"{method.upper()} {path}" for path, methods in schema["paths"].items() for method in methods}
    rows = [row[0].strip("`") for row in table("What the tokens may do")]
    assert len(set(rows)) == len(rows)
    assert set(rows) == asked | {"GET /", "GET /static/app.js", "GET /openapi.json"}


# --- pages of other sites --------------------------------------------------------------------------------------------

LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
FORM = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "origin": "https://evil.example"}
IMAGE = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}


def is_served(cluster: Cluster, method: str, path: str, headers: dict[str, str]) -> bool:
    """With the operator's token even, which such a page has not."""
    with cluster.api(cluster.token("operator"), **headers) as api:
        return api.request(method, path).status_code != 403


def rebound(cluster: Cluster) -> bool:
    """A controller on loopback, open to its host, and a foreign name that was made to point there."""
    with commands(cluster.folder / "open") as one:
        state = str(cluster.folder / "open-state")
        controller = one.start("controller", "--grpc-port", "0", "--http-port", "0", "--state-dir", state)
        url = f"http://{ready(controller)[1]}"
        assert httpx.get(f"{url}/api/v1/status", trust_env=False, timeout=30).status_code == 200
        asked = httpx.get(f"{url}/api/v1/status", headers={"host": "evil.example"}, trust_env=False, timeout=30)
        return asked.status_code != 403


PAGES: dict[str, Callable[[Cluster], bool]] = {
    "a link to the page": lambda c: is_served(c, "GET", "/", LINK),
    "a form or script that changes something": lambda c: is_served(c, "POST", "/api/v1/job/stop", FORM),
    "a script or image that reads the API": lambda c: is_served(c, "GET", "/api/v1/status", IMAGE),
    "a foreign name for this host (DNS rebinding), without a token": rebound,
}


@pytest.mark.slow
@pytest.mark.parametrize(("what", "said"), table("What web pages may do"), ids=lambda text: text[:40])
def test_a_page_of_another_site(cluster: Cluster, what: str, said: str) -> None:
    assert ("yes" if PAGES[what](cluster) else "no") == said


def test_each_line_that_is_tried_is_on_the_page() -> None:
    assert [what for what, _ in table("What an agent's certificate may do")] == list(AGENT)
    assert [what for what, _ in table("What web pages may do")] == list(PAGES)
