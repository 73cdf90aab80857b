"""What several sections have: a folder for state, TLS files, tokens, and checks of numbers."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.errors import UsageError
from holdfast.base.files import expand, read_text


def default_state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        return expand(base) / "holdfast"
    except ValueError:
        raise UsageError("this user has no home folder: name a --state-dir, or set XDG_STATE_HOME") from None


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the trusted authority, the own certificate, and its key."""

    ca: Path
    cert: Path
    key: Path


def tls_files(ca: Path | None, cert: Path | None, key: Path | None) -> Tls | None:
    if ca is None and cert is None and key is None:
        return None
    if ca is None or cert is None or key is None:
        missing = [n for n, v in (("tls_ca", ca), ("tls_cert", cert), ("tls_key", key)) if v is None]
        raise UsageError(f"TLS needs tls_ca, tls_cert and tls_key together; missing: {', '.join(missing)}")
    for path in (ca, cert, key):
        if not os.access(path, os.R_OK):
            raise UsageError(f"{path}: no such file, or not readable")
    return Tls(ca, cert, key)


def token_of(token: str, file: Path | None) -> str:
    if token or file is None:
        return _header(token, "--api-token") if token else ""
    content = read_text(file, "a file that holds the API token", most=1 << 16).strip()
    if not content:
        raise UsageError(f"{file}: holds no API token")
    return _header(content, str(file))


def _header(token: str, where: str) -> str:
    """What a header of HTTP can carry: nothing else can ever be a token."""
    if not re.fullmatch("[!-~]{1,4096}", token):
        raise UsageError(f"{where}: an API token is 1 to 4096 printable ASCII characters, without blanks")
    return token


def check_port(name: str, port: int) -> None:
    if not 0 <= port <= 65535:
        raise UsageError(f"{name} must be from 0 to 65535, but is {port}")


def check_range(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise UsageError(f"{name} must be from {least:g} to {most:g}, but is {value:g}")


def check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise UsageError(f"{name} must be above 0, but is {value:g}")
