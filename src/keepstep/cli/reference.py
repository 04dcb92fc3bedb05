"""Writes docs/reference/cli.md from the command table: ``python -m keepstep.cli.reference > docs/reference/cli.md``.

Owns the page's form only: every word of it comes from the commands themselves.
"""

import sys
from collections.abc import Iterator
from typing import Any

import typer

from keepstep.cli.app import LATE, add_late, app

HEAD = """# Command line

Written by `python -m keepstep.cli.reference`; do not edit. Where a server of the state directory runs, commands ask it;
else they read the journal. Exit codes: 0 well, 1 could not, 2 wrong input; `keepstep run` ends with the job's own,
`keepstep diagnose` with 3 where it found an incident, and `keepstep checkpoint` also has 3 for a key that is missing, stale or
wrong, and 4 for a store that fails.

`keepstep --install-completion` teaches your shell the commands and options. Lists show 500 rows and say so where there are
more: narrow them down, or `--limit 0`. Times are local, in tables; what `--since` and `--until` are given is UTC.
"""


def page() -> str:
    add_late(LATE)
    return "\n".join([HEAD, *_commands("keepstep", typer.main.get_command(app))])


def _commands(path: str, command: Any) -> Iterator[str]:
    """A group's own options, then its commands, by name."""
    if not hasattr(command, "commands"):
        yield from _section(path, command)
        return
    if _rows(command):
        yield from _section(path, command)
    for name in sorted(command.commands):
        yield from _commands(f"{path} {name}", command.commands[name])


def _section(path: str, command: Any) -> Iterator[str]:
    arguments = " ".join(_value(p) for p in command.params if p.param_type_name == "argument")
    yield f"## `{path} {arguments}`\n" if arguments else f"## `{path}`\n"
    yield f"{(command.help or '').strip()}\n"
    rows = _rows(command)
    if rows:
        yield "| | |\n|---|---|"
        yield from rows
        yield ""


def _rows(command: Any) -> list[str]:
    return [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]


def _value(parameter: Any) -> str:
    """What stands for its value."""
    word = str(parameter.metavar or parameter.name.upper())
    return f"{word}…" if parameter.nargs == -1 else word


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{_value(parameter)}`"
    else:
        value = "" if parameter.is_flag else f" {_value(parameter)}"
        name = ", ".join(f"`{spelling}{value}`" for spelling in parameter.opts)
    text = " ".join((parameter.help or "").split())
    shown = isinstance(parameter.default, int | float | str) and not isinstance(parameter.default, bool)
    default = f" Default: {parameter.default}." if shown and parameter.default != "" else ""
    return f"| {name.replace('|', chr(92) + '|')} | {text}{default} |"


if __name__ == "__main__":
    sys.stdout.write(page())
