"""The controller's HTTP API as the command line uses it; every failure is one line for the user."""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from holdfast.base.address import format_address, is_loopback
from holdfast.base.config.client import ClientConfig
from holdfast.base.errors import Conflict, HoldfastError, NotFound, ProtocolError, Unavailable, UsageError
from holdfast.base.files import read_text

if TYPE_CHECKING:  # httpx takes 80 ms to import, and `holdfast --help` needs none of it
    import httpx

Json = dict[str, Any]

MAX_NAME = 255

OVER = ("finished", "failed", "stopped")
"""States in which a job stays."""


class Client:
    """Opens its connections when first used. Unavailable: no response, may work later; UsageError: refused; Conflict:
    not possible now."""

    def __init__(self, config: ClientConfig, timeout: float = 10.0) -> None:
        host, port = config.address() if config.controller else ("127.0.0.1", 7080)
        self._host = host
        self.address = format_address(host, port)
        self.url = f"{'https' if config.uses_tls() else 'http'}://{self.address}"
        self.is_named = bool(config.controller)
        """Whether the controller is configured; else it is the default address, which may not exist."""
        self._config = config
        self._timeout = timeout
        self._http: httpx.Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    # --- reads ---

    def status(self) -> Json:
        return self._dict("/status")

    def nodes(self) -> list[Json]:
        return self._list("/nodes")

    def jobs(self) -> list[Json]:
        """Active jobs in the order of the queue, then those that ended, the newest first."""
        return self._list("/jobs")

    # `job` is an id or a name; empty: the newest job of a read, the only active one of a command.

    def job(self, job: str = "") -> Json | None:
        return self._dict(_of(job) or "/job") or None

    def then(self, at: float, job: str = "") -> Json:
        """What it was at this Unix time."""
        return self._dict(f"{_of(job) or '/job'}/then", at=at)

    def ranks(self, job: str = "") -> Json:
        return self._dict(f"{_of(job)}/ranks")

    def steps(self, since: int = -1, job: str = "") -> Json:
        return self._dict(f"{_of(job)}/steps", since=since, limit=100_000)

    def incidents(self, job: str = "") -> list[Json]:
        """The incidents of a job; without a job all, including those of nodes."""
        return self._list(f"{_of(job)}/incidents")

    def incident(self, name: str) -> Json:
        return self._dict(f"/incidents/{_segment(name)}")

    def blame(self, job: str, first: int, last: int) -> Json:
        return self._dict(f"{_of(job)}/blame", first=first, last=last)

    def newest_blame(self, job: str = "") -> Json | None:
        """What the controller's last look found; None before the first."""
        return self._dict(f"{_of(job)}/blame/newest") or None

    def heat(self, job: str, first: int, last: int) -> Json:
        return self._dict(f"{_of(job)}/blame/heat", first=first, last=last)

    def timeline(self, job: str, first: int, last: int) -> Json:
        return self._dict(f"{_of(job)}/timeline", first=first, last=last)

    def predicted(self, job: str, step: int, times_of: int) -> Json:
        """A step beside its prediction; -1: the newest step, and its own times."""
        return self._dict(f"{_of(job)}/spans/predicted", step=step, times_of=times_of)

    # --- commands ---

    def check_private(self, what: str, or_else: str) -> None:
        """UsageError if others could read `what` on its way to the controller. `or_else`: what the user can do."""
        config = self._config
        if not (config.uses_tls() or config.insecure or is_loopback(self._host)):
            raise UsageError(
                f"{what} is not sent to {self._host} over plain HTTP, where others can read it: give --tls-ca FILE, "
                f"say --insecure, {or_else}"
            )

    def submit(self, spec: Json) -> str:
        return str(self._call("POST", "/jobs", json=spec)["id"])

    def stop(self, grace: float = 10.0, job: str = "") -> None:
        self._call("POST", f"{_of(job) or '/job'}/stop", json={"grace": grace})

    def restart(self, dump: bool = False, job: str = "") -> None:
        self._call("POST", f"{_of(job) or '/job'}/restart", json={"dump": dump})

    def stacks(self, job: str = "") -> Json:
        return dict(self._call("POST", f"{_of(job) or '/job'}/stacks"))

    def checkpoint(self, job: str = "") -> None:
        self._call("POST", f"{_of(job) or '/job'}/checkpoint")

    def inject(self, fault: str, job: str = "") -> Json:
        return dict(self._call("POST", f"{_of(job)}/inject", json={"fault": fault}))

    def acknowledge(self, job: str) -> None:
        self._call("POST", f"{_of(job)}/ack")

    def notify_test(self, receiver: str = "") -> list[Json]:
        answers = self._call("POST", "/notify/test", json={"receiver": receiver}, timeout=60.0)
        if not isinstance(answers, list):
            raise ProtocolError(f"{self.address} does not speak Holdfast's API: /notify/test is no list")
        return answers

    def cordon(self, node: str, on: bool) -> None:
        self._call("POST", f"/nodes/{_segment(node)}/{'cordon' if on else 'uncordon'}")

    def diagnose(self, nodes: list[str], suite: str, tests: list[str], busy: bool, passes: int = 0) -> str:
        spec = {"nodes": nodes, "suite": suite, "tests": tests, "busy": busy, "passes": passes}
        return str(self._call("POST", "/diagnose", json=spec)["id"])

    def diagnoses(self) -> list[Json]:
        """Newest first, without their verdicts."""
        return self._list("/diagnoses")

    def diagnosis(self, name: str) -> Json:
        return self._dict(f"/diagnoses/{_segment(name)}")

    def evict(self, node: str) -> None:
        self._call("POST", f"/nodes/{_segment(node)}/evict")

    def said_by(self, job: str, text: str, generation: object = None) -> Json:
        """Which ranks said this line."""
        more = {} if generation is None else {"generation": generation}
        return self._dict(f"{_of(job) or '/job'}/logs/same", text=text, **more)

    def log_events(self, job: str = "", **params: Any) -> Iterator[tuple[str, Json]]:
        """("line", {rank, stream, text, ...}) as they come, beginning with the retained tail, then ("end", {}).
        The beginning and comments that keep the line alive come as ("", {}). `params`: as the route has them."""
        path = f"/api/v1{_of(job) or '/job'}/logs"
        with self._errors(), self._connect().stream("GET", path, params=params, timeout=self._stream()) as answer:
            if answer.status_code != 200:
                answer.read()
                self._raise(answer)
            yield "", {}
            name = ""
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield name, json.loads(line.removeprefix("data: "))
                elif line.startswith(":"):
                    yield "", {}

    def _dict(self, path: str, **params: object) -> Json:
        answer = self._call("GET", path, params=params)
        if not isinstance(answer, dict | None):
            raise ProtocolError(f"{self.address} does not speak Holdfast's API: {path} is no object")
        return answer or {}

    def _list(self, path: str) -> list[Json]:
        answer = self._call("GET", path)
        if not isinstance(answer, list):
            raise ProtocolError(f"{self.address} does not speak Holdfast's API: {path} is no list")
        return answer

    def _call(self, method: str, path: str, **request: Any) -> Any:
        with self._errors():
            answer = self._connect().request(method, f"/api/v1{path}", **request)
            if answer.status_code >= 400:
                self._raise(answer)
            try:
                return answer.json()
            except ValueError:
                raise ProtocolError(f"{self.address} does not speak Holdfast's API") from None

    def _raise(self, answer: "httpx.Response") -> None:
        try:
            text = str(answer.json()["error"])
        except (ValueError, KeyError, TypeError):
            raise ProtocolError(f"{self.address} answers {answer.status_code}: not a Holdfast controller?") from None
        if answer.status_code == 404:
            raise NotFound(text)
        if answer.status_code == 409:
            raise Conflict(text)
        if answer.status_code in (400, 401, 403, 408, 413):
            raise UsageError(text)
        raise Unavailable(text) if answer.status_code == 503 else HoldfastError(text)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import httpx

        try:
            yield
        except httpx.TimeoutException:
            message = f"no controller answers at {self.address}: nothing for {self._timeout:g} s"
            raise Unavailable(message) from None
        except httpx.TransportError as error:
            raise Unavailable(f"no controller answers at {self.address}: {_reason(error)}") from None
        except httpx.InvalidURL as error:
            raise UsageError(f"cannot ask {self.address}: {error}") from None
        except UnicodeError as error:
            raise UsageError(f"cannot ask {self.address}: {error}; write in UTF-8") from None

    def _connect(self) -> "httpx.Client":
        if self._http is None:
            import httpx

            token = self._config.token()
            if token:
                check_token(self._config.address()[0] if self.is_named else "127.0.0.1", self._config)
            self._http = httpx.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {token}"} if token else {},
                timeout=self._timeout,
                verify=self._trust(),
                # Requests to a controller on loopback must not use a web proxy.
                trust_env=False,
            )
        return self._http

    def _trust(self) -> "ssl.SSLContext | bool":
        if self._config.tls_ca is None:
            return self._config.uses_tls()  # without TLS, building a context would only cost time
        certificates = read_text(self._config.tls_ca, "a file of certificates in PEM form")
        try:
            if "-----BEGIN CERTIFICATE-----" not in certificates:
                raise ValueError("no certificate in it")
            return ssl.create_default_context(cadata=certificates)
        except (ssl.SSLError, ValueError) as error:
            raise UsageError(f"{self._config.tls_ca}: not a certificate in PEM form: {_reason(error)}") from None

    def _stream(self) -> "httpx.Timeout":
        import httpx

        # The server sends a comment every 10 s: a longer silence means a dead connection.
        return httpx.Timeout(self._timeout, read=30.0)


def check_token(host: str, config: ClientConfig) -> None:
    """UsageError if the token would be sent over a network in plain text."""
    if not (config.uses_tls() or config.insecure or is_loopback(host)):
        raise UsageError(
            f"the API token is not sent to {host} over plain HTTP, where others can read it: "
            "give --tls-ca FILE, or say --insecure"
        )


def _of(job: str) -> str:
    """Path of a job, by its id or name; empty for the controller's default job."""
    return f"/jobs/{_segment(job)}" if job else ""


def _segment(name: str) -> str:
    """A name escaped as one part of a path. UsageError if it is too long for a name."""
    if len(name) > MAX_NAME:
        raise UsageError(f"no name has more than {MAX_NAME} characters, but this one has {len(name)}: {name}")
    return quote(name.encode(errors="surrogateescape"), safe="")


def _reason(error: Exception) -> str:
    cause = error.__cause__
    while cause is not None and cause.__cause__ is not None:
        cause = cause.__cause__
    text = str(cause or error) or type(error).__name__
    return text.partition("] ")[2] or text  # "[Errno 111] Connection refused"
