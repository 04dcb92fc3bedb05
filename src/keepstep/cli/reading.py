"""Where an answer comes from: the server if one runs, else the journal. Owns that choice; must not start a server."""

import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from keepstep.cli.terminal import fail

if TYPE_CHECKING:
    from keepstep.adapters.database.opening import Database
    from keepstep.server.history import Books
    from keepstep.server.state_dir import StateDir
    from keepstep.wire.requests import Accepted, Request

Answer = TypeVar("Answer")
Query = Callable[..., Any]
"""Whoever answers: ``query(what, kind, **args)`` of a server or of a journal gives a ``kind``."""


def state_of(state_dir: str | None) -> "StateDir":
    from keepstep.server.state_dir import StateDir, default_state_dir

    return StateDir((Path(state_dir) if state_dir else default_state_dir()).absolute())


def ask(state_dir: str | None, what: str, kind: type[Answer], **args: Any) -> Answer:
    """The answer to a question of ``server.queries``; ends the program where there is none."""
    return _asked(state_dir, _single(what, kind, args))


def ask_list(state_dir: str | None, what: str, kind: type[Answer], rows: str, limit: int, **args: Any) -> Answer:
    """As ``ask``, of a list: over as many pages as ``limit`` rows take, 0 for all. ``rows`` is the field that has them."""
    return _asked(state_dir, lambda query: _pages(query, what, kind, rows, limit or sys.maxsize, **args))


def _pages(query: Query, what: str, kind: type[Answer], rows: str, limit: int, **args: Any) -> Answer:
    """The last page's answer, with the rows of all. What closes between two pages comes twice: it is kept once."""
    import msgspec

    from keepstep.server.paging import LIMIT_MAX

    found: dict[object, Any] = {}
    cursor = ""
    while True:
        page: Any = query(what, kind, cursor=cursor, limit=min(LIMIT_MAX, limit - len(found)), **args)
        for row in getattr(page, rows):
            found.setdefault(getattr(row, "id", len(found)), row)
        cursor = page.next
        if not cursor or len(found) >= limit:
            whole: Answer = msgspec.structs.replace(page, **{rows: tuple(found.values())})
            return whole


def _asked(state_dir: str | None, use: Callable[[Query], Answer]) -> Answer:
    from keepstep.adapters.server_link.errors import ServerGone, ServerRefused
    from keepstep.cli.client import named_server, open_tool

    state = state_of(state_dir)
    try:
        tool = open_tool(state)
        if tool is not None:
            with tool:
                return use(tool.query)
    except ServerGone as error:
        if named_server():
            fail(str(error))
        # It does not run: the journal knows the same.
    except (ServerRefused, ValueError) as error:
        fail(str(error))
    nothing = f"nothing is recorded in {state.path} yet; `keepstep run` begins, or name another --state-dir"
    return _from_journal(os.environ.get("KEEPSTEP_DATABASE") or state.journal, use, nothing)


def ask_file(path: Path, what: str, kind: type[Answer], **args: Any) -> Answer:
    """The answer from a journal file alone, wherever it was copied to."""
    return _from_journal(path, _single(what, kind, args), f"there is no journal file {path}")


def _single(what: str, kind: type[Answer], args: dict[str, Any]) -> Callable[[Query], Answer]:
    def use(query: Query) -> Answer:
        found: Answer = query(what, kind, **args)
        return found

    return use


def _from_journal(where: Path | str, use: Callable[[Query], Answer], missing: str) -> Answer:
    """``where``: a file, or the URL of a database. ``missing``: what to say where it is not there."""
    from keepstep.adapters.database.opening import open_database
    from keepstep.ports import JournalCorrupt, JournalSchemaNewer, JournalUnavailable
    from keepstep.server.desk import Desk, UnknownSubject
    from keepstep.server.queries import answer

    try:
        database = open_database(where, read_only=True)
    except FileNotFoundError:
        fail(missing)
    except (JournalCorrupt, JournalSchemaNewer, JournalUnavailable, ValueError) as error:
        fail(str(error))
    try:
        books = read_books(database)
        desk = Desk(books, None, books.history.last_s, database.journal)

        def query(what: str, kind: type[Answer], /, **args: Any) -> Answer:
            found = answer(desk, what, args)
            if not isinstance(found, kind):
                raise TypeError(f"{what} answers {type(found).__name__}, not {kind.__name__}")
            return found

        return use(query)
    except (JournalCorrupt, JournalUnavailable, UnknownSubject, ValueError) as error:
        fail(str(error))
    finally:
        database.close()


def read_books(database: "Database") -> "Books":
    """What a journal says that nobody leads now; changes nothing. Raises JournalCorrupt."""
    from keepstep.server.replay import replay
    from keepstep.server.snapshot import load

    books = load(database.snapshots, database.journal, database.archive, files=False)
    if books.unfiled and database.journal.first() == 1:
        return replay(database.journal)  # its archive is behind, or it never had one; the journal has it all
    return books


def act(state_dir: str | None, request: "Request") -> "Accepted":
    """What a person wants, asked of the running server; it is in the journal when this returns."""
    from keepstep.adapters.server_link.errors import ServerGone, ServerRefused
    from keepstep.cli.client import open_tool

    state = state_of(state_dir)
    try:
        tool = open_tool(state)
        if tool is None:
            fail(f"no server has run in {state.path} yet; name the --state-dir of the one that leads your jobs")
        with tool:
            return tool.act(request, secrets.token_hex(8))
    except ServerGone as error:
        fail(f"{error}; start one with `keepstep server --state-dir {state.path}`")
    except (ServerRefused, ValueError) as error:
        fail(str(error))
