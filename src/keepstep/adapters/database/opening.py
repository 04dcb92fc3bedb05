"""One database, opened: everything that a server keeps in it. Owns the order of opening; each part stands in its own module."""

from pathlib import Path

from keepstep.adapters.database.archive import SqlArchive
from keepstep.adapters.database.engine import PATIENCE_S, Connections, reach
from keepstep.adapters.database.fence import CHANNEL, Fence
from keepstep.adapters.database.journal import SqlJournal
from keepstep.adapters.database.leadership import SqlLeadership
from keepstep.adapters.database.migrate import Schema, prepare
from keepstep.adapters.database.news import News
from keepstep.adapters.database.snapshots import SqlSnapshots


def open_journal(where: str | Path, *, read_only: bool = False, patience_s: float = PATIENCE_S) -> SqlJournal:
    """The journal alone; closing it closes the database. See open_database."""
    return open_database(where, read_only=read_only, patience_s=patience_s).journal


def open_database(where: str | Path, *, read_only: bool = False, patience_s: float = PATIENCE_S) -> "Database":
    """``where``: a file, made where there is none, or ``postgresql://user@host/database``. Brings its schema up to date.

    ``read_only`` looks at what another process may be writing, and changes nothing, not even the schema; works on files of
    every older Keepstep. ``patience_s``: how long a call may wait for a connection, a lock, or an answer.

    Raises JournalSchemaNewer, JournalCorrupt (no database), JournalUnavailable (cannot be opened, cannot be reached),
    FileNotFoundError (``read_only`` and absent), ValueError (``where`` names no database that we know).
    """
    connections = Connections(reach(where, read_only=read_only, patience_s=patience_s), read_only=read_only)
    try:
        return Database(connections, prepare(connections))
    except BaseException:
        connections.close()
        raise


class Database:
    """What is in it, each part as its port. All of it may be used from any thread, each part by one at a time."""

    def __init__(self, connections: Connections, revision: str) -> None:
        self.connections = connections
        self.schema = Schema(connections, revision)
        self.name = connections.name
        """For messages; without a password."""
        fence = Fence(is_postgresql=connections.is_postgresql)
        self.journal = SqlJournal(connections, fence, self.schema)
        self.archive = SqlArchive(connections, self.schema)
        self.snapshots = SqlSnapshots(connections, self.schema)
        lock = None if connections.is_postgresql else Path(f"{connections.name}-leader")
        self.leadership = SqlLeadership(connections, fence, lock, self.schema)

    def news(self) -> News:
        """Hears when somebody appends to the journal. To be closed by whoever asked for it."""
        return self.connections.news(CHANNEL)

    def close(self) -> None:
        self.leadership.close()
        self.connections.close()
