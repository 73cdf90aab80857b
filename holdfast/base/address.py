"""Addresses: parse them, distinguish loopback from the rest, and refuse to be open to a network by accident."""

import errno
import ipaddress
import re
import socket

from holdfast.base.errors import UsageError


def parse_address(text: str, default_port: int | None = None) -> tuple[str, int]:
    """("host", port) of "host:port", "[::1]:port" or, with a default port, a bare host."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        host, port = text.strip(), ""  # no port at all, or a bare IPv6 address
    if not port and default_port is not None:
        port = str(default_port)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        is_host = _is_ip(host, 6)
    else:
        is_host = is_host_name(host) or _is_ip(host, 6)
    if not is_host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise UsageError(f"not an address: {text!r}; write HOST:PORT, or [HOST]:PORT for an IPv6 address")
    return host, int(port)


def is_host_name(host: str) -> bool:
    """Whether this can be a host's name, or is an IPv4 address. Names in other alphabets must be written as xn--..."""
    labels = host.removesuffix(".").split(".")
    if len(host) > 253 or not all(re.fullmatch("[A-Za-z0-9_-]{1,63}", label) for label in labels):
        return False
    return not labels[-1].isdigit() or _is_ip(host, 4)


def _is_ip(host: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(host).version == version
    except ValueError:
        return False


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """True only where no other host can connect. A name other than localhost may point anywhere."""
    if host.lower() in ("localhost", "localhost.localdomain", "ip6-localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, tls: bool, token: bool, insecure: bool) -> None:
    """A controller on loopback is open; anywhere else it needs mutual TLS and an API token, or a clear `insecure`."""
    if insecure or is_loopback(host) or (tls and token):
        return
    lacks = " and ".join(
        name
        for name, there in (("TLS (--tls-ca, --tls-cert, --tls-key)", tls), ("--api-token-file", token))
        if not there
    )
    raise UsageError(
        f"listening on {host or 'all addresses'} needs {lacks}: "
        "make them with `holdfast certs --dir DIR`, or say --insecure"
    )


def check_target(host: str, tls: bool, insecure: bool) -> None:
    """An agent obeys its controller, so a controller that is reached over a network must prove its identity."""
    if not (insecure or tls or is_loopback(host)):
        raise UsageError(
            f"a controller at {host} needs TLS (--tls-ca, --tls-cert, --tls-key): "
            "make certificates with `holdfast certs --dir DIR`, or say --insecure"
        )


def port_error(host: str, port: int, error: OSError) -> UsageError:
    """Why a port cannot be had, in one line."""
    address = format_address(host, port)
    if error.errno == errno.EADDRINUSE:
        return UsageError(f"{address} is already in use: stop what listens there or choose another port (0: any)")
    if error.errno in (errno.EACCES, errno.EPERM):
        return UsageError(f"not allowed to listen on {address}: ports below 1024 need more rights")
    return UsageError(f"cannot listen on {address}: {error.strerror or error}")


def bind(host: str, port: int) -> socket.socket:
    """A bound, not yet listening socket for servers that take one; port 0 picks a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(f"cannot listen on {host!r}: {getattr(error, 'strerror', None) or error}") from None
    bound = socket.socket(family, kind, protocol)
    try:
        # Connections of a controller that has just died must not keep its successor out.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise port_error(host, port, error) from None
    return bound


def claim_port(host: str, port: int) -> int:
    """A port that is free now, for servers that bind by themselves (gRPC says only "failed to bind")."""
    with bind(host, port) as bound:
        return int(bound.getsockname()[1])
