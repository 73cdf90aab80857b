"""`holdfast diagnose` among eight hosts under two switches: the broken ones fail, and no other."""

import random
from pathlib import Path

import pytest

from tests.diagnostics.support.fabric import Fabric, missing

WHY = missing()
CAUSES = {
    "slow link": "pair bandwidth",
    "lossy link": "pair loss",
    "slow processor": "gemm flops",
    "wrong numbers": "gemm",
}


@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.skipif(bool(WHY), reason=WHY)
def test_four_broken_hosts_of_eight_are_found_and_no_healthy_one_fails(tmp_path: Path) -> None:
    draw = random.Random(11)
    with Fabric(tmp_path) as hosts:
        possible = ["slow link", "wrong numbers"]
        possible += ["lossy link"] * hosts.can_lose() + ["slow processor"] * hosts.can_throttle()
        victims = dict(zip(possible, draw.sample(hosts.names, len(possible)), strict=True))
        hosts.break_hosts(victims)
        expected = {host: CAUSES[fault] for fault, host in victims.items()}
        why: dict[str, str] = {}
        checks = ["gemm", "pair"]
        for _ in range(4):  # eight hosts share this machine: a slow one runs out of time, says so, and is asked again
            doc = hosts.ask("diagnose", *(word for check in checks for word in ("--test", check)))
            assert set(doc["failed"]) <= set(victims.values())
            assert doc["ended"] - doc["began"] < 60
            why |= {v["node"]: f"{v['check']} {v['metric']}".strip() for v in doc["verdicts"] if v["grade"] == "fail"}
            checks = sorted({cause.split()[0] for host, cause in expected.items() if host not in why})
            if not checks or not any("out of time" in v["text"] for v in doc["verdicts"]):
                break
        hosts.mend_hosts(victims)
    assert why == expected
