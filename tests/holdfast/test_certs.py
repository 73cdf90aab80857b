"""Certificates in real TLS handshakes: who gets in, and who does not."""

import datetime
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

from holdfast.certs import issue, make_authority, write_cluster
from holdfast.errors import UsageError

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("certs")
    write_cluster(path, ["head.cluster", "10.0.0.1"], ["node0", "node1"], NOW)
    return path


def server_context(folder: Path, name: str = "controller") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}-key.pem")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(trusts: Path, cert: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(trusts))
    if cert is not None and key is not None:
        context.load_cert_chain(cert, key)
    return context


def shake(server: ssl.SSLContext, client: ssl.SSLContext, hostname: str = "127.0.0.1") -> str:
    """The client's name as the server saw it. The server's refusal reaches the client with its first read."""
    seen: list[str] = []
    left, right = socket.socketpair()

    def serve() -> None:
        try:
            with server.wrap_socket(left, server_side=True) as tls:
                peer = tls.getpeercert() or {}
                seen.append(str(dict(part[0] for part in peer["subject"])["commonName"]))  # type: ignore[misc, union-attr]
                tls.sendall(b"x")
        except (ssl.SSLError, OSError):
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        right.settimeout(5)
        with client.wrap_socket(right, server_hostname=hostname) as tls:
            if tls.recv(1) != b"x":
                raise ssl.SSLError("refused")
    finally:
        right.close()
        thread.join()
    return seen[0]


def mine(folder: Path, name: str = "node0") -> ssl.SSLContext:
    return client_context(folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}-key.pem")


@pytest.mark.parametrize("hostname", ["head.cluster", "10.0.0.1", "localhost", "127.0.0.1"])
def test_a_node_and_the_controller_know_each_other(folder: Path, hostname: str) -> None:
    assert shake(server_context(folder), mine(folder), hostname) == "node0"


def test_another_name_is_refused(folder: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"(?i)hostname mismatch|not valid for"):
        shake(server_context(folder), mine(folder), "other.cluster")


def test_no_client_certificate_no_entry(folder: Path) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        shake(server_context(folder), client_context(folder / "ca.pem"))


def test_another_authority_is_refused_on_both_sides(folder: Path, tmp_path: Path) -> None:
    write_cluster(tmp_path, [], ["node0"], NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server_context(folder), mine(tmp_path))
    stranger = client_context(folder / "ca.pem", tmp_path / "node0.pem", tmp_path / "node0-key.pem")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        shake(server_context(folder), stranger)


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    write_cluster(tmp_path, [], ["node0"], NOW - 900 * DAY)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake(server_context(tmp_path), mine(tmp_path))


def test_a_node_cannot_pose_as_the_controller(folder: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        shake(server_context(folder, "node1"), mine(folder), "node1")


def test_keys_and_token_are_for_their_owner_only(folder: Path) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert {name for name, mode in modes.items() if mode == 0o600} == {
        "ca-key.pem",
        "controller-key.pem",
        "node0-key.pem",
        "node1-key.pem",
        "api-token",
    }
    assert len((folder / "api-token").read_text().strip()) >= 32


def test_nothing_is_overwritten_unless_forced(tmp_path: Path) -> None:
    write_cluster(tmp_path, [], ["node0"], NOW)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UsageError, match=r"node0.pem.*--force"):
        write_cluster(tmp_path, [], ["node5", "node0"], NOW)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    write_cluster(tmp_path, [], ["node0"], NOW, force=True)
    assert all(path.read_bytes() != content for path, content in before.items())


def test_nodes_can_be_added_to_an_authority(tmp_path: Path) -> None:
    write_cluster(tmp_path, [], [], NOW)
    made = write_cluster(tmp_path, [], ["late"], NOW)
    assert [path.name for path in made] == ["late.pem", "late-key.pem"]
    assert shake(server_context(tmp_path), mine(tmp_path, "late")) == "late"
    (tmp_path / "ca-key.pem").write_text("no key")
    with pytest.raises(UsageError, match="no authority of ours"):
        write_cluster(tmp_path, [], ["later"], NOW)


def test_names_that_fit_no_certificate(tmp_path: Path) -> None:
    authority = make_authority(NOW)
    for wrong in ("", "n" * 65):
        with pytest.raises(UsageError, match="not a name"):
            issue(authority, wrong, [], NOW, server=False)
    with pytest.raises(UsageError, match="not a host name"):
        issue(authority, "n", ["münchen.example"], NOW, server=False)
