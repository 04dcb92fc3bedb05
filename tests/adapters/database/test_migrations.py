"""An empty database is made at once, an older one step by step: both must come to the same."""

import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect

from keepstep.adapters.database import migrate
from keepstep.adapters.database.engine import Connections, reach
from keepstep.adapters.database.opening import open_database
from keepstep.core.facts import ServerStarted
from keepstep.ports import JournalSchemaNewer

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
    one = open_database(wheres[0])
    two = Connections(reach(wheres[1], read_only=False, patience_s=5.0), read_only=False)
    with two.writing(patient=True) as connection:
        migrate.upgrade(connection)
        assert migrate.revision_of(connection) == migrate.CURRENT
    assert described(one.connections) == described(two)
    assert len(described(two)["guards"]) >= 9  # type: ignore[arg-type]
    one.close()
    two.close()


def test_a_migration_that_fails_changes_nothing(wheres: tuple[str, str]) -> None:
    connections = Connections(reach(wheres[0], read_only=False, patience_s=5.0), read_only=False)
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


def test_several_that_open_it_at_once_make_it_once(wheres: tuple[str, str]) -> None:
    opened = []
    threads = [threading.Thread(target=lambda: opened.append(open_database(wheres[0]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 4
    for database in opened:
        assert database.journal.verify() == 0
        database.close()


def test_who_looks_before_it_is_made_sees_it_once_it_is(wheres: tuple[str, str]) -> None:
    """As a viewer does that was started with the server: the file is there before its tables are."""
    if "://" not in wheres[0]:
        Path(wheres[0]).touch()
    early = open_database(wheres[0], read_only=True)
    assert early.journal.last() == 0 and list(early.journal.read()) == [] and early.leadership.leader() is None
    owner = open_database(wheres[0])
    assert owner.leadership.acquire("s", "unix:/s", 5.0) == 1
    owner.journal.append(1.0, [ServerStarted(server="s", version="1", term=1)])
    assert [entry.seq for entry in early.journal.read()] == [early.journal.last()] == [1]
    assert len(early.journal.mentioning(["fact:ServerStarted"])) == 1
    assert early.leadership.leader() is not None
    early.close()
    owner.close()


def test_a_newer_schema_is_refused(wheres: tuple[str, str]) -> None:
    database = open_database(wheres[0])
    with database.connections.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0099'")
    database.close()
    with pytest.raises(JournalSchemaNewer, match="schema 0099; this Keepstep knows up to"):
        open_database(wheres[0])


def test_alembic_knows_the_same_steps() -> None:
    from alembic.script import ScriptDirectory

    script = ScriptDirectory(str(Path(migrate.__file__).with_name("migrations")))
    assert tuple(step.revision for step in script.walk_revisions())[::-1] == migrate.REVISIONS
