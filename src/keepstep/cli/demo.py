"""``keepstep demo``. Owns the spelling of its options; the show is in keepstep.demo."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.terminal import fail

if TYPE_CHECKING:
    from keepstep.demo.faults import Fault


def demo(
    fault: Annotated[
        list[str] | None,
        typer.Option("--fault", help="Inject only this one; may be repeated. See --list.", metavar="NAME"),
    ] = None,
    list_faults: Annotated[bool, typer.Option("--list", help="List the faults and leave.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Log lines instead of the live view.")] = False,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of the job. Default: enough for the faults.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for everything that the demo makes.")] = Path("keepstep-demo"),
    keep: Annotated[bool, typer.Option("--keep", help="Keep the checkpoints as well.")] = False,
) -> None:
    """Train a small GPT on real text while everything fails, and prove that nothing was lost.

    Exit code: 0 if every recovery went as promised and the final weights equal those of an unfaulted run, bit for bit;
    1 if not, with what was wrong.
    """
    if list_faults:
        _list()
        return
    chosen = _chosen(fault)
    if find_spec("torch") is None:
        fail("the demo trains with torch, which is not installed: pip install 'keepstep[demo]'")
    from keepstep.demo.show import run_demo

    raise typer.Exit(run_demo(chosen, steps=steps, out=out.absolute(), keep=keep, plain=plain))


def _chosen(names: list[str] | None) -> "tuple[Fault, ...]":
    from keepstep.demo.faults import BY_NAME, FAULTS

    if not names:
        return FAULTS
    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        fail(f"there is no fault {unknown[0]!r}; there are: {', '.join(BY_NAME)}", 2)
    return tuple(BY_NAME[name] for name in dict.fromkeys(names))


def _list() -> None:
    from rich.table import Table

    from keepstep.cli.tables import show
    from keepstep.demo.faults import FAULTS

    table = Table("fault", "what happens", "what it shows")
    for one in FAULTS:
        table.add_row(one.name, one.title, one.shows)
    show(table, "no fault")
