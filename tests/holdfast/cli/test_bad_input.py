"""Wrong input, to every command: one line that says what is wrong, where, and what would be right; exit code 2."""

from pathlib import Path

import pytest

from holdfast.cli.main import main
from tests.holdfast.support.fake_controller import FakeController

Capture = pytest.CaptureFixture[str]

WRONG = [
    # the command line itself
    (["nope"], 2, "No such command 'nope'"),
    (["nodes", "--jsn"], 2, "--json"),
    (["nodes", "node0"], 2, "unexpected extra argument"),
    (["status", "--controller", "host:many"], 2, "write HOST:PORT"),
    (["status", "--config", "gone.toml"], 2, "gone.toml: No such file"),
    (["status", "--config", "bad.toml"], 2, "unknown key 'colour' in [client]"),
    (["status", "--tls-ca", "gone.pem"], 2, "gone.pem"),
    (["status", "--api-token-file", "empty"], 2, "holds no API token"),
    # look and act
    (["incidents", "i9"], 2, "there is no /incidents/i9"),
    (["incidents", "../nodes"], 2, "there is no /incidents/..%2Fnodes"),
    (["cordon", "ghost"], 2, "there is no /nodes/ghost"),
    (["cordon"], 2, "Missing argument 'NODE'"),
    (["evict", "a/b"], 2, "there is no /nodes/a%2Fb"),
    (["job", "stop", "--grace", "-1"], 2, "--grace"),
    (["checkpoint", "now", "--wait", "soon"], 2, "--wait"),
    (["inject"], 2, "Missing argument"),
    (["inject", "kil@1:rank0"], 2, "did you mean kill?"),
    (["inject", "kill"], 2, "kill needs a target rankN"),
    (["inject", "kill:rank0", "rank1"], 2, "two targets"),
    (["inject", "kill@soon:rank0"], 2, "the step must be a whole number"),
    (["inject", "slow:rank1"], 2, "write slow@20:rank1/WORK+PERCENT"),
    (["inject", "xid:node0"], 2, "write xid=79"),
    (["diagnose", "ghost"], 2, "there is no node ghost"),
    (["diagnose", "--suite", "long"], 2, "quick or full"),
    (["diagnose", "--test", "gem"], 2, "did you mean gemm?"),
    (["diagnose", "--local", "node0"], 2, "takes no NODE"),
    (["diagnose", "--local", "--test", "pair"], 2, "need other nodes"),
    (["blame", "gone"], 2, "no spans at gone"),
    (["blame", "--steps", "9:3"], 2, "must not come after"),
    (["timeline", "gone", "-o", "trace.json"], 2, "no spans at gone"),
    (["timeline", "gone", "--predicted", "7"], 2, "no spans at gone"),
    (["timeline", "--predicted", "soon"], 2, "--predicted 'soon': write the number of a step, as in 120, or newest"),
    (["timeline", "--predicted", "7", "--times-of", "x"], 2, "--times-of 'x': write the number of a step"),
    (["timeline", "--times-of", "7"], 2, "--times-of goes with --predicted STEP"),
    (["timeline", "--predicted", "7", "-o", "trace.json"], 2, "writes no trace: leave --output out"),
    (["timeline", "--predicted", "7", "--steps", "1:2"], 2, "writes no trace: leave --steps out"),
    (
        ["replay", "gone"],
        2,
        "recording gone: No such file or directory; `holdfast controller --record FILE` writes one",
    ),
    (["replay", "empty"], 2, "empty is not a recording"),
    (["simulate", "--rates", "ours"], 2, "one of llama3, megascale"),
    (["simulate", "--days", "nan"], 2, "--days"),
    (["simulate", "--days", "inf"], 2, "--days"),
    (["simulate", "--nodes", "0"], 2, "--nodes"),
    (["schedules", "zvb"], 2, "there is no schedule 'zvb'; did you mean zbv?"),
    (["schedules", "--pp", "0"], 2, "--pp"),
    (["schedules", "--micro-batches", "0"], 2, "--micro-batches"),
    (["schedules", "--message", "nan"], 2, "--message"),
    (["schedules", "--forward", "0"], 2, "--forward"),
    (["schedules", "--device", "tpu"], 2, "--device must be cpu or cuda, not 'tpu'"),
    (["schedules", "--memory", "40GB"], 2, "--memory needs --activation-bytes and --weight-bytes"),
    (["schedules", "--memory", "40GB", "--weight-bytes", "1GB"], 2, "--memory needs --activation-bytes and"),
    (["schedules", "--weight-bytes", "much"], 2, "--weight-bytes must be a size such as 40GB, not 'much'"),
    (["schedules", "--pp", "256", "--micro-batches", "1000"], 2, "60,000 at most are simulated"),
    (["schedules", "zbv", "--pp", "1"], 2, "zbv needs pp of 2 or more"),
    (["schedules", "--draw", "x.svg"], 2, "--draw shows one schedule: name it"),
    (["schedules", "1f1b", "--draw", "gone/x.svg"], 2, "cannot write gone/x.svg: No such file or directory"),
    (["schedules", "1f1b", "--draw", "."], 2, "cannot write .: Is a directory"),
    # jobs
    (["run"], 2, "Missing argument"),
    (["run", "gone.py"], 2, "no such script: gone.py"),
    (["run", "."], 2, "is a folder without __main__.py"),
    (["run", "-m", "not a module"], 2, "not a module's name"),
    (["run", "--nproc-per-node", "some", "-m", "x"], 2, "must be a number from 1, auto, gpu or cpu"),
    (["run", "--nnodes", "3:2", "-m", "x"], 2, "MIN:MAX"),
    (["run", "--env", "NO_SUCH_VARIABLE", "-m", "x"], 2, "there is no such variable here"),
    (["run", "--numa-binding", "node", "-m", "x"], 2, "--numa-binding node: agents do not bind workers"),
    (["run", "--node_rank=1", "-m", "x"], 2, "--node-rank 1: the command is given once, not on each node"),
    (["run", "--logs-specs", "mine", "-m", "x"], 2, "agents write and follow the workers' output"),
    (["run", "--event_log_handler=mine", "-m", "x"], 2, "events are the controller's"),
    (["run", "-t", "7", "-m", "x"], 2, "--tee must be 0 to 3"),
    (["run", "--no-python", "-m", "x"], 2, "--no-python and --module exclude each other"),
    (["run", "--local-ranks-filter", "a", "-m", "x"], 2, "must be local ranks such as 0,1,2"),
    (["run", "--signals-to-handle", "SIGKILL", "-m", "x"], 2, "SIGKILL is no signal that a process can handle"),
    (["run", "--shutdown-timeout", "soon", "-m", "x"], 2, "whole seconds up to 3600"),
    (["run", "--env", "=x", "-m", "x"], 2, "NAME or NAME=VALUE"),
    (
        ["run", "--preload", "a-b", "-m", "x"],
        2,
        "--preload needs names of modules, as torch,lightning.pytorch, but one is 'a-b'",
    ),
    (["run", "--preload", "a,,b", "-m", "x"], 2, "one is ''"),
    (["run", "--preload", "a.class", "-m", "x"], 2, "one is 'a.class'"),
    (["run", "--preload", "a", "--fresh", "-m", "x"], 2, "--preload with --fresh: such workers are not forked"),
    (["run", "--fault", "kill@1:rank5", "--nproc-per-node", "4", "-m", "x"], 2, "there is no rank5"),
    (["run", "--frobnicate", "-m", "x"], 2, "--frobnicate"),
    (["run", "-m", "holdfast.trainer", "--set", "model.heads=5"], 2, "must be a multiple of 2 x heads"),
    (["run", "--nproc-per-node", "3", "-m", "holdfast.trainer", "--tp", "3"], 2, "not divisible by tp"),
    (["run", "-m", "holdfast.trainer", "--steps", "ten"], 2, "--steps"),
    (["demo", "--fault", "kill@1:rank8"], 2, "there is no rank8"),
    (["demo", "--fault", "kill:rank1"], 2, "say at which step"),
    (["demo", "--steps", "10", "--fault", "kill@10:rank1"], 2, "step 10 never comes"),
    (["demo", "--pp", "3"], 2, "does not divide 8"),
    (["demo", "--nodes", "0"], 2, "nodes must be above 0"),
    (["demo", "--state-dir", "empty"], 2, "state_dir empty: File exists; give another --state-dir"),
    (["demo", "--nodes", "two"], 2, "--nodes must be a whole number"),
    (["demo", "--nodes", "999999999"], 2, "a cluster on one machine has 1 to 64"),
    (["demo", "--nodes", "64", "--nproc", "5"], 2, "256 at most; give fewer workers a node"),
    (["run", "--nnodes", "1000000", "-m", "x"], 2, "a job has 262,144 at most"),
    (["run", "--nnodes", "1:125000", "--nproc-per-node", "8", "-m", "x"], 2, "are 1,000,000 ranks"),
    (["run", "--nproc-per-node", "٣", "-m", "x"], 2, "must be a number from 1"),
    (["simulate", "--nodes", "999999999"], 2, "--nodes"),
    (["simulate", "--nodes", "100000", "--gpus", "8"], 2, "a job has 262,144 at most"),
    # daemons
    (["agent", "--controller", "head:7070"], 2, "holdfast certs"),
    (["agent", "--slot", "1"], 2, "--slots"),
    (["agent", "--drain", "-1"], 2, "drain"),
    (["agent", "--node-name", "a b"], 2, "may have letters, digits"),
    (["controller", "--listen-host", "0.0.0.0"], 2, "holdfast certs"),
    (["controller", "--heartbeat-interval", "often"], 2, "--heartbeat-interval must be a duration"),
    (["controller", "--grpc-port", "70700"], 2, "from 0 to 65535"),
    (["controller", "--scheduler", "slrm"], 2, "did you mean slurm?"),
    (["controller", "--notify-from", "loud"], 2, "unknown severity 'loud'"),
    (["certs", "--dir", "empty"], 2, "name another --dir"),
    (["certs", "--node", "../x", "--dir", "c"], 2, "node_name may have"),
    (["certs", "--node", "ca", "--dir", "c"], 2, "a node cannot be called 'ca'"),
    (["certs", "--node", "..", "--dir", "c"], 2, "node_name may have"),
    (["certs", "--node", "a", "--node", "A", "--dir", "c"], 2, "--node A is there twice"),
    (["certs", "--renew", "--dir", "c"], 2, "no authority to renew from"),
    (["certs", "--host", "bad host", "--dir", "c"], 2, "not a host name or address: 'bad host'"),
    # stores, files
    (["checkpoint", "list"], 2, "Missing argument 'URL'"),
    (["checkpoint", "list", "ftp://host/x"], 2, "use file:///path, hdfs:// or webhdfs://"),
    (["checkpoint", "list", "file://host/x"], 2, "three slashes"),
    *(
        (["checkpoint", *words], code, says)
        for store, code, says in (
            ("gone", 2, "checkpoint store gone: there is no such folder"),
            ("file:///nowhere/at/all", 2, "there is no such folder"),
            ("empty", 2, "checkpoint store empty: is no folder"),
        )
        for words in (
            ["list", store],
            ["list", store, "--json"],
            ["show", store],
            ["verify", store],
            ["prune", store, "--keep", "1"],
            ["protect", store, "--step", "3"],
            ["export", store, "out", "--to", "dcp"],
        )
    ),
    (["checkpoint", "show", "."], 1, "no checkpoint in"),
    (["checkpoint", "verify", "."], 1, "no checkpoints"),
    (["checkpoint", "prune", "gone", "--keep", "0"], 2, "--keep"),
    (["checkpoint", "protect", ".", "--step", "3"], 1, "no checkpoint of step 3 in"),
    (["checkpoint", "export", "gone", "out"], 2, "Missing option '--to'"),
    (["checkpoint", "export", "gone", ".", "--to", "hf"], 2, "is not empty: name a new folder"),
    (["dashboards", "export", "empty"], 2, "cannot write to empty"),
    (["dashboards", "export", "d", "--controller", "here"], 2, "write HOST:PORT"),
    (["dashboards", "export", "d", "--webhook", "here"], 2, "--webhook must be a URL"),
]


@pytest.mark.parametrize(("argv", "code", "message"), WRONG, ids=[" ".join(argv) for argv, _, _ in WRONG])
def test_it_is_one_line(
    fake: FakeController, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    argv: list[str], code: int, message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()
    (tmp_path / "bad.toml").write_text("[client]\ncolour = 1\n")
    assert main(argv) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("holdfast: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not [asked for asked in fake.asked if asked[1] == "/jobs"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[controller]\ngrpc_prot = 1\n", "unknown key 'grpc_prot' in [controller]; did you mean grpc_port?"),
        ("[contoller]\n", "unknown section [contoller]; did you mean controller?"),
        ("[controller]\ngrpc_port = 'x'\n", "grpc_port must be a whole number, not 'x'"),
        ("[controller]\nheartbeat_interval = 0\n", "heartbeat_interval must be above 0"),
        ("[controller\n", "at line 1"),
    ],
)
def test_a_file_of_settings_that_is_wrong(capsys: Capture, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "holdfast.toml").write_text(text)
    assert main(["controller", "--config", str(tmp_path / "holdfast.toml")]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_an_unknown_variable(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CONTROLLER_GRPC_PROT", "1")
    assert main(["controller"]) == 2
    assert "did you mean HOLDFAST_CONTROLLER_GRPC_PORT?" in capsys.readouterr().err
