"""Traffic of NCCL's RAS thread is no movement of a hung worker; traffic of another thread is."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.agent.activity.ras_thread import NAME
from tests.agent.support.standing import Eye, standing

WORKER = """
import ctypes, select, socket, sys, threading
server = socket.create_server(("127.0.0.1", 0))
def serve(name):
    ctypes.CDLL(None).prctl(15, name.encode())  # PR_SET_NAME
    poll, lines = select.poll(), {{}}
    poll.register(server, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == server.fileno():
                line = server.accept()[0]
                lines[line.fileno()] = line
                poll.register(line, select.POLLIN)
            elif not (said := lines[fd].recv(65536)):
                poll.unregister(fd)
                lines.pop(fd).close()
            else:
                lines[fd].sendall(said)
threading.Thread(target=serve, args=("{name}",), daemon=True).start()
sys.stderr.write(f"{{server.getsockname()[1]}}\\n")
sys.stderr.flush()
lock = threading.Lock(); lock.acquire()
print('ready', flush=True)
lock.acquire()
"""


@contextmanager
def chatter(port: int) -> Iterator[None]:
    """A peer that sends and receives 2 kB every 50 ms, and clients that come and go."""
    over = threading.Event()

    def talk() -> None:
        with socket.create_connection(("127.0.0.1", port)) as peer:
            while not over.wait(0.05):
                with socket.create_connection(("127.0.0.1", port)) as client:
                    for line in (peer, client):
                        line.sendall(b"x" * 2000)
                        line.recv(65536)

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def eye_on(name: str, read: int, write: int) -> Iterator[Eye]:
    with standing(WORKER.format(name=name), stderr=write) as (eye, _):
        with open(read, closefd=False) as reported:
            port = int(reported.readline())
        with chatter(port):
            yield eye


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def test_the_sockets_of_nccls_ras_thread_are_no_movement(pipe: tuple[int, int]) -> None:
    for eye in eye_on(NAME, *pipe):
        assert eye.after(2.0).network < 100


def test_those_of_any_other_thread_are(pipe: tuple[int, int]) -> None:
    for eye in eye_on("NCCL Service", *pipe):
        eye.when(lambda seen: seen.watched > 3.0 and seen.quiet < 0.5 and seen.network > 10_000)
