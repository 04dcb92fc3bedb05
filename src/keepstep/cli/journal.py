"""``keepstep journal``: verify, show, compact. Reads the database itself, whether a server runs or not.

``compact`` works beside a running server, which is only asked to put one fact into the journal.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.terminal import JsonOption, StateDirOption, fail, print_json

if TYPE_CHECKING:
    from keepstep.adapters.database.opening import Database
    from keepstep.core.decision import Entry
    from keepstep.core.facts import Compacted
    from keepstep.server.compaction import Proof

journal = typer.Typer(help="The journal: the truth, entry by entry.", no_args_is_help=True)

PathArgument = Annotated[
    Path | None, typer.Argument(help="A journal file. Default: the one in the state directory.", show_default=False)
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        help="postgresql://…, where the servers share one. Default: $KEEPSTEP_DATABASE, else the file in the state directory.",
        show_default=False,
    ),
]
ArchiveOption = Annotated[
    Path | None,
    typer.Option(
        "--archive", help="Folder of archive files. Default: archive in the state directory.", show_default=False
    ),
]
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
LEASE_S = 3600.0
"""How long an append by hand may take, beside which no server begins."""


def open_any(path: Path | str | None, state_dir: str | None, *, read_only: bool = True) -> "Database":
    """The database that is meant; ends the program where there is none."""
    from keepstep.adapters.database.opening import open_database
    from keepstep.cli.reading import state_of
    from keepstep.ports import JournalCorrupt, JournalSchemaNewer, JournalUnavailable

    where = path or os.environ.get("KEEPSTEP_DATABASE") or state_of(state_dir).journal
    try:
        if not read_only and "://" not in str(where) and not Path(where).exists():
            raise FileNotFoundError(f"there is no journal at {where}; name the --state-dir of a server")
        return open_database(where, read_only=read_only)
    except (FileNotFoundError, ValueError, JournalCorrupt, JournalSchemaNewer, JournalUnavailable) as error:
        fail(str(error))


def _archive_of(archive: Path | None, path: Path | None, state_dir: str | None) -> Path:
    """Where the archive files are: as said, else beside the journal file, else in the state directory."""
    from keepstep.cli.reading import state_of

    return archive or (state_of(state_dir).path if path is None else path.parent) / "archive"


def seconds_of(text: str) -> float:
    """``90d``, ``12h``, ``30m``, ``45s``. Raises typer.BadParameter."""
    number, unit = text[:-1], text[-1:]
    if unit not in UNITS_S or not number.replace(".", "", 1).isdecimal():
        raise typer.BadParameter(f"{text!r} is no time; write 90d, 12h, 30m or 45s")
    return float(number) * UNITS_S[unit]


@journal.command("verify")
def verify(
    path: PathArgument = None,
    archive: ArchiveOption = None,
    database: DatabaseOption = None,
    state_dir: StateDirOption = None,
    json: JsonOption = False,
) -> None:
    """Check the hash chain from the first entry to the last, over archive files and the journal. Exit code 1 names the
    first bad entry."""
    from keepstep.ports import JournalCorrupt
    from keepstep.server.compaction import prove

    given = path or database
    directory = _archive_of(archive, path, state_dir)
    if archive is not None and not archive.is_dir():
        fail(f"there is no folder {archive}")
    opened = open_any(given, state_dir)
    try:
        proof = prove(opened.journal, directory)
    except JournalCorrupt as error:
        if json:
            print_json({"sound": False, "first_bad_entry": error.seq, "error": str(error)})
            raise typer.Exit(1) from error
        fail(str(error))
    finally:
        opened.close()
    if json:
        print_json({"sound": True, "entries": proof.last - proof.first + 1, "whole": proof.whole, "proof": proof})
    else:
        typer.echo(_told(proof, directory))


def _told(proof: "Proof", directory: Path) -> str:
    if not proof.last:
        return "0 entries, the chain is sound"
    count = proof.last - proof.first + 1
    if proof.whole and not proof.files:
        return f"{count} entries, the chain is sound"
    if proof.whole:
        return f"{count} entries, the chain is sound; {proof.compacted} of them are in {proof.files} archive file(s)"
    return (
        f"{count} entries, {proof.first} to {proof.last}, are one sound chain. Entries 1 to {proof.first - 1} were moved out "
        f"and are not in {directory}: of them is proven only that the chain goes on from hash {proof.begins_with}. "
        "Name the folder that has their files with --archive to prove the rest."
    )


@journal.command("show")
def show(
    path: PathArgument = None,
    after: Annotated[
        int | None,
        typer.Option(help="Only entries with a higher number.", metavar="SEQ", show_default=False),
    ] = None,
    about: Annotated[
        str,
        typer.Option(
            help="Only entries on this: a job, an incident, a fault, node/NODE, device/NODE/SLOT, a serial number, "
            "fact:RequestRefused (any kind of fact), stage:isolate.",
            metavar="SUBJECT", show_default=False,
        ),
    ] = "",
    archive: ArchiveOption = None,
    database: DatabaseOption = None,
    state_dir: StateDirOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print each entry whole, one JSON document a line.")] = False,
) -> None:  # fmt: skip
    """Print the journal, one entry a line: facts with what they say, decisions with their reasons. Those that were moved into
    archive files come first."""
    import msgspec

    from keepstep.cli.entries import entries, gap
    from keepstep.ports import JournalCorrupt

    opened = open_any(path or database, state_dir)
    directory = _archive_of(archive, path, state_dir)
    try:
        if missing := gap(opened.journal, directory, after or 0):
            typer.echo(f"keepstep: {missing}", err=True)
        for entry in entries(opened.journal, directory, after or 0, about):
            typer.echo(msgspec.json.encode(entry).decode() if json else _line(entry))
    except JournalCorrupt as error:
        fail(str(error))
    finally:
        opened.close()


@journal.command("compact")
def compact(
    older_than: Annotated[
        str, typer.Option("--older-than", help="Age from which entries are moved: 90d, 12h, 30m.", metavar="AGE")
    ] = "90d",
    archive: ArchiveOption = None,
    database: DatabaseOption = None,
    state_dir: StateDirOption = None,
    json: JsonOption = False,
) -> None:
    """Move old entries out of the journal into an archive file, and keep the chain provable. Also beside a running server."""
    import time

    from keepstep.cli.reading import state_of
    from keepstep.ports import Deposed, JournalCorrupt, JournalUnavailable
    from keepstep.server.compaction import NothingToCompact, Store, upto_of
    from keepstep.server.compaction import compact as move

    age_s = seconds_of(older_than)
    opened = open_any(database, state_dir, read_only=False)
    try:
        store = Store(opened.journal, opened.snapshots, opened.archive, archive or state_of(state_dir).path / "archive")
        upto = upto_of(opened.journal, time.time() - age_s)
        if upto < opened.journal.first():
            raise NothingToCompact(f"no entry is older than {older_than}")
        fact = move(store, upto, "owner", _teller(state_dir, opened))
    except NothingToCompact as nothing:
        typer.echo(f"nothing was moved: {nothing}", err=True)
        return
    except (Deposed, JournalCorrupt, JournalUnavailable, OSError, ValueError) as error:
        fail(f"{error}; nothing was lost: entries are removed only once they are in an archive file")
    finally:
        opened.close()
    if json:
        print_json(fact)
    else:
        typer.echo(f"entries up to {fact.upto} are in {store.directory / fact.archive}; keep it: it proves them")


def _teller(state_dir: str | None, opened: "Database") -> "Callable[[Compacted], None]":
    """Who puts the fact into the journal: the server that leads, else we ourselves."""
    import secrets
    import time

    from keepstep.adapters.server_link.errors import ServerGone, ServerRefused
    from keepstep.cli.client import open_tool
    from keepstep.cli.reading import state_of
    from keepstep.wire.requests import NoteCompacted

    def by_hand(fact: "Compacted") -> None:
        name = f"keepstep journal compact {os.getpid()}"
        if opened.leadership.acquire(name, "", LEASE_S) is None:
            fail("a server leads and cannot be asked; run this where it can be reached, or end it first")
        try:
            opened.journal.append(time.time(), [fact])
        finally:
            opened.leadership.release()

    def tell(fact: "Compacted") -> None:
        try:
            tool = open_tool(state_of(state_dir))
        except ServerGone:
            tool = None
        if tool is None:
            by_hand(fact)
            return
        request = NoteCompacted(upto=fact.upto, hash=fact.hash, archive=fact.archive, digest=fact.digest)
        try:
            with tool:
                tool.act(request, secrets.token_hex(8))
        except ServerRefused as error:
            fail(str(error))

    return tell


def _line(entry: "Entry") -> str:
    from keepstep.cli.terminal import moment
    from keepstep.core.decision import Decision

    record = entry.record
    if isinstance(record, Decision):
        text = f"{record.stage} {record.subject}: {record.reason}"
        if record.intents:
            kinds = (type(intent).__name__ for intent in record.intents)
            text += " → " + ", ".join(f"#{record.first_order + n} {kind}" for n, kind in enumerate(kinds))
    else:
        said = ((name, getattr(record, name)) for name in record.__struct_fields__)
        text = type(record).__name__ + " " + " ".join(f"{name}={_short(value)}" for name, value in said if value)
    return f"{entry.seq:6} {moment(entry.at_s)} {text}"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
