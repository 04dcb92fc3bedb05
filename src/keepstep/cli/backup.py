"""``keepstep backup`` and ``keepstep restore``: the whole database as one file, and back. Also beside a running server."""

from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.journal import DatabaseOption, open_any
from keepstep.cli.terminal import JsonOption, StateDirOption, fail, print_json


def backup(
    file: Annotated[Path, typer.Argument(help="Where to put the copy. It must not be there yet.")],
    database: DatabaseOption = None,
    state_dir: StateDirOption = None,
    json: JsonOption = False,
) -> None:
    """Copy journal, archive of what is over and snapshots into one file, as of one instant; its chain is checked. Every
    command that reads a journal file reads the copy. Archive files and keys of the state directory are not in it."""
    from keepstep.adapters.database.backup import back_up
    from keepstep.ports import JournalCorrupt, JournalUnavailable

    if not file.parent.is_dir():
        fail(f"there is no folder {file.parent}")
    opened = open_any(database, state_dir)
    try:
        count = back_up(opened, file)
    except (FileExistsError, JournalCorrupt, JournalUnavailable, OSError) as error:
        fail(str(error))
    finally:
        opened.close()
    if json:
        print_json({"file": str(file), "entries": count, "bytes": file.stat().st_size})
    else:
        typer.echo(f"{file}: {count} entries, the chain is sound; restore it with `keepstep restore {file}`")


def restore(
    file: Annotated[Path, typer.Argument(help="A copy that `keepstep backup` made.", exists=True, dir_okay=False)],
    database: DatabaseOption = None,
    state_dir: StateDirOption = None,
    json: JsonOption = False,
) -> None:
    """Fill an empty database, or a state directory without a journal, from a copy. Nobody leads afterwards; launchers and
    agents are found again when they reconnect."""
    import os

    from keepstep.adapters.database.backup import restore as fill
    from keepstep.cli.reading import state_of
    from keepstep.ports import JournalCorrupt, JournalSchemaNewer, JournalUnavailable

    state = state_of(state_dir)
    where = database or os.environ.get("KEEPSTEP_DATABASE") or state.journal
    try:
        if where == state.journal:
            state.create()
        count = fill(file, where)
    except (ValueError, JournalCorrupt, JournalSchemaNewer, JournalUnavailable, OSError) as error:
        fail(str(error))
    if json:
        print_json({"entries": count})
    else:
        typer.echo(f"{count} entries were restored and checked; start a server")
