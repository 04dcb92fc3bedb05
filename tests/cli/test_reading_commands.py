"""What the commands print from a recorded journal: golden texts, JSON that parses, errors that help."""

import os
import sqlite3
from pathlib import Path

import msgspec
import pytest

from keepstep.server import views

GOLDEN = Path(__file__).parent / "golden"

COMMANDS = {
    "jobs": ["jobs"],
    "resources": ["resources"],
    "incidents": ["incidents", "--starts"],
    "incident": ["incident", "show", "inc-0002"],
    "report": ["report"],
    "journal": ["journal", "show", "--after", "40"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_golden(recorded, keepstep, name):
    """Set KEEPSTEP_WRITE_GOLDEN=1 to write the texts anew; then read the difference."""
    done = keepstep(*COMMANDS[name], "--state-dir", recorded)
    assert done.returncode == 0, done.stderr
    text = "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("KEEPSTEP_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", ["jobs", "resources", "incidents", "incident", "report"])
@pytest.mark.parametrize("columns", [60, 80, 140])
def test_tables_fit_the_terminal(recorded, keepstep, name, columns):
    done = keepstep(*COMMANDS[name], "--state-dir", recorded, columns=columns)
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= columns


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("jobs", views.Jobs),
        ("resources", views.Resources),
        ("incidents", views.Incidents),
        ("incident", views.IncidentReport),
        ("report", views.Report),
    ],
)
def test_json_is_the_view(recorded, keepstep, name, kind):
    done = keepstep(*COMMANDS[name], "--state-dir", recorded, "--json")
    assert done.returncode == 0, done.stderr
    msgspec.json.decode(done.stdout, type=kind)


def test_incident_has_the_whole_story(recorded, keepstep):
    done = keepstep("incident", "show", "inc-0002", "--state-dir", recorded, "--json")
    report = msgspec.json.decode(done.stdout, type=views.IncidentReport)
    (attempt,) = report.attempts
    assert attempt.cause == report.incident.cause != ""
    assert any(evidence.supports for evidence in attempt.evidence)
    assert set(attempt.fenced) == {"node-a", "node-b"}
    assert (attempt.restore_tier, attempt.restore_step) == ("ram", 6)
    assert report.incident.step_before - 6 == report.incident.lost_steps
    assert [action.reason for action in report.actions if not action.reason] == []
    kinds = [order.kind for action in report.actions for order in action.orders]
    assert kinds.count("Fence") == kinds.count("Launch") == 2
    assert all(order.took_s is not None for action in report.actions for order in action.orders)
    assert {"isolating", "selecting", "placing", "restarting", "verifying"} <= {stage.stage for stage in report.stages}


def test_report_adds_up(recorded, keepstep):
    found = msgspec.json.decode(keepstep("report", "--state-dir", recorded, "--json").stdout, type=views.Report)
    (job,) = found.jobs
    assert job.faults == sum(job.by_cause.values()) == sum(job.by_verdict.values()) == 1
    assert job.restored_from == {"ram": 1}
    assert 0 < job.goodput < 1
    (whole,) = [spread for spread in job.stages if spread.stage == "all"]
    assert whole.p50_s == whole.p95_s == job.downtime_s


def test_incidents_of_one_job(recorded, keepstep):
    assert "inc-0002" in keepstep("incidents", "--job", "gpt", "--state-dir", recorded).stdout
    unknown = keepstep("incidents", "--job", "bert", "--state-dir", recorded)
    assert unknown.returncode == 1
    assert "no job 'bert'" in unknown.stderr
    assert "gpt" in unknown.stderr


def test_unknown_incident(recorded, keepstep):
    done = keepstep("incident", "show", "inc-9999", "--state-dir", recorded)
    assert done.returncode == 1
    assert "inc-0002" in done.stderr


def test_journal_verify(recorded, keepstep):
    done = keepstep("journal", "verify", "--state-dir", recorded)
    assert done.returncode == 0
    assert "sound" in done.stdout
    assert keepstep("journal", "verify", recorded / "journal.db", "--json").returncode == 0


def test_journal_verify_names_the_first_bad_entry(recorded, keepstep):
    db = sqlite3.connect(recorded / "journal.db")
    db.execute("DROP TRIGGER entries_fix")
    db.execute("UPDATE entries SET at_s = at_s + 1 WHERE seq = 17")
    db.commit()
    db.close()
    done = keepstep("journal", "verify", "--state-dir", recorded)
    assert done.returncode == 1
    assert "entry 17" in done.stderr
    done = keepstep("journal", "verify", "--state-dir", recorded, "--json")
    assert done.returncode == 1
    assert msgspec.json.decode(done.stdout)["first_bad_entry"] == 17


def test_nothing_recorded_yet(tmp_path, keepstep):
    done = keepstep("jobs", "--state-dir", tmp_path / "fresh")
    assert done.returncode == 1
    assert "nothing is recorded" in done.stderr
    assert not (tmp_path / "fresh").exists()


@pytest.mark.parametrize("command", ["stop gpt", "hold node/node-a", "unhold node/node-b", "approve inc-0002"])
def test_a_word_of_a_person_needs_a_server(recorded, keepstep, command):
    done = keepstep(*command.split(), "--state-dir", recorded)
    assert done.returncode == 1
    assert "no server has run" in done.stderr


@pytest.mark.parametrize("command", ["stop nope", "hold node/nope", "unhold node/nope", "approve nope", "deny nope"])
def test_a_word_about_nothing(served, keepstep, command):
    done = keepstep(*command.split(), "--state-dir", served.path)
    assert done.returncode == 1
    assert "'nope'" in done.stderr or "'node/nope'" in done.stderr


def test_holds_and_what_waits_for_a_person_are_listed(recorded, keepstep):
    told = keepstep("holds", "--state-dir", recorded)
    assert told.returncode == 0 and "person:ada" in told.stdout and "loose cable" in told.stdout
    found = msgspec.json.decode(keepstep("holds", "--json", "--state-dir", recorded).stdout, type=views.Holds)
    assert [line.resource for line in found.holds] == ["node/node-b"]
    assert keepstep("approvals", "--state-dir", recorded).stdout.strip() == "nothing waits for a person"
    waiting = keepstep("approvals", "--json", "--state-dir", recorded)
    assert msgspec.json.decode(waiting.stdout, type=views.Incidents).incidents == ()
