"""An empty database is made at once, an older one step by step: both must come to the same."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import inspect

from keepstep.adapters.database import migrate, schema
from keepstep.adapters.database.engine import Connections, reach
from keepstep.adapters.database.opening import Database, open_database
from keepstep.core.facts import ServerStarted
from keepstep.ports import JournalSchemaNewer, Snapshot
from keepstep.review.records import IncidentRecord

GUARDS = {
    "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY 1",
    "postgresql": "SELECT tgname, pg_get_triggerdef(t.oid), prosrc FROM pg_trigger t JOIN pg_proc p ON p.oid = tgfoid "
    "WHERE NOT tgisinternal ORDER BY 1",
}


@pytest.fixture(params=["sqlite", "postgresql"])
def wheres(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Two databases that are not there yet."""
    if request.param == "sqlite":
        return str(tmp_path / "one.db"), str(tmp_path / "two.db")
    postgres = request.getfixturevalue("postgres")
    return request.getfixturevalue("postgres_url"), postgres.fresh()


PATIENCE_S = 60.0
"""What a migration imports on its way may take long on a busy machine."""


def connections_to(where: str) -> Connections:
    return Connections(reach(where, read_only=False, patience_s=PATIENCE_S), read_only=False)


def opened(where: str, *, read_only: bool = False) -> Database:
    return open_database(where, read_only=read_only, patience_s=PATIENCE_S)


def described(connections: Connections) -> dict[str, object]:
    """Columns, keys, indexes and triggers."""
    with connections.reading() as connection:
        seen = inspect(connection)
        tables = {
            name: (
                sorted((c["name"], repr(c["type"]), c["nullable"]) for c in seen.get_columns(name)),
                seen.get_pk_constraint(name)["constrained_columns"],
                sorted((i["name"], i["column_names"], _condition(i)) for i in seen.get_indexes(name)),
            )
            for name in seen.get_table_names()
        }
        guards = connection.exec_driver_sql(GUARDS[connection.dialect.name])
        return {**tables, "guards": [tuple(row) for row in guards]}


def _condition(index: Any) -> str:
    options = index["dialect_options"].items()
    return " ".join(str(value) for name, value in options if name.endswith("where"))


def test_made_at_once_and_migrated_are_the_same(wheres: tuple[str, str]) -> None:
    one = opened(wheres[0])
    two = connections_to(wheres[1])
    with two.writing(patient=True) as connection:
        migrate.upgrade(connection)
        assert migrate.revision_of(connection) == migrate.CURRENT
    assert described(one.connections) == described(two)
    assert len(described(two)["guards"]) >= 9  # type: ignore[arg-type]
    one.close()
    two.close()


def test_a_migration_that_fails_changes_nothing(wheres: tuple[str, str]) -> None:
    connections = connections_to(wheres[0])
    with connections.writing() as connection:
        migrate.upgrade(connection, to="0002")
        connection.exec_driver_sql("CREATE TABLE reports (in_the_way INTEGER)")
    before = described(connections)
    with pytest.raises(Exception, match=r'"?reports"? already exists'):
        migrate.prepare(connections)
    assert described(connections) == before
    with connections.writing() as connection:
        connection.exec_driver_sql("DROP TABLE reports")
    assert migrate.prepare(connections) == migrate.CURRENT
    connections.close()


FORMER = """
CREATE TABLE finished (what {text} NOT NULL, id {text} NOT NULL, ended_s {real} NOT NULL, job {text}, tenant {text},
    state {text}, cause {text}, kind {text}, words {text} NOT NULL, PRIMARY KEY (what, ended_s, id));
CREATE UNIQUE INDEX finished_id ON finished (what, id);
CREATE INDEX finished_job ON finished (what, job, ended_s, id);
CREATE TABLE finished_nodes (what {text} NOT NULL, node {text} NOT NULL, id {text} NOT NULL,
    PRIMARY KEY (what, node, id));
CREATE INDEX finished_nodes_id ON finished_nodes (what, id);
INSERT INTO finished VALUES ('incident', 'inc-1', 5.0, 'j', 't', 'recovered', 'network', 'fault', 'word');
INSERT INTO finished_nodes VALUES ('incident', 'n1', 'inc-1')
"""
"""What is over, as 0003 laid it out."""


def test_what_is_over_is_still_found_after_its_tables_were_laid_out_anew(wheres: tuple[str, str]) -> None:
    """Else a server on a database of before files nothing any more, and forgets nothing."""
    connections = connections_to(wheres[0])
    types = ("TEXT", "REAL") if "://" not in wheres[0] else ('TEXT COLLATE "C"', "DOUBLE PRECISION")
    record = IncidentRecord(
        id="inc-1", job="j", tenant="t", kind="fault", state="recovered", cause="network", opened_s=4.0, closed_s=5.0
    )
    with connections.writing() as connection:
        migrate.upgrade(connection, to="0003")
        for statement in FORMER.format(text=types[0], real=types[1]).split(";"):
            connection.exec_driver_sql(statement)
        body = {"what": "incident", "id": "inc-1", "record": msgspec.msgpack.encode(record), "report": b"told"}
        connection.execute(schema.reports.insert(), [body])
    connections.close()
    plain, database = opened(wheres[1]), opened(wheres[0])
    assert described(database.connections) == described(plain.connections)
    assert database.archive.list("incident", {"node": "n1", "job": "j", "q": "word"}).records == (record,)
    database.archive.put(9, [(msgspec.structs.replace(record, id="inc-2"), b"told")])
    assert database.archive.list("incident", {"job": "j"}).total == 2
    plain.close()
    database.close()


def test_several_that_open_it_at_once_make_it_once(wheres: tuple[str, str]) -> None:
    together = threading.Barrier(6)

    def open_it() -> Database:
        together.wait()
        return opened(wheres[0])

    with ThreadPoolExecutor(6) as threads:
        opening = [threads.submit(open_it) for _ in range(6)]
    for database in [each.result() for each in opening]:
        assert database.journal.verify() == 0
        database.close()


def test_who_looks_before_it_is_made_sees_it_once_it_is(wheres: tuple[str, str]) -> None:
    """As a viewer does that was started with the server: the file is there before its tables are."""
    if "://" not in wheres[0]:
        Path(wheres[0]).touch()
    early = opened(wheres[0], read_only=True)
    assert early.journal.last() == 0 and list(early.journal.read()) == [] and early.leadership.leader() is None
    owner = opened(wheres[0])
    assert owner.leadership.acquire("s", "unix:/s", 5.0) == 1
    owner.journal.append(1.0, [ServerStarted(server="s", version="1", term=1)])
    assert [entry.seq for entry in early.journal.read()] == [early.journal.last()] == [1]
    assert len(early.journal.mentioning(["fact:ServerStarted"])) == 1
    assert early.leadership.leader() is not None
    early.close()
    owner.close()


def test_a_newer_schema_is_refused(wheres: tuple[str, str]) -> None:
    database = opened(wheres[0])
    with database.connections.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0099'")
    database.close()
    with pytest.raises(JournalSchemaNewer, match="schema 0099; this Keepstep knows up to"):
        opened(wheres[0])


def test_alembic_knows_the_same_steps() -> None:
    from alembic.script import ScriptDirectory

    script = ScriptDirectory(str(Path(migrate.__file__).with_name("migrations")))
    assert tuple(step.revision for step in script.walk_revisions())[::-1] == migrate.REVISIONS


def test_what_a_snapshot_of_before_left_out_is_read_from_the_journal(wheres: tuple[str, str]) -> None:
    """Who only looks changes no tables, so an older archive is closed to it. A compacted journal needs its snapshot."""
    database = opened(wheres[0])
    assert database.leadership.acquire("s", "unix:/s", 5.0) == 1
    database.journal.append(1.0, [ServerStarted(server="s", version="1", term=1)])
    (entry,) = database.journal.read()
    database.snapshots.put(Snapshot(seq=1, hash=entry.hash, at_s=1.0, body=b"books"))
    with database.connections.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0003'")
    database.close()
    early = opened(wheres[0], read_only=True)
    leader = early.leadership.leader()
    assert early.snapshots.newest() is None and leader is not None and leader.term == 1
    early.close()
    again = connections_to(wheres[0])
    with again.writing() as connection:
        hashed = bytes.fromhex(entry.hash)
        connection.execute(schema.marks.insert().values(name="compacted", seq=1, hash=hashed))
    again.close()
    early = opened(wheres[0], read_only=True)
    newest = early.snapshots.newest()
    assert newest is not None and newest.body == b"books"
    early.close()
