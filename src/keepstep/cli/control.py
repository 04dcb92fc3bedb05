"""Commands by which a person speaks: stop, hold, unhold, approve, deny. Each is one request; the server judges it."""

from typing import Annotated

import typer

from keepstep.cli.terminal import JsonOption, StateDirOption, said

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
    json: JsonOption = False,
) -> None:
    """End a job: its ranks get SIGTERM, then SIGKILL."""
    from keepstep.cli.reading import act
    from keepstep.wire.requests import StopJob

    said(f"{job} is being ended", act(state_dir, StopJob(job=job, reason=reason)), json)


def hold(
    resource: ResourceArgument, reason: ReasonOption = "", state_dir: StateDirOption = None, json: JsonOption = False
) -> None:
    """Keep new work off a node or a device until you lift it again."""
    from keepstep.cli.reading import act
    from keepstep.wire.requests import Hold

    said(f"{resource} is held by you", act(state_dir, Hold(resource=resource, reason=reason)), json)


def unhold(resource: ResourceArgument, state_dir: StateDirOption = None, json: JsonOption = False) -> None:
    """Lift your own hold. Holds of others, and Keepstep's own, stay."""
    from keepstep.cli.reading import act
    from keepstep.wire.requests import Unhold

    said(f"your hold of {resource} is lifted", act(state_dir, Unhold(resource=resource)), json)


def approve(subject: SubjectArgument, state_dir: StateDirOption = None, json: JsonOption = False) -> None:
    """Let an incident or a resource go on with what it waits for."""
    _answer(subject, True, state_dir, json)


def deny(subject: SubjectArgument, state_dir: StateDirOption = None, json: JsonOption = False) -> None:
    """Refuse what an incident or a resource waits for."""
    _answer(subject, False, state_dir, json)


def _answer(subject: str, granted: bool, state_dir: str | None, json: bool) -> None:
    from keepstep.cli.reading import act
    from keepstep.wire.requests import Decide

    word = "approved" if granted else "denied"
    said(f"{subject} is {word}", act(state_dir, Decide(subject=subject, granted=granted)), json)
