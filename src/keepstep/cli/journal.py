"""``keepstep journal verify`` and ``keepstep journal show``. Reads the file only, whether a server runs or not."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.terminal import JsonOption, StateDirOption, fail, print_json

if TYPE_CHECKING:
    from keepstep.adapters.sqlite.journal import SqliteJournal
    from keepstep.core.decision import Entry

journal = typer.Typer(help="The journal: the truth, entry by entry.", no_args_is_help=True)

PathArgument = Annotated[
    Path | None, typer.Argument(help="A journal file. Default: the one in the state directory.", show_default=False)
]


def _open(path: Path | None, state_dir: str | None) -> "SqliteJournal":
    from keepstep.adapters.sqlite.journal import SqliteJournal
    from keepstep.cli.reading import state_of
    from keepstep.ports import JournalCorrupt, JournalSchemaNewer, JournalUnavailable

    try:
        return SqliteJournal(path or state_of(state_dir).journal, read_only=True)
    except (FileNotFoundError, JournalCorrupt, JournalSchemaNewer, JournalUnavailable) as error:
        fail(str(error))


@journal.command("verify")
def verify(path: PathArgument = None, state_dir: StateDirOption = None, json: JsonOption = False) -> None:
    """Check the hash chain from the first entry to the last. Exit code 1 names the first bad entry."""
    from keepstep.ports import JournalCorrupt

    opened = _open(path, state_dir)
    try:
        count = opened.verify()
    except JournalCorrupt as error:
        if json:
            print_json({"sound": False, "first_bad_entry": error.seq, "error": str(error)})
            raise typer.Exit(1) from error
        fail(str(error))
    finally:
        opened.close()
    if json:
        print_json({"sound": True, "entries": count})
    else:
        typer.echo(f"{count} entries, the chain is sound")


@journal.command("show")
def show(
    path: PathArgument = None,
    after: Annotated[int, typer.Option(help="Only entries with a higher number.", metavar="SEQ")] = 0,
    state_dir: StateDirOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print each entry whole, one JSON document a line.")] = False,
) -> None:
    """Print the journal, one entry a line: facts with what they say, decisions with their reasons."""
    import msgspec

    from keepstep.ports import JournalCorrupt

    opened = _open(path, state_dir)
    try:
        for entry in opened.read(after):
            typer.echo(msgspec.json.encode(entry).decode() if json else _line(entry))
    except JournalCorrupt as error:
        fail(str(error))
    finally:
        opened.close()


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
