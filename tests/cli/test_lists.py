"""Lists that are longer than a page, and those that are narrowed down: what the options of the commands do with them."""

import contextlib
from pathlib import Path

import msgspec
import pytest

from keepstep.adapters.database.opening import open_journal
from keepstep.core.facts import Device, JobSubmitted, NodeJoined
from keepstep.server import views

from .conftest import HERE, Line

DEVICES = 600


@pytest.fixture
def fleet(tmp_path) -> Path:
    """A state directory whose journal knows one node with more devices than a page has rows."""
    lines = [msgspec.json.decode(text, type=Line) for text in (HERE / "recorded.jsonl").read_bytes().splitlines()]
    submitted = next(line.record for line in lines if isinstance(line.record, JobSubmitted))
    joined = next(line.record for line in lines if isinstance(line.record, NodeJoined))
    many = tuple(Device(slot=slot, serial=f"SN{slot:04}", model="cpu", firmware="") for slot in range(DEVICES))
    with contextlib.closing(open_journal(tmp_path / "journal.db")) as journal:
        journal.append(1.0, [submitted, msgspec.structs.replace(joined, devices=many)])
    return tmp_path


def test_a_list_that_was_cut_says_so_and_how_to_see_all(fleet, keepstep):
    told = keepstep("resources", "--state-dir", fleet)
    assert told.returncode == 0 and "500 of 601; narrow it down, or see all with --limit 0" in told.stdout
    assert "3 of 601" in keepstep("resources", "--limit", 3, "--state-dir", fleet).stdout


@pytest.mark.parametrize(("limit", "rows"), [(0, 601), (550, 550), (700, 601), (1, 1)])
def test_limit_goes_over_as_many_pages_as_it_takes(fleet, keepstep, limit, rows):
    done = keepstep("resources", "--limit", limit, "--json", "--state-dir", fleet)
    found = msgspec.json.decode(done.stdout, type=views.Resources)
    assert len({one.id for one in found.resources}) == len(found.resources) == rows
    assert found.total == 601 and bool(found.next) == (rows < 601)
    assert "601" not in keepstep("resources", "--limit", 0, "--state-dir", fleet).stdout


def test_resources_are_narrowed_down(fleet, keepstep):
    by_serial = keepstep("resources", "--find", "sn0599", "--json", "--state-dir", fleet)
    assert [one.serial for one in msgspec.json.decode(by_serial.stdout, type=views.Resources).resources] == ["SN0599"]
    none = keepstep("resources", "--state", "quarantined", "--state-dir", fleet)
    assert (none.returncode, none.stdout.strip()) == (0, "no node or device fits")


@pytest.mark.parametrize(
    ("option", "value", "fits"),
    [
        ("--job", "gpt", True),
        ("--state", "recovered", True),
        ("--state", "escalated", False),
        ("--cause", "power", False),
        ("--node", "node-z", False),
        ("--find", "INC-0002", True),
        ("--find", "nothing like it", False),
        ("--since", "2000-01-01", True),
        ("--since", "1h", False),
        ("--open", None, False),
    ],
)
def test_incidents_are_narrowed_down(recorded, keepstep, option, value, fits):
    done = keepstep("incidents", option, *([value] if value else []), "--state-dir", recorded)
    assert done.returncode == 0, done.stderr
    assert ("inc-0002" in done.stdout) == fits
    assert ("no incident fits" in done.stdout) != fits


def test_jobs_and_nodes_are_narrowed_down(recorded, keepstep):
    assert "gpt" in keepstep("jobs", "--find", "GP", "--state-dir", recorded).stdout
    assert keepstep("jobs", "--find", "bert", "--state-dir", recorded).stdout.strip() == "no job fits"
    assert keepstep("nodes", "--find", "zz", "--state-dir", recorded).stdout.strip() == "no node fits"
    nodes = keepstep("nodes", "--find", "-a", "--state-dir", recorded).stdout
    assert "node-a" in nodes and "node-b" not in nodes


@pytest.mark.parametrize("words", ["incidents --state nope", "incidents --cause nope", "jobs --state nope"])
def test_a_word_that_nothing_can_be_is_refused_with_those_that_are(recorded, keepstep, words):
    done = keepstep(*words.split(), "--state-dir", recorded)
    assert done.returncode == 2
    assert "'nope'" in done.stderr and (
        "recovered" in done.stderr or "running" in done.stderr or "device" in done.stderr
    )


def test_a_time_that_is_none_is_refused(recorded, keepstep):
    done = keepstep("incidents", "--since", "yesterday", "--state-dir", recorded)
    assert done.returncode == 2 and "36h" in done.stderr


def test_where_no_server_runs_the_named_database_is_read(recorded, tmp_path, keepstep, monkeypatch):
    monkeypatch.setenv("KEEPSTEP_DATABASE", str(recorded / "journal.db"))
    done = keepstep("incidents", "--state-dir", tmp_path / "another")
    assert done.returncode == 0, done.stderr
    assert "inc-0002" in done.stdout
