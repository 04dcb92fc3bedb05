"""``keepstep alerts``: check ``alerts.toml``, and send a trial notice through its channels. Needs no server."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.terminal import StateDirOption, fail

if TYPE_CHECKING:
    from keepstep.server.alert_file import AlertFile
    from keepstep.telemetry import Channel, Level

alerts = typer.Typer(help="Who is told when something needs a person.", no_args_is_help=True)

FileOption = Annotated[
    Path | None,
    typer.Option("--file", help="Another file than alerts.toml of the state directory.", show_default=False),
]


def _open(state_dir: str | None, file: Path | None) -> "tuple[Path, AlertFile, list[Channel]]":
    """Ends the program with what is wrong with the file, or where there is none."""
    from keepstep.server.alert_file import read_alert_file
    from keepstep.server.observability import FILE, open_email, open_webhook
    from keepstep.server.state_dir import default_state_dir

    path = file or (Path(state_dir) if state_dir else default_state_dir()) / FILE
    if not path.exists():
        fail(f"there is no {path}: nobody is told of anything; docs/how-to/monitor-and-alert.md shows what to write")
    try:
        read = read_alert_file(path)
        channels: list[Channel] = [open_webhook(path, name, hook) for name, hook in read.webhook.items()]
        channels += [open_email(path, name, mail) for name, mail in read.email.items()]
    except ValueError as error:
        fail(str(error))
    return path, read, channels


def _least(read: "AlertFile", channel: "Level") -> "Level":
    """The file's own level holds for every channel; a channel can only ask for less."""
    from keepstep.telemetry import LEVELS

    return max(read.min_level, channel, key=LEVELS.index)


@alerts.command("check")
def check(state_dir: StateDirOption = None, file: FileOption = None) -> None:
    """Check alerts.toml and say who would be told of what; nothing is sent."""
    path, read, _ = _open(state_dir, file)
    for name, hook in read.webhook.items():
        signed = "signed" if hook.secret_file else "not signed"
        typer.echo(f"webhook {name}: {_least(read, hook.min_level)} and above to {hook.url}, {signed}")
    for name, mail in read.email.items():
        typer.echo(
            f"email {name}: {_least(read, mail.min_level)} and above to {', '.join(mail.to)} through {mail.host}:{mail.port} "
            f"({mail.security})"
        )
    if read.heartbeat is not None:
        typer.echo(f"heartbeat: every {read.heartbeat.every_s:g} s to {read.heartbeat.url}")
    if not (read.webhook or read.email):
        typer.echo(f"{path} names no webhook and no email: nobody is told of anything")


@alerts.command("test")
def test(
    name: Annotated[str, typer.Argument(help="Of one webhook or email; all where none is named.")] = "",
    state_dir: StateDirOption = None,
    file: FileOption = None,
) -> None:
    """Send a trial notice now, through every channel or one. Exit code 1 where one does not take it."""
    from keepstep.telemetry import Alert, DeliveryFailed

    path, _, channels = _open(state_dir, file)
    chosen = [channel for channel in channels if not name or channel.name.split(" ", 1)[1] == name]
    if not chosen:
        fail(f"{path} has no webhook or email {name!r}" if name else f"{path} names no webhook and no email")
    now_s = time.time()
    trial = Alert(
        id=f"test@{round(now_s * 1000)}", key="test", kind="test", status="firing", level="page", title="A trial notice",
        text="Somebody tried `keepstep alerts test`. There is nothing to do.", at_s=now_s, since_s=now_s,
    )  # fmt: skip
    failed = 0
    for channel in chosen:
        try:
            channel.send(trial)
            typer.echo(f"{channel.name}: taken")
        except DeliveryFailed as error:
            failed += 1
            typer.echo(f"{channel.name}: {error}", err=True)
    if failed:
        raise typer.Exit(1)
