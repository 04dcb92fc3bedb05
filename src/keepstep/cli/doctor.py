"""``keepstep doctor``: what is wrong with this installation, and how to mend it. Changes nothing. The checks stand in
``check_machine`` and ``check_server``."""

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.terminal import JsonOption, StateDirOption, print_json

if TYPE_CHECKING:
    from keepstep.cli.findings import Finding
    from keepstep.server.state_dir import StateDir

_MARKS = {"good": "✓", "note": "•", "bad": "✗"}


def doctor(
    database: Annotated[
        str,
        typer.Option(
            help="postgresql://… of a shared journal. Default: $KEEPSTEP_DATABASE, else the file.", metavar="URL",
            show_default=False,
        ),
    ] = "",
    state_dir: StateDirOption = None,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Find what is wrong with this installation and say how to mend it. Exit code 1 where anything is."""
    from keepstep.cli.reading import state_of

    found = list(examine(state_of(state_dir), database or os.environ.get("KEEPSTEP_DATABASE", "")))
    wrong = sum(1 for one in found if one.verdict == "bad")
    if json:
        print_json({"healthy": not wrong, "findings": found})
    else:
        _print(found)
        typer.echo(f"{wrong} things are wrong" if wrong > 1 else "1 thing is wrong" if wrong else "nothing is wrong")
    raise typer.Exit(1 if wrong else 0)


def examine(state: "StateDir", database: str) -> "Iterator[Finding]":
    """Every check, one after another. One that cannot be made is a finding too."""
    from keepstep.cli import check_machine, check_server

    checks = (
        ("state directory", check_machine.state_directory),
        ("secrets", check_machine.secrets_on_disk),
        ("journal", lambda state: check_machine.journal(state, database)),
        ("server", check_server.server),
        ("dashboard", check_server.http_api),
        ("certificates", check_machine.certificates),
        ("alerts", check_machine.alerts),
        ("disk space", check_machine.disk),
        ("file system", check_machine.file_system),
        ("flush time", check_machine.flush_time),
        ("file limit", check_machine.file_limit),
        ("optional parts", check_machine.extras),
    )
    for name, check in checks:
        yield from _attempt(name, check(state))


def _attempt(name: str, found: "Iterable[Finding]") -> "Iterator[Finding]":
    from keepstep.cli.findings import bad

    try:
        yield from found
    except OSError as error:
        yield bad(name, f"cannot be looked at: {error}", "run as the user whom the state directory belongs to")


def _print(found: "list[Finding]") -> None:
    for one in found:
        typer.echo(f"{_MARKS[one.verdict]} {one.check}: {one.text}")
        if one.mend and one.verdict != "good":
            typer.echo(f"    → {one.mend}")
