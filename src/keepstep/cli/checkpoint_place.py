"""Which store and which job a checkpoint command is about, and how it ends. Owns those options and the exit codes.

0 well   1 damaged, or different, or refused   2 wrong input   3 a key is missing, stale or wrong   4 the store fails
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.terminal import fail
from keepstep.wire.environment import CHECKPOINT_DIR

if TYPE_CHECKING:
    from keepstep.checkpoint.keys.port import Keys, Provider
    from keepstep.checkpoint.repository.adopted import Registered
    from keepstep.checkpoint.repository.repository import Commit, Repository
    from keepstep.checkpoint.stores.port import Store

DAMAGED, WRONG_INPUT, KEY_TROUBLE, STORE_TROUBLE = 1, 2, 3, 4

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Directory or URL of the store (s3://, gs://, az://). Default: $KEEPSTEP_CHECKPOINT_DIR, else the only one "
        "in ./checkpoints and in checkpoints of the state directory.",
        metavar="PATH|URL",
        show_default=False,
    ),
]
JobOption = Annotated[
    str | None, typer.Option(help="Whose checkpoints. Default: the only job in the store.", show_default=False)
]
TenantOption = Annotated[str, typer.Option(help="The tenant for whom the packs were sealed.")]
KeysOption = Annotated[
    Path | None,
    typer.Option(
        "--keys",
        "--checkpoint-keys",
        help="Directory with key files, for sealed checkpoints.",
        metavar="DIR",
        show_default=False,
    ),
]
KeysCommandOption = Annotated[
    str | None,
    typer.Option(
        "--keys-command",
        "--checkpoint-keys-command",
        help="A command that talks to your key service.",
        metavar="COMMAND",
        show_default=False,
    ),
]
KeyArgument = Annotated[
    str,
    typer.Argument(
        metavar="KEY", help="As `ls` lists it (zeros in front may be left out), or `newest`.", show_default=False
    ),
]


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Turns what goes wrong with a checkpoint into words and an exit code."""
    from keepstep.checkpoint.errors import CheckpointError, KeyUnusable, StoreUnfit

    try:
        yield
    except KeyUnusable as error:
        fail(str(error), KEY_TROUBLE)
    except StoreUnfit as error:
        fail(str(error), STORE_TROUBLE)
    except CheckpointError as error:
        fail(str(error), DAMAGED)
    except OSError as error:
        fail(words(error), STORE_TROUBLE)


def words(error: OSError) -> str:
    """Without the number, which tells a person nothing."""
    if error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def open_place(
    store: str | None,
    job: str | None,
    *,
    keys: Path | None = None,
    keys_command: str | None = None,
    tenant: str = "",
    new: bool = False,
) -> "Repository":
    """The checkpoints of a job, as the options name them. ``new``: neither the store nor the job need exist.

    Call it within :func:`told`.
    """
    from keepstep.checkpoint.repository.log import CommitLog
    from keepstep.checkpoint.repository.repository import Repository

    opened = open_address(store or _default_address(job), new=new)
    log = CommitLog(opened)
    log.refresh()
    return Repository(
        opened, _job(log.jobs(), job, opened.name, new=new), tenant=tenant, keys=_keys(opened, keys, keys_command)
    )


def open_address(address: str, *, new: bool = False) -> "Store":
    """A store that can be read. Call it within :func:`told`."""
    from keepstep.checkpoint.stores.address import open_store
    from keepstep.checkpoint.stores.posix import PosixStore

    try:
        opened = open_store(address)
    except (ValueError, ImportError) as error:
        fail(str(error), WRONG_INPUT)
    if isinstance(opened, PosixStore) and not opened.path.is_dir() and not new:
        fail(f"there is no directory {opened.name}: name the store with --store", STORE_TROUBLE)
    return opened


def find(repository: "Repository", text: str) -> "Commit":
    """The commit that ``text`` names: a key, with or without the zeros in front, or ``newest``."""
    commits = repository.commits()
    if text == "newest" and commits:
        return commits[0]
    found = [commit for commit in commits if text.isdecimal() and len(text) <= 20 and int(commit.key) == int(text)]
    if not found and (adopted := find_adopted(repository, text)) is not None:
        fail(
            f"{text} is an adopted checkpoint of another library ({adopted.adopted.format}): use it at {adopted.adopted.path}",
            WRONG_INPUT,
        )
    if not found:
        known = ", ".join(commit.key.lstrip("0") for commit in commits[:8]) or "none"
        more = f" and {len(commits) - 8} older ones" if len(commits) > 8 else ""
        fail(
            f"job {repository.job!r} has no checkpoint {text!r} in {repository.store.name}; there are: {known}{more}",
            WRONG_INPUT,
        )
    return found[0]


def find_adopted(repository: "Repository", text: str) -> "Registered | None":
    """The adopted checkpoint that ``text`` names."""
    from keepstep.checkpoint.repository.adopted import registered

    if not text.isdecimal() or len(text) > 20:
        return None
    return next((known for known in registered(repository) if int(known.key) == int(text)), None)


def _default_address(job: str | None) -> str:
    """Where this machine keeps checkpoints, if that can be told."""
    import os

    from keepstep.cli.reading import state_of

    if given := os.environ.get(CHECKPOINT_DIR):
        return given
    shelves = (Path("checkpoints"), state_of(None).path / "checkpoints")
    found = [
        place
        for shelf in shelves
        for place in (shelf, *(sorted(shelf.iterdir()) if shelf.is_dir() else ()))
        if (place / "commits").is_dir()
    ]
    named = [place for place in found if place.name == job]
    chosen = named or found
    if len(chosen) == 1:
        return str(chosen[0])
    if chosen:
        fail(f"there are several stores: name one with --store: {', '.join(map(str, chosen))}", WRONG_INPUT)
    fail(f"there is no store in {' or '.join(map(str, shelves))}: name one with --store", WRONG_INPUT)


def _job(jobs: list[str], job: str | None, store: str, *, new: bool) -> str:
    if job is not None and (job in jobs or new):
        return job
    if job is not None and jobs:
        fail(f"{store} has nothing of job {job!r}; it has: {', '.join(jobs)}", WRONG_INPUT)
    if job is None and len(jobs) > 1:
        fail(f"{store} has several jobs: name one with --job: {', '.join(jobs)}", WRONG_INPUT)
    if job is None and not jobs and new:
        fail(f"{store} has no job yet: name the one that this is for with --job", WRONG_INPUT)
    return jobs[0] if job is None and jobs else job or ""


def _keys(store: "Store", directory: Path | None, command: str | None) -> "Keys | None":
    if directory is None and command is None:
        return None
    import shlex

    from keepstep.checkpoint.keys.providers import CommandProvider, FileProvider
    from keepstep.checkpoint.keys.sessions import SessionKeys

    providers: list[Provider] = [] if directory is None else [FileProvider(directory)]
    if command is not None:
        try:
            providers.append(CommandProvider(shlex.split(command)))
        except ValueError as error:
            fail(f"--keys-command {command!r}: {error}", WRONG_INPUT)
    return SessionKeys(store, providers)
