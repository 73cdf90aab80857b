"""Many agents in one process, as a controller sees them: a stream and a connection each, hello, frames, answers.

    python benchmarks/simulated_agents.py --address HOST:PORT --first 0 --count 768 ...

Reads commands on standard input, one JSON line each: {"do": "silence", "node": N}, {"do": "wake", "node": N},
{"do": "report"}, {"do": "quit"}. Prints {"ready": true} when all agents are welcome, and an answer to each command.

What a frame holds is made anew every second and encoded by holdfast.wire.codec; the thousands of bytes of samples are
encoded once for all agents and joined to what differs (protobuf messages may be concatenated), so that one core is
enough to play a thousand nodes.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import deque
from typing import Any

import grpc

from holdfast.proto import controller_pb2
from holdfast.wire import codec as wire
from holdfast.wire import messages as msg
from holdfast.wire import types as t

METHOD = "/holdfast.v1.Controller/Session"
_FRAME_TAG = b"\x12"  # AgentMessage.frame


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


class Traffic:
    """The samples of one second of all NICs, with counters that move on: encoded when first asked for."""

    def __init__(self, nics: int, samples: int, seed: int) -> None:
        self.nics, self.samples = nics, samples
        self.random = random.Random(seed)
        self.totals = [[0, 0] for _ in range(nics)]
        self.second = -1
        self.encoded = b""

    def at(self, second: int) -> bytes:
        if second != self.second:
            self.second = second
            self.encoded = self.make()
        return self.encoded

    def make(self) -> bytes:
        spacing = 1_000_000 // self.samples
        offsets = b"".join((i * spacing).to_bytes(4, "little") for i in range(self.samples))
        nics = []
        for n in range(self.nics):
            columns = []
            for way in range(2):
                # 0 to 25 MB in a millisecond: up to 200 Gbit/s.
                values = [self.random.randrange(25_000_000) for _ in range(self.samples)]
                self.totals[n][way] += sum(values)
                columns.append(b"".join(v.to_bytes(4, "little") for v in values))
            nics.append(t.NicSamples(f"mlx5_{n}", *self.totals[n], *columns))
        frame = t.Frame(0, 0, 0, offsets=offsets, nics=tuple(nics), heartbeat_interval=0.0)
        return controller_pb2.AgentMessage.FromString(wire.encode_agent(frame)).frame.SerializeToString()


class SimulatedAgent:
    def __init__(self, number: int, options: argparse.Namespace, traffic: Traffic) -> None:
        self.number, self.options, self.traffic = number, options, traffic
        self.name = f"node{number}"
        self.seq = 0
        self.job, self.generation = "", 0
        self.ranks: tuple[msg.Rank, ...] = ()
        self.began = 0.0  # of the training, on the clock that all generators share
        self.silent = False
        self.sent_at: deque[tuple[int, float]] = deque()
        self.acks: list[tuple[float, float]] = []  # when, and how long after the frame was sent
        self.late: list[tuple[float, float]] = []  # when, and how long after the frame was due
        self.last_sent = 0.0
        self.welcome = asyncio.Event()
        self.queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.writing = asyncio.Lock()
        self.error = ""

    def hello(self) -> msg.Hello:
        n, o = self.number, self.options
        gpus = tuple(
            t.Gpu(g, f"GPU-{n}-{g}", "NVIDIA H100 80GB HBM3", f"0000:{g:02x}:00.0", 80 << 30) for g in range(o.slots)
        )
        nics = tuple(t.Nic(f"mlx5_{i}", "rdma", 400_000_000_000, i // 4, "ACTIVE") for i in range(o.nics))
        identity = t.Identity(
            node=self.name, hostname=f"host{n}", incarnation=f"{os.getpid()}-{n}", ips=(f"10.0.{n >> 8}.{n & 255}",),
            gpus=gpus, nics=nics, switch=f"tor{n // 32}", slots=o.slots, versions={"holdfast": "0.1.0"},
            boot_id=f"boot{n}", cpus=96, memory_bytes=2 << 40,
        )  # fmt: skip
        return msg.Hello(identity, wall_ns=time.time_ns())

    def frame(self) -> bytes:
        """What this node has to say now: its own part, encoded here, joined to the second's samples."""
        now = time.time()
        self.seq += 1
        step = int((now - self.began) / self.options.step) if self.ranks else -1
        since = (now - self.began) % self.options.step if self.ranks else 0.0
        workers = tuple(
            t.WorkerSample(
                rank=r.rank, generation=self.generation, pid=1000 + r.rank, step=step - 1, phase=t.Phase.TRAIN,
                operation="all_reduce", operation_age=since / 2, progress_age=since, tick_age=0.05,
                loss=2.0, tokens=step * 4096, median_step=self.options.step,
                coordinate=(r.rank // 1536, r.rank // 8 % 192, r.rank % 8), sizes=(8, 192, 8),
            )
            for r in self.ranks
        )  # fmt: skip
        records: tuple[t.StepRecord, ...] = ()
        if step > 0 and step != self.reported:
            done = range(max(self.reported, step - 5), step)
            end = int((self.began + step * self.options.step) * 1e9)
            records = tuple(
                t.StepRecord(r.rank, self.generation, s, end, self.options.step, 2.0, 4096)
                for s in done
                for r in self.ranks
            )
            self.reported = step
        gauges = {
            "utilization_ratio": 0.97,
            "memory_used_bytes": 61e9,
            "temperature_celsius": 63.0,
            "power_watts": 655.0,
        }
        own = t.Frame(
            self.seq,
            time.time_ns(),
            time.monotonic_ns(),
            host={"cpu_ratio": 0.31, "memory_used_bytes": 4.1e11},
            gpus=tuple(t.GpuGauges(g, gauges) for g in range(self.options.slots)),
            workers=workers,
            steps=records,
            heartbeat_interval=self.options.every,
        )
        message = controller_pb2.AgentMessage.FromString(wire.encode_agent(own)).frame.SerializeToString()
        body = self.traffic.at(int(now)) + message
        return _FRAME_TAG + varint(len(body)) + body

    reported = 0

    async def run(self) -> None:
        options = [
            ("grpc.max_send_message_length", 64 << 20),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
        ]
        async with grpc.aio.insecure_channel(self.options.address, options) as channel:
            call: Any = channel.stream_stream(METHOD)()
            await call.write(wire.encode_agent(self.hello()))
            welcome = wire.decode_controller(await call.read())
            assert isinstance(welcome, msg.Welcome), welcome
            self.welcome.set()
            beat = asyncio.create_task(self.beat(call))
            answer = asyncio.create_task(self.answer(call))
            try:
                while (data := await call.read()) is not grpc.aio.EOF:
                    self.heed(wire.decode_controller(data))
                self.error = f"{await call.code()} {await call.details()}"
            finally:
                beat.cancel()
                answer.cancel()

    async def beat(self, call: Any) -> None:
        every = self.options.every
        await self.write(call, self.frame())
        due = time.monotonic() + every * random.Random(self.number).random()  # agents know nothing of each other
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if not self.silent:
                message = self.frame()
                self.sent_at.append((self.seq, time.monotonic()))
                self.last_sent = time.time()
                await self.write(call, message)
                now = time.monotonic()
                self.late.append((now, now - due))
            due += every

    async def answer(self, call: Any) -> None:
        while True:
            await self.write(call, await self.queue.get())

    async def write(self, call: Any, message: bytes) -> None:
        async with self.writing:  # a stream takes one message at a time
            await call.write(message)

    def heed(self, message: msg.ControllerMessage) -> None:
        if isinstance(message, msg.Ack):
            now, sent = time.monotonic(), 0.0
            while self.sent_at and self.sent_at[0][0] <= message.frames:
                sent = self.sent_at.popleft()[1]
            if sent:
                self.acks.append((now, now - sent))
        elif isinstance(message, msg.Command):
            data: dict[str, str] = {}
            match message.order:
                case msg.StartStore():
                    data = {"host": "127.0.0.1", "port": "29500"}
                case msg.StartWorkers() as order:
                    self.job, self.generation, self.ranks = message.job, message.generation, order.ranks
                    self.began = self.options.began
                    self.reported = int((time.time() - self.began) / self.options.step)
                case msg.StopWorkers():
                    self.ranks = ()
            self.queue.put_nowait(wire.encode_agent(msg.CommandResult(message.id, True, data=data)))


async def main() -> None:
    options = parse()
    traffic = Traffic(options.nics, options.samples, options.first)
    agents = [SimulatedAgent(n, options, traffic) for n in range(options.first, options.first + options.count)]
    tasks = []
    for agent in agents:
        tasks.append(asyncio.create_task(agent.run()))
        await asyncio.sleep(0.002)
    for agent in agents:
        await agent.welcome.wait()
    report({"ready": True})
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        ask = json.loads(line)
        if ask["do"] == "quit":
            break
        if ask["do"] == "report":
            # The monotonic clock of a host is one for all its processes.
            report({
                "sent": sum(a.seq for a in agents),
                "unacknowledged": sum(len(a.sent_at) for a in agents),
                "acks": [pair for a in agents for pair in a.acks if pair[0] >= ask["since"]],
                "late": [pair for a in agents for pair in a.late if pair[0] >= ask["since"]],
                "errors": [f"{a.name}: {a.error}" for a in agents if a.error],
                "training": sum(len(a.ranks) for a in agents),
            })  # fmt: skip
        else:
            agent = agents[ask["node"] - options.first]
            agent.silent = ask["do"] == "silence"
            report({"last_sent": agent.last_sent})
    for task in tasks:
        task.cancel()
    os._exit(0)  # a thousand streams need not be closed one by one


def report(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", required=True, help="the controller's gRPC side")
    parser.add_argument("--first", type=int, default=0, help="number of the first agent")
    parser.add_argument("--count", type=int, default=768)
    parser.add_argument("--slots", type=int, default=8, help="GPUs, and workers, of each")
    parser.add_argument("--nics", type=int, default=8)
    parser.add_argument("--samples", type=int, default=1000, help="samples per NIC in a frame")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between frames")
    parser.add_argument("--step", type=float, default=1.0, help="seconds that a training step takes")
    parser.add_argument("--began", type=float, default=0.0, help="Unix time at which training began")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main())
