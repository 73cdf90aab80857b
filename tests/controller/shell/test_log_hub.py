"""The live log: a tail for late readers, no line delayed by slow ones."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.controller.shell import log_hub, log_tail
from holdfast.controller.shell.log_hub import LogHub
from holdfast.controller.state.log_levels import Level
from holdfast.controller.state.log_wanted import EVERY_LINE, LogWanted
from holdfast.wire import messages as msg


def chunk(text: str, job: str = "j1", rank: int = 0, generation: int = 1) -> msg.LogChunk:
    return msg.LogChunk(job, generation, rank, "out", text)


async def texts(hub: LogHub, job: str = "j1", wanted: LogWanted = EVERY_LINE) -> list[str]:
    return [line["text"] async for line in hub.lines(job, wanted)]


def story(body: Callable[[LogHub], Awaitable[None]]) -> None:
    async def run() -> None:
        hub = LogHub()
        hub.begin("j1")
        async with asyncio.timeout(10):
            await body(hub)

    asyncio.run(run())


def test_tail_then_live_then_the_end() -> None:
    async def body(hub: LogHub) -> None:
        hub.add(chunk("early"))
        hub.add(chunk("of another job", job="j0"))
        reader = asyncio.create_task(texts(hub))
        await asyncio.sleep(0)
        hub.add(chunk("live"))
        await asyncio.sleep(0)
        hub.end("j1")
        assert await reader == ["early", "live"]
        hub.add(chunk("late"))  # an exit's last words may come after the end: later readers see them
        assert await texts(hub) == ["early", "live", "late"]
        assert await texts(hub, "j0") == []

    story(body)


def test_an_unfinished_line_is_live_only() -> None:
    async def body(hub: LogHub) -> None:
        reader = asyncio.create_task(texts(hub))
        await asyncio.sleep(0)
        hub.add(msg.LogChunk("j1", 1, 0, "out", "10%", unfinished=True))
        hub.add(chunk("100%"))
        await asyncio.sleep(0)
        hub.end("j1")
        assert await reader == ["10%", "100%"]
        assert await texts(hub) == ["100%"]

    story(body)


def test_a_line_is_what_the_api_says() -> None:
    async def body(hub: LogHub) -> None:
        hub._clock = lambda: 12.5
        hub.add(msg.LogChunk("j1", 3, 7, "err", "x", dropped=2), "node1")
        hub.end("j1")
        [line] = [line async for line in hub.lines("j1")]
        assert line == {
            "at": 12.5, "node": "node1", "rank": 7, "stream": "err", "text": "x", "generation": 3, "dropped": 2,
            "unfinished": False,
        }  # fmt: skip

    story(body)


def test_only_what_is_wanted() -> None:
    async def body(hub: LogHub) -> None:
        for i, (rank, node, generation) in enumerate([(0, "a", 1), (1, "a", 1), (2, "b", 1), (0, "b", 2), (1, "a", 2)]):
            hub._clock = lambda at=i: 100.0 + at  # type: ignore[misc]
            hub.add(chunk(f"{i}", rank=rank, generation=generation), node)
        for wanted, expected in (
            (LogWanted(follow=False), "01234"),
            (LogWanted(frozenset({0, 2}), follow=False), "023"),
            (LogWanted(node="a", follow=False), "014"),
            (LogWanted(node="a", generation=1, follow=False), "01"),
            (LogWanted(seconds=2.0, follow=False), "234"),
            (LogWanted(node="nowhere", follow=False), ""),
        ):
            assert "".join(await texts(hub, wanted=wanted)) == expected, wanted
        reader = asyncio.create_task(texts(hub, wanted=LogWanted(frozenset({1}), seconds=0.0)))
        await asyncio.sleep(0)
        hub.add(chunk("of another", rank=0), "a")
        hub.add(chunk("live", rank=1), "a")
        hub.end("j1")
        assert await reader == ["4", "live"]

    story(body)


def test_the_tail_is_bounded_by_bytes() -> None:
    async def body(hub: LogHub) -> None:
        for n in range(100):
            hub.add(chunk(f"{n:03}" + "x" * 50_000))
        hub.end("j1")
        kept = await texts(hub)
        assert kept[-1].startswith("099")
        assert 1 < len(kept) <= log_tail.TAIL_BYTES // 50_000

    story(body)


def test_a_slow_reader_loses_the_oldest_and_delays_no_other() -> None:
    async def body(hub: LogHub) -> None:
        slow, quick = hub.lines("j1"), hub.lines("j1")
        hub.add(chunk("first"))
        assert (await anext(slow))["text"] == (await anext(quick))["text"] == "first"
        both = [asyncio.ensure_future(anext(reader)) for reader in (slow, quick)]
        await asyncio.sleep(0)
        count = log_hub._QUEUE + 500
        heard = []
        for n in range(count):
            hub.add(chunk(str(n)))
            heard.append((await both[1])["text"])
            both[1] = asyncio.ensure_future(anext(quick))
            await asyncio.sleep(0)
        assert heard == [str(n) for n in range(count)]
        hub.end("j1")
        rest = [(await both[0])["text"]] + [line["text"] async for line in slow]
        # It misses some in the middle, but has the newest, in order.
        assert rest[-1] == str(count - 1)
        assert rest == sorted(rest, key=int)
        assert len(rest) <= log_hub._QUEUE + 1
        assert isinstance((await asyncio.gather(both[1], return_exceptions=True))[0], StopAsyncIteration)

    story(body)


def test_the_next_job_leaves_the_listeners_of_the_last_alone() -> None:
    async def body(hub: LogHub) -> None:
        reader: asyncio.Task[Any] = asyncio.create_task(texts(hub))
        await asyncio.sleep(0)
        hub.begin("j2")
        hub.end("j2")
        hub.add(chunk("one"))
        hub.end("j1")
        assert await reader == ["one"]
        assert hub._jobs["j1"].listeners == {}

    story(body)


def test_a_listener_that_leaves_is_forgotten() -> None:
    async def body(hub: LogHub) -> None:
        reader = asyncio.create_task(texts(hub))
        await asyncio.sleep(0)
        assert len(hub._jobs["j1"].listeners) == 1
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        assert hub._jobs["j1"].listeners == {}

    story(body)


def test_who_said_a_line_is_found_whatever_its_numbers() -> None:
    hub = LogHub(lambda: 50.0)
    hub.begin("j1")
    for rank in (7, 3, 5):
        hub.add(msg.LogChunk("j1", 1, rank, "err", f"loading\nconnect to 10.0.0.{rank} failed"), f"node{rank // 4}")
    hub.add(msg.LogChunk("j1", 2, 3, "err", "connect to 10.0.0.9 failed"), "node0")
    found = hub.same("j1", "connect to 10.0.0.99 failed")()
    assert (found["ranks"], found["lines"], found["masked"]) == ([3, 5, 7], 4, "connect to # failed")
    assert (found["first"]["rank"], found["first"]["generation"], found["first"]["node"]) == (7, 1, "node1")
    assert hub.same("j1", "connect to 10.0.0.99 failed", 2)()["ranks"] == [3]
    nothing = {"masked": "never said", "ranks": [], "lines": 0, "first": None}
    assert hub.same("j1", "never said")() == nothing
    assert hub.same("ghost", "never said")() == nothing


def test_only_a_level_and_only_so_much() -> None:
    now = [0.0]
    hub = LogHub(lambda: now[0])
    hub.begin("j1")
    for i in range(100):
        hub.add(msg.LogChunk("j1", 1, 0, "out", f"step {i}\nWARNING: slow {i}"), "node0")

    async def read(wanted: LogWanted) -> list[dict[str, Any]]:
        return [line async for line in hub.lines("j1", wanted)]

    lines = asyncio.run(read(LogWanted(follow=False, level=Level.WARNING)))
    assert [line["text"] for line in lines] == [f"WARNING: slow {i}" for i in range(100)]
    some = asyncio.run(read(LogWanted(follow=False, rate=10.0)))
    assert [line["text"].split()[1] for line in some] == ["96", "97", "98", "99"], "the newest"
