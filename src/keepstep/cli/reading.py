"""Where an answer comes from: the server if one runs, else the journal. Owns that choice; must not start a server."""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from keepstep.cli.terminal import fail

if TYPE_CHECKING:
    from keepstep.adapters.database.opening import Database
    from keepstep.server.history import Books
    from keepstep.server.state_dir import StateDir
    from keepstep.wire.requests import Accepted, Request

Answer = TypeVar("Answer")


def state_of(state_dir: str | None) -> "StateDir":
    from keepstep.server.state_dir import StateDir, default_state_dir

    return StateDir((Path(state_dir) if state_dir else default_state_dir()).absolute())


def ask(state_dir: str | None, what: str, kind: type[Answer], **args: Any) -> Answer:
    """The answer to a question of ``server.queries``; ends the program where there is none."""
    from keepstep.adapters.server_link.errors import ServerGone, ServerRefused
    from keepstep.cli.client import named_server, open_tool

    state = state_of(state_dir)
    try:
        tool = open_tool(state)
        if tool is not None:
            with tool:
                return tool.query(what, kind, **args)
    except ServerGone as error:
        if named_server():
            fail(str(error))
        # It does not run: the journal knows the same.
    except (ServerRefused, ValueError) as error:
        fail(str(error))
    return _from_journal(state, what, kind, args)


def _from_journal(state: "StateDir", what: str, kind: type[Answer], args: dict[str, Any]) -> Answer:
    nothing = f"nothing is recorded in {state.path} yet; `keepstep run` begins, or name another --state-dir"
    return ask_file(state.journal, what, kind, nothing, **args)


def ask_file(path: Path, what: str, kind: type[Answer], missing: str = "", **args: Any) -> Answer:
    """The answer from a journal file alone, wherever it was copied to. ``missing``: what to say where it is not there."""
    from keepstep.adapters.database.opening import open_database
    from keepstep.ports import JournalCorrupt, JournalSchemaNewer, JournalUnavailable
    from keepstep.server.desk import Desk, UnknownSubject
    from keepstep.server.queries import answer

    try:
        database = open_database(path, read_only=True)
    except FileNotFoundError:
        fail(missing or f"there is no journal file {path}")
    except (JournalCorrupt, JournalSchemaNewer, JournalUnavailable) as error:
        fail(str(error))
    try:
        books = read_books(database)
        found = answer(Desk(books, None, books.history.last_s, database.journal), what, args)
    except (JournalCorrupt, UnknownSubject, ValueError) as error:
        fail(str(error))
    finally:
        database.close()
    if not isinstance(found, kind):
        raise TypeError(f"{what} answers {type(found).__name__}, not {kind.__name__}")
    return found


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
