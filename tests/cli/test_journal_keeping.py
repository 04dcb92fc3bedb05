"""Compaction, its proof, backup and restore, on a file that no server holds and beside one that runs."""

import json
import sqlite3
from pathlib import Path

from tests.server.conftest import ServerProcess

from keepstep.adapters.database.opening import open_database
from keepstep.cli.app import add_late
from keepstep.server import archive_file
from keepstep.server.state_dir import StateDir

add_late(["backup", "restore"])

OLD = "1s"
"""The recorded journal is years old."""


def hashes(path: Path) -> list[str]:
    opened = open_database(path, read_only=True)
    try:
        return [entry.hash for entry in opened.journal.read(opened.journal.first() - 1)]
    finally:
        opened.close()


def file_all(state: Path) -> None:
    """As a server does at its start."""
    from keepstep.server.replay import replay

    opened = open_database(state / "journal.db")
    try:
        replay(opened.journal, opened.archive)
    finally:
        opened.close()


def test_old_entries_move_out_and_the_chain_is_proven_with_and_without_them(recorded, keepstep):
    before = hashes(recorded / "journal.db")
    file_all(recorded)
    here = ("--state-dir", recorded)
    shown = keepstep("incidents", *here).stdout
    report = keepstep("incident", "show", "inc-0002", *here).stdout
    done = keepstep("journal", "compact", "--older-than", OLD, *here, "--json")
    assert done.returncode == 0, done.stderr
    moved = json.loads(done.stdout)
    assert moved["upto"] == len(before) and moved["hash"] == before[-1]
    [file] = archive_file.files(recorded / "archive")
    assert [e.hash.hex() for e in archive_file.read(file) if not isinstance(e, archive_file.Header)] == before
    assert len(hashes(recorded / "journal.db")) == 1, "the fact that tells of it"
    whole = json.loads(keepstep("journal", "verify", *here, "--json").stdout)
    assert whole["whole"] and whole["entries"] == len(before) + 1
    assert "1 archive file" in keepstep("journal", "verify", *here).stdout
    assert keepstep("incidents", *here).stdout == shown
    assert keepstep("incident", "show", "inc-0002", *here).stdout == report
    file.rename(recorded / "elsewhere.ksj")
    told = keepstep("journal", "verify", *here).stdout
    assert f"1 to {len(before)} were moved out" in told and before[-1] in told
    assert keepstep("journal", "show", *here).stdout.count("\n") == 1


def test_there_is_nothing_to_compact_twice_nor_in_a_young_journal(recorded, keepstep):
    file_all(recorded)
    here = ("--state-dir", recorded)
    assert keepstep("journal", "compact", "--older-than", OLD, *here).returncode == 0
    again = keepstep("journal", "compact", "--older-than", "90d", *here)
    assert again.returncode == 0 and "nothing was moved" in again.stderr
    assert keepstep("journal", "compact", "--older-than", "soon", *here).returncode == 2
    nowhere = keepstep("journal", "compact", "--state-dir", recorded / "other")
    assert nowhere.returncode == 1 and "no journal" in nowhere.stderr
    assert not (recorded / "other").exists()


def test_an_archive_file_that_was_touched_is_found(recorded, keepstep):
    file_all(recorded)
    keepstep("journal", "compact", "--older-than", OLD, "--state-dir", recorded)
    [file] = archive_file.files(recorded / "archive")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    done = keepstep("journal", "verify", "--state-dir", recorded, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["sound"] is False


def test_a_copy_is_a_journal_and_fills_an_empty_directory_only(recorded, keepstep, tmp_path):
    before, copy = hashes(recorded / "journal.db"), tmp_path / "copy.db"
    done = keepstep("backup", copy, "--state-dir", recorded)
    assert done.returncode == 0 and f"{len(before)} entries" in done.stdout
    assert keepstep("backup", copy, "--state-dir", recorded).returncode == 1, "never over another copy"
    assert keepstep("journal", "verify", copy).returncode == 0
    full = keepstep("restore", copy, "--state-dir", recorded)
    assert full.returncode == 1 and "empty" in full.stderr
    target = tmp_path / "new"
    assert keepstep("restore", copy, "--state-dir", target).returncode == 0
    assert hashes(target / "journal.db") == before
    assert keepstep("incidents", "--state-dir", target).stdout == keepstep("incidents", "--state-dir", recorded).stdout


def test_a_damaged_copy_is_not_restored(recorded, keepstep, tmp_path):
    copy, target = tmp_path / "copy.db", tmp_path / "new"
    keepstep("backup", copy, "--state-dir", recorded)
    db = sqlite3.connect(copy)
    db.execute("DROP TRIGGER entries_fix")
    db.execute("UPDATE entries SET at_s = at_s + 1 WHERE seq = 7")
    db.commit()
    db.close()
    done = keepstep("restore", copy, "--state-dir", target)
    assert done.returncode == 1 and "entry 7" in done.stderr
    assert not hashes(target / "journal.db") if (target / "journal.db").exists() else True


def test_beside_a_running_server(recorded, keepstep, tmp_path):
    state = StateDir(recorded)
    server = ServerProcess(state).start()
    try:
        here = ("--state-dir", recorded)
        done = keepstep("journal", "compact", "--older-than", OLD, *here)
        assert done.returncode == 0, done.stderr
        assert keepstep("backup", tmp_path / "copy.db", *here).returncode == 0
        assert keepstep("journal", "verify", *here).returncode == 0
        shown = keepstep("incidents", *here)
        assert shown.returncode == 0 and "inc-0002" in shown.stdout
        server.restart()
        assert keepstep("incidents", *here).stdout == shown.stdout, "it starts from the snapshot"
    finally:
        server.kill()


def test_entries_that_were_moved_out_are_still_shown(recorded, keepstep, tmp_path):
    file_all(recorded)
    here = ("--state-dir", recorded)
    whole = keepstep("journal", "show", *here).stdout
    late = keepstep("journal", "show", "--after", 3, *here).stdout
    ours = keepstep("journal", "show", "--about", "inc-0002", *here).stdout
    assert whole.count("\n") > ours.count("\n") > 3 and "inc-0002" in ours
    assert keepstep("journal", "compact", "--older-than", OLD, *here).returncode == 0
    done = keepstep("journal", "show", *here)
    assert done.stdout.startswith(whole) and "Compacted" in done.stdout and done.stderr == ""
    assert keepstep("journal", "show", "--after", 3, *here).stdout.startswith(late)
    assert keepstep("journal", "show", "--about", "inc-0002", *here).stdout == ours
    assert "Compacted" in keepstep("journal", "show", "--about", "fact:Compacted", *here).stdout

    moved = tmp_path / "elsewhere"
    (recorded / "archive").rename(moved)
    without = keepstep("journal", "show", *here)
    assert without.returncode == 0 and "--archive" in without.stderr and not without.stdout.startswith(whole)
    found = keepstep("journal", "show", "--archive", moved, *here)
    assert found.stdout == done.stdout and found.stderr == ""
