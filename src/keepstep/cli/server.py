"""``keepstep server``. The work is ``keepstep.server``'s; its options are read there."""

from typing import Annotated

import typer

from keepstep.cli.terminal import StateDirOption

DatabaseOption = Annotated[
    str | None,
    typer.Option(
        help="postgresql://… that several servers share: one leads, the others follow and take over. Default: "
        "$KEEPSTEP_DATABASE, else a SQLite file in the state directory.",
        metavar="URL",
        show_default=False,
    ),
]
ListenOption = Annotated[
    list[str] | None,
    typer.Option(
        help="unix:/path, tls:host:port, or, on loopback only, tcp:host:port (port 0: any free one). May be given several "
        "times. Default: a unix socket in the state directory.",
        metavar="ADDRESS",
        show_default=False,
    ),
]
HttpOption = Annotated[
    str,
    typer.Option(
        help="Where API and dashboard answer; with a certificate of the built-in authority beyond loopback. `off`: nowhere.",
        metavar="HOST:PORT",
    ),
]
AdvertiseOption = Annotated[
    str | None,
    typer.Option(
        help="Where launchers, agents and other servers reach this one. Default: the first address that is no unix socket.",
        metavar="ADDRESS",
        show_default=False,
    ),
]
HostOption = Annotated[
    list[str] | None,
    typer.Option(help="A further name or address for its certificate.", metavar="NAME", show_default=False),
]
LeaseOption = Annotated[
    float, typer.Option("--lease-s", help="How long a leader that is gone still counts.", metavar="S")
]
FollowOption = Annotated[bool, typer.Option("--follow", help="Answer questions only, and never lead.")]
PolicyOption = Annotated[
    str | None, typer.Option(help="TOML file; set as the policy where it differs.", metavar="FILE", show_default=False)
]
LogFormatOption = Annotated[
    str | None,
    typer.Option("--log-format", help="text or json. Default: $KEEPSTEP_LOG_FORMAT, else text.", show_default=False),
]
IdleOption = Annotated[
    float | None,
    typer.Option("--exit-when-idle-s", help="Leave this long after the last job and the last client.", metavar="S"),
]


def server(
    state_dir: StateDirOption = None,
    database: DatabaseOption = None,
    listen: ListenOption = None,
    http: HttpOption = "127.0.0.1:7447",
    advertise: AdvertiseOption = None,
    host: HostOption = None,
    lease_s: LeaseOption = 3.0,
    follow: FollowOption = False,
    policy: PolicyOption = None,
    log_format: LogFormatOption = None,
    exit_when_idle_s: IdleOption = None,
) -> None:
    """Run the control plane in the foreground: the loop, the journal, API and dashboard.

    One server per state directory: a second one says so and leaves with exit code 75, so that a service manager tries again.
    """
    from keepstep.server.wiring import main

    argv = ["--http", http, "--lease-s", str(lease_s), *(["--follow"] if follow else [])]
    for option, values in (("--listen", listen), ("--host", host)):
        argv += [word for value in values or () for word in (option, value)]
    for option, value in (
        ("--state-dir", state_dir),
        ("--database", database),
        ("--advertise", advertise),
        ("--policy", policy),
        ("--log-format", log_format),
        ("--exit-when-idle-s", exit_when_idle_s),
    ):
        if value is not None:
            argv += [option, str(value)]
    raise typer.Exit(main(argv))
