"""Tables that fit the terminal they are shown in. Owns the console."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

PIPE_WIDTH = 100
"""Columns where the output is no terminal, unless $COLUMNS says otherwise."""


def console() -> "Console":
    """Standard output: as wide as the terminal, PIPE_WIDTH in a pipe."""
    import sys

    from rich.console import Console

    width = None if sys.stdout.isatty() else int(os.environ.get("COLUMNS") or PIPE_WIDTH)
    return Console(width=width, highlight=False)


def table(*columns: str, flexible: tuple[str, ...]) -> "Table":
    """A table whose ``flexible`` columns give way where the terminal is narrow; the others keep their words whole."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        made.add_column(name, no_wrap=name not in flexible, overflow="fold")
    return made


def show(made: "Table", empty: str) -> None:
    """The table; ``empty`` in words where it has no rows."""
    console().print(made if made.row_count else empty)


def show_all(*parts: "RenderableType") -> None:
    out = console()
    for part in parts:
        out.print(part)
