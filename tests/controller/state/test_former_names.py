"""Documents of earlier versions are read under the names of now: nothing that spoke against a node or a job is lost."""

from holdfast.controller.journal.recording import _filled
from holdfast.controller.state.former_names import FORMER
from holdfast.controller.state.goodput import Goodput
from holdfast.controller.state.history import History
from holdfast.controller.state.model import Job, Options
from holdfast.controller.state.progress import Progress, RestartAttempt
from tests.controller.support.virtual import Virtual

WAS = {now: was for was, now in FORMER.items()}


def earlier(doc: dict[str, object], **more: str) -> dict[str, object]:
    """The document as an earlier version wrote it."""
    was = WAS | {now: old for old, now in more.items()}
    return {was.get(key, key): value for key, value in doc.items()}


def test_a_node_stays_quarantined_with_its_failures() -> None:
    doc = earlier(History(quarantined=True, node_failures=[(5.0, "gpu-xid")]).to_doc())
    assert {"barred", "offences"} <= doc.keys()
    again = History.from_doc(doc)
    assert (again.quarantined, again.node_failures) == (True, [(5.0, "gpu-xid")])


def test_a_job_keeps_the_count_of_its_fruitless_starts() -> None:
    v = Virtual()
    v.submit()
    v.run(2.0)
    job = v.job
    job.fruitless, job.fruitless_step, job.fruitless_node = 2, 7, "node1"
    job.progress = Progress(reported="step 9", attempts=[RestartAttempt(1, "ValueError", 5, 2.0, 0)])
    doc = earlier(job.to_doc(), tries="fruitless")
    doc["progress"] = earlier(job.progress.to_doc())
    assert {"tries", "tries_step", "tries_node"} <= doc.keys()
    again = Job.from_doc(doc)
    assert (again.fruitless, again.fruitless_step, again.fruitless_node) == (2, 7, "node1")
    assert again.progress == job.progress


def test_an_account_of_time_and_options_of_a_recording() -> None:
    time = Goodput(reports=True)
    assert Goodput.from_doc(earlier(time.to_doc())).reports
    options = _filled(Options, {"cadence": 0.5, "tries": 7, "tries_fault": 8, "offences": 9, "offence_window": 10.0})
    assert (options.heartbeat_interval, options.restart_attempts, options.restart_attempts_fault) == (0.5, 7, 8)
    assert (options.node_failures, options.failure_window) == (9, 10.0)
