"""The table of findings and what an operator may change of it."""

from importlib import resources
from pathlib import Path

import pytest

from holdfast.base.config.controller import ControllerConfig
from holdfast.base.config.load import load
from holdfast.base.errors import UsageError
from holdfast.controller.app import build
from holdfast.controller.detectors.base.table import Response, Tuning, parse, rows
from holdfast.controller.state.model import Options
from holdfast.wire.types import FindingKind
from tests.controller.support.virtual import Virtual


def test_every_kind_has_its_row_in_the_order_of_the_kinds() -> None:
    assert list(rows()) == list(FindingKind)
    for row in rows().values():
        assert row.means.endswith((".", ")"))
        assert row.does
        assert row.you
        assert all(limit.default >= 0 and limit.text for limit in row.limits.values())


FILE = resources.files("holdfast.controller.detectors.base").joinpath("findings.toml").read_text("utf-8")


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        ('first_move = "restart"', "", r"\[worker-exit\] lacks first_move"),
        ('fault = "program"', "", r"\[worker-exit\] lacks fault"),
        (
            'first_move = "restart"',
            'first_move = "reboot"',
            r"first_move must be one of alert, .*, not 'reboot'",
        ),
        ('fault = "program"', 'fault = "the node\'s"', "fault must be one of program, unknown, node, broken-node, not"),
        (
            'suspect = "program"',
            'suspect = "script"',
            "suspect must be one of node, link, program, nobody, not",
        ),
        ("fixed = true", "fxied = true", r"\[worker-exit\] has unknown keys: fxied"),
        ("[worker-exit]", "[worker-exits]", r"\[worker-exit\] is missing, \[worker-exits\] is no kind of finding"),
    ],
)
def test_an_error_in_the_file_names_its_section(line: str, instead: str, message: str) -> None:
    assert parse(FILE) == rows()
    with pytest.raises(ValueError, match=message):
        parse(FILE.replace(line, instead, 1))


def test_the_two_keys_of_the_policy_follow_the_severity() -> None:
    lines = FILE.splitlines()
    keys = [[one.partition(" = ")[0] for one in lines[i + 1 : i + 4]] for i, k in enumerate(lines) if k.startswith("[")]
    sections = [some for some in keys if some[0] == "severity"]
    assert sections == [["severity", "first_move", "fault"]] * len(FindingKind)


def test_the_name_of_an_earlier_release_still_sets_a_limit() -> None:
    assert Tuning(["straggler.looks=5"]).limit(FindingKind.STRAGGLER, "windows") == 5


def test_settings_change_limits_and_responses() -> None:
    tuning = Tuning(["traffic-stopped.seconds=2m", "worker-hang.action=alert", "traffic-stopped.share=0.1"])
    assert tuning.limits(FindingKind.TRAFFIC_STOPPED) == {"share": 0.1, "seconds": 120, "steps": 3}
    assert tuning.response(FindingKind.WORKER_HANG) is Response.ALERT
    assert tuning.response(FindingKind.WORKER_STOPPED) is Response.ACT


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("traffic", "write KIND.action=alert or KIND.LIMIT=VALUE"),
        ("traffic-stopped=3", "write KIND.action=alert"),
        ("trafic-stopped.share=1", "unknown detector 'trafic-stopped'; did you mean traffic-stopped?"),
        ("traffic-stopped.shore=1", "unknown key 'shore'; did you mean share?"),
        ("traffic-stopped.share=much", "not a number: 'much'"),
        ("traffic-stopped.share=-1", "must be 0 or more"),
        ("traffic-stopped.share=nan", "must be 0 or more"),
        ("traffic-stopped.share=inf", "must be 0 or more"),
        ("traffic-stopped.action=maybe", "action must be act, alert or off, not 'maybe'"),
        ("worker-exit.action=off", "worker-exit is a fact"),
    ],
)
def test_a_wrong_setting_is_one_line(setting: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        Tuning([setting])
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_file_has_a_table_for_each_detector(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text('[controller.detectors.traffic-stopped]\nseconds = "30s"\naction = "alert"\n')
    config = load(ControllerConfig, env={}, file=file)
    assert config.detectors == ("traffic-stopped.seconds=30s", "traffic-stopped.action=alert")
    config = load(ControllerConfig, env={"HOLDFAST_CONTROLLER_DETECTORS": "worker-hang.action=off"}, file=file)
    assert config.detectors == ("worker-hang.action=off",)
    with pytest.raises(UsageError, match=r"must be settings NAME\.KEY=VALUE"):
        load(ControllerConfig, {"detectors": "worker-hang"}, env={})


def test_a_controller_does_not_start_with_a_wrong_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown detector"):
        build(ControllerConfig(state_dir=tmp_path, detectors=("hang.action=off",)))


def hung(response: str) -> Virtual:
    cluster = Virtual(options=Options(detectors=(f"worker-hang.action={response}",)))
    cluster.submit()
    cluster.run(6.0)
    cluster.hold_gil(3)
    cluster.run(8.0)
    return cluster


def test_a_detector_on_alert_reports_once_and_nothing_is_done() -> None:
    cluster = hung("alert")
    (incident,) = cluster.incidents
    assert (incident.cause.kind, incident.cause.subject, incident.action) == ("worker-hang", "rank3", "alert")
    assert cluster.job.generation == 1


def test_a_detector_that_is_off_says_nothing() -> None:
    cluster = hung("off")
    assert not cluster.incidents
    assert cluster.job.generation == 1


def test_and_by_default_it_acts() -> None:
    cluster = hung("act")
    assert cluster.incidents[0].action == "restart"
    assert cluster.job.generation == 2
