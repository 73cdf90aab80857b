"""Listeners of agents: a peer that probes one learns whether an agent answers."""

import asyncio
import contextlib
import socket

from holdfast.agent.node.peers import ProbeListener, probe_peer

PATIENT = 30.0
"""Seconds, where an answer is certain to come."""


def test_an_open_listener_answers_and_a_closed_one_does_not() -> None:
    async def story() -> None:
        listener = ProbeListener()
        await listener.open("127.0.0.1")
        port = listener.port
        assert port
        assert [await probe_peer("127.0.0.1", port, PATIENT) for _ in range(3)] == ["answers"] * 3
        await listener.close()
        assert listener.port == 0
        assert await probe_peer("127.0.0.1", port, PATIENT) == "refused"

    asyncio.run(story())


def test_a_frozen_agent_takes_the_probe_and_says_nothing() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert asyncio.run(probe_peer("127.0.0.1", taken.getsockname()[1], 1.0)) == "frozen"


def test_a_peer_that_says_another_word_is_no_agent() -> None:
    async def story() -> str:
        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 mail server\r\n")
            writer.close()

        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            return await probe_peer("127.0.0.1", server.sockets[0].getsockname()[1], PATIENT)

    assert asyncio.run(story()) == "refused"


def test_a_host_that_is_not_there_is_unreachable() -> None:
    assert asyncio.run(probe_peer("no such host", 9, 0.5)) == "unreachable"
    with contextlib.ExitStack() as open_ones:
        full = open_ones.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)  # a queue that is full lets packets drop, as a dead host does
        for _ in range(8):
            filler = open_ones.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        assert asyncio.run(probe_peer("127.0.0.1", full.getsockname()[1], 0.2)) == "unreachable"


def test_a_listener_that_cannot_be_opened_stays_closed() -> None:
    async def story() -> int:
        listener = ProbeListener()
        await listener.open("192.0.2.1")
        return listener.port

    assert asyncio.run(story()) == 0
