"""One answer on the terminal: as JSON, as tables, or as tables that follow what happens. Owns the choice and the repetition."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from keepstep.cli.terminal import print_json

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

View = TypeVar("View")

WatchOption = Annotated[
    float | None,
    typer.Option(
        "--watch",
        help="Look again every so many seconds, until Ctrl-C. With --json: one document a line, whenever it changed.",
        metavar="S",
        min=0.2,
        show_default=False,
    ),
]


LimitOption = Annotated[
    int, typer.Option(help="Rows at most; 0 for all there are.", metavar="N", min=0, show_default=True)
]
LIMIT = 500


def present(
    look: Callable[[], View], draw: Callable[[View], Sequence["RenderableType"]], *, json: bool, watch: float | None
) -> None:
    """Print what ``look`` answers, once or again and again."""
    if watch is None:
        if json:
            print_json(look())
        else:
            from keepstep.cli.tables import show_all

            show_all(*draw(look()))
        return
    try:
        if json:
            _follow_json(look, watch)
        else:
            _follow(look, draw, watch)
    except KeyboardInterrupt:
        pass


def rows_or(made: "Table", empty: str) -> "RenderableType":
    """The table; ``empty`` in words where it has no rows."""
    return made if made.row_count else empty


def cut(total: int, shown: int) -> tuple[str, ...]:
    """A line below the table, where it has not all there is."""
    return (f"{shown:,} of {total:,}; narrow it down, or see all with --limit 0",) if total > shown else ()


def noted(note: str) -> tuple[str, ...]:
    """A line below the table, where the answer is not the whole."""
    return (note,) if note else ()


def _follow(look: Callable[[], View], draw: Callable[[View], Sequence["RenderableType"]], every_s: float) -> None:
    from rich.console import Group
    from rich.live import Live

    from keepstep.cli.tables import console

    out = console()
    with Live(console=out, screen=out.is_terminal, auto_refresh=False) as screen:
        while True:
            stamp = time.strftime("%H:%M:%S")
            screen.update(Group(f"{stamp}, every {every_s:g} s, Ctrl-C ends", *draw(look())), refresh=True)
            time.sleep(every_s)


def _follow_json(look: Callable[[], Any], every_s: float) -> None:
    import msgspec

    last = b""
    while True:
        document = msgspec.json.encode(look())
        if document != last:
            typer.echo(document.decode())
            last = document
        time.sleep(every_s)
