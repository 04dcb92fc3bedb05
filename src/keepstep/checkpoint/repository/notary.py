"""Who may say that a checkpoint exists: the proof of origin in commit records, and a last look before one is written.

With keys, a record carries a tag over all of it (see origin), so neither a record nor the manifest that it names can be made,
changed or moved by who has no key. Without keys, the chain and the digests find damage, not forgery. Either way, who may write
to a store can delete from it: newer checkpoints can be hidden.
"""

import contextlib

from blake3 import blake3
from msgspec.structs import replace

from keepstep.checkpoint.errors import SaveFailed, StateInvalid
from keepstep.checkpoint.format.records import LogRecord, Manifest, PackEntry, seal, unseal
from keepstep.checkpoint.keys.port import Keys
from keepstep.checkpoint.repository.history import History, key_of
from keepstep.checkpoint.repository.log import CommitLog
from keepstep.checkpoint.repository.origin import is_genuine, signed
from keepstep.checkpoint.repository.save import PREFIX, job_mark, manifest_key, owned
from keepstep.checkpoint.repository.saving import check_manifest
from keepstep.checkpoint.state.blob import digest_of
from keepstep.checkpoint.stores.port import Store

_LARGE = 1 << 63


class Notary:
    """Of one job. See the module."""

    def __init__(self, store: Store, keys: Keys | None, *, tenant: str) -> None:
        self._store, self._keys, self._tenant = store, keys, tenant
        self._offered: Manifest | None = None

    def offer(self, manifest: Manifest) -> None:
        """What is going to be committed."""
        self._offered = manifest

    def check(self, draft: LogRecord, log: CommitLog) -> None:
        """Raises SaveFailed if a commit leans on packs that retention may remove.

        Retention decides from the log as well, and this commit comes right after the records that were looked at here: either
        it sees the commit, or this sees what it has let go.
        """
        if draft.kind != "commit" or self._offered is None:
            return
        own = f"{PREFIX}{draft.folder}/"
        bases = {entry.key for entry in self._offered.packs if not entry.key.startswith(own)}
        history = log.history(draft.job)
        doubtful = {key for key in bases if (owner := owned(key)) is None or not history.keeps(owner)}
        if doubtful - _needed(self._store, log, history, enough=doubtful):
            raise SaveFailed(
                f"step {draft.step} leans on data of a checkpoint that has expired: the next save writes it anew"
            )

    def sign(self, record: LogRecord) -> LogRecord:
        if self._keys is None:
            return record
        if record.kind == "commit" and self._offered is not None:
            record = replace(record, manifest_blake3=blake3(seal(self._offered)).hexdigest())
        return signed(record, self._keys, self._tenant)


def prove(keys: Keys | None, tenant: str, record: LogRecord, manifest: bytes) -> None:
    """Raises StateInvalid unless a commit and its manifest were written by who has the key; or a key error. Without keys,
    anything goes."""
    if keys is None:
        return
    key = key_of(record.seq)
    if not record.tag:
        raise StateInvalid(
            f"commit {key} does not prove its origin: it was written without keys, or forged. To load what was saved"
            " without keys, configure none"
        )
    if is_genuine(record, keys, tenant) and blake3(manifest).hexdigest() == record.manifest_blake3:
        return
    raise StateInvalid(f"commit {key} or its manifest is forged: it does not match the key that it names")


def _needed(store: Store, log: CommitLog, history: History, enough: set[str]) -> set[str]:
    found: set[str] = set()
    for commit in history.commits():
        if enough <= found:
            break
        with contextlib.suppress(StateInvalid, FileNotFoundError):
            found |= {entry.key for entry in read_manifest(store, log.record(commit.seq))[0].packs}
    return found


def read_manifest(store: Store, record: LogRecord) -> tuple[Manifest, bytes]:
    """The manifest that a commit record names, and its bytes. Raises StateInvalid, or OSError if the store cannot be read."""
    key = key_of(record.seq)
    name = manifest_key(record.folder, record.manifest)
    if owned(name) is None:
        raise StateInvalid(f"commit {key} names no manifest that keepstep would have written")
    try:
        data = store.read(name)
    except FileNotFoundError as error:
        raise StateInvalid(f"the manifest of commit {key} is missing: {name}") from error
    return check_manifest_of(record, data, name), data


def check_manifest_of(record: LogRecord, data: bytes, name: str) -> Manifest:
    """The manifest in ``data``. Raises StateInvalid unless it is the very one that a commit record names."""
    key = key_of(record.seq)
    if len(data) != record.manifest_bytes or digest_of(data) != record.manifest:
        raise StateInvalid(f"the manifest of commit {key} does not match its digest: its bytes are damaged")
    manifest = unseal(data, Manifest, name)
    of_record = (record.job, record.generation, record.step, record.attempt, record.world_size)
    of_manifest = (manifest.job, manifest.generation, manifest.step, manifest.attempt, manifest.world_size)
    if of_record != of_manifest:
        raise StateInvalid(f"the manifest of commit {key} is of another save: {of_manifest}")
    check_manifest(manifest)
    for entry in manifest.packs:
        if not _is_pack(entry, job_mark(manifest.job)):
            raise StateInvalid(f"the manifest of commit {key} names {entry.key[:200]!r}, which is no pack of its job")
    return manifest


def _is_pack(entry: PackEntry, mark: str) -> bool:
    """Whether a pack is described as keepstep does it: what is read, and under which key, follows from it."""
    owner = owned(entry.key)
    named = owner is not None and owner.mark == mark and entry.key.endswith(f"/{entry.id}.pack")
    return named and 0 <= entry.generation < _LARGE and 0 <= entry.step < _LARGE and 0 < entry.size_bytes < _LARGE
