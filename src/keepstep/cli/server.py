"""``keepstep server``. The work is ``keepstep.server``'s."""

from typing import Annotated

import typer

from keepstep.cli.terminal import StateDirOption


def server(
    state_dir: StateDirOption = None,
    listen: Annotated[
        str | None,
        typer.Option(
            help="unix:/path or tcp:host:port (port 0: any free one). Default: a unix socket in the state directory.",
            metavar="ADDRESS",
            show_default=False,
        ),
    ] = None,
    exit_when_idle_s: Annotated[
        float | None,
        typer.Option("--exit-when-idle-s", help="Leave this long after the last job and the last client.", metavar="S"),
    ] = None,
) -> None:
    """Run the control plane of a state directory in the foreground.

    One server per state directory: a second one says so and leaves.
    """
    from keepstep.server.wiring import main

    argv: list[str] = []
    for option, value in (
        ("--state-dir", state_dir),
        ("--listen", listen),
        ("--exit-when-idle-s", exit_when_idle_s),
    ):
        if value is not None:
            argv += [option, str(value)]
    raise typer.Exit(main(argv))
