"""Commands by which a person speaks: stop, hold, unhold, approve, deny. Each is one request; the server judges it."""

from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.terminal import StateDirOption

if TYPE_CHECKING:
    from keepstep.wire.requests import Accepted

ReasonOption = Annotated[str, typer.Option(help="Why, for the record.", show_default=False)]
ResourceArgument = Annotated[
    str, typer.Argument(help="node/NODE or device/NODE/SLOT, as `keepstep resources` lists it.", show_default=False)
]
SubjectArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The incident or the resource that waits for a word.", show_default=False)
]


def stop(
    job: Annotated[str, typer.Argument(help="As `keepstep jobs` lists it.", show_default=False)],
    reason: ReasonOption = "",
    state_dir: StateDirOption = None,
) -> None:
    """End a job: its ranks get SIGTERM, then SIGKILL."""
    from keepstep.cli.reading import act
    from keepstep.wire.requests import StopJob

    _said(f"{job} is being ended", act(state_dir, StopJob(job=job, reason=reason)))


def hold(resource: ResourceArgument, reason: ReasonOption = "", state_dir: StateDirOption = None) -> None:
    """Keep new work off a node or a device until you lift it again."""
    from keepstep.cli.reading import act
    from keepstep.wire.requests import Hold

    _said(f"{resource} is held by you", act(state_dir, Hold(resource=resource, reason=reason)))


def unhold(resource: ResourceArgument, state_dir: StateDirOption = None) -> None:
    """Lift your own hold. Holds of others, and Keepstep's own, stay."""
    from keepstep.cli.reading import act
    from keepstep.wire.requests import Unhold

    _said(f"your hold of {resource} is lifted", act(state_dir, Unhold(resource=resource)))


def approve(subject: SubjectArgument, state_dir: StateDirOption = None) -> None:
    """Let an incident or a resource go on with what it waits for."""
    _answer(subject, True, state_dir)


def deny(subject: SubjectArgument, state_dir: StateDirOption = None) -> None:
    """Refuse what an incident or a resource waits for."""
    _answer(subject, False, state_dir)


def _answer(subject: str, granted: bool, state_dir: str | None) -> None:
    from keepstep.cli.reading import act
    from keepstep.wire.requests import Decide

    word = "approved" if granted else "denied"
    _said(f"{subject} is {word}", act(state_dir, Decide(subject=subject, granted=granted)))


def _said(what: str, accepted: "Accepted") -> None:
    typer.echo(f"{what}; journal entry {accepted.entry}")
