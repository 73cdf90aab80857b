"""The places of the HTTP server's listening socket, when more clients come at once than there are."""

import asyncio
import os
import socket
from collections.abc import Iterator

import pytest

from holdfast.controller.http import connections
from holdfast.controller.http.connections import AcceptedSocket, Listener

PLACES = 4
ALL = PLACES + connections._SLACK


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener(socket.AF_INET, most=PLACES) as one:
        one.bind(("127.0.0.1", 0))
        one.listen(2 * ALL)
        one.setblocking(False)
        yield one


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    if await reader.readline():
        writer.write(b"well\n")
    writer.close()


def test_a_request_behind_a_crowd_that_came_at_once_is_answered(listener: Listener) -> None:
    """All are there before the event loop looks: the last one comes when each place, and each beyond, is taken."""
    crowd = [socket.create_connection(listener.getsockname()) for _ in range(ALL)]
    client = socket.create_connection(listener.getsockname(), timeout=60)
    client.sendall(b"how are you\n")

    async def ask() -> bytes:
        async with await asyncio.start_server(_answer, sock=listener, backlog=2 * ALL):
            answer = await asyncio.to_thread(client.recv, 100)
            for one in crowd:
                one.close()
            async with asyncio.timeout(60):
                while listener.open:
                    await asyncio.sleep(0.01)
            return answer

    try:
        assert asyncio.run(ask()) == b"well\n"
    finally:
        for left in (*crowd, client):
            left.close()


@pytest.mark.parametrize(("ended", "error"), [(0.0, BlockingIOError), (60.0, ConnectionAbortedError)])
def test_what_has_ended_and_does_not_close_is_not_waited_for(
    listener: Listener, ended: float, error: type[OSError]
) -> None:
    async def accept() -> None:
        taken = AcceptedSocket()
        os.close(taken.detach())
        listener.open = dict.fromkeys(range(ALL), taken)
        listener.ending = {3: asyncio.get_running_loop().time() - ended}
        with pytest.raises(error):
            listener.accept()

    with socket.create_connection(listener.getsockname(), timeout=60) as client:
        asyncio.run(accept())
        if error is BlockingIOError:  # it waits
            listener.open.clear()
            taken = socket.socket.accept(listener)[0]
            taken.close()
        else:
            assert client.recv(1) == b""
