"""Certificates for mutual TLS: one authority, one certificate for the controller and one per node, a folder for each.

Small on purpose: an authority of its own for one cluster, elliptic keys (P-256), no intermediate, no revocation.
To revoke a node's trust, make a new authority.
"""

import datetime
import ipaddress
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast.base.errors import UsageError

Now = datetime.datetime
DAYS = 825
"""Validity of what an authority signs; the authority itself holds four times as long."""
ROLES = frozenset(
    {
        "ca", "controller", "operator", "reader", "nodes", "api-token", "reader-token",
        "authority", "job", "store",
    }
)  # fmt: skip
"""Names that no node may have: files, folders and certificates have them, or findings that are about no node."""
_RANK = re.compile(r"rank\d+")
_SKEW = datetime.timedelta(hours=1)
"""Certificates begin this long before now: clocks of a cluster differ."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def make_authority(
    now: Now, name: str = "Holdfast cluster", days: int = DAYS * 4, key: ec.EllipticCurvePrivateKey | None = None
) -> Credential:
    """With `key`, an authority that lasts longer and remains valid for what that key signed before."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = (
        _builder(subject, subject, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs=True), critical=True)
    )
    return Credential(builder.sign(key, hashes.SHA256()), key)


def issue(
    authority: Credential, name: str, hosts: Sequence[str], now: Now, *, server: bool, days: int = DAYS
) -> Credential:
    """A certificate for `name`, valid for `hosts` (names or IP addresses). A server's may also call other servers."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate.subject
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if server else [])]
    authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        _builder(_name(name), issuer, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(authority_id, critical=False)
    )
    return Credential(builder.sign(authority.key, hashes.SHA256()), key)


def write_cluster(
    folder: Path, hosts: Sequence[str], nodes: Sequence[str], now: Now, *, force: bool = False, renew: bool = False
) -> list[Path]:
    """Write one folder for each role; gives the files, in order.

    `ca/` (the authority with its key: it belongs on no machine of the cluster), `controller/`, `operator/` and
    `reader/` (what their clients need), `nodes/NAME/`. Each has all that its owner needs and nothing of the others.

    An authority that is there already is used again (more nodes, later), unless `force` makes all new. `renew` makes
    the certificates of these hosts and nodes anew with the same authority; without any, all that are there, and the
    authority's own, with the key that it has. UsageError, before anything is written, when a name cannot be, or a file
    would be overwritten otherwise.
    """
    ca_files = folder / "ca" / "ca.pem", folder / "ca" / "ca-key.pem"
    if (folder / "ca-key.pem").exists():
        raise UsageError(
            f"{folder} is laid out as earlier versions did: move ca.pem and ca-key.pem to {folder / 'ca'} and make the "
            "rest anew"
        )
    check_names(nodes, _names_in(folder))
    authority = None if force else load_authority(*ca_files)
    if renew and authority is None:
        raise UsageError(f"{folder} has no authority to renew from: name the --dir with ca/ca.pem and ca/ca-key.pem")
    contents: dict[Path, bytes] = {}
    wants_all = renew and not hosts and not nodes
    is_new = authority is None
    if authority is None or wants_all:
        authority = make_authority(now, key=authority.key if authority is not None else None)
        contents |= {ca_files[0]: authority.certificate_pem(), ca_files[1]: authority.key_pem()}
    if wants_all:
        hosts, nodes = _hosts_of(folder / "controller" / "controller.pem"), _names_in(folder)
    if is_new or hosts:
        made = issue(authority, "controller", _with_loopback(hosts), now, server=True)
        contents |= _role(folder / "controller", authority, "controller", made)
    for node in nodes:
        made = issue(authority, node, [node], now, server=False)
        contents |= _role(folder / "nodes" / node, authority, "node", made)
    contents |= _tokens(folder, authority, is_new or wants_all, force)
    existing = [str(path.relative_to(folder)) for path in contents if path.exists()]
    if existing and not (force or renew):
        raise UsageError(
            f"{folder} has {', '.join(existing)} already: --renew makes certificates anew with the same authority, "
            "--force everything, another --dir overwrites nothing"
        )
    _write(folder, contents)
    return list(contents)


def check_names(nodes: Sequence[str], known: Sequence[str] = ()) -> None:
    """UsageError for a node whose name is another's: a role's, or that of a node, also where only capitals differ."""
    seen = {name.casefold(): name for name in known}
    asked: set[str] = set()
    for node in nodes:
        plain = node.casefold()
        if plain in ROLES or _RANK.fullmatch(plain):
            raise UsageError(f"a node cannot be called {node!r}: that is a name of Holdfast's own; choose another")
        if not node or node.startswith(".") or "/" in node or "\0" in node:
            raise UsageError(f"a node cannot be called {node!r}: it would be no folder of its own")
        if plain in asked:
            raise UsageError(f"--node {node} is there twice: each node has a name of its own, capitals or not")
        if seen.get(plain, node) != node:
            raise UsageError(f"--node {node}: {seen[plain]!r} is a node already, and only capitals distinguish the two")
        asked.add(plain)


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in (folder / "nodes").iterdir())
    except OSError:
        return []


def _hosts_of(certificate: Path) -> list[str]:
    """The hosts that a certificate is for; none without one. UsageError when it is none."""
    try:
        made = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except FileNotFoundError:
        return []
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise UsageError(f"{certificate} cannot be renewed: {error}; give --host") from None
    return [str(name.value) for name in names]


def _role(folder: Path, authority: Credential, name: str, made: Credential) -> dict[Path, bytes]:
    return {
        folder / "ca.pem": authority.certificate_pem(),
        folder / f"{name}.pem": made.certificate_pem(),
        folder / f"{name}-key.pem": made.key_pem(),
    }


def _tokens(folder: Path, authority: Credential, is_new: bool, force: bool) -> dict[Path, bytes]:
    """The operator's and the reader's, where the controller has none yet, and their clients' folders."""
    contents: dict[Path, bytes] = {}
    for role, name in (("operator", "api-token"), ("reader", "reader-token")):
        there = folder / "controller" / name
        if force or not there.exists():
            token = (secrets.token_urlsafe(32) + "\n").encode()
            contents |= {there: token, folder / role / "api-token": token}
            is_new = True
        if is_new:
            contents[folder / role / "ca.pem"] = authority.certificate_pem()
    return contents


def load_authority(certificate: Path, key: Path) -> Credential | None:
    """The authority in these files, None when neither is there."""
    if not certificate.exists() and not key.exists():
        return None
    try:
        loaded = serialization.load_pem_private_key(key.read_bytes(), password=None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError("not an elliptic key")
        return Credential(x509.load_pem_x509_certificate(certificate.read_bytes()), loaded)
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}; --force makes a new authority") from None
    except (ValueError, TypeError) as error:
        raise UsageError(f"{key} and {certificate} are no authority of ours: {error}") from None


def _write(folder: Path, contents: dict[Path, bytes]) -> None:
    try:
        for path, content in contents.items():
            make_folder(path.parent, folder)
            secret = not path.name.endswith(".pem") or path.name.endswith("-key.pem")
            aside = path.with_name(f".{path.name}.new")
            aside.unlink(missing_ok=True)
            # The mode is set as the file is made: there is no moment in which others could open it.
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                os.fchmod(file.fileno(), 0o600 if secret else 0o644)  # whatever the umask
                file.write(content)
            aside.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror or error}; name another --dir") from None


def make_folder(path: Path, top: Path) -> None:
    """A folder for its owner only, like those between it and `top`; `top` stays as it is, if it is there."""
    if path.is_dir():
        return
    if path != top:
        make_folder(path.parent, top)
    path.mkdir(mode=0o700, parents=path == top)
    path.chmod(0o700)


def _with_loopback(hosts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*hosts, "localhost", "127.0.0.1", "::1"]))


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?", host):
        raise UsageError(f"not a host name or address: {host!r}")
    return x509.DNSName(host)


def _name(name: str) -> x509.Name:
    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    except ValueError:
        raise UsageError(f"not a name for a certificate (1 to 64 characters): {name!r}") from None


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: Now, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
