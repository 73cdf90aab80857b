"""Last words: found, compared, and distinguished from a victim's."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.facts.tracebacks import is_secondary, last_traceback, normalise, signature

SIMPLE = """step 41 loss 2.31
Traceback (most recent call last):
  File "/home/u/job/train.py", line 90, in <module>
    main()
  File "/home/u/job/train.py", line 71, in main
    loss = model(batch)
  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
RuntimeError: shape mismatch at step 41: tensor at 0x7f3a2c00 of /data/run7/shard-03.bin
"""
RESET = """[rank3]: Traceback (most recent call last):
[rank3]:   File "/job/train.py", line 12, in <module>
[rank3]:     dist.all_reduce(t)
[rank3]:   File "/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 81, in wrapper
[rank3]:     return func(*args, **kwargs)
[rank3]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:51234
"""
CHAIN = """Traceback (most recent call last):
  File "a.py", line 1, in load
    1 / 0
ZeroDivisionError: division by zero

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "a.py", line 3, in main
    load()
ValueError: bad shard
"""


def test_the_last_of_several_and_what_follows_is_left_out() -> None:
    text = "Traceback (most recent call last):\n  File \"x.py\", line 1, in f\nKeyError: 'old'\n" + SIMPLE
    found = last_traceback(text + "\n2024-05-01 12:00:00 INFO bye\n")
    assert found.startswith("Traceback")
    assert found.endswith("shard-03.bin")
    assert "KeyError" not in found


def test_a_chain_is_one_traceback_signed_by_its_last() -> None:
    assert last_traceback("noise\n" + CHAIN) == CHAIN.rstrip("\n")
    assert signature(CHAIN) == "ValueError: bad shard @ a.py:main:3"


def test_torchrun_prefixes_come_off() -> None:
    found = last_traceback(RESET)
    assert found.splitlines()[0] == "Traceback (most recent call last):"
    assert signature(found).endswith("@ train.py:<module>:12")


def test_signature_names_user_frames_and_forgets_what_varies() -> None:
    one = signature(last_traceback(SIMPLE))
    assert one == (
        "RuntimeError: shape mismatch at step <n>: tensor at <id> of shard<n>.bin"
        " @ train.py:main:71 < train.py:<module>:90"
    )
    moved = SIMPLE.replace("/home/u/job", "/mnt/other").replace("step 41:", "step 977:").replace("0x7f3a2c00", "0xdead")
    assert signature(last_traceback(moved)) == one
    assert signature(last_traceback(SIMPLE.replace("line 71", "line 72"))) != one
    assert signature(last_traceback(SIMPLE.replace("shape", "dtype"))) != one


def test_no_traceback() -> None:
    assert last_traceback("all fine\n") == ""
    assert signature("all fine") == ""
    assert not is_secondary("step 3 loss 2.0")


def test_a_real_traceback_and_a_real_crash(tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.write_text("def step(n):\n    raise ValueError(f'bad batch {n}')\n\nstep(7)\n")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert signature(last_traceback(done.stderr)) == "ValueError: bad batch <n> @ job.py:step:2 < job.py:<module>:4"
    program.write_text(
        "import faulthandler\nfaulthandler.enable()\n\ndef crash():\n    faulthandler._sigsegv()\n\ncrash()\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    found = last_traceback("hello\n" + done.stderr)
    assert found.startswith("Fatal Python error: Segmentation fault")
    assert signature(found) == "Fatal Python error: Segmentation fault @ job.py:crash:5 < job.py:<module>:7"


@pytest.mark.parametrize(
    "text",
    [
        RESET,
        "BrokenPipeError: [Errno 32] Broken pipe",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 1800000ms for recv operation",
        "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE)",
        "ConnectionRefusedError: [Errno 111] Connection refused",
    ],
)
def test_a_victims_words(text: str) -> None:
    assert is_secondary(text)


@pytest.mark.parametrize(
    "text",
    [
        SIMPLE,
        CHAIN,
        "retry: connection reset by peer, reconnected\n" + SIMPLE,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "MemoryError",
    ],
)
def test_a_culprits_words(text: str) -> None:
    assert not is_secondary(text)


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=400))
def test_any_text_is_survived(text: str) -> None:
    last_traceback(text), signature(text), is_secondary(text), normalise(text)
    assert last_traceback(last_traceback(text)) == last_traceback(text)


def test_of_a_long_line_the_beginning_counts() -> None:
    """Some patterns take the square of a line's length: 16 kB of letters or of spaces took a second."""
    assert normalise("in: " + "/a" * 8000 + "/tail.bin") == "in: a"
    frames = 'Traceback (most recent call last):\n  File "x.py", line 1, in f' + " " * 15_000 + "x\nValueError: bad\n"
    assert signature(frames) == signature(frames.replace("x\nValue", "y\nValue"))
