"""``keepstep health``: forecasts of the nodes. Owns its table; all content is the read side's."""

from typing import Annotated

import typer

from keepstep.cli.terminal import JsonOption, StateDirOption, print_json


def health(
    node: Annotated[
        str | None, typer.Argument(help="One node, with what its index is made of.", show_default=False)
    ] = None,
    state_dir: StateDirOption = None,
    json: JsonOption = False,
) -> None:
    """Forecast failures: risk of each node within 1, 6 and 24 h, and when its job had better leave it."""
    from keepstep.cli.reading import ask
    from keepstep.cli.tables import show, table
    from keepstep.server.health_views import Health

    found = ask(state_dir, "health", Health, node=node)
    if json:
        print_json(found)
        return
    if node is not None:
        for line in (*found.nodes[0].explained, f"job: {found.nodes[0].when or '–'} ({found.nodes[0].reason})"):
            typer.echo(line)
        return
    made = table(
        "node", "index", "1 h", "6 h", "24 h", "riskiest part", "leave", "why", flexible=("riskiest part", "why")
    )
    for one in found.nodes:
        chances = [f"{100 * p:.2g} %" for p in (one.p_1h, one.p_6h, one.p_24h)]
        made.add_row(one.node, f"{one.index:.0f}", *chances, one.riskiest or "–", one.when or "–", one.reason)
    show(made, "no agent has told a forecast yet")
    if found.first:
        typer.echo(f"leave first: {', '.join(found.first)}")
