"""Certificates in real TLS handshakes: accepted and refused clients."""

import ast
import datetime
import os
import shutil
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509

from holdfast.base.certs import check_names, issue, make_authority, write_cluster
from holdfast.base.errors import UsageError
from holdfast.controller.shell.certificate_watch import AUTHORITY, CONTROLLER

NOW = datetime.datetime.now(datetime.UTC)
ROOT = Path(__file__).parents[4]
DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("certs")
    write_cluster(path, ["head.cluster", "10.0.0.1"], ["node0", "node1"], NOW)
    return path


def files(folder: Path, name: str) -> tuple[Path, Path, Path]:
    """Authority, certificate and key of the controller or a node, as its own folder has them."""
    its = folder / name if name == "controller" else folder / "nodes" / name
    stem = "controller" if name == "controller" else "node"
    return its / "ca.pem", its / f"{stem}.pem", its / f"{stem}-key.pem"


def server_context(folder: Path, name: str = "controller") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca, cert, key = files(folder, name)
    context.load_cert_chain(cert, key)
    context.load_verify_locations(ca)
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
    return client_context(*files(folder, name))


@pytest.mark.parametrize("hostname", ["head.cluster", "10.0.0.1", "localhost", "127.0.0.1"])
def test_a_node_and_the_controller_know_each_other(folder: Path, hostname: str) -> None:
    assert shake(server_context(folder), mine(folder), hostname) == "node0"


def test_another_name_is_refused(folder: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"(?i)hostname mismatch|not valid for"):
        shake(server_context(folder), mine(folder), "other.cluster")


def test_no_client_certificate_no_entry(folder: Path) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        shake(server_context(folder), client_context(folder / "operator" / "ca.pem"))


def test_another_authority_is_refused_on_both_sides(folder: Path, tmp_path: Path) -> None:
    write_cluster(tmp_path, [], ["node0"], NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server_context(folder), mine(tmp_path))
    stranger = client_context(folder / "operator" / "ca.pem", *files(tmp_path, "node0")[1:])
    with pytest.raises((ssl.SSLError, ConnectionError)):
        shake(server_context(folder), stranger)


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    write_cluster(tmp_path, [], ["node0"], NOW - 900 * DAY)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake(server_context(tmp_path), mine(tmp_path))


def test_a_node_cannot_pose_as_the_controller(folder: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        shake(server_context(folder, "node1"), mine(folder), "node1")


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_each_role_has_its_own_and_nothing_of_the_others(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_cluster(tmp_path / "c", [], ["node0", "node1"], NOW)
    finally:
        os.umask(before)
    there = everything(tmp_path / "c")
    assert set(there) == {
        "ca/ca.pem", "ca/ca-key.pem",
        "controller/ca.pem", "controller/controller.pem", "controller/controller-key.pem", "controller/api-token",
        "controller/reader-token",
        "operator/ca.pem", "operator/api-token", "reader/ca.pem", "reader/api-token",
        "nodes/node0/ca.pem", "nodes/node0/node.pem", "nodes/node0/node-key.pem",
        "nodes/node1/ca.pem", "nodes/node1/node.pem", "nodes/node1/node-key.pem",
    }  # fmt: skip
    secrets = {name: text for name, text in there.items() if not name.endswith(".pem") or name.endswith("-key.pem")}
    homes: dict[bytes, set[str]] = {}
    for name, text in secrets.items():
        homes.setdefault(text, set()).add(name.rpartition("/")[0])
    assert sorted(map(sorted, homes.values())) == [
        ["ca"], ["controller"], ["controller", "operator"], ["controller", "reader"], ["nodes/node0"], ["nodes/node1"],
    ]  # fmt: skip
    for path in [tmp_path / "c", *(tmp_path / "c").rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        name = str(path.relative_to(tmp_path / "c"))
        assert mode == (0o700 if path.is_dir() else 0o600 if name in secrets else 0o644), name
    assert len(there["operator/api-token"].strip()) >= 32


def test_nothing_is_overwritten_unless_forced(tmp_path: Path) -> None:
    write_cluster(tmp_path, [], ["node0"], NOW)
    before = everything(tmp_path)
    for hosts, nodes in (([], ["node5", "node0"]), (["head"], [])):
        with pytest.raises(UsageError, match=r"already: --renew .*--force"):
            write_cluster(tmp_path, hosts, nodes, NOW)
        assert everything(tmp_path) == before
    write_cluster(tmp_path, [], ["node0"], NOW, force=True)
    assert all(text != before[name] for name, text in everything(tmp_path).items())


@pytest.mark.parametrize(
    "nodes",
    [
        ["ca"], ["CA"], ["controller"], ["Controller"], ["api-token"], ["reader-token"], ["operator"], ["reader"],
        ["nodes"], ["authority"], ["Job"], ["store"], ["rank3"],
        ["."], [".."], [".hidden"], ["../x"], ["a/b"], ["/tmp/x"], [""], ["a\0"], ["new", "new"],
        ["new", "NEW"], ["Node0"], ["node0"],
    ],
)  # fmt: skip
def test_a_name_that_is_anothers_is_refused_before_anything_is_written(tmp_path: Path, nodes: list[str]) -> None:
    write_cluster(tmp_path / "c", [], ["node0"], NOW)
    before = everything(tmp_path)
    for force in (False, True) if nodes != ["node0"] else (False,):
        with pytest.raises(UsageError) as caught:
            write_cluster(tmp_path / "c", [], ["fine", *nodes], NOW, force=force)
        assert "\n" not in str(caught.value)
    assert everything(tmp_path) == before


def subjects() -> set[str]:
    """What findings of the controller are about that is no node: the texts in its code."""
    found = {AUTHORITY, CONTROLLER}
    for path in (ROOT / "controller").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call):
                continue
            about = [word.value for word in call.keywords if word.arg == "subject"]
            if isinstance(call.func, ast.Name) and call.func.id == "finding":
                about += call.args[1:2]
            for value in about:
                parts = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
                found |= {one.value for one in parts if isinstance(one, ast.Constant) and isinstance(one.value, str)}
                texts = [one.values[0] for one in parts if isinstance(one, ast.JoinedStr)]
                found |= {f"{one.value}7" for one in texts if isinstance(one, ast.Constant)}
    return found


def test_every_name_that_the_code_reserves_is_refused(tmp_path: Path) -> None:
    write_cluster(tmp_path, [], ["n"], NOW)
    names = subjects() | {path.stem for path in tmp_path.rglob("*") if "n" not in path.parts and path.name != "n"}
    assert {"job", "store", "controller", "authority", "rank7", "ca", "reader-token"} <= names
    for name in names - {"ca-key", "controller-key"}:  # within the folder of a role
        with pytest.raises(UsageError, match="a name of Holdfast's own"):
            check_names([name.title()])


def test_nodes_can_be_added_to_an_authority(tmp_path: Path) -> None:
    write_cluster(tmp_path, [], [], NOW)
    made = write_cluster(tmp_path, [], ["late"], NOW)
    assert [str(path.relative_to(tmp_path / "nodes")) for path in made] == [
        "late/ca.pem", "late/node.pem", "late/node-key.pem",
    ]  # fmt: skip
    assert shake(server_context(tmp_path), mine(tmp_path, "late")) == "late"
    (tmp_path / "ca" / "ca-key.pem").write_text("no key")
    with pytest.raises(UsageError, match="no authority of ours"):
        write_cluster(tmp_path, [], ["later"], NOW)


def test_renewed_ones_work_with_those_that_are_not_renewed_yet(tmp_path: Path) -> None:
    """Daemons are started again one by one: on the way each side meets the other's old files."""
    write_cluster(tmp_path / "c", ["head.cluster"], ["node0", "node1"], NOW - 800 * DAY)
    shutil.copytree(tmp_path / "c", tmp_path / "old")
    before = everything(tmp_path / "c")
    write_cluster(tmp_path / "c", [], ["node1"], NOW, renew=True)
    changed = {name for name, text in everything(tmp_path / "c").items() if text != before[name]}
    assert changed == {"nodes/node1/node.pem", "nodes/node1/node-key.pem"}
    write_cluster(tmp_path / "c", [], [], NOW, renew=True)
    changed = {name for name, text in everything(tmp_path / "c").items() if text != before[name]}
    assert set(before) - changed == {
        "ca/ca-key.pem", "controller/api-token", "controller/reader-token", "operator/api-token", "reader/api-token",
    }  # fmt: skip
    old, new = tmp_path / "old", tmp_path / "c"
    for server, client in ((old, old), (old, new), (new, old), (new, new)):
        assert shake(server_context(server), mine(client), "head.cluster") == "node0"
    later = x509.load_pem_x509_certificate((new / "ca" / "ca.pem").read_bytes())
    assert later.not_valid_after_utc > NOW + 3000 * DAY


def test_there_must_be_something_to_renew_from(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no authority to renew from"):
        write_cluster(tmp_path, [], ["node0"], NOW, renew=True)
    (tmp_path / "ca-key.pem").write_text("of an earlier version")
    with pytest.raises(UsageError, match=r"move ca.pem and ca-key.pem"):
        write_cluster(tmp_path, [], ["node0"], NOW)
    assert sorted(everything(tmp_path)) == ["ca-key.pem"]


def test_names_that_fit_no_certificate(tmp_path: Path) -> None:
    authority = make_authority(NOW)
    for wrong in ("", "n" * 65):
        with pytest.raises(UsageError, match="not a name"):
            issue(authority, wrong, [], NOW, server=False)
    with pytest.raises(UsageError, match="not a host name"):
        issue(authority, "n", ["münchen.example"], NOW, server=False)
