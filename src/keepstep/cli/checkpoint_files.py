"""``keepstep checkpoint restore`` and ``export``: state out of the store, as files of other libraries. Owns neither format."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
    words,
)
from keepstep.cli.terminal import JsonOption, fail, print_json

if TYPE_CHECKING:
    from keepstep.checkpoint.format.pack import Chunk
    from keepstep.checkpoint.repository.pack_reader import PackReader
    from keepstep.checkpoint.repository.repository import Commit, Repository
    from keepstep.cli.checkpoint_progress import Bar

HOLD_S = 6 * 3600.0
"""How long retention leaves the checkpoint alone if this process dies without a word; else it is given back at once."""


def restore(
    key: KeyArgument,
    to: Annotated[Path, typer.Option("--to", help="Directory to make; must not exist.", show_default=False)],
    rank: Annotated[int, typer.Option(min=0, help="Whose state.")] = 0,
    store: StoreOption = None,
    job: JobOption = None,
    keys: KeysOption = None,
    keys_command: KeysCommandOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Write one rank's state as safetensors files, every chunk checked: what that rank would start from.

    `keepstep.checkpoint.adopt.load.load` reads them back bit for bit. Parts of sharded tensors stay parts; see `export`.
    """
    from keepstep.checkpoint.adopt.convert import export_safetensors
    from keepstep.checkpoint.repository.repository import load_part
    from keepstep.cli.checkpoint_progress import bar

    with told():
        repository = open_place(store, job, keys=keys, keys_command=keys_command, tenant=tenant)
        commit = find(repository, key)
        if rank >= commit.world_size:
            fail(f"--rank {rank}: checkpoint {key} is of {commit.world_size} ranks, from 0 on", WRONG_INPUT)
        _check_new(to)
        with _held(repository, commit), bar(f"step {commit.step}") as progress:
            manifest = repository.manifest(commit.key)
            part = manifest.ranks[rank].groups
            progress.begin(f"step {commit.step}", sum(manifest.sizes_bytes[digest] for digest in part.values()))
            groups = load_part(manifest, rank, None, _Counted(repository.reader(manifest), progress))
        export_safetensors(groups, to)
    _tell(commit, groups, to, "safetensors", json=json)


def export(
    key: KeyArgument,
    to: Annotated[Path, typer.Option("--to", help="Directory to make; must not exist.", show_default=False)],
    format: Annotated[
        Literal["safetensors", "dcp"], typer.Option(help="safetensors files, or a PyTorch DCP directory.")
    ] = "safetensors",
    store: StoreOption = None,
    job: JobOption = None,
    keys: KeysOption = None,
    keys_command: KeysCommandOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Write a whole checkpoint for other tools: sharded tensors put together, nothing twice.

    What a rank has otherwise than rank 0, such as random numbers, is in groups named GROUP.rankN. Takes as much memory as the
    state.
    """
    from importlib.util import find_spec

    from keepstep.checkpoint.adopt.convert import export_dcp, export_safetensors
    from keepstep.checkpoint.reshard.whole import load_whole
    from keepstep.cli.checkpoint_progress import bar

    if format == "dcp" and find_spec("torch") is None:
        fail("--format dcp needs torch: pip install 'keepstep[torch]'", WRONG_INPUT)
    with told():
        repository = open_place(store, job, keys=keys, keys_command=keys_command, tenant=tenant)
        commit = find(repository, key)
        _check_new(to)
        with _held(repository, commit), bar(f"step {commit.step}"):
            groups = load_whole(repository, commit.key)
        (export_dcp if format == "dcp" else export_safetensors)(groups, to)
    _tell(commit, groups, to, format, json=json)


class _Counted:
    """A reader that moves a progress bar."""

    def __init__(self, reader: "PackReader", progress: "Bar") -> None:
        self._reader, self._progress = reader, progress

    def chunks(self, digest: str) -> "tuple[Chunk, ...]":
        return self._reader.chunks(digest)

    def read_group(self, digest: str, out: memoryview) -> None:
        self._reader.read_group(digest, out, self._progress.advance)


def _check_new(to: Path) -> None:
    if to.exists() or to.is_symlink():
        fail(f"{to} exists, and nothing is overwritten: name a new directory", WRONG_INPUT)
    if not to.absolute().parent.is_dir():
        fail(f"there is no directory {to.absolute().parent} to make {to.name} in", WRONG_INPUT)


@contextlib.contextmanager
def _held(repository: "Repository", commit: "Commit") -> Iterator[None]:
    """Retention leaves the checkpoint alone meanwhile."""
    from keepstep.checkpoint.repository.leases import Lease

    try:
        lease = Lease(repository, commit.key, duration_s=HOLD_S)
    except OSError as error:
        # A store that may only be read. Every byte is checked anyhow.
        typer.echo(
            f"keepstep: retention is not held off while {commit.key.lstrip('0')} is read ({words(error)})",
            err=True,
        )
        yield
        return
    with lease:
        yield


def _tell(commit: "Commit", groups: dict[str, Any], to: Path, format: str, *, json: bool) -> None:
    if json:
        print_json(
            {"key": commit.key, "step": commit.step, "format": format, "path": str(to), "groups": sorted(groups)}
        )
    else:
        typer.echo(f"step {commit.step}, {len(groups)} groups, as {format} in {to}: {', '.join(sorted(groups))}")
