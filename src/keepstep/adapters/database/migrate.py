"""Which schema a database has, and how it comes to ours. Owns the version; what each step does stands in ``migrations``.

The version is read with a plain select. Alembic is imported only where an older database is to be changed: an empty one is
made at once from ``schema`` and ``guards``, which a test holds to the migrations' result.
"""

import logging
from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, String, Table, select

from keepstep.adapters.database import guards
from keepstep.adapters.database.engine import Connections
from keepstep.adapters.database.schema import metadata
from keepstep.ports import JournalSchemaNewer

log = logging.getLogger("keepstep.database")

REVISIONS = ("0001", "0002", "0003", "0004")
"""Oldest first. Append only: a released migration is never edited."""

CURRENT = REVISIONS[-1]
CONTROL_PLANE_SINCE = "0003"
"""Mentions, snapshots and leadership are there."""
_LOCK = 0x6B656570
"""Of PostgreSQL's advisory locks: one replica migrates, the others wait for it."""

_version = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))


def revision_of(connection: Connection) -> str:
    """Empty for a database without our tables. Files from before there was Alembic numbered their schema themselves."""
    if _has(connection, _version.name):
        return connection.execute(select(_version.c.version_num)).scalar() or ""
    if _has(connection, "schema_version"):
        number = connection.exec_driver_sql("SELECT max(version) FROM schema_version").scalar()
        return f"{number:04d}" if number else ""
    return ""


def _has(connection: Connection, table: str) -> bool:
    return connection.dialect.has_table(connection, table)


class Schema:
    """Which schema a database has. One that is older than ours is only looked at, and its owner may bring it up to date
    meanwhile, or make it: it is asked again each time."""

    def __init__(self, connections: Connections, revision: str) -> None:
        self._connections = connections
        self._revision = revision

    @property
    def revision(self) -> str:
        """Empty where there is none. Raises JournalUnavailable, JournalSchemaNewer."""
        if self._revision != CURRENT:
            with self._connections.reading() as connection:
                self._revision = revision_of(connection)
            _refuse_newer(self._revision, self._connections.name)
        return self._revision

    @property
    def current(self) -> bool:
        return self.revision == CURRENT


def prepare(connections: Connections) -> str:
    """Bring the database to our schema; a read-only one is only looked at. Returns the revision that it has now.

    Raises JournalSchemaNewer.
    """
    with connections.reading() as connection:
        found = revision_of(connection)
    _refuse_newer(found, connections.name)
    if found == CURRENT or connections.read_only:
        return found
    with connections.writing(patient=True) as connection:
        if connections.is_postgresql:
            connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        found = revision_of(connection)
        _refuse_newer(found, connections.name)
        if not found:
            _create(connection)
        elif found != CURRENT:
            log.info("the journal %s is brought from schema %s to %s", connections.name, found, CURRENT)
            upgrade(connection, found)
    return CURRENT


def _refuse_newer(found: str, name: str) -> None:
    if found and found not in REVISIONS:
        raise JournalSchemaNewer(
            f"the journal {name} has schema {found}; this Keepstep knows up to {CURRENT}. "
            "Use the newer Keepstep that wrote it, or another --state-dir."
        )


def _create(connection: Connection) -> None:
    metadata.create_all(connection, checkfirst=False)  # what is there already is not ours
    for statement in guards.statements(connection.dialect.name):
        connection.exec_driver_sql(statement)
    _version.create(connection)
    connection.execute(_version.insert().values(version_num=CURRENT))


def upgrade(connection: Connection, found: str = "", to: str = CURRENT) -> None:
    """Run the migrations after ``found`` in the transaction of this connection."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    _version.create(connection, checkfirst=True)
    if found and connection.execute(select(_version.c.version_num)).scalar() is None:
        connection.execute(_version.insert().values(version_num=found))
    command.upgrade(config, to)
