"""What threads other than the main one wait for, from made-up files."""

import itertools
from pathlib import Path

from holdfast.agent.activity.host import HostLook
from holdfast.agent.activity.process_look import ProcessLook
from holdfast.agent.activity.threads.thread_waits import Glance, ThreadWaits, Turn
from holdfast.agent.activity.waits import Clocks
from holdfast.agent.processes.proc_files import Stat


def thread(process: Path, tid: int, call: str, channel: str) -> None:
    folder = process / "task" / str(tid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "syscall").write_text(call)
    (folder / "wchan").write_text(channel)


def test_threads_come_go_run_and_wait_for_the_host(tmp_path: Path) -> None:
    process = tmp_path / "7"
    waits, look = ThreadWaits(str(process)), ProcessLook(7, HostLook(str(tmp_path)), "S", 1.0, [])

    runs = itertools.count()  # each thread has run before each look

    def looked(states: dict[int, str], present: list[int]) -> None:
        glances = {
            tid: Glance(1.0, next(runs), Stat("python", state, 1, 1, 0, 0, 0, 0.0, 0.0, 9, 0))
            for tid, state in states.items()
        }
        waits.look(glances, look, Turn(lambda: 1.0, Clocks(1.0, 1.0, 1.0), present))

    page_fault = "-1 0x7ffe 0x7f00"
    thread(process, 8, page_fault, "futex_wait_queue")
    thread(process, 9, page_fault, "request_wait_answer_fuse")
    looked({8: "S", 9: "S"}, [8, 9])
    assert waits.asks_host
    assert waits.words == "a page fault (in futex_wait_queue); a page fault (in request_wait_answer_fuse)"
    looked({}, [8, 9])  # not their turn
    assert waits.asks_host
    thread(process, 9, "running", "0")
    looked({9: "R"}, [8, 9])
    assert waits.words == "a page fault (in futex_wait_queue)"
    assert not waits.asks_host
    looked({}, [9])
    assert waits.words == ""
    looked({99: "S"}, [99])  # it has ended meanwhile
    assert waits.words == ""
    thread(process, 9, page_fault, "rpc_wait_bit_killable")
    looked({9: "D"}, [9])
    assert waits.words.startswith("an NFS server (D state in rpc_wait_bit_killable")
    waits.forget()
    assert (waits.words, waits.asks_host) == ("", False)
