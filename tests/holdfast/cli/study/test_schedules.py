"""`holdfast schedules`: what it prints, marks and writes. Bad input is in tests/holdfast/cli/test_bad_input.py."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from holdfast.cli.main import main
from holdfast.plan.schedules.table import SCHEDULES

Capture = pytest.CaptureFixture[str]
NUMBERS = ["--pp", "8", "--micro-batches", "16"]
SIZES = ["--activation-bytes", "1GB", "--weight-bytes", "4GB", "--message-bytes", "10MB"]


def table(capsys: Capture, *words: str) -> dict[str, list[str]]:
    """Cells of each line by its first word."""
    assert main(["schedules", *words]) == 0
    return {line.split()[0]: line.split("  ") for line in capsys.readouterr().out.splitlines() if line}


def cells(line: list[str]) -> list[str]:
    return [cell.strip() for cell in line if cell.strip()]


def document(capsys: Capture, *words: str) -> dict[str, Any]:
    assert main(["schedules", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_all_schedules_with_their_figures(capsys: Capture) -> None:
    found = table(capsys, *NUMBERS)
    assert cells(found["SCHEDULE"]) == ["SCHEDULE", "MAKESPAN", "BUBBLE", "HELD", "WEIGHTS", "SENT"]
    assert set(found) == {"SCHEDULE", *SCHEDULES}
    assert cells(found["1f1b"]) == ["1f1b", "69", "30.4%", "8", "1 x", "32"]
    assert cells(found["interleaved"]) == ["interleaved", "58.5", "17.9%", "23 x 1/2", "1 x", "64"]
    assert cells(found["zbv"])[:3] == ["zbv", "51.5", "6.8%"]


def test_sizes_give_bytes_and_a_limit_marks_the_best(capsys: Capture) -> None:
    found = table(capsys, *NUMBERS, *SIZES, "--memory", "13GB")
    assert cells(found["zbv"])[3:] == ["16 x 1/2", "8.0 GB", "4.0 GB", "640.0 MB", "best"]
    assert cells(found["1f1b"])[3:] == ["8", "8.0 GB", "4.0 GB", "320.0 MB", "yes"]
    assert cells(found["bfs"])[3:] == ["32 x 1/2", "16.0 GB", "4.0 GB", "640.0 MB", "no"]


def test_where_none_fits_it_says_what_the_least_needs(capsys: Capture) -> None:
    assert main(["schedules", *NUMBERS, *SIZES, "--memory", "4500MB"]) == 0
    out = capsys.readouterr().out
    assert "none fits in 4.5 GB: merak needs the least, 5.0 GB" in out
    assert "best" not in out


def test_impossible_schedules_follow_with_the_reason(capsys: Capture) -> None:
    assert main(["schedules", "--pp", "8", "--micro-batches", "17"]) == 0
    *lines, last, end = capsys.readouterr().out.splitlines()
    reason = "is impossible: needs rounds of equal size: 17 micro-batches in 2 rounds leave 1 over"
    assert (last, end) == (f"interleaved {reason}", f"interleaved-zero-bubble {reason}")
    assert len(lines) == 1 + len(SCHEDULES) - 2


def test_one_schedule_is_shown_rank_by_rank(capsys: Capture) -> None:
    found = table(capsys, "1f1b", *NUMBERS)
    assert cells(found["0"]) == ["0", "48", "30.4%", "8", "1 x", "16"]
    assert cells(found["7"]) == ["7", "48", "30.4%", "1", "1 x", "16"]


def test_json_has_every_figure_by_rank(capsys: Capture) -> None:
    found = document(capsys, *NUMBERS, *SIZES, "--memory", "13GB", "--message", "0.5", "--device", "cpu")
    assert (found["pp"], found["micro_batches"], found["message"], found["device"]) == (8, 16, 0.5, "cpu")
    names = [entry["schedule"] for entry in found["schedules"]]
    assert names.index("bfs") < names.index("zbv")
    assert (found["best"], found["impossible"], found["drawn"]) == ("zbv", {}, None)  # bfs does not fit
    one = next(entry for entry in found["schedules"] if entry["schedule"] == "1f1b")
    assert one["makespan"] == 69 + 0.5 * (2 * 16 * 7 / 8 + 2 * 6)
    assert one["held"] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert one["activation_bytes"] == [held * 1e9 for held in one["held"]]
    assert one["weight_bytes"] == [4e9] * 8
    assert one["sent_bytes"] == [16e7, *[32e7] * 6, 16e7]
    assert one["fits"] is True
    assert [entry["makespan"] for entry in found["schedules"]] == sorted(e["makespan"] for e in found["schedules"])


def test_a_picture_is_written(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "zbv.svg"
    path.write_text("x" * 1_000_000)  # an earlier, longer file
    assert main(["schedules", "zbv", "--draw", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"wrote {path}" in captured.err
    texts = [text.text for text in ElementTree.fromstring(path.read_text()).iter("{http://www.w3.org/2000/svg}text")]
    assert "zbv: 4 ranks, 8 micro-batches, makespan 25.5, bubble 5.9%" in texts
    assert stat.S_IMODE(path.stat().st_mode) & 0o111 == 0


def test_a_pipe_that_nobody_reads_is_refused(capsys: Capture, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert main(["schedules", "zbv", "--draw", str(tmp_path / "pipe")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_it_works_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "from holdfast.cli.main import main\n"
        "sys.exit(main(['schedules', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {one["schedule"] for one in json.loads(done.stdout)["schedules"]} == set(SCHEDULES)


@pytest.mark.parametrize(
    ("device", "says", "ahead", "one_at_a_time"),
    [
        (
            "cuda",
            "over NCCL (--device cuda): a receive is posted where both ranks' lists have it; messages go one",
            0,
            1,
        ),
        (
            "cpu",
            "over gloo (--device cpu): a receive is posted 2 computations before it is needed; messages go be",
            2,
            0,
        ),
    ],
)
def test_what_is_assumed_about_messages_is_said(
    capsys: Capture, device: str, says: str, ahead: int, one_at_a_time: int
) -> None:
    words = ["--device", device, "--message", "0.5"]
    assert main(["schedules", *words]) == 0
    assert says in " ".join(capsys.readouterr().out.split())
    found = document(capsys, *words)
    assert (found["posted_ahead"], found["one_at_a_time"]) == (ahead, one_at_a_time)
    assert main(["schedules"]) == 0
    assert "a receive is posted" not in capsys.readouterr().out
