"""Commands by which a person speaks: stop, hold, unhold, approve, deny. Each is one fact; it decides nothing."""

import getpass
from typing import Annotated

import typer

from keepstep.cli.terminal import StateDirOption, fail

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
    from keepstep.cli.reading import ask, tell
    from keepstep.core.facts import JobStopRequested
    from keepstep.core.ids import JobId
    from keepstep.server.views import Jobs

    found = [known for known in ask(state_dir, "jobs", Jobs).jobs if known.id == job]
    if not found:
        fail(f"there is no job {job!r}; see `keepstep jobs`")
    if found[0].finished_s is not None:
        fail(f"job {job} has already ended: {found[0].state}")
    tell(state_dir, JobStopRequested(job=JobId(job), by=getpass.getuser(), reason=reason))


def hold(resource: ResourceArgument, reason: ReasonOption = "", state_dir: StateDirOption = None) -> None:
    """Keep new work off a node or a device until you lift it again."""
    from keepstep.cli.reading import tell
    from keepstep.core.facts import HoldRequested
    from keepstep.core.ids import ResourceId

    _must_exist(resource, state_dir)
    who = getpass.getuser()
    tell(
        state_dir,
        HoldRequested(resource=ResourceId(resource), source=f"person:{who}", by=who, reason=reason or "held by hand"),
    )


def unhold(resource: ResourceArgument, state_dir: StateDirOption = None) -> None:
    """Lift your own hold. Holds of others, and Keepstep's own, stay."""
    from keepstep.cli.reading import tell
    from keepstep.core.facts import HoldLifted
    from keepstep.core.ids import ResourceId

    who = getpass.getuser()
    if f"person:{who}" not in _must_exist(resource, state_dir):
        fail(f"{resource} is not held by person:{who}; see `keepstep resources`")
    tell(state_dir, HoldLifted(resource=ResourceId(resource), source=f"person:{who}", by=who))


def approve(subject: SubjectArgument, state_dir: StateDirOption = None) -> None:
    """Let an incident or a resource go on with what it waits for."""
    _answer(subject, True, state_dir)


def deny(subject: SubjectArgument, state_dir: StateDirOption = None) -> None:
    """Refuse what an incident or a resource waits for."""
    _answer(subject, False, state_dir)


def _must_exist(resource: str, state_dir: str | None) -> list[str]:
    """The sources of its holds."""
    from keepstep.cli.reading import ask
    from keepstep.server.views import Resources

    for known in ask(state_dir, "resources", Resources).resources:
        if known.id == resource:
            return [held.source for held in known.holds]
    fail(f"there is no resource {resource!r}; see `keepstep resources`")


def _answer(subject: str, granted: bool, state_dir: str | None) -> None:
    from keepstep.cli.reading import ask, tell
    from keepstep.core.facts import Approved
    from keepstep.server.views import Incidents, Resources

    known = {line.id for line in ask(state_dir, "incidents", Incidents, starts=True).incidents}
    known |= {item.id for item in ask(state_dir, "resources", Resources).resources}
    if subject not in known:
        fail(f"there is no incident or resource {subject!r}; see `keepstep incidents` and `keepstep resources`")
    tell(state_dir, Approved(subject=subject, by=getpass.getuser(), granted=granted))
