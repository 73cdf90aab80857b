"""Accepted and refused clients: real gRPC and HTTP, with the certificates that `holdfast certs` makes."""

import datetime
import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from holdfast.base.certs import Credential, issue, load_authority, make_authority
from holdfast.wire import codec as wire
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.e2e.daemons import Commands, Running, commands, log_events, one_line, ready, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.calm]
NOW = datetime.datetime.now(datetime.UTC)


@dataclass
class Fort:
    """A controller that listens on all addresses, and the files it was given."""

    commands: Commands
    files: Path
    controller: Running
    grpc: str
    http: str
    token: str

    def agent(self, name: str, role: str, ca: str = "", host: str = "127.0.0.1") -> Running:
        """`role`: whose certificate it shows; `ca`: whose authority it trusts."""
        its = self.files / "nodes" / role
        flags = ["--tls-ca", str(self.files / "nodes" / (ca or role) / "ca.pem")]
        flags += ["--tls-cert", str(its / "node.pem"), "--tls-key", str(its / "node-key.pem")]
        state = ["--state-dir", str(self.files.parent / f"state-{name}-{len(self.commands.running)}")]
        controller = self.grpc.replace("127.0.0.1", host)
        return self.commands.start(
            "agent", "--controller", controller, "--node-name", name, "--no-warm", *flags, *state
        )

    def api(self) -> httpx.Client:
        context = ssl.create_default_context(cafile=str(self.files / "operator" / "ca.pem"))
        return httpx.Client(
            base_url=f"https://{self.http}",
            verify=context,
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=30,
        )

    def nodes(self) -> dict[str, str]:
        with self.api() as api:
            return {node["name"]: node["state"] for node in api.get("/api/v1/nodes").json() if node["connected"]}


@pytest.fixture(scope="module")
def fort(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fort]:
    """It listens on all addresses; the test's traffic stays on loopback."""
    folder = tmp_path_factory.mktemp("fort")
    files = folder / "certs"
    with commands(folder / "commands") as one:
        made = one.run("certs", "--dir", str(files), "--node", "node0", "--node", "node1")
        assert made.process.returncode == 0, made.err
        tls = ["--tls-ca", "ca.pem", "--tls-cert", "controller.pem", "--tls-key", "controller-key.pem"]
        tls = [str(files / "controller" / part) if part.endswith(".pem") else part for part in tls]
        controller = one.start(
            "controller", "--listen-host", "0.0.0.0", "--grpc-port", "0", "--http-port", "0", *tls,
            "--api-token-file", str(files / "controller" / "api-token"), "--state-dir", str(folder / "state"),
        )  # fmt: skip
        addresses = [address.replace("0.0.0.0", "127.0.0.1") for address in ready(controller)]
        foreign = make_authority(NOW, "somebody else")
        ours = load_authority(files / "ca" / "ca.pem", files / "ca" / "ca-key.pem")
        assert ours is not None
        write(files / "nodes" / "foreign", foreign, issue(foreign, "node1", ["node1"], NOW, server=False))
        old = NOW - datetime.timedelta(days=30)
        write(files / "nodes" / "expired", ours, issue(ours, "node1", ["node1"], old, server=False, days=2))
        token = (files / "operator" / "api-token").read_text().strip()
        yield Fort(one, files, controller, addresses[0], addresses[1], token)


def write(folder: Path, authority: Credential, credential: Credential) -> None:
    folder.mkdir()
    (folder / "ca.pem").write_bytes(authority.certificate_pem())
    (folder / "node.pem").write_bytes(credential.certificate_pem())
    (folder / "node-key.pem").write_bytes(credential.key_pem())


# --- gRPC ----------------------------------------------------------------------------------------------------


def test_only_the_right_certificate_joins(fort: Fort) -> None:
    """All the wrong ones connect at once; each gets the reason in one line, and the right one gets in beside them."""
    wrong = {
        "wrong authority": fort.agent("node1", "foreign", "node1"),
        "expired": fort.agent("node1", "expired"),
        "another node's": fort.agent("node1", "node0"),
        "does not trust the controller": fort.agent("node1", "node1", "foreign"),
        # An address of the controller that is not in its certificate.
        "another address": fort.agent("node1", "node1", host="127.0.0.2"),
    }
    right = fort.agent("node0", "node0")
    wait_for(lambda: fort.nodes() == {"node0": "healthy"}, 60, fort.nodes)
    reasons = {}
    for name, agent in wrong.items():
        agent.says("controller.away")
        reasons[name] = refused(agent)
    assert "the certificate is not for node 'node1'" in reasons["another node's"]
    assert "holdfast certs --node node1" in reasons["another node's"]
    for name in ("wrong authority", "expired"):
        assert reasons[name].startswith("the controller closed the connection: the agent's certificate"), reasons
    assert "the controller's certificate is not signed by --tls-ca" in reasons["does not trust the controller"]
    assert "the controller's certificate is for another host" in reasons["another address"]
    assert right.process.poll() is None
    assert fort.controller.process.poll() is None
    wait_for(lambda: fort.nodes() == {"node0": "healthy"}, 60, fort.nodes)
    for agent in (right, *wrong.values()):
        agent.process.terminate()
        assert agent.wait(30) == 0
        assert "Traceback" not in agent.err
    wait_for(lambda: fort.nodes() == {}, 60, fort.nodes)
    assert "Traceback" not in fort.controller.err


def refused(agent: Running) -> str:
    """The reason, printed once for any number of attempts."""
    lines = [event for event in log_events(agent.err) if event.get("event") == "controller.away"]
    assert lines, agent.err
    assert len({line["reason"] for line in lines}) == len(lines) == 1, agent.err
    return str(lines[0]["reason"])


def test_no_certificate_no_stream(fort: Fort) -> None:
    ca = (fort.files / "operator" / "ca.pem").read_bytes()
    hello = wire.encode_agent(msg.Hello(t.Identity("node1", "h", "i")))
    for channel in (
        grpc.secure_channel(fort.grpc, grpc.ssl_channel_credentials(ca)),
        grpc.insecure_channel(fort.grpc),
    ):
        session: Any = channel.stream_stream("/holdfast.v1.Controller/Session")
        with channel:
            answers = session(iter([hello]), timeout=10)
            with pytest.raises(grpc.RpcError) as error:
                next(answers)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert fort.nodes() == {}


@pytest.mark.parametrize("lacking", ["--tls-cert", "--tls-key", "--tls-ca"])
def test_half_of_a_pair_is_no_certificate(fort: Fort, lacking: str, tmp_path: Path) -> None:
    tls = {"--tls-ca": "ca.pem", "--tls-cert": "node.pem", "--tls-key": "node-key.pem"}
    its = fort.files / "nodes" / "node0"
    flags = [p for flag, file in tls.items() if flag != lacking for p in (flag, str(its / file))]
    agent = fort.commands.run("agent", "--controller", fort.grpc, "--state-dir", str(tmp_path), *flags)
    assert agent.process.returncode == 2
    assert f"missing: {lacking[2:].replace('-', '_')}" in one_line(agent.err)


# --- HTTP ----------------------------------------------------------------------------------------------------


def test_the_token_opens_the_api(fort: Fort) -> None:
    with fort.api() as api:
        assert api.get("/api/v1/status").status_code == 200
        for headers in ({"Authorization": ""}, {"Authorization": "Bearer wrong"}, {"Authorization": fort.token}):
            for method, path in (
                ("GET", "/api/v1/status"), ("GET", "/metrics"), ("GET", "/openapi.json"), ("GET", "/api/v1/job/logs"),
                ("GET", "/api/v1/events"), ("POST", "/api/v1/jobs"), ("POST", "/api/v1/inject"),
                ("POST", "/api/v1/nodes/node0/cordon"),
            ):  # fmt: skip
                answer = api.request(method, path, headers=headers)
                assert answer.status_code == 401, (method, path)
                assert fort.token not in answer.text
        for path in ("/", "/healthz"):  # what a browser needs to ask for the token
            assert api.get(path, headers={"Authorization": ""}).status_code == 200


def test_the_command_line_shows_the_token(fort: Fort) -> None:
    base = ["nodes", "--json", "--controller", fort.http, "--tls-ca", str(fort.files / "operator" / "ca.pem")]
    allowed = fort.commands.run(*base, "--api-token-file", str(fort.files / "operator" / "api-token"))
    assert allowed.process.returncode == 0
    assert isinstance(json.loads(allowed.out), list)
    for more, code in (([], 2), (["--api-token", "wrong"], 2)):
        denied = fort.commands.run(*base, *more)
        assert denied.process.returncode == code
        assert "token" in one_line(denied.err)
    stranger = fort.commands.run(
        "nodes", "--controller", fort.http, "--tls-ca", str(fort.files / "nodes" / "foreign" / "ca.pem")
    )
    assert stranger.process.returncode == 1
    assert "certificate verify failed" in one_line(stranger.err)


# --- exposure ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lacks", ["both", "token", "tls"])
def test_it_does_not_listen_to_a_network_unprotected(fort: Fort, lacks: str, tmp_path: Path) -> None:
    tls = {"--tls-ca": "ca.pem", "--tls-cert": "controller.pem", "--tls-key": "controller-key.pem"}
    its = fort.files / "controller"
    flags = [p for flag, file in tls.items() for p in (flag, str(its / file))] if lacks == "token" else []
    flags += ["--api-token", "x"] if lacks == "tls" else []
    begun = fort.commands.run(
        "controller", "--listen-host", "0.0.0.0", "--grpc-port", "0", "--http-port", "0", "--state-dir", str(tmp_path),
        *flags,
    )  # fmt: skip
    assert begun.process.returncode == 2
    assert begun.out == ""
    assert "listening on 0.0.0.0 needs" in one_line(begun.err)


def test_it_does_if_set_explicitly(holdfast: Commands, tmp_path: Path) -> None:
    controller = holdfast.start(
        "controller", "--listen-host", "0.0.0.0", "--grpc-port", "0", "--http-port", "0", "--insecure",
        "--state-dir", str(tmp_path / "state"),
    )  # fmt: skip
    rpc, http = ready(controller)
    for address in (rpc, http):
        host, _, port = address.rpartition(":")
        assert host == "0.0.0.0"
        socket.create_connection(("127.0.0.1", int(port)), timeout=5).close()
    assert httpx.get(f"http://127.0.0.1:{http.rpartition(':')[2]}/api/v1/status", trust_env=False).status_code == 200


def test_an_agent_obeys_no_controller_over_a_network_unprotected(holdfast: Commands, tmp_path: Path) -> None:
    agent = holdfast.run("agent", "--controller", "192.0.2.1:7070", "--state-dir", str(tmp_path))
    assert agent.process.returncode == 2
    assert "a controller at 192.0.2.1 needs TLS" in one_line(agent.err)
