"""Who may ask over HTTP. With a token, every caller must show it; without one, only this machine's own pages may call.

A token in a header cannot be sent by another site's page, so it also stops forged requests. Without a token the
`Host` and `Origin` headers do that work: they refuse a foreign page whose name was made to point at 127.0.0.1.
"""

import ipaddress
import secrets
from dataclasses import dataclass
from urllib.parse import urlsplit

SCHEME = "bearer"


@dataclass(frozen=True, slots=True)
class Auth:
    token: str | None = None
    """What callers must send as `Authorization: Bearer TOKEN`. None: open, for loopback only."""
    any_host: bool = False
    """Without a token, also answer to names that are not loopback (`--insecure`)."""

    def __post_init__(self) -> None:
        if self.token is not None and not self.token.strip():
            raise ValueError("the API token is empty; leave it unset for open loopback access, or give one")

    def allows(self, authorization: str | None) -> bool:
        """Whether the `Authorization` header shows the token; takes the same time for every wrong one."""
        if self.token is None:
            return True
        scheme, _, given = (authorization or "").partition(" ")
        right = secrets.compare_digest(given.strip().encode(), self.token.encode())
        return right and scheme.lower() == SCHEME

    def foreign(self, host: str | None, origin: str | None) -> str | None:
        """Why an open server refuses a request with these headers; None when it does not."""
        if self.token is not None:
            return None
        if not self.any_host and not is_loopback(host or ""):
            return f"this server answers on loopback only, not as {host!r}; use 127.0.0.1 or set an API token"
        if origin is not None and urlsplit(origin).netloc != host:
            return f"requests from pages of {origin!r} are refused; open the page of this server itself"
        return None


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
