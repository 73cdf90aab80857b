"""Every option of torchrun is decided, and those that work do what they promise. The parser is torchrun's own."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from holdfast.base.errors import UsageError
from holdfast.cli.job.console import Choice, Console
from holdfast.cli.job.launch import torchrun_options
from holdfast.cli.job.launch.torchrun_options import TABLE, Files, Kind
from holdfast.cli.main import build
from holdfast.wire.std_streams import StdStreams, parse


def torchruns_options() -> Iterator[list[str]]:
    """The names of each option in the torch that is installed."""
    parser = pytest.importorskip("torch.distributed.run").get_args_parser()
    for action in parser._actions:
        if action.option_strings and "--help" not in action.option_strings:
            yield action.option_strings


def ours() -> set[str]:
    command = get_command(build())
    run = command.get_command(typer.Context(command), "run")  # type: ignore[attr-defined]
    return {name for parameter in run.params for name in parameter.opts}


def test_every_option_of_torchrun_is_decided_and_accepted() -> None:
    """An option that is new in torch fails here until the table says what `run` does with it."""
    known = ours()
    for names in torchruns_options():
        long = next(name for name in names if name.startswith("--"))
        assert long in TABLE, f"torchrun's {long}: decide it in torchrun_options.TABLE"
        accepted = {name.replace("_", "-") if name.startswith("--") else name for name in names}
        assert accepted <= known, f"`holdfast run` does not accept {accepted - known}"


def test_what_is_refused_gives_its_reason() -> None:
    for name, option in TABLE.items():
        if option.kind is Kind.REFUSED:
            with pytest.raises(UsageError, match=re.escape(f"{name} 7: {option.text[:20]}".replace("`", ""))):
                torchrun_options.check({name: "7"})
            assert (
                torchrun_options.check(dict.fromkeys([name], "") | dict.fromkeys([name], (*option.harmless, "")[0]))
                == []
            )


def test_what_is_not_needed_is_named() -> None:
    assert torchrun_options.check({"--rdzv-id": "7", "--node-rank": "0", "--master-port": ""}) == ["--rdzv-id"]


@pytest.mark.parametrize(
    ("text", "ranks"), [("0", [0, 0]), ("3", [3, 3]), ("0:1", [1, 0]), ("0:2,1:3", [2, 3]), ("12:1", [0, 0])]
)
def test_streams_in_torchruns_form(text: str, ranks: list[int]) -> None:
    streams = parse(text)
    assert [streams.at(rank) for rank in (0, 1)] == ranks
    assert parse(str(streams)) == streams
    multiprocessing = pytest.importorskip("torch.distributed.elastic.multiprocessing.api")
    if "12" not in text:  # torchrun takes ranks of one digit only
        theirs = multiprocessing.Std.from_str(text)
        assert [int(theirs.get(r, 0) if isinstance(theirs, dict) else theirs) for r in (0, 1)] == ranks


@pytest.mark.parametrize("text", ["4", "-1", "0:4", "a:1", "0:1,", "1,2", "0:1;1:1", " 1"])
def test_what_is_no_stream(text: str) -> None:
    with pytest.raises(UsageError, match="--tee must be 0 to 3"):
        torchrun_options.parse_streams("--tee", text)


def line(rank: int, text: str, stream: str = "out", generation: int = 1) -> dict[str, object]:
    return {"rank": rank, "stream": stream, "text": text, "generation": generation, "dropped": 0}


def test_the_console_shows_what_is_not_redirected_of_the_ranks_that_are_wanted() -> None:
    files = Files("", parse("0:3,1:1"), parse("0:2"))
    choice = torchrun_options.choice(4, files, frozenset({0, 1, 2}), {})
    shown = {(rank, stream): choice.shows(line(rank, "x", stream)) for rank in range(8) for stream in ("out", "err")}
    assert shown == {
        (rank, stream): (rank % 4, stream) in {(0, "err"), (1, "err"), (2, "out"), (2, "err")} for rank, stream in shown
    }
    assert str(files.streams(4)) == "0:3,1:1,2:0,3:0"


def test_lines_of_tee_with_a_text_are_duplicated_by_attempt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filters = {"out": torchrun_options.parse_filters("loss,a,,b"), "err": []}
    choice = torchrun_options.choice(2, Files("", StdStreams(), parse("1")), frozenset({0}), filters)
    console = Console(choice, tmp_path)
    for one in (line(0, "loss 1"), line(1, "loss 2"), line(0, "a,b"), line(0, "a"), line(0, "loss", "err")):
        console.show(one)
    console.show(line(2, "loss 3", generation=2))
    assert (tmp_path / "attempt_0" / "filtered_stdout.log").read_text() == "loss 1\na,b\n"
    assert (tmp_path / "attempt_1" / "filtered_stdout.log").read_text() == "loss 3\n"
    assert len(list(tmp_path.rglob("*.log"))) == 2
    assert capsys.readouterr().out == "[0] loss 1\n[0] a,b\n[0] a\n[2] loss 3\n"


@pytest.mark.parametrize(
    ("ranks", "filters", "says"),
    [
        ({2}, {}, "local ranks are 0 to 1, not 2"),
        ((), {"err": ["x"]}, "stderr is not in --tee, so no line would be written"),
    ],
)
def test_what_would_have_no_effect_is_refused(ranks: set[int], filters: dict[str, list[str]], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        torchrun_options.choice(2, Files("", StdStreams(), parse("1")), frozenset(ranks), filters)


def test_signals_and_the_time_to_end() -> None:
    assert torchrun_options.parse_signals("SIGTERM, SIGUSR1") == (signal.SIGTERM, signal.SIGUSR1)
    assert torchrun_options.parse_signals("") == ()
    assert (torchrun_options.parse_shutdown(""), torchrun_options.parse_shutdown("90")) == (10.0, 90.0)
    for wrong in ("SIGKILL", "TERM", "SIGTERM,15"):
        with pytest.raises(UsageError, match="is no signal that a process can handle"):
            torchrun_options.parse_signals(wrong)
    with pytest.raises(UsageError, match="whole seconds up to 3600"):
        torchrun_options.parse_shutdown("1.5")


def test_a_choice_by_default_shows_all_and_writes_nothing() -> None:
    assert Choice().shows(line(5, "x"))
    assert not Choice().duplicates(line(5, "x"))
