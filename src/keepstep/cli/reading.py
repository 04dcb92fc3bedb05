"""Where an answer comes from: the server if one runs, else the journal. Owns that choice; must not start a server."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from keepstep.cli.terminal import fail

if TYPE_CHECKING:
    from keepstep.core.facts import Fact
    from keepstep.server.state_dir import StateDir

Answer = TypeVar("Answer")


def state_of(state_dir: str | None) -> "StateDir":
    from keepstep.server.state_dir import StateDir, default_state_dir

    return StateDir((Path(state_dir) if state_dir else default_state_dir()).absolute())


def ask(state_dir: str | None, what: str, kind: type[Answer], **args: Any) -> Answer:
    """The answer to a question of ``server.queries``; ends the program where there is none."""
    from keepstep.cli.client import ServerGone, ServerRefused, ToolClient

    state = state_of(state_dir)
    address = state.address()
    if address is not None and state.token_file.exists():
        try:
            with ToolClient(address, state.token()) as server:
                return server.query(what, kind, **args)
        except ServerGone:
            pass  # it does not run: the journal knows the same
        except ServerRefused as error:
            fail(str(error))
    return _from_journal(state, what, kind, args)


def _from_journal(state: "StateDir", what: str, kind: type[Answer], args: dict[str, Any]) -> Answer:
    from keepstep.adapters.sqlite.journal import SqliteJournal
    from keepstep.ports import JournalCorrupt, JournalSchemaNewer, JournalUnavailable
    from keepstep.server.desk import Desk, UnknownSubject
    from keepstep.server.queries import answer
    from keepstep.server.replay import replay

    try:
        journal = SqliteJournal(state.journal, read_only=True)
    except FileNotFoundError:
        fail(f"nothing is recorded in {state.path} yet; `keepstep run` begins, or name another --state-dir")
    except (JournalCorrupt, JournalSchemaNewer, JournalUnavailable) as error:
        fail(str(error))
    try:
        books = replay(journal)
        found = answer(Desk(books, None, books.history.last_s, journal), what, args)
    except (JournalCorrupt, UnknownSubject, ValueError) as error:
        fail(str(error))
    finally:
        journal.close()
    if not isinstance(found, kind):
        raise TypeError(f"{what} answers {type(found).__name__}, not {kind.__name__}")
    return found


def tell(state_dir: str | None, *facts: "Fact") -> None:
    """Hand facts to the running server; they are in the journal when this returns."""
    from keepstep.cli.client import ServerGone, ServerRefused, ToolClient

    state = state_of(state_dir)
    address = state.address()
    if address is None or not state.token_file.exists():
        fail(f"no server has run in {state.path} yet; name the --state-dir of the one that leads your jobs")
    try:
        with ToolClient(address, state.token()) as server:
            for fact in facts:
                server.report(fact)
    except (ServerGone, ServerRefused) as error:
        fail(f"{error}; start one with `keepstep server --state-dir {state.path}`")
