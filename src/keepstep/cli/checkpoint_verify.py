"""``keepstep checkpoint verify``: every byte is read and compared, and the verdict is written down. Owns that conversation; the
checks are the library's.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from keepstep.cli.checkpoint_place import (
    DAMAGED,
    KEY_TROUBLE,
    STORE_TROUBLE,
    WRONG_INPUT,
    JobOption,
    KeysCommandOption,
    KeysOption,
    StoreOption,
    TenantOption,
    find,
    find_adopted,
    open_place,
    told,
    words,
)
from keepstep.cli.terminal import JsonOption, fail, print_json, step

if TYPE_CHECKING:
    from keepstep.checkpoint.repository.adopted import Registered
    from keepstep.checkpoint.repository.repository import Commit, Repository
    from keepstep.cli.checkpoint_progress import Bar

Result = Literal["sound", "damaged", "no key", "not read"]
_CODES: dict[Result, int] = {"damaged": DAMAGED, "no key": KEY_TROUBLE, "not read": STORE_TROUBLE}
"""Result -> exit code. Of several, the first of these that occurs."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    step: int | None
    result: Result
    reason: str
    """What is wrong; the first piece of it."""
    state: str
    """Of the checkpoint, after this."""


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    store: str
    job: str
    stored_only: bool
    dry_run: bool
    checkpoints: list[Verdict]
    damaged: dict[str, str]
    """Records of the log that cannot be believed: there may be checkpoints that are not in this list."""


def verify(
    key: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="As `ls` lists it. Default: the newest.", show_default=False),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every checkpoint, adopted ones too.")] = False,
    newest: Annotated[bool, typer.Option("--newest", help="The newest one; the default.")] = False,
    stored_only: Annotated[
        bool,
        typer.Option("--stored-only", help="Compare the stored bytes only: needs no key, and never marks VERIFIED."),
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Also mark a SUSPECT one VERIFIED if all of its bytes are right.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Do not write down what is found.")] = False,
    store: StoreOption = None,
    job: JobOption = None,
    keys: KeysOption = None,
    keys_command: KeysCommandOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Read every byte of checkpoints, compare all digests, and mark them VERIFIED or CORRUPT.

    Exit code: 0 sound, 1 damaged, 2 wrong input, 3 a key is missing, stale or wrong, 4 the store cannot be read.
    """
    from keepstep.cli.checkpoint_progress import bar

    if bool(key) + every + newest > 1:
        fail("name keys, or --all, or --newest", WRONG_INPUT)
    with told(), bar() as progress:
        repository = open_place(store, job, keys=keys, keys_command=keys_command, tenant=tenant)
        session = _Session(repository, progress, stored_only=stored_only, trust=trust, dry_run=dry_run)
        verdicts = session.run(key or ([] if every else ["newest"]))
        damaged = {str(seq): why for seq, why in repository.log.damaged().items()}
    found = Verdicts(
        store=repository.store.name,
        job=repository.job,
        stored_only=stored_only,
        dry_run=dry_run,
        checkpoints=verdicts,
        damaged=damaged,
    )
    if json:
        print_json(found)
    else:
        _print(found)
    results = {verdict.result for verdict in verdicts}
    if damaged and not key:
        results.add("damaged")
    raise typer.Exit(next((code for result, code in _CODES.items() if result in results), 0))


class _Session:
    """One run of the command."""

    def __init__(
        self, repository: "Repository", progress: "Bar", *, stored_only: bool, trust: bool, dry_run: bool
    ) -> None:
        self._repository, self._progress = repository, progress
        self._stored_only, self._trust, self._dry_run = stored_only, trust, dry_run

    def run(self, keys: list[str]) -> list[Verdict]:
        """Verdicts on ``keys``; on all that there is if none is named."""
        from keepstep.checkpoint.repository.adopted import Registered, registered

        if not keys:
            verdicts = [self._commit(commit) for commit in self._repository.commits()]
            return verdicts + [self._adopted(known) for known in registered(self._repository)]
        named = [find_adopted(self._repository, key) or find(self._repository, key) for key in keys]
        return [self._adopted(one) if isinstance(one, Registered) else self._commit(one) for one in named]

    def _commit(self, commit: "Commit") -> Verdict:
        result, reason = self._look(lambda: self._read(commit))
        state = commit.state
        if not self._dry_run and result == "damaged" and state != "corrupt":
            state = self._repository.mark(commit.key, "corrupt", reason).state
        elif not self._dry_run and result == "sound" and not self._stored_only:
            if state in ("committed", "corrupt") or (state == "suspect" and self._trust):
                state = self._repository.mark(commit.key, "verified", "keepstep checkpoint verify").state
            elif state == "suspect":
                reason = f"its bytes are right; it stays suspect ({commit.reason}) unless you say --trust"
        return Verdict(key=commit.key, step=commit.step, result=result, reason=reason, state=state)

    def _read(self, commit: "Commit") -> None:
        manifest = self._repository.manifest(commit.key)
        if self._stored_only:
            self._progress.begin(f"step {commit.step}", sum(entry.size_bytes for entry in manifest.packs))
            self._repository.scrub(commit.key, self._progress.advance)
        else:
            self._progress.begin(f"step {commit.step}", sum(manifest.sizes_bytes.values()))
            self._repository.verify(commit.key, self._progress.advance)

    def _adopted(self, known: "Registered") -> Verdict:
        from keepstep.checkpoint.adopt.adopted import compare
        from keepstep.checkpoint.errors import StateInvalid

        def read() -> None:
            changes = compare(known.adopted, known.adopted.path, progress=self._progress.move)
            if changes:
                what = "; ".join(f"{change.path} ({change.what})" for change in changes[:5])
                raise StateInvalid(f"{len(changes)} files are not what was adopted: {what}")

        result, reason = self._look(read)
        return Verdict(key=known.key, step=known.adopted.step, result=result, reason=reason, state="adopted")

    @staticmethod
    def _look(read: Callable[[], None]) -> tuple[Result, str]:
        """Damage is believed if it is found twice: a reading may have been wrong, and not what was read."""
        from keepstep.checkpoint.errors import KeyUnusable, StateInvalid

        try:
            try:
                read()
            except StateInvalid:
                read()
        except StateInvalid as error:
            return "damaged", str(error)
        except KeyUnusable as error:
            return "no key", str(error)
        except OSError as error:
            return "not read", words(error)
        return "sound", ""


def _print(found: Verdicts) -> None:
    from keepstep.cli.tables import show, table

    made = table("key", "step", "result", "state", "reason", flexible=("reason",))
    for verdict in found.checkpoints:
        made.add_row(verdict.key.lstrip("0"), step(verdict.step), verdict.result, verdict.state, verdict.reason or "–")
    show(made, f"no checkpoint of job {found.job} in {found.store}" if found.job else f"no checkpoint in {found.store}")
    for why in found.damaged.values():
        typer.echo(f"keepstep: {why}; see `keepstep checkpoint repair`", err=True)
