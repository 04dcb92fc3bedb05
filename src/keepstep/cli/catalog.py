"""``keepstep catalog``: what signals mean, and a site's own rows. Owns the reading of the override file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.terminal import JsonOption, fail, print_json

if TYPE_CHECKING:
    from keepstep.core.catalog import Catalog, Row

catalog = typer.Typer(help="What each signal means for the resource and for the job.", no_args_is_help=True)

FileOption = Annotated[
    Path | None,
    typer.Option("--catalog", help="TOML file of your own rows, laid over the built-in ones.", show_default=False),
]


def load(path: Path | None) -> "Catalog":
    """The built-in catalogue, with a site's file laid over it. Ends the program with what is wrong with the file."""
    import tomllib

    from keepstep.core.catalog import CATALOG
    from keepstep.core.catalog.override import override

    if path is None:
        return CATALOG
    try:
        return override(CATALOG, tomllib.loads(path.read_text(encoding="utf-8")), path.name)
    except (OSError, ValueError) as error:
        fail(f"{path}: {error}" if isinstance(error, OSError | tomllib.TOMLDecodeError) else str(error))


@catalog.command("list")
def list_rows(
    family: Annotated[str, typer.Argument(help="Begin of a key.")] = "",
    file: FileOption = None,
    json: JsonOption = False,
) -> None:
    """List rows: all, or those whose key begins so."""
    import msgspec

    from keepstep.cli.tables import show, table
    from keepstep.core.catalog import Mode

    rows = {key: row for key, row in load(file).rows.items() if key.startswith(family)}
    if json:
        print_json({key: msgspec.to_builtins(row) for key, row in rows.items()})
        return
    made = table("signal", "class", "scope", "verdict", "job", "what", flexible=("signal", "class", "what"))
    for key, row in rows.items():
        mode = "" if row.mode is Mode.ACT else f" ({row.mode.value})"
        made.add_row(key, row.failure_class, row.scope.value, row.verdict.value + mode, row.urgency.value, row.text)
    show(made, f"no signal begins with {family!r}")


@catalog.command("explain")
def explain(
    signal: Annotated[str, typer.Argument(help="A key, or a bare Xid: 79, xid.79, sxid.20034, port.down.")],
    file: FileOption = None,
    json: JsonOption = False,
) -> None:
    """Explain one signal: what is wrong, what to do with the resource, what to do with the job, who says so."""
    import msgspec

    from keepstep.core.catalog import UNKNOWN
    from keepstep.core.combine import RULES

    rows = load(file)
    key = f"xid.{signal}" if signal.isdecimal() and f"xid.{signal}" in rows.rows else signal
    key = f"sxid.{signal}" if signal.isdecimal() and key not in rows.rows else key
    row = rows.rows.get(key, rows.row(key))
    if row is UNKNOWN:
        near = [
            known for known in rows.rows if signal.lower() in known or signal.lower() in rows.rows[known].text.lower()
        ]
        hint = f"; did you mean {', '.join(near[:8])}?" if near else "; `keepstep catalog list` shows all"
        fail(f"no signal {signal!r} in catalogue {rows.version}{hint}")
    if json:
        print_json({"signal": key, "catalog": rows.version, **msgspec.to_builtins(row)})
        return
    typer.echo("\n".join(_explained(key, row, rows.version)))
    if key not in rows.rows:
        typer.echo(f"nobody lists {key} by itself: this is the row of its family")
    number = key.partition(".")[2]
    touching = [
        rule for rule in RULES if number and f" {number} " in f" {rule.text.replace(',', ' ').replace('/', ' ')} "
    ]
    for rule in touching:
        mode = rows.rule_modes.get(rule.name, rule.mode)
        typer.echo(f"rule {rule.name} ({mode.value}): {rule.text}")


def _explained(key: str, row: "Row", version: str) -> list[str]:
    from keepstep.core.root_cause import job_action, resource_action

    lines = [
        f"{key} (catalogue {version})",
        f"  {row.text}",
        f"  class       {row.failure_class}, cause {row.cause.value}, scope {row.scope.value}",
        f"  resource    {row.verdict.value}: {resource_action(row)}",
        f"  job         {row.urgency.value}: {job_action(row)}",
        f"  confidence  {row.confidence:.0%} on this signal alone",
        f"  mode        {row.mode.value}",
    ]
    if row.corroborate:
        lines.append(f"  look at     {row.corroborate}")
    if row.source:
        lines.append(f"  source      {row.source}")
    return lines


@catalog.command("rules")
def rules(file: FileOption = None, json: JsonOption = False) -> None:
    """List the combination rules and their modes."""
    from keepstep.cli.tables import show, table
    from keepstep.core.combine import RULES

    rows = load(file)
    if json:
        modes = {rule.name: rows.rule_modes.get(rule.name, rule.mode).value for rule in RULES}
        print_json([{"rule": rule.name, "mode": modes[rule.name], "text": rule.text} for rule in RULES])
        return
    made = table("rule", "mode", "what", flexible=("what",))
    for rule in RULES:
        made.add_row(rule.name, rows.rule_modes.get(rule.name, rule.mode).value, rule.text)
    show(made, "no rule")


@catalog.command("check")
def check(file: Annotated[Path, typer.Argument(help="TOML file of your own rows.")]) -> None:
    """Check a file of your own rows, and say what it changes."""
    from keepstep.core.catalog import CATALOG

    rows = load(file)
    new = [key for key in rows.rows if key not in CATALOG.rows]
    changed = [key for key in rows.rows if key in CATALOG.rows and rows.rows[key] != CATALOG.rows[key]]
    typer.echo(
        f"{file}: {len(new)} new rows ({', '.join(new) or 'none'}), {len(changed)} changed ({', '.join(changed) or 'none'})"
    )
