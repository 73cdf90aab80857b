"""Certificates that soon end: the authority's, the controller's own, and each agent's as its stream shows it.

A certificate that has ended keeps everybody out at the next start of a daemon, which may be the one after a fault. What
counts is what is in use: a file that was renewed since is used after the next start only.
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from holdfast.base import log
from holdfast.base.config.parts import Tls
from holdfast.base.errors import UsageError
from holdfast.controller.detectors.base.table import Tuning, finding
from holdfast.controller.shell.shell import Shell, now
from holdfast.controller.state.events import Found
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.wire import types as t

AUTHORITY, CONTROLLER = "authority", "controller"
"""Subjects of findings; no node may have these names (`holdfast certs`)."""
_EVERY = 5.0
_DAY = 86400.0
_KIND = t.FindingKind.CERTIFICATE_EXPIRES


@dataclass(frozen=True, slots=True)
class Used:
    """A certificate in use. `ends` in Unix seconds; `node` is empty for the authority's and the controller's."""

    subject: str
    ends: float
    renew: str
    """What to run and to do."""
    node: str = ""


def due(known: Collection[Used], reported: Collection[str], limits: Mapping[str, float], at: Instant) -> list[Finding]:
    """What to report of these, each once a grade: soon, very soon, over. `reported`: signatures of the past. Pure."""
    found = []
    for one in known:
        left = (one.ends - at.wall) / _DAY
        if left > limits["days"]:
            continue
        grade = "over" if left <= 0 else "critical" if left <= limits["critical_days"] else "warning"
        signature = f"{one.subject}:{one.ends:.0f}:{grade}"
        if signature in reported:
            continue
        whose = {AUTHORITY: "the authority's certificate", CONTROLLER: "the controller's certificate"}
        name = whose.get(one.subject, f"the certificate of {one.subject}")
        when = f"expired {abs(left):.1f} days ago" if left <= 0 else f"expires in {left:.1f} days"
        text = f"{name} {when}; {one.renew}"
        severity = t.Severity.WARNING if grade == "warning" else t.Severity.CRITICAL
        evidence = {"ends": one.ends, "days_left": round(left, 3), "limits": dict(limits)}
        found.append(
            finding(_KIND, one.subject, text, at, severity=severity, node=one.node, signature=signature,
                    evidence=evidence)
        )  # fmt: skip
    return found


def own(tls: Tls) -> list[Used]:
    """The authority's and the controller's, from the files that the daemon was started with. UsageError names one that
    is no certificate."""
    ours, *_ = _load(tls.cert)
    trusted = _load(tls.ca)
    issuers = [one for one in trusted if one.subject == ours.issuer] or trusted
    hosts = " ".join(f"--host {host}" for host in _hosts(ours))
    return [
        Used(
            AUTHORITY,
            max(one.not_valid_after_utc.timestamp() for one in issuers),  # renewed, it is there twice for a while
            "run `holdfast certs --dir DIR --renew`, copy each folder to its machine and start the daemons again",
        ),
        Used(
            CONTROLLER,
            ours.not_valid_after_utc.timestamp(),
            f"run `holdfast certs --dir DIR --renew {hosts}`, copy DIR/controller here and start the controller again",
        ),
    ]


def of_agent(node: str, pem: bytes) -> Used | None:
    """An agent's, as its stream showed it; None for what cannot be read."""
    try:
        ends = x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    except ValueError as error:
        log.warning("certificate.unreadable", node=node, error=str(error))
        return None
    command = f"holdfast certs --dir DIR --renew --node {node}"
    return Used(node, ends, f"run `{command}`, copy DIR/nodes/{node} there and start its agent again", node)


class CertificateWatch:
    def __init__(self, shell: Shell, tuning: Tuning, tls: Tls | None, shown: Mapping[str, bytes]) -> None:
        """`shown`: by node, the certificate (PEM) of its last stream."""
        self._shell, self._tuning, self._shown = shell, tuning, shown
        self._own = own(tls) if tls is not None else []
        self._agents: dict[str, tuple[bytes, Used | None]] = {}
        self._reported: set[str] = set()

    def ends(self) -> dict[str, float]:
        """By subject, when its certificate ends, in Unix seconds."""
        agents = [used for _, used in self._agents.values() if used is not None]
        return {one.subject: one.ends for one in (*self._own, *agents)}

    async def run(self) -> None:
        """Watches until cancelled."""
        while True:
            self.look(now())
            await asyncio.sleep(_EVERY)

    def look(self, at: Instant) -> None:
        for node, pem in self._shown.items():
            if node not in self._agents or self._agents[node][0] != pem:
                self._agents[node] = (pem, of_agent(node, pem))
        agents = [used for _, used in self._agents.values() if used is not None]
        before = {one.cause.signature for one in self._shell.brain.c.book.incidents.values()}  # by an earlier run, too
        for one in due([*self._own, *agents], self._reported | before, self._tuning.limits(_KIND), at):
            self._reported.add(one.signature)
            self._shell.handle(Found(one))


def _load(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a certificate in PEM form: {' '.join(str(error).split())[:120]}") from None


def _hosts(certificate: x509.Certificate) -> list[str]:
    """The hosts that it is for, but loopback, which `holdfast certs` adds by itself."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    hosts = [str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]
    return [host for host in hosts if host not in ("localhost", "127.0.0.1", "::1")]
