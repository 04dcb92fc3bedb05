"""How the CLI speaks: errors, JSON, numbers, the console. Owns spelling only."""

import sys
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from keepstep.wire.requests import Accepted

StateDirOption = Annotated[
    str | None,
    typer.Option(
        "--state-dir",
        help="Directory of the server's journal and socket. Default: $KEEPSTEP_STATE_DIR, else keepstep under the XDG "
        "state directory (~/.local/state).",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def fail(message: str, code: int = 1) -> NoReturn:
    """Say what is wrong and what to do, and end."""
    typer.echo(f"keepstep: {message}", err=True)
    raise typer.Exit(code)


def print_json(view: Any) -> None:
    """One document, indented."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(view), indent=2).decode() + "\n")


def said(what: str, accepted: "Accepted", json: bool) -> None:
    """What a person asked for is in the journal."""
    if json:
        print_json(accepted)
    else:
        typer.echo(f"{what}; journal entry {accepted.entry}")


def seconds(value: float | None) -> str:
    """A duration, with as many digits as matter."""
    if value is None:
        return "–"
    if value < 10:
        return f"{value:.2f} s"
    if value < 120:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def moment(value: float | None) -> str:
    """A point in time, in local time."""
    import time

    return "–" if value is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))


def step(value: int | None) -> str:
    return "–" if value is None or value < 0 else str(value)
