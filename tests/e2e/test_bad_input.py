"""Bad input or a bad environment: one clear line, the right exit code, and nothing else disturbed."""

import os
import queue
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast.proto import controller_pb2, types_pb2
from holdfast.wire import codec as wire
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.e2e.daemons import Commands, Json, Running, commands, log_events, one_line, plain_get, ready, wait_for
from tests.trainer.support.forked import Zygote

pytestmark = [pytest.mark.slow, pytest.mark.calm]
PORTS_0 = ("--grpc-port", "0", "--http-port", "0")


# --- settings --------------------------------------------------------------------------------------------------


def test_a_file_that_is_wrong(holdfast: Commands, tmp_path: Path) -> None:
    """One for all that tests/holdfast/cli/test_bad_input.py checks in its own process."""
    (tmp_path / "holdfast.toml").write_text("[controller]\ngrpc_prot = 1\n")
    done = holdfast.run("controller", *PORTS_0, "--config", str(tmp_path / "holdfast.toml"))
    assert done.process.returncode == 2
    assert "unknown key 'grpc_prot' in [controller]; did you mean grpc_port?" in one_line(done.err)


def test_dcp_metadata_that_is_damaged(holdfast: Commands, tmp_path: Path) -> None:
    """One for all that tests/checkpoint/tools checks in its own process."""
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n")
    done = holdfast.run("checkpoint", "import", str(tmp_path / "dcp"), str(tmp_path / "store"), "--step", "1")
    assert done.process.returncode == 2
    assert f"{tmp_path}/dcp/.metadata is not readable" in one_line(done.err)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("taken", ["--grpc-port", "--http-port"])
def test_a_port_that_is_taken(holdfast: Commands, tmp_path: Path, taken: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        ports = dict(zip(PORTS_0[::2], PORTS_0[1::2], strict=True)) | {taken: port}
        flags = [part for pair in ports.items() for part in pair]
        done = holdfast.run("controller", *flags, "--state-dir", str(tmp_path / "state"))
    assert done.process.returncode == 2
    assert done.out == ""
    assert f"127.0.0.1:{port}" in one_line(done.err)


@pytest.mark.parametrize("daemon", ["controller", "agent"])
@pytest.mark.parametrize("obstacle", ["a file", "read-only"])
def test_a_state_folder_that_cannot_be_written(
    holdfast: Commands, tmp_path: Path, daemon: str, obstacle: str, full_disk: "Disk"
) -> None:
    if obstacle == "a file":
        (tmp_path / "taken").touch()
        folder = tmp_path / "taken" / "state"
    else:
        full_disk.read_only()
        folder = full_disk.path / "state"
    flags = PORTS_0 if daemon == "controller" else ("--no-warm",)
    done = holdfast.run(daemon, *flags, "--state-dir", str(folder))
    assert done.process.returncode == 2
    assert str(folder) in one_line(done.err)


def test_a_journal_of_something_else(holdfast: Commands, tmp_path: Path) -> None:
    (tmp_path / "controller.sqlite").write_bytes(b"this is no database" * 100)
    done = holdfast.run("controller", *PORTS_0, "--state-dir", str(tmp_path))
    assert done.process.returncode == 2
    assert "cannot be used as the controller's journal" in one_line(done.err)


def test_an_agent_without_a_controller_says_so_once_and_goes_on_trying(
    holdfast: Commands, tmp_path: Path, free_port: int
) -> None:
    address = f"127.0.0.1:{free_port}"
    agent = holdfast.start("agent", "--controller", address, "--no-warm", "--state-dir", str(tmp_path / "state"))
    agent.says("controller.away")
    controller = holdfast.start(
        "controller", "--grpc-port", str(free_port), "--http-port", "0", "--state-dir", str(tmp_path / "controller")
    )
    ready(controller)
    agent.says("controller.joined")
    away = [event for event in log_events(agent.err) if event["event"] == "controller.away"]
    assert len(away) == 1, away


# --- malformed streams -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("controller")
    with commands(folder / "commands") as one:
        command = one.start("controller", *PORTS_0, "--state-dir", str(folder / "state"))
        ready(command)
        yield command


class Stream:
    """An agent that sends what it is given, byte by byte."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.messages: list[bytes] = []

        self.queue: queue.Queue[bytes | None] = queue.Queue()
        session: Any = self.channel.stream_stream("/holdfast.v1.Controller/Session")
        self.answers: Any = session(iter(self.queue.get, None), timeout=30)

    def send(self, data: bytes) -> None:
        self.queue.put(data)

    def receive(self) -> msg.ControllerMessage:
        return wire.decode_controller(next(self.answers))

    def close(self) -> None:
        self.queue.put(None)
        self.answers.cancel()
        self.channel.close()


@pytest.fixture
def streams(controller: Running) -> Iterator[list[Stream]]:
    opened: list[Stream] = []
    yield opened
    for one in opened:
        one.close()


def hello(node: str, **more: Any) -> bytes:
    return wire.encode_agent(msg.Hello(t.Identity(node, "host", f"i-{node}", boot_id="b"), **more))


def counted(http: str, name: str = "holdfast_malformed_frames_total") -> float:
    text = plain_get(f"http://{http}/metrics").text
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def warnings(controller: Running, event: str) -> list[Json]:
    return [one for one in log_events(controller.err) if one["event"] == event]


def bad_frames() -> dict[str, bytes]:
    columns = controller_pb2.Frame(seq=1, workers=types_pb2.Workers(rank=[0, 1], step=[1]))
    nics = controller_pb2.Frame(seq=1, offsets=b"\0" * 8, nics=[types_pb2.NicSamples(name="eth0", tx=b"\0" * 4)])
    phase = controller_pb2.Frame(
        seq=1,
        workers=types_pb2.Workers(
            rank=[0], generation=[1], pid=[1], step=[1], phase=[99], operation=[""], operation_age=[0.0],
            progress_age=[0.0], tick_age=[0.0], stopped=[False], loss=[0.0], tokens=[0], median_step=[0.0],
            coordinate=[0, 0, 0], sizes=[1, 1, 1],
        ),
    )  # fmt: skip
    severity = controller_pb2.Event(seq=1, notice=types_pb2.AgentNotice(severity="loud", text="x"))
    return {
        "garbage": b"\xff\xfe\xfd\x00garbage" * 10,
        "nothing": b"",
        "columns that differ": controller_pb2.AgentMessage(frame=columns).SerializeToString(),
        "samples that differ": controller_pb2.AgentMessage(frame=nics).SerializeToString(),
        "an unknown phase": controller_pb2.AgentMessage(frame=phase).SerializeToString(),
        "an unknown severity": controller_pb2.AgentMessage(event=severity).SerializeToString(),
    }


def test_a_malformed_message_costs_itself_only(controller: Running, streams: list[Stream]) -> None:
    rpc, http = ready(controller)
    good, bad = Stream(rpc), Stream(rpc)
    streams += [good, bad]
    for node, stream in (("good", good), ("bad", bad)):
        stream.send(hello(node))
        assert isinstance(stream.receive(), msg.Welcome)
    before, frames = counted(http), counted(http, "holdfast_frames_total")
    for data in bad_frames().values():
        bad.send(data)
        good.send(wire.encode_agent(t.Frame(1, 1, 1)))
    wait_for(lambda: counted(http) == before + len(bad_frames()), 60, lambda: controller.err)
    said = [one for one in warnings(controller, "message.malformed") if one["node"] == "bad"]
    assert len(said) == len(bad_frames())
    assert all(one["error"] and "\n" not in one["error"] for one in said)
    # Both streams still work, the one that sent garbage too.
    for stream in (good, bad):
        stream.send(wire.encode_agent(msg.Numbered(1, t.AgentNotice(1, "test", t.Severity.INFO, "hello"))))
        while not (isinstance(answer := stream.receive(), msg.Ack) and answer.events == 1):
            pass
    assert counted(http, "holdfast_frames_total") == frames + 1
    assert controller.process.poll() is None
    assert "Traceback" not in controller.err


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"\xff\xff\xff", "a malformed message of 3 bytes"),
        (wire.encode_agent(t.Frame(1, 1, 1)), "the first message must be a hello"),
        (hello(""), "no node name or incarnation"),
        (hello("late", protocol_min=7, protocol_max=9), "protocol 1 is not within the peer's 7 to 9: update the older"),
    ],
    ids=["garbage", "a frame", "nobody", "another protocol"],
)
def test_who_cannot_be_understood_is_refused_in_one_line(
    controller: Running, streams: list[Stream], first: bytes, reason: str
) -> None:
    rpc, http = ready(controller)
    before, lines = counted(http), len(warnings(controller, "session.refused"))
    stream = Stream(rpc)
    streams.append(stream)
    stream.send(first)
    answer = stream.receive()
    assert isinstance(answer, msg.Refused)
    assert reason in answer.reason
    with pytest.raises(StopIteration):
        stream.receive()
    assert counted(http) == before + 1
    wait_for(lambda: len(warnings(controller, "session.refused")) == lines + 1)
    assert reason in warnings(controller, "session.refused")[-1]["reason"]
    assert "Traceback" not in controller.err


# --- checkpoints -----------------------------------------------------------------------------------------------


class Disk:
    """A small file system of its own. Needs the right to mount."""

    def __init__(self, path: Path, size: str) -> None:
        self.path = path
        path.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(path)]
        done = subprocess.run(mount, capture_output=True, text=True)
        if done.returncode:
            path.rmdir()
            pytest.skip(f"no mount here: {done.stderr.strip()}")

    def read_only(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True)

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], check=True)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "disk", "2m")
    yield disk
    disk.close()


TINY = (
    "--set", "model.layers=1", "--set", "model.d_model=32", "--set", "model.heads=2", "--set", "train.micro_batches=1",
    "--set", "data.seq_len=16",
)  # fmt: skip


def words(store: Path, steps: int) -> list[str]:
    return ["train", "--steps", str(steps), "--store", store.as_uri(), "--checkpoint-every", "2", *TINY]


@dataclass
class Trained:
    """A command that has ended."""

    code: int
    out: str
    err: str

    def printed(self) -> dict[int, str]:
        """By step, its loss."""
        rows = [line.split() for line in self.out.splitlines() if line.startswith("step ")]
        return {int(row[1]): row[3] for row in rows}


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    warm = Zygote()
    yield warm
    warm.close()


def train(zygote: Zygote, folder: Path, store: Path, steps: int) -> Trained:
    """`holdfast train`, forked from a process that has imported torch. `folder` is for what it printed."""
    done = zygote.run("programs:holdfast", 1, folder, args={"words": words(store, steps)}, deadline_s=120.0)
    assert done["exits"] == [0]
    return Trained(**done["results"][0])


def test_a_corrupt_checkpoint_is_passed_over(zygote: Zygote, tmp_path: Path) -> None:
    whole = train(zygote, tmp_path / "ends", tmp_path / "whole", 8)
    assert whole.code == 0, whole.err
    store = tmp_path / "store"
    first = train(zygote, tmp_path / "ends", store, 6)
    assert first.code == 0, first.err
    newest = sorted(store.glob("step-*"))[-1]
    part = newest / "part-00000.safetensors"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    second = train(zygote, tmp_path / "ends", store, 8)
    assert second.code == 0
    line = one_line(second.err)
    assert "checkpoint of step 6 passed over" in line
    assert f"{newest.name}/part-00000.safetensors" in line
    assert "restored step 4" in second.out
    assert list(second.printed()) == [4, 5, 6, 7]
    assert first.printed() | second.printed() == whole.printed()


def test_a_full_disk_keeps_what_was_committed_and_training_goes_on(
    zygote: Zygote, tmp_path: Path, full_disk: Disk
) -> None:
    store = full_disk.path / "store"
    first = train(zygote, tmp_path / "ends", store, 2)
    assert first.code == 0, first.err
    good = sorted(path.name for path in store.glob("step-*"))
    free = os.statvfs(full_disk.path)
    (full_disk.path / "other").write_bytes(bytes(free.f_bavail * free.f_bsize - 8192))
    second = train(zygote, tmp_path / "ends", store, 4)
    assert second.code == 74, second.err  # all steps are done, and the last state is not in the store
    failed, missing = second.err.splitlines()
    assert "checkpoint of step 4 failed" in failed
    assert "No space left on device; last good: step 2" in failed
    assert "all 4 steps are done, but" in missing
    assert list(second.printed()) == [2, 3]
    assert sorted(path.name for path in store.glob("step-*")) == good
    (full_disk.path / "other").unlink()
    third = train(zygote, tmp_path / "ends", store, 6)
    assert (third.code, third.err) == (0, "")
    assert "restored step 2" in third.out


def test_a_store_that_cannot_be_written(holdfast: Commands, full_disk: Disk) -> None:
    full_disk.read_only()
    done = holdfast.run(*words(full_disk.path / "store", 2), deadline_s=120)
    assert done.process.returncode == 2
    assert "Read-only file system" in one_line(done.err)
