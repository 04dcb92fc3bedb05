"""``keepstep health``: forecasts of the nodes. Owns its table; all content is the read side's."""

from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.present import WatchOption, present, rows_or
from keepstep.cli.terminal import JsonOption, StateDirOption

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keepstep.server.health_views import Health


def health(
    node: Annotated[
        str | None, typer.Argument(help="One node, with what its index is made of.", show_default=False)
    ] = None,
    state_dir: StateDirOption = None,
    json: JsonOption = False,
    watch: WatchOption = None,
) -> None:
    """Forecast failures: risk of each node within 1, 6 and 24 h, and when its job had better leave it."""
    from keepstep.cli.reading import ask
    from keepstep.server.health_views import Health

    draw = _all if node is None else _one
    present(lambda: ask(state_dir, "health", Health, node=node), draw, json=json, watch=watch)


def _one(found: "Health") -> list["RenderableType"]:
    node = found.nodes[0]
    return [*node.explained, f"job: {node.when or '–'} ({node.reason})"]


def _all(found: "Health") -> list["RenderableType"]:
    from keepstep.cli.tables import table

    made = table(
        "node", "index", "1 h", "6 h", "24 h", "riskiest part", "leave", "why", flexible=("riskiest part", "why")
    )
    for one in found.nodes:
        chances = [f"{100 * p:.2g} %" for p in (one.p_1h, one.p_6h, one.p_24h)]
        made.add_row(one.node, f"{one.index:.0f}", *chances, one.riskiest or "–", one.when or "–", one.reason)
    first = [f"leave first: {', '.join(found.first)}"] if found.first else []
    return [rows_or(made, "no agent has told a forecast yet"), *first]
