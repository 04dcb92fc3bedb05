"""The checkpoints of one job in one store: saving, committing, verifying, loading. Owns what a checkpoint's state is.

    commits/<20 digits>.json     the log, see log
    steps/…                      packs, receipts and manifests, see save
    latest-<job mark>            a hint, moved after verification; nothing depends on it

Nothing is ever overwritten. Only a commit record makes a checkpoint exist. Any number of processes on any number of
nodes may write at once; none of them is special.
"""

import mmap
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
import numpy as np

from keepstep.checkpoint.errors import CheckpointError, SaveFailed, StateInvalid
from keepstep.checkpoint.format.pack import Chunk
from keepstep.checkpoint.format.records import LogRecord, Manifest, Receipt, State
from keepstep.checkpoint.keys.port import Keys
from keepstep.checkpoint.repository.history import MOVES, History, key_of
from keepstep.checkpoint.repository.history import Commit as Commit
from keepstep.checkpoint.repository.log import CommitLog
from keepstep.checkpoint.repository.notary import Notary, prove, read_manifest
from keepstep.checkpoint.repository.pack_reader import PackReader
from keepstep.checkpoint.repository.pack_writer import Group
from keepstep.checkpoint.repository.save import Save, job_mark
from keepstep.checkpoint.repository.saving import Saver
from keepstep.checkpoint.state.blob import unpack_verified
from keepstep.checkpoint.stores.port import Store

Progress = Callable[[int], None]
"""Gets the number of bytes that were just done."""
MAX_FAILED_RESTORES = 2
"""Restores from one checkpoint that may fail, before it is left alone: a job must not come back to it for ever."""
_Mark = Literal["state", "pin", "unpin", "failed", "progress"]


class Rejected(NamedTuple):
    """A commit that was looked at and cannot be used."""

    key: str
    reason: str


def _no_progress(_: int) -> None:
    return


class Repository:
    """One job's checkpoints in a store, as one process sees them. Not for use by two threads at once.

    ``keys``: seals what is written and opens what is read; None: in the clear.
    """

    def __init__(
        self, store: Store, job: str, *, tenant: str = "", keys: Keys | None = None, compress: bool = False
    ) -> None:
        """``compress``: make what is written smaller, for a store behind a slow link; what is read tells by itself."""
        self.store, self.job, self.tenant, self.keys = store, job, tenant, keys
        self._notary = Notary(store, keys, tenant=tenant)
        self.log = CommitLog(store, self._notary)
        self._saver = Saver(store, self.log, keys, tenant, compress=compress)

    # ---- writing

    def write_part(
        self,
        save: Save,
        rank: int,
        groups: Mapping[str, Group],
    ) -> Receipt:
        """Make one rank's groups durable, then its receipt. See :meth:`Saver.write_part`."""
        return self._saver.write_part(save, rank, groups)

    def try_commit(self, save: Save) -> Commit | None:
        """Commit the save if every rank's receipt is there. None while parts are missing.

        Any process may call it, several at once: one record results. Raises StateInvalid if receipts contradict each
        other, Superseded, or SaveFailed.
        """
        try:
            self.log.refresh()
            done = self.find(save)
            if done is not None:
                return done
            if save.folder() in self.log.history(save.job).given_up:
                raise SaveFailed(f"the save of step {save.step} was given up for newer ones")
            manifest = self._saver.manifest_if_complete(save)
            if manifest is None:
                return None
            self._notary.offer(manifest)
            record, fresh = self._saver.commit(save, manifest)
        except (SaveFailed, StateInvalid):
            # It may lean on what is damaged, or what retention has let go.
            self._saver.forget_bases()
            raise
        except OSError as error:
            raise SaveFailed(
                f"step {save.step} was not committed in {self.store.name}: {error.strerror or error}"
            ) from error
        self._saver.forget(save)
        return self._committed(record, fresh)

    def _committed(self, record: LogRecord, fresh: bool) -> Commit:
        """The commit that a record makes. The log was just looked at, up to it or beyond."""
        history = self.log.history(record.job)
        commit = history.live.get(record.seq)
        if commit is None and record.seq in history.expired:
            commit = history.expired[record.seq].commit
        if commit is None:
            raise SaveFailed(f"commit {key_of(record.seq)} does not count: {history.void.get(record.seq, 'unknown')}")
        return msgspec.structs.replace(commit, fresh=fresh)

    def give_up(self, save: Save) -> None:
        """The save will not be committed by this process: forget what was read of it."""
        self._saver.forget(save)

    def mark(self, key: str, state: State, reason: str = "") -> Commit:
        """Write down what became of a commit. Raises ValueError for a move that the states do not have."""
        commit = self.commit(key)
        if state not in MOVES[commit.state]:
            raise ValueError(f"checkpoint {key} is {commit.state}: it cannot become {state}")
        if state != "verified":
            self._saver.forget_bases()
        if commit.state != state:
            self._append("state", commit, state=state, reason=reason)
        return self.commit(key)

    def pin(self, key: str, reason: str) -> None:
        """Retention never touches it until it is unpinned."""
        commit = self.commit(key)
        if not commit.pinned:
            self._append("pin", commit, reason=reason)

    def unpin(self, key: str, reason: str) -> None:
        commit = self.commit(key)
        if commit.pinned:
            self._append("unpin", commit, reason=reason)

    def note_failed_restore(self, key: str, attempt: str, reason: str) -> Commit:
        """A restore from this commit failed. ``attempt``: equal for all ranks of one try, which count once.

        The MAX_FAILED_RESTORES-th try marks it SUSPECT, so that the next restore takes another one.
        """
        commit = self.commit(key)
        if attempt not in commit.failed_restores:
            self._append("failed", commit, attempt=attempt, reason=reason)
            commit = self.commit(key)
        tries = len(commit.failed_restores)
        if tries < MAX_FAILED_RESTORES or "suspect" not in MOVES[commit.state]:
            return commit
        return self.mark(key, "suspect", f"{tries} restores from it failed; the last: {reason}")

    def note_progress(self, key: str) -> Commit:
        """A run that was restored from this commit gets on: earlier failures do not count any more."""
        commit = self.commit(key)
        if commit.failed_restores:
            self._append("progress", commit)
        return self.commit(key)

    def _append(
        self, kind: _Mark, commit: Commit, *, state: State | Literal[""] = "", attempt: str = "", reason: str = ""
    ) -> None:
        draft = LogRecord(
            seq=0, kind=kind, job=self.job, generation=max(self.history().generation, commit.generation), previous="",
            writer="", at_unix_s=0.0, of=commit.seq, state=state, attempt=attempt, reason=reason,
        )  # fmt: skip
        told = (kind, commit.seq, attempt)
        self.log.append(draft, lambda record: bool(attempt) and (record.kind, record.of, record.attempt) == told)

    def mark_latest(self, commit: Commit) -> None:
        """Move the hint. Call it only with a commit that :meth:`verify` has passed."""
        hint = {"key": commit.key, "step": commit.step, "generation": commit.generation}
        try:
            self.store.hint(f"latest-{job_mark(self.job)}", msgspec.json.encode(hint))
        except OSError:
            # Nothing depends on it.
            return

    # ---- reading

    def history(self) -> History:
        """What the log said when it was last looked at."""
        return self.log.history(self.job)

    def find(self, save: Save) -> Commit | None:
        """The commit of a save, if it is committed, even if it has expired."""
        history = self.log.history(save.job)
        seq = history.of_folder(save.folder())
        if seq is None:
            return None
        return history.live[seq] if seq in history.live else history.expired[seq].commit

    def commits(self) -> list[Commit]:
        """What exists and has not expired, newest first. Only records are looked at, not data."""
        self.log.refresh()
        return self.history().commits()

    def commit(self, key: str) -> Commit:
        """One of :meth:`commits`. Raises StateInvalid if there is no such, or it has expired."""
        for commit in self.commits():
            if commit.key == key:
                return commit
        raise StateInvalid(f"job {self.job} has no checkpoint {key} in {self.store.name}, or it has expired")

    def manifest(self, key: str) -> Manifest:
        """The manifest of a commit. Raises StateInvalid, a key error, or OSError if the store cannot be read."""
        if not (len(key) == 20 and key.isdecimal()):
            raise StateInvalid(f"{key!r} is not the key of a commit: keys are 20 digits")
        self.log.refresh()
        record = self.log.reread(int(key))
        if record.kind != "commit" or record.job != self.job:
            raise StateInvalid(f"record {key} is no commit of job {self.job} but {record.kind!r} of {record.job}")
        manifest, data = read_manifest(self.store, record)
        prove(self.keys, self.tenant, record, data)
        return manifest

    def reader(self, manifest: Manifest) -> PackReader:
        """For the packs of a checkpoint."""
        if self.keys is not None:
            for session, wrapped in manifest.sessions.items():
                self.keys.learn(session, wrapped)
        return PackReader(self.store, manifest.packs, self.keys, tenant=self.tenant, job=self.job)

    def verify(self, key: str, progress: Progress = _no_progress) -> Commit:
        """Read every byte of a commit from the store and compare all digests. Raises StateInvalid naming the first piece
        that is wrong, a key error, or OSError. Does not write down what it found: see :meth:`mark`."""
        manifest = self.manifest(key)
        reader = self.reader(manifest)
        with as_invalid():
            for digest in sorted(manifest.sizes_bytes):
                check_size(manifest, digest, reader)
                reader.verify_group(digest, progress)
            for entry in manifest.packs:
                reader.check_header(entry)
        return self.commit(key)

    def scrub(self, key: str, progress: Progress = _no_progress) -> None:
        """Read every byte of a commit and compare the stored digests: needs no key. Raises like :meth:`verify`."""
        manifest = self.manifest(key)
        reader = PackReader(self.store, manifest.packs, None, tenant=self.tenant, job=self.job)
        with as_invalid():
            for entry in manifest.packs:
                reader.scrub(entry)
                progress(entry.size_bytes)

    def newest_valid(self) -> tuple[Commit | None, list[Rejected]]:
        """The newest commit of which every byte is right, and those newer ones that were skipped, with the reason."""
        self.log.refresh()
        rejected = [Rejected(key_of(seq), why) for seq, why in sorted(self.log.damaged().items(), reverse=True)]
        for commit in self.commits():
            if commit.state in ("suspect", "corrupt"):
                rejected.append(Rejected(commit.key, f"it is marked {commit.state}: {commit.reason}"))
                continue
            try:
                return self.verify(commit.key), [entry for entry in rejected if entry.key > commit.key]
            except (CheckpointError, OSError) as error:
                rejected.append(Rejected(commit.key, str(error)))
        return None, rejected

    def load(self, key: str, rank: int, names: tuple[str, ...] | None = None) -> dict[str, Any]:
        """The groups of one rank of a commit as trees, every chunk checked; only ``names`` if given.

        A rank beyond the saved world takes ``rank % world_size``. Raises StateInvalid, a key error, or OSError.
        """
        manifest = self.manifest(key)
        return load_part(manifest, rank, names, self.reader(manifest))


class Source(Protocol):
    """Where groups are read from, as ``PackReader`` does it."""

    def chunks(self, digest: str) -> tuple[Chunk, ...]: ...

    def read_group(self, digest: str, out: memoryview) -> None: ...


def load_part(manifest: Manifest, rank: int, names: tuple[str, ...] | None, source: Source) -> dict[str, Any]:
    """The groups of one rank as trees. Raises StateInvalid, or what ``source`` raises."""
    part = manifest.ranks[rank % manifest.world_size].groups
    absent = set(names or ()) - set(part)
    if absent:
        raise StateInvalid(f"step {manifest.step} has no group {sorted(absent)}: it has {sorted(part)}")
    trees: dict[str, Any] = {}
    with as_invalid():
        for name in part if names is None else names:
            # Memory is taken only for what is described chunk by chunk: a manifest may say anything.
            check_size(manifest, part[name], source)
            blob = staging(manifest.sizes_bytes[part[name]])
            source.read_group(part[name], memoryview(blob.data))
            trees[name] = unpack_verified(blob)
    return trees


def check_size(manifest: Manifest, digest: str, source: Source) -> None:
    """Raises StateInvalid unless the chunks of a group make as many bytes as the manifest says."""
    if sum(chunk.plain_bytes for chunk in source.chunks(digest)) != manifest.sizes_bytes[digest]:
        raise StateInvalid(f"group {digest} has another size than the {manifest.sizes_bytes[digest]} bytes announced")


def staging(size_bytes: int) -> "np.ndarray[Any, Any]":
    """Memory on a page boundary (direct I/O needs it), freed with the array."""
    memory = mmap.mmap(-1, max(size_bytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, size_bytes)


class as_invalid:
    """A piece that cannot be found is as good as damaged; anything else that the store says is passed on."""

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise StateInvalid(f"a piece of the checkpoint is missing: {error.filename or error}") from error
