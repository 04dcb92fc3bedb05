"""A checkpoint directory: parts, commits, verification, loading. Owns the disk format above single files.

    commits/<20 digits>.json                          the log, see commit
    steps/<step>-g<generation>-<attempt>-<job mark>/  one save; attempts never share a directory
        <digest>.group                                group blobs, one file however many ranks share it
        rank-<rank>.json                              receipts
        <digest>.manifest
    latest                                            a hint, moved after verification; nothing depends on it

Nothing is ever overwritten. Only a commit record makes a checkpoint exist. Any number of processes on any number of
nodes may write at once; none of them is special.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from keepstep._version import __version__
from keepstep.checkpoint.blob import digest_of, unpack
from keepstep.checkpoint.commit import CommitLog
from keepstep.checkpoint.errors import SaveFailed, StateInvalid
from keepstep.checkpoint.files import create_file, make_directory, read_exact, replace_file, sync_directory
from keepstep.checkpoint.records import Group, LogRecord, Manifest, Receipt, seal, unseal

_ATTEMPT = re.compile(r"[a-z0-9]{1,32}")
_DIGEST = re.compile(r"xxh3-[0-9a-f]{32}")


class Save(Struct, frozen=True, kw_only=True):
    """Which save a part belongs to. Ranks of one save agree on all of it."""

    job: str
    generation: int
    step: int
    attempt: str
    world_size: int

    def folder(self) -> str:
        """Carries the job as well: jobs may share a directory, and a save that died can be told by its name."""
        return f"{self.step:08d}-g{self.generation}-{self.attempt}-{job_mark(self.job)}"


class Commit(Struct, frozen=True, kw_only=True):
    """A checkpoint that exists. ``key`` names its record."""

    key: str
    job: str
    generation: int
    step: int
    world_size: int
    size_bytes: int
    fresh: bool = False
    """This very call wrote the record (so its caller verifies it)."""


class Rejected(NamedTuple):
    """A commit that was looked at and cannot be used."""

    key: str
    reason: str


def job_mark(job: str) -> str:
    """Eight hex digits that stand for a job in folder names."""
    return hashlib.blake2b(job.encode(), digest_size=4).hexdigest()


def key_of(seq: int) -> str:
    return f"{seq:020d}"


class CheckpointDirectory:
    """One directory as one process sees it. Not for use by two threads at once."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory)
        self.log = CommitLog(self.path / "commits")

    # ---- writing

    def write_part(
        self, save: Save, rank: int, blobs: Mapping[str, Any], digests: Mapping[str, str] | None = None
    ) -> Receipt:
        """Make one rank's groups (name -> blob bytes) durable, then its receipt.

        ``digests``: what the blobs hashed to when they were sealed; bytes that changed since are refused.
        A blob that is in place already, written by another rank, is not written again. Raises SaveFailed with what this
        call wrote removed, or Superseded.
        """
        if not _ATTEMPT.fullmatch(save.attempt):
            raise ValueError(f"attempt {save.attempt!r} must be 1 to 32 of a-z and 0-9")
        self.log.refresh()
        self.log.check_not_superseded(save.job, save.generation)
        folder = self.path / "steps" / save.folder()
        groups = {name: Group(digest=digest_of(blob), size_bytes=len(blob)) for name, blob in blobs.items()}
        for name, digest in (digests or {}).items():
            if groups[name].digest != digest:
                raise SaveFailed(
                    f"group {name!r} of rank {rank} changed in memory after it was sealed: it is not saved"
                )
        receipt = Receipt(
            job=save.job, generation=save.generation, step=save.step, attempt=save.attempt,
            rank=rank, world_size=save.world_size, groups=groups,
        )  # fmt: skip
        written: list[Path] = []
        try:
            make_directory(folder)
            for name, blob in blobs.items():
                path = folder / f"{groups[name].digest}.group"
                if create_file(path, blob):
                    written.append(path)
                elif path.stat().st_size != len(blob):
                    raise SaveFailed(f"{path} is in place with another size: the file system lost part of it")
            sync_directory(folder)
            self._write_receipt(folder / f"rank-{rank}.json", receipt)
            sync_directory(folder)
        except (OSError, SaveFailed) as error:
            _remove(written, folder)
            if isinstance(error, OSError):
                raise SaveFailed(f"step {save.step} was not saved in {folder}: {error.strerror or error}") from error
            raise
        return receipt

    def _write_receipt(self, path: Path, receipt: Receipt) -> None:
        data = seal(receipt)
        if not create_file(path, data) and path.read_bytes() != data:
            raise SaveFailed(
                f"{path} is there with other content: a save of this step was already tried in this run."
                " Give each try an attempt of its own"
            )

    def try_commit(self, save: Save) -> Commit | None:
        """Commit the save if every rank's receipt is there. None while parts are missing.

        Any process may call it, several at once: one record results. Raises StateInvalid if receipts contradict each
        other, Superseded, or SaveFailed.
        """
        self.log.refresh()
        done = self.find(save)
        if done is not None:
            return done
        folder = self.path / "steps" / save.folder()
        receipts = self._receipts(folder, save)
        if receipts is None:
            return None
        parent = max((record.seq for record in self.log.records(save.job) if record.kind == "commit"), default=0)
        manifest = _manifest(save, receipts, parent)
        _check_in_place(folder, manifest)
        data = seal(manifest)
        digest = digest_of(data)
        draft = LogRecord(
            seq=0, kind="commit", job=save.job, generation=save.generation, previous="", writer="", at_unix_s=0.0,
            step=save.step, attempt=save.attempt, world_size=save.world_size, folder=save.folder(),
            manifest=digest, manifest_bytes=len(data), size_bytes=sum(manifest.sizes_bytes.values()),
        )  # fmt: skip
        try:
            create_file(folder / f"{digest}.manifest", data)
            sync_directory(folder)
            record, fresh = self.log.append(draft, lambda record: _is(record, save))
            return msgspec.structs.replace(_commit(record), fresh=fresh)
        except OSError as error:
            raise SaveFailed(f"step {save.step} was not committed in {self.path}: {error.strerror or error}") from error

    def _receipts(self, folder: Path, save: Save) -> list[Receipt] | None:
        """All receipts in rank order, or None while some are missing."""
        paths = [folder / f"rank-{rank}.json" for rank in range(save.world_size)]
        if not all(path.exists() for path in paths):
            return None
        receipts = [unseal(path.read_bytes(), Receipt, path.name) for path in paths]
        for rank, receipt in enumerate(receipts):
            expected = (save.job, save.generation, save.step, save.attempt, save.world_size, rank)
            found = (receipt.job, receipt.generation, receipt.step, receipt.attempt, receipt.world_size, receipt.rank)
            if found != expected:
                raise StateInvalid(f"the receipt of rank {rank} in {folder.name} is of another save: {found}")
            if set(receipt.groups) != set(receipts[0].groups):
                raise StateInvalid(
                    f"rank {rank} saved groups {sorted(receipt.groups)}, rank 0 {sorted(receipts[0].groups)}"
                )
        return receipts

    def mark_latest(self, commit: Commit) -> None:
        """Move the hint. Call it only with a commit that :meth:`verify` has passed."""
        with contextlib.suppress(OSError):
            replace_file(self.path / "latest", f"{commit.key}\n".encode())

    # ---- reading

    def find(self, save: Save) -> Commit | None:
        """The commit of a save, if it is committed."""
        return next((_commit(record) for record in self.log.records(save.job) if _is(record, save)), None)

    def commits(self, job: str) -> list[Commit]:
        """What exists and has not expired, newest first. Only records are looked at, not data."""
        self.log.refresh()
        records = self.log.records(job)
        expired = {record.expires for record in records if record.kind == "expire"}
        live = [record for record in records if record.kind == "commit" and record.seq not in expired]
        return [_commit(record) for record in reversed(live)]

    def manifest(self, key: str) -> tuple[Path, Manifest]:
        """The folder and the manifest of a commit. Raises StateInvalid."""
        if not (len(key) == 20 and key.isdecimal()):
            raise StateInvalid(f"{key!r} is not the key of a commit: keys are 20 digits")
        self.log.refresh()
        record = self.log.reread(int(key))
        if record.kind != "commit":
            raise StateInvalid(f"record {key} is no commit but {record.kind!r}")
        folder = self.path / "steps" / record.folder
        name = f"{record.manifest}.manifest"
        try:
            data = read_exact(folder / name, record.manifest_bytes)
        except (OSError, ValueError) as error:
            raise StateInvalid(f"the manifest of commit {key} is not whole: {_words(error)}") from error
        if digest_of(data) != record.manifest:
            raise StateInvalid(f"the manifest of commit {key} does not match its digest: its bytes are damaged")
        manifest = unseal(data.tobytes(), Manifest, name)
        _check_manifest(manifest, record)
        return folder, manifest

    def verify(self, key: str, *, cold: bool = True) -> Commit:
        """Read every byte of a commit and compare digests. Raises StateInvalid naming the first piece that is wrong."""
        folder, manifest = self.manifest(key)
        for digest, size in sorted(manifest.sizes_bytes.items()):
            self._read_group(folder, digest, size, cold=cold)
        return _commit(self.log.record(int(key)))

    def newest_valid(self, job: str) -> tuple[Commit | None, list[Rejected]]:
        """The newest commit of which every byte is right, and those newer ones that were skipped, with the reason."""
        self.log.refresh()
        rejected = [Rejected(key_of(seq), why) for seq, why in sorted(self.log.damaged().items(), reverse=True)]
        for commit in self.commits(job):
            try:
                return self.verify(commit.key), [entry for entry in rejected if entry.key > commit.key]
            except StateInvalid as error:
                rejected.append(Rejected(commit.key, str(error)))
        return None, rejected

    def load(self, key: str, rank: int) -> dict[str, Any]:
        """The groups of one rank of a commit as trees. A rank beyond the saved world takes ``rank % world_size``."""
        folder, manifest = self.manifest(key)
        part = manifest.ranks[rank % manifest.world_size]
        sizes = manifest.sizes_bytes
        blobs = {name: self._read_group(folder, digest, sizes[digest]) for name, digest in part.items()}
        return {name: unpack(blob, part[name]) for name, blob in blobs.items()}

    def _read_group(self, folder: Path, digest: str, size: int, *, cold: bool = False) -> Any:
        path = folder / f"{digest}.group"
        try:
            data = read_exact(path, size, cold=cold)
        except (OSError, ValueError) as error:
            raise StateInvalid(f"group {path.name} in {folder.name} is not whole: {_words(error)}") from error
        if digest_of(data) != digest:
            raise StateInvalid(f"group {path.name} in {folder.name} does not match its digest: its bytes are damaged")
        return data


def _words(error: OSError | ValueError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _is(record: LogRecord, save: Save) -> bool:
    of = (record.kind, record.job, record.generation, record.step, record.attempt)
    return of == ("commit", save.job, save.generation, save.step, save.attempt)


def _commit(record: LogRecord) -> Commit:
    return Commit(
        key=key_of(record.seq), job=record.job, generation=record.generation, step=record.step,
        world_size=record.world_size, size_bytes=record.size_bytes,
    )  # fmt: skip


def _manifest(save: Save, receipts: list[Receipt], parent: int) -> Manifest:
    sizes = {group.digest: group.size_bytes for receipt in receipts for group in receipt.groups.values()}
    return Manifest(
        job=save.job, generation=save.generation, step=save.step, attempt=save.attempt, world_size=save.world_size,
        ranks=tuple({name: group.digest for name, group in receipt.groups.items()} for receipt in receipts),
        sizes_bytes=sizes, parent=parent, keepstep=__version__,
    )  # fmt: skip


def _check_in_place(folder: Path, manifest: Manifest) -> None:
    """A file that a receipt relies on may have gone with another rank's failed part: such a save is no checkpoint."""
    for digest, size in manifest.sizes_bytes.items():
        path = folder / f"{digest}.group"
        if not path.exists() or path.stat().st_size != size:
            raise StateInvalid(f"group {path.name} of step {manifest.step} is not in place: the save is not committed")


def _check_manifest(manifest: Manifest, record: LogRecord) -> None:
    of_record = (record.job, record.generation, record.step, record.attempt, record.world_size)
    of_manifest = (manifest.job, manifest.generation, manifest.step, manifest.attempt, manifest.world_size)
    if of_record != of_manifest or len(manifest.ranks) != manifest.world_size or manifest.world_size < 1:
        raise StateInvalid(f"the manifest of commit {key_of(record.seq)} is of another save: {of_manifest}")
    named = {digest for part in manifest.ranks for digest in part.values()}
    if named != set(manifest.sizes_bytes) or not all(map(_DIGEST.fullmatch, named)):
        raise StateInvalid(f"the manifest of commit {key_of(record.seq)} does not describe all the groups it names")


def _remove(written: list[Path], folder: Path) -> None:
    """Undo a failed part: exactly the files that this call made, and the folder if nobody else uses it."""
    for path in written:
        with contextlib.suppress(OSError):
            path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()
