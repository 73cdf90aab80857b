"""Receivers as they are configured, KIND=ADDRESS, and the request that brings a message to each. Pure but for secrets,
which are read from files and the environment once."""

import hashlib
import json
import os
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.base.errors import UsageError
from holdfast.base.files import read_text
from holdfast.base.settings import nearest
from holdfast.controller.alerts import formats, pagers
from holdfast.controller.alerts.formats import Message
from holdfast.controller.alerts.notice import Traits

_TRAITS = {
    "alertmanager": Traits(keeps_state=True, forgets=True),
    "pagerduty": Traits(keeps_state=True),
    "opsgenie": Traits(keeps_state=True),
}
_KEYED = {
    "pagerduty": ("https://events.pagerduty.com/v2/enqueue", ("key",)),
    "opsgenie": ("https://api.opsgenie.com/v2/alerts", ("key",)),
    "telegram": ("https://api.telegram.org", ("token", "chat")),
}
"""Services that need more than an address: where they are, and what the query must have."""
_SECRET = ("key", "token", "password")
KINDS = (*formats.JSON, "alertmanager", *_KEYED, "email")


@dataclass(frozen=True, slots=True)
class Receiver:
    kind: str
    name: str
    """For people, logs and metrics: without what may be a secret."""
    url: str = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    to: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """For the journal: the same after a restart, whatever the order of receivers, and no secret."""
        whole = json.dumps([self.kind, self.url, sorted(self.options.items()), self.to])
        return f"{self.kind}-{hashlib.sha256(whole.encode()).hexdigest()[:12]}"

    @property
    def traits(self) -> Traits:
        return _TRAITS.get(self.kind, Traits())

    @property
    def host(self) -> str:
        return urllib.parse.urlsplit(self.url).hostname or ""


@dataclass(frozen=True, slots=True)
class Request:
    url: str
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)


def parse_receivers(texts: Iterable[str]) -> list[Receiver]:
    """A second receiver of a kind is KIND-2. UsageError says what would be right."""
    found: list[Receiver] = []
    for text in texts:
        kind, _, place = text.partition("=")
        if kind not in KINDS:
            raise UsageError(f"notify {kind!r}: unknown kind {kind!r}{nearest(kind, KINDS)}; write KIND=URL")
        many = sum(one.kind == kind for one in found) + 1
        found.append(_parse(kind, place, kind if many == 1 else f"{kind}-{many}"))
    return found


def _parse(kind: str, place: str, name: str) -> Receiver:
    is_open = not place.startswith(("@", "$"))
    url = place if is_open else _secret(place, name)
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise UsageError(f"notify {name}: no URL: {error}") from None
    schemes = ("smtp", "smtps") if kind == "email" else ("http", "https")
    if parts.scheme not in schemes or not parts.hostname:
        more = f", for example {_KEYED[kind][0]}" if kind in _KEYED else ""
        raise UsageError(f"notify {name}: {kind} needs a URL that begins with {schemes[0]}:// and names a host{more}")
    if kind != "email" and kind not in _KEYED:
        return Receiver(kind, name, url)
    asked = {key: values for key, values in urllib.parse.parse_qs(parts.query).items()}
    options = {}
    for key, values in asked.items():
        value = values[-1]
        if key in _SECRET and is_open and not value.startswith(("@", "$")):
            raise UsageError(f"notify {name}: give {key} as {key}=@FILE or {key}=$VARIABLE, not itself")
        options[key] = _secret(value, name) if key in _SECRET and value.startswith(("@", "$")) else value
    if kind == "email":
        if not asked.get("from") or not asked.get("to"):
            raise UsageError(f"notify {name}: write email=smtp://HOST:PORT/?from=ADDRESS&to=ADDRESS,ADDRESS")
        to = tuple(one for text in asked["to"] for one in text.split(","))
        return Receiver(kind, name, url, options, to)
    lacking = [key for key in _KEYED[kind][1] if not options.get(key)]
    if lacking:
        example = "&".join(f"{key}={'@FILE' if key in _SECRET else 'ID'}" for key in _KEYED[kind][1])
        raise UsageError(
            f"notify {name}: the URL lacks {' and '.join(lacking)}: write {kind}={_KEYED[kind][0]}?{example}"
        )
    return Receiver(kind, name, urllib.parse.urlunsplit(parts._replace(query="")), options)


def _secret(text: str, name: str) -> str:
    """What a `@FILE` holds, or a `$VARIABLE` of the environment."""
    if text.startswith("@"):
        value = read_text(Path(text[1:]), f"the secret of the receiver {name}").strip()
        where = text[1:]
    else:
        value, where = os.environ.get(text[1:], "").strip(), f"the environment variable {text[1:]}"
    if not value or len(value.splitlines()) != 1:
        raise UsageError(f"notify {name}: {where} must hold one line, the secret")
    return value


def request_of(receiver: Receiver, message: Message) -> Request:
    """Of every kind but e-mail. https: the caller's."""
    kind, url, options = receiver.kind, receiver.url, receiver.options
    if kind == "alertmanager":
        is_bare = urllib.parse.urlsplit(url).path in ("", "/")
        return Request(f"{url.rstrip('/')}/api/v2/alerts" if is_bare else url, pagers.alertmanager(message))
    if kind == "pagerduty":
        return Request(url, pagers.pagerduty(message, options["key"]))
    if kind == "opsgenie":
        of_one = f"{url.rstrip('/')}/{urllib.parse.quote(pagers.alias(message), safe='')}/close?identifierType=alias"
        headers = {"Authorization": f"GenieKey {options['key']}"}
        return Request(of_one if message.is_over else url, pagers.opsgenie(message), headers)
    if kind == "telegram":
        return Request(
            f"{url.rstrip('/')}/bot{options['token']}/sendMessage", formats.telegram(message, options["chat"])
        )
    return Request(url, formats.JSON[kind](message))


def said_no(kind: str, body: object) -> str:
    """Why a service refused a message that it answered with HTTP 200. Empty when it did not."""
    code, text = {"wecom": ("errcode", "errmsg"), "dingtalk": ("errcode", "errmsg"), "feishu": ("code", "msg")}.get(
        kind, ("", "")
    )
    if not isinstance(body, dict) or not isinstance(body.get(code), int) or body[code] == 0:
        return ""
    return f"{code} {body[code]}: {body.get(text, '')}"


def is_final(status: int) -> bool:
    """Whether sending the same again would be refused again."""
    return 400 <= status < 500 and status not in (408, 425, 429)
