"""The Ansible role: its files are sound, and what it writes on a machine are settings that a daemon takes."""

import datetime
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import Environment, StrictUndefined

from holdfast.base.certs import write_cluster
from holdfast.base.config.agent import AgentConfig
from holdfast.base.config.controller import ControllerConfig
from holdfast.base.config.load import load

FOLDER = Path(__file__).parents[2] / "deploy" / "ansible"
ROLE = FOLDER / "roles" / "holdfast"
UNITS = FOLDER.parent / "systemd"


def read(path: str) -> Any:
    return yaml.safe_load((ROLE / path).read_text())


@pytest.mark.skipif(shutil.which("ansible-playbook") is None, reason="ansible-playbook is not installed")
def test_ansible_takes_the_playbook() -> None:
    argv = ["ansible-playbook", "-i", "inventory.example.yml", "site.yml", "--syntax-check"]
    done = subprocess.run(argv, cwd=FOLDER, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_tasks_have_names_and_use_full_module_names_with_quoted_modes() -> None:
    tasks, handlers = read("tasks/main.yml"), read("handlers/main.yml")
    names = {handler["name"] for handler in handlers}
    for task in [*tasks, *handlers]:
        assert task["name"]
        [module] = [key for key in task if key.startswith("ansible.builtin.")]
        if isinstance(task[module], dict) and "mode" in task[module]:
            assert re.fullmatch("0[0-7]{3}", task[module]["mode"])  # a number would be read as decimal
        assert task.get("notify", next(iter(names))) in names


def test_every_variable_has_a_default_and_every_default_is_used() -> None:
    defaults = read("defaults/main.yml")
    paths = [path for path in ROLE.rglob("*") if path.is_file() and path.parent.name != "defaults"]
    used = set(re.findall(r"\bholdfast_\w+", "\n".join(path.read_text() for path in paths)))
    local = {"holdfast_folder", "holdfast_described"}  # a task's own, and a task's result
    assert used - local == set(defaults)
    inventory = yaml.safe_load((FOLDER / "inventory.example.yml").read_text())
    plays = yaml.safe_load((FOLDER / "site.yml").read_text())
    assert {play["hosts"] for play in plays} == set(inventory) - {"all"}
    assert set(inventory["all"]["vars"]) <= set(defaults)


def test_keys_go_to_their_own_machine_and_into_no_log() -> None:
    [task] = [task for task in read("tasks/main.yml") if "holdfast_certs" in str(task)]
    assert task["no_log"] is True
    assert task["ansible.builtin.copy"]["mode"] == "0600"
    source = Environment(undefined=StrictUndefined).from_string(task["ansible.builtin.copy"]["src"])
    values = {"holdfast_certs": "certs", "holdfast_node_name": "node7"}
    assert source.render(holdfast_part="agent", **values) == "certs/nodes/node7/"
    assert source.render(holdfast_part="controller", **values) == "certs/controller/"


@pytest.mark.parametrize(("part", "config"), [("agent", AgentConfig), ("controller", ControllerConfig)])
def test_the_settings_that_it_writes_load(part: str, config: type[Any], tmp_path: Path) -> None:
    environment = Environment(undefined=StrictUndefined)
    environment.filters["to_json"] = json.dumps
    values = {name: value for name, value in read("defaults/main.yml").items() if "{{" not in str(value)}
    values |= {"holdfast_part": part, "holdfast_node_name": "node7", "holdfast_switch": "rack 1"}
    more = {"buffer_frames": 100} if part == "agent" else {"notify_from": "critical"}
    template = environment.from_string((ROLE / "templates" / "holdfast.toml.j2").read_text())
    text = template.render(values | {"holdfast_settings": more})
    assert tomllib.loads(text)
    write_cluster(tmp_path, ["controller.example"], ["node7"], datetime.datetime.now(datetime.UTC))
    path = tmp_path / ("nodes/node7" if part == "agent" else part) / "holdfast.toml"
    path.write_text(text)
    loaded = load(config, {}, file=path)
    loaded.check()
    assert {name: getattr(loaded, name) for name in more} == more


@pytest.mark.parametrize("part", ["agent", "controller"])
def test_the_units_fit(part: str) -> None:
    """Users, folders and the environment are those in the units, which the role installs as they are."""
    defaults, unit = read("defaults/main.yml"), (UNITS / f"holdfast-{part}.service").read_text()
    assert f"User={defaults['holdfast_users'][part]}\n" in unit
    assert f"ExecStart={defaults['holdfast_prefix']}/bin/holdfast {part} " in unit
    folder = "node" if part == "agent" else "controller"
    assert f"--config {defaults['holdfast_etc']}/{folder}/holdfast.toml" in unit
