"""``keepstep checkpoint diff``. Owns the table; the comparison is keepstep.checkpoint.reshard's."""

from typing import TYPE_CHECKING, Annotated

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
    from keepstep.checkpoint.reshard.difference import Difference

MOST_SHOWN = 50


def diff(
    first: KeyArgument,
    second: KeyArgument,
    rank: Annotated[
        int | None,
        typer.Option(min=0, help="Of this rank only. Default: every rank that both have.", show_default=False),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every difference, not the first 50.")] = False,
    store: StoreOption = None,
    job: JobOption = None,
    keys: KeysOption = None,
    keys_command: KeysCommandOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Compare two checkpoints: groups, tensors and values that differ, and by how much.

    Exit code: 0 if all is the same, 1 if not, or if one is damaged; further as `verify`.
    """
    from keepstep.checkpoint.reshard.difference import Side, differences

    with told():
        repository = open_place(store, job, keys=keys, keys_command=keys_command, tenant=tenant)
        commits = [find(repository, key) for key in (first, second)]
        sides = [Side(manifest := repository.manifest(commit.key), repository.reader(manifest)) for commit in commits]
        worlds = [commit.world_size for commit in commits]
        if rank is not None and rank >= min(worlds):
            fail(f"--rank {rank}: the checkpoints are of {worlds[0]} and {worlds[1]} ranks", WRONG_INPUT)
        ranks = tuple(range(min(worlds))) if rank is None else (rank,)
        found = list(differences(sides[0], sides[1], ranks))
    same = not found and (rank is not None or worlds[0] == worlds[1])
    if json:
        keys_of = [commit.key for commit in commits]
        print_json({"first": keys_of[0], "second": keys_of[1], "worlds": worlds, "same": same, "differences": found})
    else:
        if worlds[0] != worlds[1]:
            typer.echo(f"{worlds[0]} and {worlds[1]} ranks: the first {min(worlds)} are compared, each with its like")
        _print(found, None if every else MOST_SHOWN)
    raise typer.Exit(0 if same else 1)


def _print(found: "list[Difference]", most: int | None) -> None:
    from keepstep.cli.tables import show, table

    made = table("where", "what", "first", "second", "by", flexible=("where", "first", "second", "by"))
    for one in found[:most]:
        where = f"{one.group}.{one.place}" if one.place else one.group
        made.add_row(f"{where} (rank {one.rank})" if one.rank else where, one.kind, one.first, one.second, _by(one))
    show(made, "all is the same, bit for bit")
    if most is not None and len(found) > most:
        typer.echo(f"and {len(found) - most} more: --all")


def _by(one: "Difference") -> str:
    if one.numbers is None:
        return "–"
    numbers = one.numbers
    words = [f"{numbers.differing} of {numbers.elements} elements"]
    words += [] if numbers.max_abs is None else [f"at most {numbers.max_abs:.6g}"]
    words += [f"{numbers.not_finite} not finite"] if numbers.not_finite else []
    return ", ".join(words)
