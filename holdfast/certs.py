"""Certificates for mutual TLS: one authority, one certificate for the controller and one per node.

Small on purpose: an authority of its own for one cluster, elliptic keys (P-256), no intermediate, no revocation.
To take a node's trust away, make a new authority.
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

from holdfast.errors import UsageError

Now = datetime.datetime
DAYS = 825
"""Validity of what an authority signs; the authority itself holds four times as long."""
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


def make_authority(now: Now, name: str = "Holdfast cluster", days: int = DAYS * 4) -> Credential:
    key = ec.generate_private_key(ec.SECP256R1())
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
    folder: Path, hosts: Sequence[str], nodes: Sequence[str], now: Now, *, force: bool = False
) -> list[Path]:
    """Write an authority, a controller's and nodes' certificates and an API token; gives the files, in order.

    An authority that lies there already is used again (more nodes, later), unless `force` makes all new.
    UsageError, before anything is written, when a file would be overwritten.
    """
    ca_files = folder / "ca.pem", folder / "ca-key.pem"
    authority = None if force else load_authority(*ca_files)
    is_new = authority is None
    authority = authority or make_authority(now)
    contents: dict[Path, bytes] = {}
    if is_new:
        contents |= {ca_files[0]: authority.certificate_pem(), ca_files[1]: authority.key_pem()}
    if is_new or hosts:
        made = issue(authority, "controller", _with_loopback(hosts), now, server=True)
        contents |= {
            folder / "controller.pem": made.certificate_pem(),
            folder / "controller-key.pem": made.key_pem(),
        }
    for node in nodes:
        made = issue(authority, node, [node], now, server=False)
        contents |= {folder / f"{node}.pem": made.certificate_pem(), folder / f"{node}-key.pem": made.key_pem()}
    if is_new:
        contents[folder / "api-token"] = (secrets.token_urlsafe(32) + "\n").encode()
    existing = [path.name for path in contents if path.exists()]
    if existing and not force:
        raise UsageError(f"{folder} has {', '.join(existing)} already: --force overwrites, another --dir does not")
    _write(folder, contents)
    return list(contents)


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
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in contents.items():
            secret = not path.name.endswith(".pem") or path.name.endswith("-key.pem")
            path.unlink(missing_ok=True)  # its old mode must not outlive it
            # The mode is set as the file is made: there is no moment in which others could open it.
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb") as file:
                file.write(content)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror or error}; name another --dir") from None


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
