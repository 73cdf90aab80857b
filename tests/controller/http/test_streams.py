"""Event streams over real sockets: which client receives what and when, and how they end."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from holdfast.controller.http import models, serve
from holdfast.controller.http.auth import Auth
from holdfast.controller.http.routes import create_app
from holdfast.controller.http.serve import serving
from tests.controller.support.fake_facade import FakeFacade


def client_of(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30)


@contextlib.asynccontextmanager
async def events(client: httpx.AsyncClient, path: str) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    async with client.stream("GET", path) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")

        async def each() -> AsyncIterator[tuple[str, Any]]:
            name = ""
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    yield name, json.loads(line[6:])
                elif line.startswith(":"):
                    yield "comment", line

        yield each()


async def until(seen: AsyncIterator[tuple[str, Any]], name: str) -> Any:
    async with asyncio.timeout(30):
        async for each, payload in seen:
            if each == name:
                return payload
    raise AssertionError(f"the stream ended before {name}")


def test_events_report_status_and_new_steps_to_every_listener(facade: FakeFacade) -> None:
    async def story() -> None:
        app = create_app(facade, Auth())
        streams = app.state.streams
        async with serving(app, port=0) as port, client_of(port) as client:
            async with (
                events(client, "/api/v1/events?since=17&since_job=job-1") as one,
                events(client, "/api/v1/events") as two,
            ):
                first = await until(one, "status")
                models.Status.model_validate(first)
                assert (await until(one, "steps"))["step"] == [18, 19]
                assert len((await until(two, "steps"))["step"]) == 20
                assert streams.listeners == 2
                facade.tick(facade.base_s * 1.1)
                for seen in (one, two):
                    second = await until(seen, "status")
                    assert second["version"] == facade.version()
                    assert "nodes" not in second  # unchanged
                    assert (await until(seen, "steps"))["step"] == [19, 20]  # the last one once more: it is whole now
                facade.fault(rank=1)
                assert (await until(one, "status"))["incidents"][0]["culprit"] == "rank1"
                facade.recover()
                assert (await until(one, "status"))["job"]["step"] == 17
                facade.tick(facade.base_s * 1.1)
                assert (await until(one, "steps"))["step"][:2] == [
                    17,
                    18,
                ]  # the kept one once more, then what is done again
            async with asyncio.timeout(30):
                while streams.listeners:
                    await asyncio.sleep(0.01)
            asked = []
            facade.version = lambda: asked.append(1) or 0  # type: ignore[method-assign, func-returns-value]
            await asyncio.sleep(0.5)
            assert asked == []  # no listener, no look

    asyncio.run(story())


def test_events_come_at_most_five_times_a_second_and_heartbeats_between(facade: FakeFacade) -> None:
    async def story() -> None:
        app = create_app(facade, Auth())
        app.state.streams._heartbeat_s = 0.4
        async with contextlib.AsyncExitStack() as stack:
            port = await stack.enter_async_context(serving(app, port=0))
            client = await stack.enter_async_context(client_of(port))
            seen = await stack.enter_async_context(events(client, "/api/v1/events"))
            live = asyncio.create_task(facade.live(0.01))
            begin, count = time.monotonic(), 0
            while count < 2 or time.monotonic() - begin < 1.0:
                await until(seen, "status")
                count += 1
            took = time.monotonic() - begin
            live.cancel()
            assert count <= 5 * took + 2
            await until(seen, "comment")

    asyncio.run(story())


def test_what_does_not_change_is_sent_once(facade: FakeFacade) -> None:
    async def story() -> None:
        app = create_app(facade, Auth())
        async with (
            serving(app, port=0) as port,
            client_of(port) as client,
            events(client, "/api/v1/events") as seen,
        ):
            first = await until(seen, "status")
            assert first["job"]["assignment"] == facade.document()["assignment"]
            assert "nodes" not in first["jobs"][0]
            facade.tick(0.01)
            second = await until(seen, "status")
            assert "assignment" not in second["job"]
            assert second["job"]["id"] == first["job"]["id"]
            facade.node_rows[0]["ranks"] = []  # another generation, on other nodes
            facade.tick(0.01)
            third = await until(seen, "status")
            assert third["job"]["assignment"] == facade.document()["assignment"]

    asyncio.run(story())


def test_a_large_state_is_sent_less_often(facade: FakeFacade) -> None:
    async def story() -> int:
        facade.name = "x" * 6000  # twice in each event: in the job and in the list of jobs
        app = create_app(facade, Auth())
        async with (
            serving(app, port=0) as port,
            client_of(port) as client,
            events(client, "/api/v1/events") as seen,
        ):
            live = asyncio.create_task(facade.live(0.01))
            count, end = 0, time.monotonic() + 3.0
            while time.monotonic() < end:
                await until(seen, "status")
                count += 1
            live.cancel()
            return count

    assert asyncio.run(story()) <= 5  # one a second, not five


def test_a_stop_does_not_wait_for_listeners(facade: FakeFacade, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "STOP_S", 60.0)

    async def story() -> float:
        async with contextlib.AsyncExitStack() as stack:
            port = await stack.enter_async_context(serving(create_app(facade, Auth()), port=0))
            client = client_of(port)
            async with client, events(client, "/api/v1/events") as one, events(client, "/api/v1/job/logs"):
                await until(one, "status")
                begin = time.monotonic()
                await stack.aclose()
                return time.monotonic() - begin

    assert asyncio.run(story()) < 30


def test_logs_begin_with_the_tail_and_end_with_the_job(facade: FakeFacade) -> None:
    line = {"rank": 0, "stream": "out", "text": "hello\nthere", "generation": 1, "dropped": 0}

    async def story() -> None:
        facade.log.append(line)
        app = create_app(facade, Auth())
        async with serving(app, port=0) as port, client_of(port) as client:
            async with events(client, "/api/v1/job/logs") as seen:
                assert await until(seen, "line") == line
                facade.log.append(line | {"text": "more"})
                assert (await until(seen, "line"))["text"] == "more"
                facade.log.append(line | {"text": "10%", "unfinished": True})
                assert (await until(seen, "unfinished"))["text"] == "10%"
                await facade.stop()
                assert await until(seen, "end") == {}
            facade.job_state = None
            assert (await client.get("/api/v1/job/logs")).status_code == 409

    asyncio.run(story())


def test_a_reader_of_the_log_says_which_lines(facade: FakeFacade) -> None:
    base = {"at": 1.0, "stream": "out", "dropped": 0}
    for rank, node, generation in ((0, "a", 1), (1, "b", 1), (0, "b", 2)):
        facade.log.append(base | {"rank": rank, "node": node, "generation": generation, "text": f"{rank}{node}"})

    async def story() -> None:
        app = create_app(facade, Auth())
        async with serving(app, port=0) as port, client_of(port) as client:
            for query, expected in (
                ("ranks=0", ["0a", "0b"]), ("node=b", ["1b", "0b"]), ("ranks=0-1&generation=1", ["0a", "1b"]),
            ):  # fmt: skip
                answer = await client.get(f"/api/v1/job/logs?follow=false&{query}")
                texts = [json.loads(line[6:]).get("text") for line in answer.text.splitlines() if line[:6] == "data: "]
                assert texts == [*expected, None], query
            for query in ("ranks=x", "generation=-1", "seconds=nan", "follow=perhaps"):
                assert (await client.get(f"/api/v1/job/logs?{query}")).status_code in (400, 422), query

    asyncio.run(story())


def test_a_taken_port_is_said_in_one_line(facade: FakeFacade) -> None:
    async def story() -> None:
        app = create_app(facade, Auth())
        async with serving(app, port=0) as port:
            with pytest.raises(Exception, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
                async with serving(app, port=port):
                    pass

    asyncio.run(story())


def test_a_new_job_is_distinguished_from_its_first_step(facade: FakeFacade) -> None:
    async def story() -> None:
        async with contextlib.AsyncExitStack() as stack:
            port = await stack.enter_async_context(serving(create_app(facade, Auth()), port=0))
            client = await stack.enter_async_context(client_of(port))
            path = "/api/v1/events?since=17&since_job=the-one-before"
            seen = await stack.enter_async_context(events(client, path))
            assert (await until(seen, "steps"))["step"][0] == 0

    asyncio.run(story())


def test_each_listener_follows_its_own_job_or_the_newest(facade: FakeFacade) -> None:
    async def story() -> None:
        other = facade.add_job("eval", pp=1, dp=2, tp=1)
        other.warm_up(3)
        async with contextlib.AsyncExitStack() as stack:
            port = await stack.enter_async_context(serving(create_app(facade, Auth()), port=0))
            client = await stack.enter_async_context(client_of(port))
            old, new, any_job = [
                await stack.enter_async_context(events(client, f"/api/v1/events{query}"))
                for query in ("?job=demo&since=17", "?job=job-2", "")
            ]
            for seen, job, steps in (
                (old, "job-1", [18, 19]),
                (new, "job-2", [0, 1, 2]),
                (any_job, "job-2", [0, 1, 2]),
            ):
                status = await until(seen, "status")
                models.Status.model_validate(status)
                assert status["job"]["id"] == job
                assert [one["id"] for one in status["jobs"]] == ["job-1", "job-2"]
                rows = await until(seen, "steps")
                assert (rows["job"], rows["step"]) == (job, steps)
            third = facade.add_job("third", pp=1, dp=2, tp=1)
            third.warm_up(1)
            assert (await until(any_job, "steps"))["job"] == "job-3"
            assert (await until(old, "status"))["job"]["id"] == "job-1"
            assert (await client.get("/api/v1/events?job=gone")).status_code == 404

    asyncio.run(story())


def test_the_list_of_jobs_is_sent_where_it_changed(facade: FakeFacade) -> None:
    async def story() -> None:
        facade.add_job("eval", pp=1, dp=2, tp=1)
        async with contextlib.AsyncExitStack() as stack:
            port = await stack.enter_async_context(serving(create_app(facade, Auth()), port=0))
            client = await stack.enter_async_context(client_of(port))
            seen = await stack.enter_async_context(events(client, "/api/v1/events"))
            assert "jobs" in await until(seen, "status")
            facade.serial += 1
            assert "jobs" not in await until(seen, "status")
            await facade.stop(id="job-1")
            assert [job["state"] for job in (await until(seen, "status"))["jobs"]] == ["running", "stopped"]

    asyncio.run(story())
