"""``keepstep checkpoint gc``, ``pin`` and ``unpin``: what stays and what goes. Owns their words; retention decides."""

import getpass
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from keepstep.cli.checkpoint_place import (
    WRONG_INPUT,
    JobOption,
    KeyArgument,
    KeysCommandOption,
    KeysOption,
    StoreOption,
    TenantOption,
    find,
    open_place,
    told,
)
from keepstep.cli.terminal import JsonOption, fail, print_json

if TYPE_CHECKING:
    from keepstep.checkpoint.repository.repository import Commit, Repository
    from keepstep.checkpoint.repository.retention import Policy

ReasonOption = Annotated[str, typer.Option(help="Why, for the record.", show_default=False)]


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What retention does with a checkpoint, and why."""

    key: str
    step: int
    state: str
    size_bytes: int
    goes: bool
    why: str


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """Objects of a save that is no checkpoint, or not any more."""

    folder: str
    step: int
    size_bytes: int
    why: str


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    store: str
    job: str
    dry_run: bool
    checkpoints: list[Fate]
    leftovers: list[Leftover]
    """What else goes."""
    expired: tuple[str, ...]
    """Keys of commits that were let go."""
    removed: tuple[str, ...]
    """Objects that were removed."""
    waiting: str
    """Why nothing is removed, where that is not because all is in order."""


def gc(
    keep: Annotated[int, typer.Option(min=1, help="Newest VERIFIED checkpoints to keep.", metavar="N")] = 3,
    min_valid: Annotated[
        int, typer.Option(min=1, help="Never fewer VERIFIED ones than this, whatever else is said.", metavar="N")
    ] = 2,
    milestone_steps: Annotated[
        int, typer.Option(min=0, help="Keep one for every so many steps for good; 0: none.", metavar="N")
    ] = 0,
    grace_s: Annotated[
        float, typer.Option(min=0.0, help="A save that was not committed is left alone for so long.", metavar="S")
    ] = 3600.0,
    delay_s: Annotated[
        float, typer.Option(min=0.0, help="Between the record that says what goes, and its objects.", metavar="S")
    ] = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go and why; change nothing.")] = False,
    store: StoreOption = None,
    job: JobOption = None,
    keys: KeysOption = None,
    keys_command: KeysCommandOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Let go of checkpoints that newer VERIFIED ones make unnecessary. Pinned ones, and files of others, stay."""
    from keepstep.checkpoint.repository.retention import Policy, Retained, retain

    policy = Policy(keep=keep, min_valid=min_valid, milestone_steps=milestone_steps, grace_s=grace_s, delay_s=delay_s)
    with told():
        repository = open_place(store, job, keys=keys, keys_command=keys_command, tenant=tenant)
        fates, leftovers = _fates(repository, policy), _leftovers(repository, policy)
        if dry_run:
            waiting = "the commit log is damaged: see repair" if repository.log.damaged() else ""
            done = Retained(waiting=waiting)
        else:
            done = retain(repository, policy)
    found = Collected(
        store=repository.store.name, job=repository.job, dry_run=dry_run, checkpoints=fates,
        leftovers=leftovers, expired=done.expired, removed=done.removed, waiting=done.waiting,
    )  # fmt: skip
    if json:
        print_json(found)
    else:
        _print(found)


def _fates(repository: "Repository", policy: "Policy") -> list[Fate]:
    import time

    from keepstep.checkpoint.repository.leases import leased
    from keepstep.checkpoint.repository.retention import plan_retention

    commits = repository.commits()
    held = leased(repository.store, repository.job, time.time())
    going = {commit.key for commit in plan_retention(commits, policy, held)}
    verified = [commit for commit in commits if commit.state == "verified"]
    return [
        Fate(
            key=commit.key, step=commit.step, state=commit.state, size_bytes=commit.size_bytes,
            goes=commit.key in going, why=_why(commit, verified, policy, goes=commit.key in going, held=held),
        )
        for commit in commits
    ]  # fmt: skip


def _leftovers(repository: "Repository", policy: "Policy") -> list[Leftover]:
    """None where retention would remove nothing, because it cannot tell what is needed."""
    import time

    from keepstep.checkpoint.errors import StateInvalid
    from keepstep.checkpoint.repository.retention import standing
    from keepstep.checkpoint.repository.save import PREFIX, job_mark, owned

    now, mark = standing(repository, policy, time.time), job_mark(repository.job)
    try:
        needed = {entry.key for commit in now.staying() for entry in repository.manifest(commit.key).packs}
    except StateInvalid:
        return []
    if repository.log.damaged() or not now.history.verified():
        return []
    found: dict[str, Leftover] = {}
    for entry in repository.store.list(PREFIX):
        owner = owned(entry.key)
        if owner is None or owner.mark != mark or entry.key in needed:
            continue
        if now.may_remove(owner) or now.is_left_behind(owner):
            expired = now.history.of_folder(owner.folder) is not None
            why = "it has expired" if expired else "it was never committed, and cannot be any more"
            before = found.get(owner.folder)
            size_bytes = entry.size_bytes + (before.size_bytes if before is not None else 0)
            found[owner.folder] = Leftover(folder=owner.folder, step=owner.step, size_bytes=size_bytes, why=why)
    return list(found.values())


def _why(commit: "Commit", verified: "list[Commit]", policy: "Policy", *, goes: bool, held: set[int]) -> str:
    stay = max(policy.keep, policy.min_valid)
    if len(verified) < stay:
        return f"only {len(verified)} of the {stay} that are to stay are verified"
    place = next((number for number, one in enumerate(verified) if one.key == commit.key), -1)
    if goes:
        return f"{stay} newer ones are verified"
    if 0 <= place < stay:
        return f"verified, {'the newest' if place == 0 else f'number {place + 1}'} of {stay}"
    if commit.pinned:
        return "pinned"
    if commit.seq in held:
        return "somebody reads it"
    if commit.seq > verified[stay - 1].seq:
        return f"newer than the verified step {verified[stay - 1].step}"
    return f"a milestone of {policy.milestone_steps} steps"


def _print(found: Collected) -> None:
    from keepstep.cli.checkpoint_progress import size
    from keepstep.cli.tables import show, table

    made = table("key", "step", "state", "size", "fate", "why", flexible=("why",))
    for fate in found.checkpoints:
        word = "stays" if not fate.goes else "would go" if found.dry_run else "goes"
        made.add_row(fate.key.lstrip("0"), str(fate.step), fate.state, size(fate.size_bytes), word, fate.why)
    show(made, f"no checkpoint of job {found.job} in {found.store}" if found.job else f"no checkpoint in {found.store}")
    for left in found.leftovers:
        typer.echo(f"step {left.step}, {size(left.size_bytes)} in {left.folder}: {left.why}")
    if not found.dry_run:
        typer.echo(f"{len(found.expired)} checkpoints were let go, {len(found.removed)} objects removed")
    if found.waiting:
        typer.echo(f"keepstep: nothing is removed: {found.waiting}", err=True)


def pin(key: KeyArgument, reason: ReasonOption = "", store: StoreOption = None, job: JobOption = None) -> None:
    """Keep a checkpoint whatever retention says, until it is unpinned."""
    with told():
        repository = open_place(store, job)
        commit = find(repository, key)
        repository.pin(commit.key, reason or f"pinned by {getpass.getuser()}")


def unpin(key: KeyArgument, reason: ReasonOption = "", store: StoreOption = None, job: JobOption = None) -> None:
    """Let retention decide about a checkpoint again."""
    with told():
        repository = open_place(store, job)
        commit = find(repository, key)
        if not commit.pinned:
            fail(f"checkpoint {key} is not pinned", WRONG_INPUT)
        repository.unpin(commit.key, reason or f"unpinned by {getpass.getuser()}")
