"""The command table. Owns which commands there are; every command imports what it needs only when it runs."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from typing import Any

import typer

from keepstep.cli.agent import agent
from keepstep.cli.checkpoint import checkpoint
from keepstep.cli.control import approve, deny, hold, stop, unhold
from keepstep.cli.faults import fault, faults, nodes
from keepstep.cli.health import health
from keepstep.cli.incidents import approvals, incident, incidents
from keepstep.cli.jobs import holds, jobs, ranks, resources
from keepstep.cli.journal import journal
from keepstep.cli.precision import precision
from keepstep.cli.report import report
from keepstep.cli.run import run
from keepstep.cli.server import server

LATE = {
    "alerts": "keepstep.cli.alerts:alerts",
    "token": "keepstep.cli.token:token",
    "policy": "keepstep.cli.policy:policy",
    "join": "keepstep.cli.join:join",
    "doctor": "keepstep.cli.doctor:doctor",
    "ca": "keepstep.cli.ca:ca",
    "backup": "keepstep.cli.backup:backup",
    "restore": "keepstep.cli.backup:restore",
    "catalog": "keepstep.cli.catalog:catalog",
    "dashboard": "keepstep.cli.dashboard:dashboard",
    "demo": "keepstep.cli.demo:demo",
    "drill": "keepstep.cli.drill:drill",
    "diagnose": "keepstep.cli.diagnose:diagnose",
    "sim": "keepstep.cli.sim:sim",
}
"""Commands whose modules are imported only when they are asked for, or listed."""

app = typer.Typer(
    name="keepstep",
    help="Keeps training runs in step through every failure.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("run", context_settings={"allow_interspersed_args": False})(run)
app.command("server")(server)
app.command("agent")(agent)
app.command("jobs")(jobs)
app.command("ranks")(ranks)
app.command("resources")(resources)
app.command("holds")(holds)
app.command("incidents")(incidents)
app.command("approvals")(approvals)
app.command("faults")(faults)
app.add_typer(fault, name="fault")
app.command("nodes")(nodes)
app.command("health")(health)
app.add_typer(incident, name="incident")
app.add_typer(report, name="report")
app.command("precision")(precision)
app.add_typer(checkpoint, name="checkpoint")
app.add_typer(journal, name="journal")
app.command("stop")(stop)
app.command("hold")(hold)
app.command("unhold")(unhold)
app.command("approve")(approve)
app.command("deny")(deny)


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    """Keeps training runs in step through every failure."""
    if version:
        from keepstep import __version__

        typer.echo(f"keepstep {__version__}")
        raise typer.Exit


def add_late(names: Iterable[str]) -> None:
    """Register late commands, as far as they are installed."""
    for name in names:
        module, _, attribute = LATE[name].partition(":")
        if importlib.util.find_spec(module) is None:
            continue
        target: Any = getattr(importlib.import_module(module), attribute)
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=name)
        else:
            app.command(name)(target)


def main() -> None:
    """Entry point of the ``keepstep`` script."""
    asked = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    everything = asked is None or "_KEEPSTEP_COMPLETE" in os.environ  # the shell asks what could be typed next
    add_late(LATE if everything else [asked] if asked in LATE else ())
    app(prog_name="keepstep")


if __name__ == "__main__":
    main()
