"""Log lines as text and as JSON."""

import io
import json
import math

from holdfast.base import log


def written(env: dict[str, str], verbose: bool = False) -> io.StringIO:
    stream = io.StringIO()
    log.configure(stream=stream, env=env, verbose=verbose)
    return stream


def test_json_lines_are_strict_json() -> None:
    stream = written({"HOLDFAST_LOG_FORMAT": "json"})
    log.event("worker_exited", rank=3, loss=math.nan, ages=[1.0, math.inf], level="x", path=io)
    line = json.loads(stream.getvalue(), parse_constant=lambda name: 1 / 0)
    assert line["event"] == "worker_exited"
    assert (line["rank"], line["loss"], line["ages"]) == (3, None, [1.0, "inf"])


def test_json_lines_hold_no_character_that_a_terminal_obeys() -> None:
    said = "a\x1b[31m\x9b1m\u202e\x7f"
    stream = written({"HOLDFAST_LOG_FORMAT": "json"})
    log.event("said", what=said)
    line = stream.getvalue().removesuffix("\n")
    assert line.isprintable()
    assert json.loads(line)["what"] == said


def test_console_lines_cannot_be_forged() -> None:
    stream = written({"HOLDFAST_LOG_FORMAT": "console"})
    log.event("line", text="a\n12:00:00 E fake", plain="word", empty="", number=1.23456789)
    out = stream.getvalue()
    assert out.count("\n") == 1
    assert 'text="a\\n12:00:00 E fake" plain=word empty="" number=1.23457' in out


def test_levels() -> None:
    stream = written({"HOLDFAST_LOG_LEVEL": "warning"})
    log.event("quiet")
    log.warning("loud")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud"]
    stream = written({"HOLDFAST_LOG_LEVEL": "warning"}, verbose=True)
    log.debug("detail")
    assert "detail" in stream.getvalue()


def test_a_traceback_stays_in_its_line() -> None:
    stream = written({})
    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("task_failed", task="ingest")
    line = json.loads(stream.getvalue())
    assert line["level"] == "error"
    assert "boom" in line["traceback"]
