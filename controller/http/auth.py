"""Authorization over HTTP: what a request's token permits, and which web pages may send requests. Pure.

Three rules, in this order. A request that a page of another site sent is refused. Without a token only callers on this
machine are served, under this machine's names. With one, an operator may do everything and a reader may look.
"""

import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from holdfast.base.errors import UsageError

SCHEME = "bearer"
READING = frozenset({"GET", "HEAD"})
_OWN = (None, "same-origin", "none")
"""`Sec-Fetch-Site` of Holdfast's own page, of an address that a person typed, and of programs, which send none."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer instead of the one that was asked for."""

    status: int
    text: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Auth:
    token: str | None = None
    """The operator's, sent as `Authorization: Bearer TOKEN`. None: open, for loopback only."""
    reader_token: str | None = None
    """A client that sends this one may read and change nothing. None: there is no such token."""
    any_host: bool = False
    """Without a token, also answer to names that are not loopback (`--insecure`)."""

    def __post_init__(self) -> None:
        for token in (self.token, self.reader_token):
            if token is not None and not token.strip():
                raise ValueError("the API token is empty; leave it unset for open loopback access, or set one")
        if self.reader_token is not None and self.token is None:
            raise UsageError("a reader token needs an operator token too: without one, any client could make changes")
        if self.reader_token is not None and self.reader_token == self.token:
            raise UsageError("the reader token equals the operator token: create another one, or leave it unset")

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """Why a request is refused; None when it is not. Decided from its head: the body need not be there yet.
        `headers` have names in lower case."""
        is_open = method in READING and is_page(path)
        foreign = self._foreign(headers, is_open)
        if foreign:
            return Refusal(403, foreign, {})
        if is_open or self.token is None:
            return None
        given = _bearer(headers.get("authorization", ""))
        if _same(given, self.token):
            return None
        if self.reader_token is None or not _same(given, self.reader_token):
            text = "this request needs the API token: send `Authorization: Bearer TOKEN`"
            return Refusal(401, text, {"www-authenticate": "Bearer"})
        return None if method in READING else Refusal(403, "a reader token permits no changes: use an operator's", {})

    def _foreign(self, headers: Mapping[str, str], is_open: bool) -> str:
        """Why another site's page is refused; empty when none sends it. The page itself opens from any link."""
        if not is_open and headers.get("sec-fetch-site") not in _OWN:
            return "requests from pages of other sites are refused; open the page of this server itself"
        if self.token is not None:
            return ""  # a page of another site cannot send the header with the token
        host, origin = headers.get("host"), headers.get("origin")
        if not self.any_host and not is_loopback(host or ""):
            return f"this server answers on loopback only, not as {host!r}; use 127.0.0.1 or set an API token"
        if origin is not None and _netloc(origin) != host:
            return f"requests from pages of {origin!r} are refused; open the page of this server itself"
        return ""


def is_page(path: str) -> bool:
    """Whether this is a file of the page, which everybody may load, or the liveness check."""
    return path in ("/", "/healthz", "/runbook") or path.startswith("/static/")


def is_loopback(host: str) -> bool:
    """Whether a `Host` header names this machine."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # "http://[", say
        return ""


def _bearer(authorization: str) -> str:
    scheme, _, given = authorization.partition(" ")
    return given.strip() if scheme.lower() == SCHEME else ""


def _same(given: str, token: str) -> bool:
    """In the same time for every wrong one."""
    return secrets.compare_digest(given.encode(), token.encode())
