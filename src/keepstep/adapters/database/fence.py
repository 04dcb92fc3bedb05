"""The term under which this process writes. Leadership sets it, the journal asks it in each of its transactions."""

from keepstep.adapters.database.engine import Cursor
from keepstep.ports import Deposed

CHANNEL = "keepstep"
"""Where PostgreSQL tells listeners that something was appended."""

_NEWEST = "SELECT term FROM leadership WHERE id = 1"
_NEWEST_AND_TELL = f"SELECT ({_NEWEST} FOR SHARE), pg_notify('{CHANNEL}', '')"
"""Until the end of the transaction nobody can begin a term. The word goes out with the commit; here it costs no round trip."""

STEPPED_DOWN = -1


class Fence:
    def __init__(self, *, is_postgresql: bool) -> None:
        self._asked = _NEWEST_AND_TELL if is_postgresql else _NEWEST
        self.term = 0
        """0: never led. Then it may write only where nobody ever led, as on a journal of one's own."""

    def hold(self, cursor: Cursor) -> None:
        """To the end of the transaction. SQLite has one writer at a time anyway. Raises Deposed."""
        cursor.execute(self._asked)
        row = cursor.fetchone()
        newest = row[0] or 0 if row is not None else 0
        if newest != self.term:
            ours = f"this server led in term {self.term}" if self.term > 0 else "this server does not lead"
            raise Deposed(f"the newest term of the journal is {newest}, and {ours}: nothing was kept")
