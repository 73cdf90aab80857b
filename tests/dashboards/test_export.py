import datetime
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from holdfast.base.certs import write_cluster
from holdfast.cli.main import main
from holdfast.controller.health.judge import Condition
from holdfast.dashboards import stack
from holdfast.dashboards.boards import BOARDS
from holdfast.dashboards.export import Places, files, write
from holdfast.dashboards.spec import CONDITIONS

AMTOOL, PROMTOOL = shutil.which("amtool"), shutil.which("promtool")


@pytest.fixture(scope="module")
def exported() -> dict[str, str]:
    return files(Places())


def test_a_board_says_what_each_panel_shows() -> None:
    for board in BOARDS:
        titles = [panel.title for panel in board.panels]
        assert len(titles) == len(set(titles)), board.uid
        for panel in board.panels:
            assert panel.shows.endswith("."), f"{board.uid}: {panel.title}"
            assert panel.unit
            assert panel.queries


def test_the_rows_fill_grafanas_width() -> None:
    for board in BOARDS:
        for row in board.rows:
            assert sum(panel.width for panel in row.panels) % 24 == 0, f"{board.uid}: {row.title}"


def test_grafana_gets_stable_ids_and_the_chosen_source(exported: dict[str, str]) -> None:
    boards = [json.loads(text) for name, text in exported.items() if name.startswith("grafana/dashboards/")]
    assert {board["uid"] for board in boards} == {board.uid for board in BOARDS}
    for board in boards:
        assert board["id"] is None
        assert board["schemaVersion"] >= 36
        ids = [panel["id"] for panel in board["panels"]]
        assert len(ids) == len(set(ids))
        for panel in board["panels"]:
            if panel["type"] != "row":
                assert panel["datasource"]["uid"] == "$datasource"
                assert [target["refId"] for target in panel["targets"]] == list("ABCDEFGH"[: len(panel["targets"])])


def test_variables_that_a_query_uses_are_there(exported: dict[str, str]) -> None:
    own = {"__rate_interval", "__range", "datasource"}
    for name, text in exported.items():
        if not name.startswith("grafana/dashboards/"):
            continue
        board = json.loads(text)
        variables = {variable["name"] for variable in board["templating"]["list"]}
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                used = set(re.findall(r"\$(\w+)", target["expr"]))
                assert used <= variables | own, f"{name}: {panel['title']}"


def test_every_link_has_its_label_and_keeps_the_time_range(exported: dict[str, str]) -> None:
    links = 0
    for name, text in exported.items():
        if not name.startswith("grafana/dashboards/"):
            continue
        board = json.loads(text)
        assert all(link["keepTime"] for link in board["links"] if link["type"] == "dashboards")
        for panel in board["panels"]:
            for link in panel.get("fieldConfig", {}).get("defaults", {}).get("links", ()):
                links += 1
                assert link["url"].endswith("&${__url_time_range}")
                (uid,) = re.findall(r"/d/([\w-]+)\?", link["url"])
                assert f"grafana/dashboards/{uid}.json" in exported
                for variable, label in re.findall(r"var-(\w+)=\$\{__field\.labels\.(\w+)\}", link["url"]):
                    there = json.loads(exported[f"grafana/dashboards/{uid}.json"])["templating"]["list"]
                    assert variable in {one["name"] for one in there}
                    assert all(f"{{{{{label}}}}}" in one["legendFormat"] for one in panel["targets"]), panel["title"]
    assert links >= 15


def test_a_state_is_shown_as_text_and_the_job_board_begins_with_the_health(exported: dict[str, str]) -> None:
    assert [name for name, _ in CONDITIONS] == [each.value for each in Condition]
    for board in BOARDS:
        for panel in board.panels:
            if panel.kind == "state":
                assert panel.maps, f"{board.uid}: {panel.title}"
    job = json.loads(exported["grafana/dashboards/holdfast-job.json"])
    first = next(panel for panel in job["panels"] if panel["type"] != "row")
    (mapping,) = first["fieldConfig"]["defaults"]["mappings"]
    assert {int(value): one["text"] for value, one in mapping["options"].items()} == dict(enumerate(Condition))
    for condition in Condition:
        assert f'condition="{condition}"' in first["targets"][0]["expr"]


def test_incidents_and_generations_are_marked_on_every_board(exported: dict[str, str]) -> None:
    for name, text in exported.items():
        if name.startswith("grafana/dashboards/"):
            marks = {one["name"]: one for one in json.loads(text)["annotations"]["list"]}
            assert {"Generations", "Incidents"} <= marks.keys()
            assert marks["Incidents"]["titleFormat"] == "Incident: {{kind}}"


OF_A_JOB = re.compile(r'holdfast_(?:job|rank|worker|lost)_\w+(\{job="\$job")?')


def test_queries_keep_jobs_apart() -> None:
    """A board of one job shows only that one, another board says which is which."""
    for board in BOARDS:
        for panel in board.panels:
            for query in panel.queries:
                if of_job := list(OF_A_JOB.finditer(query.expr)):
                    chosen = all(found[1] for found in of_job)
                    assert chosen if board.by_job else "by (job" in query.expr, f"{board.uid}: {panel.title}"


def test_kubernetes_mounts_what_it_makes(exported: dict[str, str]) -> None:
    documents = stack.documents(exported["kubernetes.yml"])
    maps = {d["metadata"]["name"]: d["data"] for d in documents if d["kind"] == "ConfigMap"}
    mounted = {
        volume["configMap"]["name"]
        for d in documents
        if d["kind"] == "Deployment"
        for volume in d["spec"]["template"]["spec"]["volumes"]
    }
    assert mounted == set(maps)
    assert "holdfast-controller:7080" in maps["holdfast-prometheus"]["prometheus.yml"]
    assert len(maps["holdfast-grafana-dashboards"]) == len(BOARDS)
    for d in documents:
        if d["kind"] == "Deployment":
            pod = d["spec"]["template"]
            assert d["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_compose_mounts_folders_that_are_written(tmp_path: Path) -> None:
    write(tmp_path, Places(controller="controller.example:7080"))
    services = yaml.safe_load((tmp_path / "compose.yml").read_text())["services"]
    for service in services.values():
        for volume in service["volumes"]:
            assert (tmp_path / volume.split(":")[0]).is_dir()
    assert "controller.example:7080" in (tmp_path / "prometheus" / "prometheus.yml").read_text()


@pytest.mark.skipif(AMTOOL is None, reason="amtool is not installed (Debian: prometheus-alertmanager)")
def test_alertmanager_takes_its_routing_and_pages_for_symptoms(tmp_path: Path, exported: dict[str, str]) -> None:
    path = tmp_path / "alertmanager.yml"
    path.write_text(exported["alertmanager/alertmanager.yml"])

    def amtool(*args: str) -> str:
        assert AMTOOL is not None
        done = subprocess.run([AMTOOL, *args], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    amtool("check-config", str(path))
    test = ("config", "routes", "test", f"--config.file={path}")
    assert amtool(*test, "severity=page", "alertname=HoldfastJobFailed") == "on-call"
    assert amtool(*test, "severity=warning", "alertname=HoldfastNodeDown") == "team"


def test_the_command_writes_and_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboards", "export", str(tmp_path / "new" / "folder")]) == 0
    assert (tmp_path / "new" / "folder" / "compose.yml").exists()
    (tmp_path / "file").write_text("")
    capsys.readouterr()
    assert main(["dashboards", "export", str(tmp_path / "file")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "cannot write" in said


def test_tls_a_token_and_names_are_written_where_they_belong(tmp_path: Path) -> None:
    argv = ["--controller", "ctl.example:7443", "--page-url", "https://ctl.example:7443/", "--checkpoint-minutes", "90"]
    argv += ["--tls-ca", "/etc/holdfast/ca.pem", "--api-token-file", "/etc/holdfast/reader"]
    argv += ["--scrape-job", "trainer", "--job", "llama"]
    assert main(["dashboards", "export", str(tmp_path), *argv]) == 0
    config = yaml.safe_load((tmp_path / "prometheus" / "prometheus.yml").read_text())
    assert config["scrape_configs"] == [
        {
            "job_name": "trainer",
            "honor_labels": True,
            "scheme": "https",
            "tls_config": {"ca_file": "/etc/holdfast/ca.pem"},
            "authorization": {"type": "Bearer", "credentials_file": "/etc/holdfast/reader"},
            "static_configs": [{"targets": ["ctl.example:7443"]}],
        }
    ]
    rules = (tmp_path / "prometheus" / "holdfast-rules.yml").read_text()
    assert 'up{job="trainer"} == 0' in rules
    assert "> 5400" in rules
    assert "90 minutes" in rules
    services = yaml.safe_load((tmp_path / "compose.yml").read_text())["services"]
    assert "/etc/holdfast/reader:/etc/holdfast/reader:ro" in services["prometheus"]["volumes"]
    (deployment,) = (
        d
        for d in stack.documents((tmp_path / "kubernetes.yml").read_text())
        if d["kind"] == "Deployment" and d["metadata"]["name"] == "holdfast-prometheus"
    )
    pod = deployment["spec"]["template"]["spec"]
    assert {"name": stack.SECRET, "secret": {"secretName": stack.SECRET}} in pod["volumes"]
    mounts = {one["mountPath"]: one.get("subPath") for one in pod["containers"][0]["volumeMounts"]}
    assert mounts["/etc/holdfast/reader"] == "reader"
    board = json.loads((tmp_path / "grafana" / "dashboards" / "holdfast-job.json").read_text())
    assert [link["url"] for link in board["links"] if link["type"] == "link"] == ["https://ctl.example:7443/"]
    (variable,) = (one for one in board["templating"]["list"] if one["name"] == "job")
    assert variable["current"]["value"] == "llama"


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
def test_prometheus_takes_the_configuration_with_tls_and_token(tmp_path: Path) -> None:
    ca, token = tmp_path / "ca.pem", tmp_path / "token"
    write_cluster(tmp_path / "certs", ["head"], [], datetime.datetime.now(datetime.UTC))
    ca.write_bytes((tmp_path / "certs" / "controller" / "ca.pem").read_bytes())
    token.write_text("secret")
    argv = ["--tls-ca", str(ca), "--api-token-file", str(token)]
    assert main(["dashboards", "export", str(tmp_path / "out"), *argv]) == 0
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "check", "config", "prometheus.yml"],
        cwd=tmp_path / "out" / "prometheus", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--tls-ca", "ca.pem"], "absolute path"),
        (["--api-token-file", "/a b"], "absolute path"),
        (["--api-token-file", "/etc/token"], "--insecure"),
        (["--scrape-job", 'a"b'], "--scrape-job"),
        (["--scrape-job", ""], "--scrape-job"),
        (["--page-url", "ctl.example"], "--page-url"),
        (["--checkpoint-minutes", "0"], "--checkpoint-minutes"),
        (["--docs-url", "d" * 2001], "--docs-url must have 2000 characters at most, not 2001"),
        (["--controller", "ctl.example"], "HOST:PORT"),
    ],
)
def test_a_bad_value_is_one_line_and_writes_nothing(
    argv: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dashboards", "export", str(tmp_path / "out"), *argv]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert says in said
    assert not (tmp_path / "out").exists()


def test_the_files_in_deploy_are_fresh(exported: dict[str, str]) -> None:
    folder = Path(__file__).parents[2] / "deploy" / "monitoring"
    kept = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert kept == exported, "run `make docs`"
