"""A script without instrumentation, which pauses legitimately in one way after the other.

A pause goes on until the file NAME.seen is there, so that the test has the time to see it; NAME.begun shows that
it has begun. `honest_pauses.py FOLDER` is for two ranks, with `alone` for one process without torch.distributed.
"""

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from decimal import Decimal, getcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path(sys.argv[1])
getcontext().prec = 1200
RANK = int(os.environ["RANK"])
BETWEEN = 60
"""Steps between two pauses: what is longer than usual is judged by the last 50 steps."""
EVALUATION_S = 2.0
HOLD_S = 6.0
"""Of processor time: how long a call holds the interpreter's lock."""
WAITS = """
import os, time
end = time.monotonic() + 120
waits = lambda: not os.path.exists({seen!r}) and time.monotonic() < end
"""


def waits(name: str) -> Callable[[], bool]:
    (FOLDER / f"{name}.begun").touch()
    seen, end = FOLDER / f"{name}.seen", time.monotonic() + 120
    return lambda: not seen.exists() and time.monotonic() < end


def child(name: str, code: str, **more: int) -> subprocess.Popen[bytes]:
    """A process in which `waits()` says whether the pause goes on."""
    waits(name)
    code = WAITS.format(seen=str(FOLDER / f"{name}.seen")) + code
    return subprocess.Popen([sys.executable, "-c", code], **more)


def held(name: str, call: Callable[[float], Callable[[], object]]) -> None:
    """One call into C that holds the interpreter's lock: `call` makes one of so much work."""
    share, cost = 1.0, 0.0
    while cost < 0.15:
        share *= 2
        prepared, began = call(share), time.thread_time()
        prepared()
        cost = time.thread_time() - began
    prepared = call(share * HOLD_S / cost)
    began = time.monotonic()
    prepared()
    (FOLDER / f"{name}.held").write_text(str(time.monotonic() - began))


def parse(share: float) -> Callable[[], object]:
    number = str(Decimal(2) ** -1074 * 3 / 2)  # between two floats: each of its many digits is looked at
    text = "[" + (number + ",") * int(2_000 * share) + "1]"
    return lambda: json.loads(text)


def sort(share: float) -> Callable[[], object]:
    long = [tuple([0] * int(100 * share)) for _ in range(7)]  # equal, and not the same
    values = [(long[n % 7], random.random()) for n in range(20_000)]
    return values.sort


def save(name: str) -> None:
    """200 MB into a slow pipe."""
    reader = "import sys\nwhile sys.stdin.buffer.read(1 << 16): time.sleep(0.01 if waits() else 0)"
    with child(name, reader, stdin=subprocess.PIPE) as process:
        torch.save({"weights": torch.zeros(50 << 20)}, process.stdin)


def evaluate(more: Callable[[], bool]) -> None:
    a = torch.randn(200, 200)
    with torch.no_grad():
        while more():
            a @ a


def upload(name: str) -> None:
    """To a slow server on this host."""
    server = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
peer = listener.accept()[0]
while peer.recv(1 << 15): time.sleep(0.1 if waits() else 0)
"""
    with child(name, server, stdout=subprocess.PIPE) as process:
        address = "127.0.0.1", int(process.stdout.readline())
        with socket.create_connection(address) as connection:
            connection.sendall(bytes(30 << 20))


def delegate(name: str) -> None:
    """A child computes."""
    child(name, "while waits(): sum(range(1000))").wait()


def wait(name: str) -> None:
    """In a pipe without a writer."""
    os.mkfifo(FOLDER / name)
    waits(name)
    with open(FOLDER / name) as pipe:
        pipe.read()


def steps(count: int, seconds: float = 0.0) -> float:
    """How long the last of them took."""
    began = time.monotonic()
    for _ in range(count):
        began = time.monotonic()
        time.sleep(seconds)
        loss = model(torch.ones(1, 4)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.monotonic() - began


def quiet_steps(count: int) -> None:
    """So many, and more until one is as short as usual: after a long one a pause is a slow rank's."""
    steps(count, 0.02)
    while steps(1, 0.02) > 0.04:
        pass


torch.set_num_threads(1)
model: torch.nn.Module = torch.nn.Linear(4, 2)
if sys.argv[2:] == ["alone"]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quiet_steps(BETWEEN)
    evaluate(waits("alone"))
    for _ in range(2):
        quiet_steps(15)
        end = time.monotonic() + EVALUATION_S
        evaluate(lambda end=end: time.monotonic() < end)
    quiet_steps(15)
    sys.exit()

dist.init_process_group("gloo")
if RANK == 0:
    held("json", parse)
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps(BETWEEN)
if RANK == 1:
    held("sort", sort)
steps(BETWEEN)
if RANK == 0:
    save("save")
dist.barrier()
steps(BETWEEN)
evaluate(waits("evaluate"))
for rank, pause in ((1, upload), (0, delegate), (1, wait)):
    steps(BETWEEN)
    if rank == RANK:
        pause(pause.__name__)
steps(BETWEEN)
dist.destroy_process_group()
