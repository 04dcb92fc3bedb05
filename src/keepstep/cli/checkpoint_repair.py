"""``keepstep checkpoint repair``: what a store has lost is put back from copies elsewhere. Owns the order: the log, the bytes,
then the verdict. Nothing is believed that does not match the digests of the checkpoint itself.
"""

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from keepstep.cli.checkpoint_place import (
    DAMAGED,
    WRONG_INPUT,
    JobOption,
    KeysCommandOption,
    KeysOption,
    StoreOption,
    TenantOption,
    find,
    open_address,
    open_place,
    told,
)
from keepstep.cli.terminal import JsonOption, fail, print_json

if TYPE_CHECKING:
    from keepstep.checkpoint.repository.copies import Copies
    from keepstep.checkpoint.repository.repair import Repaired
    from keepstep.checkpoint.repository.repository import Commit, Repository


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one checkpoint."""

    key: str
    step: int
    repaired: "tuple[Repaired, ...]"
    sound: bool
    reason: str
    """What nobody has, or why it was not verified."""
    state: str


def repair(
    sources: Annotated[
        list[str],
        typer.Option(
            "--from",
            help="A store with copies; may be repeated, the cheapest first.",
            metavar="PATH|URL",
            show_default=False,
        ),
    ],
    key: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="As `ls` lists it. Default: the newest.", show_default=False),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every checkpoint.")] = False,
    store: StoreOption = None,
    job: JobOption = None,
    keys: KeysOption = None,
    keys_command: KeysCommandOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Read every stored byte of checkpoints, put back what is wrong from other stores, then verify and mark them.

    Records of the commit log come first, as far as the chain proves them. Exit code 1 if something is still missing.
    """
    from keepstep.checkpoint.repository.copies import StoreCopies
    from keepstep.checkpoint.repository.repair import repair_log

    if key and every:
        fail("name keys, or --all", WRONG_INPUT)
    with told():
        repository = open_place(store, job, keys=keys, keys_command=keys_command, tenant=tenant)
        others: list[Copies] = [StoreCopies(open_address(source)) for source in sources]
        records = repair_log(repository, others)
        left = {str(seq): why for seq, why in repository.log.damaged().items()}
        commits = repository.commits() if every else [find(repository, one) for one in key or ["newest"]]
        results = [_one(repository, commit, others) for commit in commits]
    if json:
        print_json({"store": repository.store.name, "records": records, "damaged": left, "checkpoints": results})
    else:
        _print(records, left, results)
    if left or not all(result.sound for result in results):
        raise typer.Exit(DAMAGED)


def _one(repository: "Repository", commit: "Commit", others: "list[Copies]") -> Result:
    from keepstep.checkpoint.errors import KeyUnusable, StateInvalid
    from keepstep.checkpoint.repository.repair import repair as put_back

    done: list[Repaired] = []
    state, sound, reason = commit.state, False, ""
    try:
        done = put_back(repository, commit.key, others)
        sound = True
        repository.verify(commit.key)
        if state in ("committed", "corrupt"):
            state = repository.mark(commit.key, "verified", "keepstep checkpoint repair").state
    except KeyUnusable as error:
        reason = f"the stored bytes are right; it was not verified: {error}"
    except StateInvalid as error:
        sound, reason = False, str(error)
        if state != "corrupt":
            state = repository.mark(commit.key, "corrupt", reason).state
    return Result(key=commit.key, step=commit.step, repaired=tuple(done), sound=sound, reason=reason, state=state)


def _print(records: "list[Repaired]", left: dict[str, str], results: list[Result]) -> None:
    from keepstep.cli.tables import show, table

    made = table("key", "step", "state", "repaired", "notes", flexible=("notes",))
    for result in results:
        lines = [f"{one.key.removeprefix('steps/')}: {one.reason}; from {one.source}" for one in result.repaired]
        made.add_row(
            result.key.lstrip("0"), str(result.step), result.state, str(len(result.repaired)),
            "\n".join([*lines, *([result.reason] if result.reason else [])]) or "–",
        )  # fmt: skip
    for record in records:
        typer.echo(f"{record.key}: {record.reason}; put back from {record.source}")
    show(made, "there is no checkpoint")
    for why in left.values():
        typer.echo(f"keepstep: {why}", err=True)
