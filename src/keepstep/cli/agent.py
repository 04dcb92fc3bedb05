"""``keepstep agent``. The work is ``keepstep.agent``'s, in a process that holds nothing of the command line."""

import os
import sys
from typing import Annotated

import typer

from keepstep.cli.terminal import StateDirOption


def agent(
    config: Annotated[
        str | None, typer.Option(help="TOML file: sources, dependencies, mounts, domains.", metavar="FILE")
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            help="tls:host:port, unix:/path, or tcp:host:port on loopback; replicas with commas between. Default: what the "
            "server of the state directory has written down.",
            metavar="ADDRESS,…",
            show_default=False,
        ),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(help="Name of this node, as launchers call it. Default: the host name.", show_default=False),
    ] = None,
    state_dir: StateDirOption = None,
    sources: Annotated[
        str | None,
        typer.Option(help="Names with commas between them. Default: every source that there is.", metavar="NAME,…"),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once, print what is seen, and leave.")] = False,
    for_s: Annotated[float | None, typer.Option("--for-s", help="With --once: how long to look.", metavar="S")] = None,
    json: Annotated[bool, typer.Option("--json", help="With --once: print JSON.")] = False,
    log_format: Annotated[
        str | None,
        typer.Option(
            "--log-format", help="text or json. Default: $KEEPSTEP_LOG_FORMAT, else text.", show_default=False
        ),
    ] = None,
) -> None:
    """Watch hardware, kernel, network and dependencies of this node, and tell the server.

    One for each node, in the foreground; it goes on without a server and hands in later what it saw meanwhile.
    """
    argv = [sys.executable, "-m", "keepstep.agent"]
    for option, value in (
        ("--config", config), ("--server", server), ("--node", node), ("--state-dir", state_dir),
        ("--sources", sources), ("--for-s", for_s), ("--log-format", log_format),
    ):  # fmt: skip
        if value is not None:
            argv += [option, str(value)]
    argv += ["--once"] if once else []
    argv += ["--json"] if json else []
    sys.stdout.flush()
    # The libraries of the command line would cost the agent half of the memory that it may take.
    os.execv(sys.executable, argv)
