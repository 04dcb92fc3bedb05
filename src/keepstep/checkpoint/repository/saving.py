"""Making a checkpoint: packs, receipts, then one commit record. Owns the order of these steps.

No collectives and no one in charge: every rank, or the snapshot server of its node, puts its packs and a receipt into the
store, and whoever sees the last receipt commits. Groups that several ranks have are written once, by whoever claims them.
"""

import secrets
from collections.abc import Mapping

import msgspec

from keepstep._version import __version__
from keepstep.checkpoint.errors import SaveFailed, StateInvalid
from keepstep.checkpoint.format.pack import Chunk
from keepstep.checkpoint.format.records import LogRecord, Manifest, PackEntry, Part, Receipt, seal, unseal
from keepstep.checkpoint.keys.port import Keys
from keepstep.checkpoint.repository.coverage import check_coverage
from keepstep.checkpoint.repository.log import CommitLog
from keepstep.checkpoint.repository.origin import is_genuine, signed
from keepstep.checkpoint.repository.pack_writer import Group, PackWriter, Sealing, pack_bytes
from keepstep.checkpoint.repository.save import Save, manifest_key, owned
from keepstep.checkpoint.state.blob import digest_of, index_of
from keepstep.checkpoint.state.shards import shards_of
from keepstep.checkpoint.stores.port import Store

SHARED_BYTES = 1024 * 1024
"""Groups of this size get a pack of their own, and are claimed first: other ranks may have the same bytes."""
MIN_BASE_BYTES = 64 * 1024
"""Smaller chunks are always written: an old pack is not kept for the sake of so little."""
MAX_BASE_SAVES = 8
"""A chunk that has not changed is written again after so many saves, so that old packs can go."""


class _Base(msgspec.Struct, frozen=True):
    """Where a chunk was written, and in which of this process's saves."""

    chunk: Chunk
    entry: PackEntry
    number: int


class Saver:
    """Writes parts of saves of one job to one store. Not for use by two threads at once."""

    def __init__(self, store: Store, log: CommitLog, keys: Keys | None, tenant: str, *, compress: bool = False) -> None:
        self._store, self._log, self._keys, self._tenant = store, log, keys, tenant
        self._compress = compress
        self._owner = secrets.token_hex(16)
        self._bases: dict[tuple[str, int], _Base] = {}
        self._leaning: dict[str, str] = {}
        """Pack id -> folder of the newest save that leans on it."""
        self._number = 0
        self._receipts: dict[Save, dict[int, Receipt]] = {}

    # ---- parts

    def write_part(
        self,
        save: Save,
        rank: int,
        groups: Mapping[str, Group],
    ) -> Receipt:
        """Make one rank's groups (name -> blob) durable, then its receipt.

        A group that another rank has claimed is left to it. Raises SaveFailed with what this call wrote removed, or Superseded.
        """
        sealing = Sealing(self._keys, self._tenant, save.job, save.generation, save.step, self._compress)
        distinct = {group.chunks.root: group for group in groups.values()}
        sharded = {name: shards_of(index_of(group.blob)) for name, group in groups.items()}
        part = Part(
            groups={name: group.chunks.root for name, group in groups.items()},
            sharded={name: tensors for name, tensors in sharded.items() if tensors},
        )
        packs: list[PackEntry] = []
        self._number += 1
        try:
            self._log.refresh()
            self._log.check_not_superseded(save.job, save.generation)
            for bunch in self._to_write(save, rank, distinct):
                packs += self._write_pack(save, bunch, sealing)
            receipt = Receipt(
                job=save.job, generation=save.generation, step=save.step, attempt=save.attempt, world_size=save.world_size,
                rank=rank, part=part, sizes_bytes={digest: group.chunks.ends[-1] for digest, group in distinct.items()},
                packs=tuple({entry.id: entry for entry in packs}.values()), sessions=self._sessions(packs),
            )  # fmt: skip
            self._write_receipt(save, rank, receipt)
        except OSError as error:
            self._undo(save, rank, packs)
            raise SaveFailed(
                f"step {save.step} was not saved in {self._store.name}: {error.strerror or error}"
            ) from error
        except SaveFailed:
            self._undo(save, rank, packs)
            raise
        return receipt

    def _to_write(self, save: Save, rank: int, distinct: Mapping[str, Group]) -> list[dict[str, Group]]:
        """Bunches of groups, one pack each: large ones alone and only if nobody else has claimed them, small ones together."""
        large = sorted(digest for digest, group in distinct.items() if group.chunks.ends[-1] >= SHARED_BYTES)
        # Ranks with equal state begin at different groups, so that each claims a share of them.
        turn = rank % max(len(large), 1)
        bunches = [
            {digest: distinct[digest]}
            for digest in large[turn:] + large[:turn]
            if save.world_size == 1 or self._claim(save, digest)
        ]
        small = {digest: group for digest, group in distinct.items() if digest not in set(large)}
        return [*bunches, small] if small else bunches

    def _claim(self, save: Save, digest: str) -> bool:
        key = f"{save.prefix()}claims/{digest}"
        return self._store.create(key, self._owner.encode()) or self._store.read(key) == self._owner.encode()

    def _write_pack(self, save: Save, groups: Mapping[str, Group], sealing: Sealing) -> list[PackEntry]:
        """The new pack, and the older ones it leans on."""
        known = {at: base.chunk for at, base in self._bases.items() if self._is_usable(base, save)}
        entries = {base.entry.id: base.entry for base in self._bases.values()}
        with PackWriter(self._store, save.prefix(), pack_bytes(groups), sealing, known) as writer:
            for group in groups.values():
                writer.add(group)
            entry = writer.finish()
            self._remember(writer.own_chunks(), entry)
            self._leaning |= dict.fromkeys(writer.leans_on(), save.folder())
            return [entry, *(msgspec.structs.replace(entries[pack], groups=()) for pack in writer.leans_on())]

    def _is_usable(self, base: _Base, save: Save) -> bool:
        """Whether a chunk need not be written again: it is young, opens with the same key, and its pack is there to stay."""
        same = base.entry.generation == save.generation or not base.entry.session
        owner, history = owned(base.entry.key), self._log.history(save.job)
        kept = owner is not None and history.keeps(owner)
        needed = history.of_folder(self._leaning.get(base.entry.id, "")) in history.live
        return same and (kept or needed) and self._number - base.number <= MAX_BASE_SAVES

    def _remember(self, chunks: list[Chunk], entry: PackEntry) -> None:
        for chunk in chunks:
            if chunk.plain_bytes < MIN_BASE_BYTES:
                continue
            self._bases[chunk.plain, chunk.plain_bytes] = _Base(chunk, entry, self._number)

    def forget_bases(self) -> None:
        """Write everything anew from here: a base was found damaged, or may be."""
        self._bases.clear()
        self._leaning.clear()

    def _sessions(self, packs: list[PackEntry]) -> dict[str, dict[str, str]]:
        keys = self._keys
        return {} if keys is None else {entry.session: keys.identity(entry.session) for entry in packs if entry.session}

    def _write_receipt(self, save: Save, rank: int, receipt: Receipt) -> None:
        key = f"{save.prefix()}receipts/{rank}"
        if self._keys is not None:
            receipt = signed(receipt, self._keys, self._tenant)
        if self._store.create(key, seal(receipt)):
            return
        before = unseal(self._store.read(key), Receipt, key)
        if before.part != receipt.part:
            raise SaveFailed(
                f"{key} is there with other content: a save of this step was already tried in this run."
                " Give each try an attempt of its own"
            )

    def _undo(self, save: Save, rank: int, packs: list[PackEntry]) -> None:
        """Remove what a failed part wrote; nothing refers to it."""
        self._bases = {at: base for at, base in self._bases.items() if base.number != self._number}
        own = [entry.key for entry in packs if entry.key.startswith(save.prefix())]
        try:
            # The receipt first: it may be there although writing it failed, and must not speak for packs that go.
            for key in (f"{save.prefix()}receipts/{rank}", *own):
                self._store.delete(key)
        except OSError:
            # A later checkpoint's retention sweeps it.
            return

    # ---- commit

    def manifest_if_complete(self, save: Save) -> Manifest | None:
        """The manifest of a save, or None while receipts are missing. Raises StateInvalid if they contradict each other."""
        receipts = self._read_receipts(save)
        if len(receipts) < save.world_size:
            return None
        packs = {entry.id: entry for receipt in receipts for entry in receipt.packs if not entry.groups}
        packs |= {entry.id: entry for receipt in receipts for entry in receipt.packs if entry.groups}
        manifest = Manifest(
            job=save.job, generation=save.generation, step=save.step, attempt=save.attempt, world_size=save.world_size,
            ranks=tuple(receipt.part for receipt in receipts),
            sizes_bytes={digest: size for receipt in receipts for digest, size in receipt.sizes_bytes.items()},
            packs=tuple(packs[pack] for pack in sorted(packs)),
            sessions={session: wrap for receipt in receipts for session, wrap in receipt.sessions.items()},
            parent=max((record.seq for record in self._log.records(save.job) if record.kind == "commit"), default=0),
            keepstep=__version__,
        )  # fmt: skip
        self._check(save, manifest)
        return manifest

    def _read_receipts(self, save: Save) -> list[Receipt]:
        """Those that are there, in order of their ranks."""
        known = self._receipts.setdefault(save, {})
        for entry in self._store.list(f"{save.prefix()}receipts/"):
            rank = int(entry.key.rpartition("/")[2])
            if rank not in known:
                receipt = unseal(self._store.read(entry.key), Receipt, entry.key)
                _check_receipt(save, rank, receipt)
                if self._keys is not None and not is_genuine(receipt, self._keys, self._tenant):
                    raise StateInvalid(f"{entry.key} is forged: it was not written by who has the key of this job")
                known[rank] = receipt
        return [known[rank] for rank in sorted(known)]

    def _check(self, save: Save, manifest: Manifest) -> None:
        check_manifest(manifest)
        names = {tuple(sorted(part.groups)) for part in manifest.ranks}
        if len(names) > 1:
            raise StateInvalid(f"ranks saved different groups at step {save.step}: {sorted(names)}")
        check_coverage(manifest.ranks)
        for entry in manifest.packs:
            size = self._store.size(entry.key)
            if size != entry.size_bytes:
                raise StateInvalid(f"{entry.key} has {size} bytes where {entry.size_bytes} were written: not committed")

    def forget(self, save: Save) -> None:
        """The save is decided."""
        self._receipts.pop(save, None)

    def commit(self, save: Save, manifest: Manifest) -> tuple[LogRecord, bool]:
        """Put the manifest, then the record. Returns it, and whether this very call made it. Raises Superseded or OSError."""
        data = seal(manifest)
        digest = digest_of(data)
        self._store.create(manifest_key(save.folder(), digest), data)
        draft = LogRecord(
            seq=0, kind="commit", job=save.job, generation=save.generation, previous="", writer="", at_unix_s=0.0,
            step=save.step, attempt=save.attempt, world_size=save.world_size, folder=save.folder(),
            manifest=digest, manifest_bytes=len(data), size_bytes=sum(manifest.sizes_bytes.values()),
        )  # fmt: skip
        return self._log.append(draft, lambda record: is_commit_of(record, save))


def is_commit_of(record: LogRecord, save: Save) -> bool:
    of = (record.kind, record.job, record.generation, record.step, record.attempt)
    return of == ("commit", save.job, save.generation, save.step, save.attempt)


def check_manifest(manifest: Manifest) -> None:
    """Raises StateInvalid unless every group that a rank names has a size and a pack, and nothing else is described."""
    named = {digest for part in manifest.ranks for digest in part.groups.values()}
    held = {digest for entry in manifest.packs for digest in entry.groups}
    if len(manifest.ranks) != manifest.world_size or manifest.world_size < 1 or named != set(manifest.sizes_bytes):
        raise StateInvalid(f"the manifest of step {manifest.step} does not describe all that it names")
    if named - held:
        raise StateInvalid(
            f"no rank has written {len(named - held)} groups of step {manifest.step}: {min(named - held)}"
        )


def _check_receipt(save: Save, rank: int, receipt: Receipt) -> None:
    expected = (save.job, save.generation, save.step, save.attempt, save.world_size)
    found = (receipt.job, receipt.generation, receipt.step, receipt.attempt, receipt.world_size)
    if found != expected or receipt.rank != rank or not 0 <= rank < save.world_size:
        raise StateInvalid(f"the receipt of rank {rank} in {save.folder()} is of another save: {found}")
