"""A store that is unreachable: one line within ten seconds, with the attempts."""

import socket
from collections.abc import Iterator

import pytest

from holdfast.checkpoint.errors import StoreUnsupported
from holdfast.checkpoint.stores import reach as reaching
from holdfast.checkpoint.stores.reach import reach
from holdfast.cli.main import main

pytest.importorskip("hdfs_native", reason="the extra holdfast[hdfs] is not installed")


@pytest.fixture
def mute() -> Iterator[int]:
    """A port at which connections are taken and nothing is ever said."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@pytest.mark.parametrize("scheme", ["hdfs", "webhdfs"])
def test_which_address_was_asked_and_for_how_long(scheme: str, mute: int, free_port: int) -> None:
    for port, why in ((mute, "no answer|timed out"), (free_port, "refused|no answer")):
        with pytest.raises(OSError, match=f"127.0.0.1:{port}.* within 1.5 s: .*({why})") as caught:
            reach(f"{scheme}://127.0.0.1:{port}/x", 1.5)
        assert "\n" not in str(caught.value)


def test_the_command_line_gives_up_in_time(
    mute: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reaching.REACH_S <= 8
    monkeypatch.setattr(reaching.reach, "__defaults__", (0.5,))
    for words in (["list"], ["show"], ["verify"], ["prune", "--keep", "1"], ["protect", "--step", "1"]):
        assert main(["checkpoint", words[0], f"webhdfs://127.0.0.1:{mute}/x", *words[1:]]) == 1
        err = capsys.readouterr().err
        assert err.startswith(
            f"holdfast: webhdfs://127.0.0.1:{mute}/x: no webhdfs NameNode answers at 127.0.0.1:{mute}"
        )
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    "url",
    ["", "file:x", "hdfs://[::1/x", "webhdfs://a b/x", "webhdfs://h:99999/x", "webhdfs://,/x", "hdfs://h:many/x",
     "file:///%00", "~nobody-has-this-name/x", "webhdfs://h:1/%ff", "hdfs://h:1", "webhdfs://user@/x"],
)  # fmt: skip
def test_a_url_that_cannot_be_one_is_not_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "BoundedCalls", lambda within_s: pytest.fail("it was asked"))
    with pytest.raises(StoreUnsupported):
        reach(url)
