"""Precedence, error texts and the exposure rule."""

import socket
from pathlib import Path
from typing import Any

import pytest

from holdfast.base import log
from holdfast.base.address import bind, check_exposure, check_target, claim_port, is_loopback, parse_address
from holdfast.base.config.agent import AgentConfig
from holdfast.base.config.client import ClientConfig, DemoConfig
from holdfast.base.config.controller import ControllerConfig
from holdfast.base.config.load import SECTIONS, find_file, load
from holdfast.base.config.parts import Tls, default_state_dir
from holdfast.base.errors import UsageError
from holdfast.base.settings import field_docs, former_names, parse_bytes, parse_seconds


def write(folder: Path, text: str) -> Path:
    path = folder / "holdfast.toml"
    path.write_text(text)
    return path


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = write(tmp_path, "[agent]\nslots = 1\nswitch = 'a'\nbuffer_frames = 7\n")
    env = {"HOLDFAST_AGENT_SLOTS": "2", "HOLDFAST_AGENT_SWITCH": "b"}
    config = load(AgentConfig, {"slots": "3"}, env, file)
    assert (config.slots, config.switch, config.buffer_frames) == (3, "b", 7)
    assert config.node_name == socket.gethostname()
    assert config.preload == ("torch", "holdfast.trainer.preload")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[agnt]\n", "unknown section [agnt]; did you mean agent?"),
        ("[agent]\nslot = 1\n", "unknown key 'slot' in [agent]; did you mean slots?"),
        ("[controller]\nhtp_port = 1\n", "unknown key 'htp_port' in [controller]; did you mean http_port?"),
        ("agent = 3\n", "agent must be a section: [agent]"),
        ("[agent]\nslots = 'many'\n", "[agent] slots must be a whole number, not 'many'"),
        ("[agent]\nslots = true\n", "[agent] slots must be a whole number, not True"),
        ("[agent]\nwarm = 1\n", "[agent] warm must be true or false, not 1"),
        ("[agent]\nsample_interval = 'soon'\n", "[agent] sample_interval must be a duration"),
        ("[agent]\nnics = 'eth0'\n", "[agent] nics must be a list of texts, not 'eth0'"),
        ("[agent\n", "Expected ']'"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(UsageError) as raised:
        load(AgentConfig, env={}, file=file)
    assert str(raised.value).startswith(str(file))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"HOLDFAST_AGENT_SLOTS": "x"}, "HOLDFAST_AGENT_SLOTS must be a whole number, not 'x'"),
        (
            {"HOLDFAST_AGENT_SLOTZ": "1"},
            "unknown environment variable HOLDFAST_AGENT_SLOTZ; did you mean HOLDFAST_AGENT",
        ),
        ({"HOLDFAST_AGENT_WARM": "maybe"}, "HOLDFAST_AGENT_WARM must be true or false"),
        ({"HOLDFAST_AGENT_SAMPLE_INTERVAL": "0"}, "sample_interval must be above 0"),
        ({"HOLDFAST_AGENT_SWITCH": "p/l0,,p/l2"}, "switch has no name at place 2 of 3"),
        ({"HOLDFAST_AGENT_SWITCH": "p/l0,q/l1"}, "switch names switches of the pods p and q"),
        ({"HOLDFAST_AGENT_SWITCH": "p/l0,p/l1, p/l0"}, "switch names p/l0 twice"),
        ({"HOLDFAST_AGENT_NODE_NAME": "a b"}, "node_name may have letters"),
    ],
)
def test_a_wrong_environment_is_named(env: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(AgentConfig, env=env | {"HOLDFAST_CONFIG": ""})


def test_variables_that_kubernetes_sets_for_a_service_are_no_options() -> None:
    env = {
        "HOLDFAST_CONFIG": "",
        "HOLDFAST_CONTROLLER_SERVICE_HOST": "10.0.0.1",
        "HOLDFAST_CONTROLLER_SERVICE_PORT_GRPC": "7070",
        "HOLDFAST_CONTROLLER_PORT": "tcp://10.0.0.1:7070",
        "HOLDFAST_CONTROLLER_PORT_7070_TCP_ADDR": "10.0.0.1",
    }
    assert load(ControllerConfig, env=env).grpc_port == 7070


def test_values_have_units_in_every_source(tmp_path: Path) -> None:
    file = write(tmp_path, "[controller]\nheartbeat_interval = '250ms'\nhang_floor = 3\ntls_ca = 'ca.pem'\n")
    config = load(ControllerConfig, {"start_timeout": "2m"}, {"HOLDFAST_CONTROLLER_AGENT_GRACE": "1.5s"}, file)
    assert (config.heartbeat_interval, config.hang_floor, config.start_timeout, config.agent_grace) == (
        0.25,
        3.0,
        120.0,
        1.5,
    )
    assert config.tls_ca == tmp_path / "ca.pem"


def test_durations_and_sizes() -> None:
    assert [parse_seconds(t) for t in ("1", "1.5s", "20 ms", "2m", "1h", "3us")] == [1, 1.5, 0.02, 120, 3600, 3e-6]
    assert [parse_bytes(t) for t in ("7", "1k", "1KiB", "1kB", "2G", "5MB")] == [7, 1024, 1024, 1000, 2 << 30, 5000000]
    for wrong in ("", "s", "1 week", "-1s"):
        with pytest.raises(ValueError, match="not a duration"):
            parse_seconds(wrong)
        with pytest.raises(ValueError, match="not a size"):
            parse_bytes(wrong)


def test_every_field_of_every_section_is_explained() -> None:
    for cls in SECTIONS.values():
        assert set(field_docs(cls)) >= set(cls.__dataclass_fields__), cls


FORMER = [(cls, was, now) for cls in SECTIONS.values() for was, now in former_names(cls).items()]


@pytest.mark.parametrize(("cls", "was", "now"), FORMER)
@pytest.mark.parametrize("source", ["file", "environment", "flag"])
def test_an_earlier_name_still_works_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cls: type[Any], was: str, now: str, source: str
) -> None:
    section = next(name for name, known in SECTIONS.items() if known is cls)
    file = write(tmp_path, f"[{section}]\n{was} = 7\n" if source == "file" else "")
    env = {f"HOLDFAST_{section}_{was}".upper(): "7"} if source == "environment" else {}
    log.configure(daemon=True)
    config = load(cls, {was: "7"} if source == "flag" else {}, env, file)
    assert getattr(config, now) == 7
    said = capsys.readouterr().err
    assert "settings.renamed" in said
    assert was in said.lower().replace("-", "_")
    assert now in said.lower().replace("-", "_")


def test_of_an_earlier_and_a_newer_name_the_newer_counts() -> None:
    env = {"HOLDFAST_CONTROLLER_TRIES": "7", "HOLDFAST_CONTROLLER_RESTART_ATTEMPTS": "9"}
    assert load(ControllerConfig, {}, env).restart_attempts == 9
    assert load(ControllerConfig, {"tries": "6", "restart_attempts": "8"}, env).restart_attempts == 8


def test_what_is_wrong_under_an_earlier_name_is_reported_where_it_was_given(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\[controller\] cadence must be a duration"):
        load(ControllerConfig, {}, {}, write(tmp_path, "[controller]\ncadence = 'often'\n"))
    with pytest.raises(UsageError, match="--tries must be"):
        load(ControllerConfig, {"tries": "many"}, {})


def test_the_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_file({}) != Path("holdfast.toml")
    write(tmp_path, "[demo]\nsteps = 3\n")
    assert find_file({}) == Path("holdfast.toml")
    assert find_file({"HOLDFAST_CONFIG": ""}) is None
    assert load(DemoConfig, env={}).steps == 3
    with pytest.raises(UsageError, match=r"gone.toml: No such file"):
        load(DemoConfig, env={"HOLDFAST_CONFIG": "gone.toml"})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state_dir() == tmp_path / "holdfast"


def test_clients_have_short_variables() -> None:
    env = {"HOLDFAST_CONFIG": "", "HOLDFAST_CONTROLLER": "h:1", "HOLDFAST_API_TOKEN": "secret"}
    config = load(ClientConfig, env=env)
    assert (config.address(), config.token()) == (("h", 1), "secret")
    assert "secret" not in repr(config)
    assert load(ClientConfig, env=env | {"HOLDFAST_CLIENT_CONTROLLER": "long:2"}).address() == ("long", 2)


def test_tls_comes_whole_or_not_at_all(tmp_path: Path) -> None:
    assert ControllerConfig().tls() is None
    files = [tmp_path / name for name in ("ca", "cert", "key")]
    with pytest.raises(UsageError, match="missing: tls_cert, tls_key"):
        ControllerConfig(tls_ca=files[0]).tls()
    config = AgentConfig(tls_ca=files[0], tls_cert=files[1], tls_key=files[2])
    with pytest.raises(UsageError, match="no such file"):
        config.tls()
    for file in files:
        file.touch()
    assert config.tls() == Tls(*files)


def test_tokens_come_from_files_too(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(UsageError, match="No such file"):
        ControllerConfig(api_token_file=file).token()
    file.write_text("\n")
    with pytest.raises(UsageError, match="holds no API token"):
        ControllerConfig(api_token_file=file).token()
    file.write_text("abc\n")
    assert ControllerConfig(api_token_file=file).token() == "abc"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_is_open(host: str) -> None:
    check_exposure(host, tls=False, token=False, insecure=False)
    check_target(host, tls=False, insecure=False)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.1.2.3", "head.cluster", "127.0.0.1.evil.example"])
def test_anything_else_needs_tls_and_token_or_a_clear_word(host: str) -> None:
    assert not is_loopback(host)
    for tls, token in ((False, False), (True, False), (False, True)):
        with pytest.raises(UsageError, match="holdfast certs"):
            check_exposure(host, tls=tls, token=token, insecure=False)
    check_exposure(host, tls=True, token=True, insecure=False)
    check_exposure(host, tls=False, token=False, insecure=True)
    with pytest.raises(UsageError, match="--insecure"):
        check_target(host, tls=False, insecure=False)
    check_target(host, tls=True, insecure=False)


def test_addresses() -> None:
    assert parse_address("h:1") == ("h", 1)
    assert parse_address("h", 7) == ("h", 7)
    assert parse_address("[::1]:5") == ("::1", 5)
    assert parse_address("::1", 5) == ("::1", 5)
    for wrong in ("h", "h:", ":1", "h:x", "h:99999", ""):
        with pytest.raises(UsageError, match="HOST:PORT"):
            parse_address(wrong)


def test_a_port_in_use_is_one_line(free_port: int) -> None:
    with bind("127.0.0.1", free_port) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port} is already in use"):
            claim_port("127.0.0.1", port)
    assert claim_port("127.0.0.1", port) == port
    with pytest.raises(UsageError, match="cannot listen on"):
        claim_port("192.0.2.1", 0)
