"""Adverse values for every kind of option, and their allowed exit codes."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BAD = frozenset({2})
FINE = frozenset({0, 1})
"""Legal: it must not be refused, but need not exist."""
ANY = frozenset({0, 1, 2})
"""Legal or not, as the option has it: only that it ends well is asked for."""


@dataclass(frozen=True, slots=True)
class Value:
    """What is tried, a name for it, and the exit codes with which it may end."""

    label: str
    text: str
    codes: frozenset[int] = BAD


TEXTS = (
    Value("empty", "", ANY),
    Value("blank", " ", ANY),
    Value("not UTF-8", os.fsdecode(b"\xff\xfe\x80"), ANY),
    Value("control characters", "a\x1b[31mb\x1b]0;title\x07\rc\nd\x7f\x9b1m", ANY),
    Value("markup", "[bold]x[/bold] [/nope] [link=x]", ANY),
    Value("very long", "x" * 100_000, ANY),
    Value("upward", "../../../etc/passwd", ANY),
    Value("other digits", "٣²", ANY),
    Value("a flag", "--json", ANY),
    Value("right to left", "a\u202eb\u2028c", ANY),
    Value("braces", "{0} %s %(x)s ${HOME}", ANY),
)

NUMBERS = tuple(
    Value(label, text)
    for label, text in (
        ("empty", ""),
        ("a word", "many"),
        ("NaN", "nan"),
        ("infinity", "inf"),
        ("minus infinity", "-inf"),
        ("above the largest float", "1e999"),
        ("negative", "-1"),
        ("very negative", f"-{2**70}"),
        ("hexadecimal", "0x10"),
        ("not UTF-8", os.fsdecode(b"\xff")),
        ("control characters", "1\x1b[2J\n"),
        ("5000 digits", "9" * 5000),
        ("superscript", "²"),
        ("64 bits", str(2**64)),
        ("a billion", "999999999"),
    )
)

PATHS = (
    Value("empty", "", ANY),
    Value("not UTF-8", os.fsdecode(b"no\xff\xfe"), ANY),
    Value("name too long", "x" * 5000),
    Value("path too long", "/".join(["x" * 200] * 100)),
    Value("nobody's home", "~nobody-has-this-name/x", ANY),
    Value("control characters", "no\x1b[31m\nway", ANY),
    Value("markup", "[bold]no[/]way[/nope]", ANY),
    Value("process memory", "/proc/self/mem"),
    Value("endless zeros", "/dev/zero"),
    Value("full", "/dev/full"),
    Value("nothing", "/dev/null", ANY),
    Value("below a device", "/dev/null/x"),
    Value("below proc", "/proc/x/y"),
    Value("standard input", "/dev/stdin", ANY),
)

HOSTS = (
    Value("empty", "", ANY),
    Value("only a port", ":7080"),
    Value("not a number", "127.0.0.1:many"),
    Value("port too high", "127.0.0.1:70800"),
    Value("negative port", "127.0.0.1:-1"),
    Value("open bracket", "[::1"),
    Value("brackets of nothing", "[]:1"),
    Value("brackets of a word", "[x y]:1"),
    Value("IPv6", "[::1]:1", FINE),
    Value("bare IPv6", "::1", FINE),
    Value("a zone", "[fe80::1%nowhere]:1", ANY),
    Value("refused", "127.0.0.1:1", FINE),
    Value("not an address", "256.256.256.256:1", ANY),
    Value("no such host", "no-such-host.invalid:1", ANY),
    Value("two schemes", "http://https://x:1"),
    Value("with a path", "http://127.0.0.1:1/x/y"),
    Value("another scheme", "ftp://127.0.0.1:1"),
    Value("with a user", "http://user:pass@127.0.0.1:1"),
    Value("spaces", "a b:1"),
    Value("not UTF-8", os.fsdecode(b"\xff\xfe:1")),
    Value("control characters", "a\x1b[31m\n:1"),
    Value("very long", "x" * 10_000 + ":1", ANY),
    Value("label too long", "x" * 64 + ".invalid:1", ANY),
    Value("dots", "a..b:1", ANY),
    Value("other digits", "127.0.0.1:٣²"),
    Value("snowman", "☃:1", ANY),
    Value("other letters", "bücher.invalid:1", ANY),
    Value("5000 digits", "127.0.0.1:" + "9" * 5000),
)

STORES = (
    Value("empty", ""),
    Value("no scheme", "://x"),
    Value("only a scheme", "file:"),
    Value("no path", "file://"),
    Value("root", "file:///"),
    Value("another host", "file://host/x"),
    Value("open bracket", "hdfs://[::1/x"),
    Value("brackets of a word", "webhdfs://[x y]:1/x"),
    Value("no host", "hdfs:///x"),
    Value("no folder", "webhdfs://127.0.0.1:1"),
    Value("port too high", "webhdfs://127.0.0.1:99999/x"),
    Value("not a number", "hdfs://127.0.0.1:many/x"),
    Value("negative port", "webhdfs://127.0.0.1:-1/x"),
    Value("spaces", "webhdfs://a b/x"),
    Value("commas", "webhdfs://,,/x"),
    Value("only a user", "webhdfs://user@/x"),
    Value("another scheme", "s3://bucket/x"),
    Value("not UTF-8", os.fsdecode(b"file:///\xff\xfe"), ANY),
    Value("percent", "file:///%ff%zz", ANY),
    Value("encoded NUL", "file:///%00"),
    Value("nobody's home", "~nobody-has-this-name/x", ANY),
    Value("control characters", "no\x1b[31m\nway", ANY),
    Value("markup", "[bold]no[/]way[/nope]", ANY),
    Value("process memory", "/proc/self/mem", ANY),
    Value("below a device", "/dev/null/x", ANY),
    Value("endless zeros", "/dev/zero", ANY),
    Value("name too long", "x" * 5000, ANY),
    Value("very long", "hdfs://" + "x" * 100_000 + "/y", ANY),
    Value("no such host", "webhdfs://no-such-host.invalid:1/x", ANY),
    Value("no such native host", "hdfs://no-such-host.invalid:1/x", ANY),
    Value("refused", "webhdfs://127.0.0.1:1/x", ANY),
    Value("refused natively", "hdfs://127.0.0.1:1/x", ANY),
    Value("IPv6, refused", "webhdfs://[::1]:1/x", ANY),
)

FAULTS = tuple(
    Value(label, text)
    for label, text in (
        ("no kind", "@5:rank0"),
        ("no step", "kill@:rank0"),
        ("5000 digits", f"kill@{'9' * 5000}:rank0"),
        ("5000 digits of a rank", f"kill@1:rank{'9' * 5000}"),
        ("5000 digits of a node", f"agent-kill@1:node{'9' * 5000}"),
        ("a billionth rank", "kill@1:rank999999999"),
        ("5000 digits of percent", f"slow@1:rank0/forward+{'9' * 5000}"),
        ("other digits", "kill@٣:rank٣"),
        ("superscript", "kill@²:rank²"),
        ("negative", "kill@-1:rank-1"),
        ("value", "xid=999999:node0"),
    )
)

STEPS = tuple(
    Value(label, text)
    for label, text in (
        ("backwards", "9:3"),
        ("negative", "-5:-1"),
        ("5000 digits", f"1:{'9' * 5000}"),
        ("64 bits", f"0:{2**64}"),
        ("superscript", "²:³"),
        ("three", "1:2:3"),
        ("a word", "all"),
    )
)

MESHES = tuple(
    Value(label, text)
    for label, text in (
        ("two sizes", "8x192"),
        ("zero", "0x2x2"),
        ("negative", "-1x2x2"),
        ("too large", "64x64x64"),
        ("5000 digits", f"1x{'9' * 5000}x1"),
        ("superscript", "²x²x²"),
        ("other digits", "٣x٣x٣"),
        ("no whole nodes", "3x3x1"),
        ("escape", "\x1b[31m2x2x2"),
    )
)


class Files:
    """Files of all kinds that must not be taken for what was asked for, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        contents = {
            "empty": b"",
            "binary": bytes(range(256)) * 64,
            "utf16.toml": "[client]\n".encode("utf-16"),
            "bad.toml": b"[client\n",
            "nul.toml": b'[client]\ncontroller = "a\\u0000b"\n',
            "deep.toml": b"x = " + b"[" * 100_000,
            "der.pem": bytes.fromhex("3082010a0282010100") + os.urandom(256),
            "half.pem": b"-----BEGIN CERTIFICATE-----\nMIIB\n",
            "wrong.pem": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "long line": b"x" * 5_000_000,
            "token with lines": b"a\nb\n",
            "token with control characters": b"a\x1b[31mb",
            "token that is not ASCII": "täken".encode(),
            "gzip": b"\x1f\x8b\x08\x00" + b"\0" * 20,
            "json": b'{"version": 1e999}\n[[[[\n',
            "parquet": b"PAR1" + b"\xff" * 64 + b"PAR1",
        }
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        with open(folder / "huge", "wb") as huge:
            huge.truncate(1 << 40)
        os.mkfifo(folder / "pipe")
        (folder / "loop").symlink_to("loop")
        (folder / "folder").mkdir()
        self._socket = socket.socket(socket.AF_UNIX)
        before = Path.cwd()
        os.chdir(folder)  # a socket's path is short
        self._socket.bind("socket")
        os.chdir(before)
        (folder / "unreadable").touch(0)

    def close(self) -> None:
        self._socket.close()

    def values(self, codes: frozenset[int] = BAD) -> tuple[Value, ...]:
        names = sorted(path.name for path in self.folder.iterdir())
        return tuple(Value(f"file: {name}", str(self.folder / name), codes) for name in names)


def with_codes(values: Sequence[Value], codes: frozenset[int], *but: str) -> tuple[Value, ...]:
    """The values with other exit codes; any will do for those with the labels `but`."""
    return tuple(Value(value.label, value.text, ANY if value.label in but else codes) for value in values)
