"""Copies of one job's checkpoints in further places, each with its own cadence, and reading from whichever serves. Owns which
copy is of what.

    steps/…                                        packs and manifests, under the names that they have in the job's own store
    evidence/<job mark>/<number>-<digest>.json     records of the commit log
    keys/…                                         wrapped keys, without which a sealed copy would be worth nothing
    copied/<job mark>/<number>-<digest>.json       the commit record again, written last: this copy is complete

The log of the job's own store alone decides what exists. Only when that store is gone is a copy judged by the records beside
it, see :func:`from_copies`.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from keepstep.checkpoint.errors import CheckpointError, SaveFailed, StateInvalid
from keepstep.checkpoint.format.pack import Chunk
from keepstep.checkpoint.format.records import LogRecord, Manifest, PackEntry, seal
from keepstep.checkpoint.keys.port import Keys
from keepstep.checkpoint.repository import history
from keepstep.checkpoint.repository.copies import Copies
from keepstep.checkpoint.repository.history import Commit, History, key_of
from keepstep.checkpoint.repository.leases import Lease
from keepstep.checkpoint.repository.notary import check_manifest_of, prove
from keepstep.checkpoint.repository.pack_reader import PackReader
from keepstep.checkpoint.repository.repair import (
    Repaired,
    check_record,
    evidence_key,
    evidence_prefix,
    kept_manifest,
    pack_reader,
    repair,
)
from keepstep.checkpoint.repository.repository import Repository, load_part
from keepstep.checkpoint.repository.save import job_mark, manifest_key
from keepstep.checkpoint.state.blob import digest_of

_KEYS = "keys/"
_SESSION = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"(?:copied|evidence)/[0-9a-f]{8}/(\d{20})-(xxh3-[0-9a-f]{32})\.json")


_T = TypeVar("_T")


def _always(_: Commit) -> bool:
    return True


class Tier(Struct, frozen=True, kw_only=True):
    """A place for copies. ``wants``: whether a commit is to be copied there, the tier's cadence."""

    copies: Copies
    wants: Callable[[Commit], bool] = _always
    min_valid: int = 2
    """Copies of expired checkpoints go only while so many live VERIFIED ones are complete here."""

    @property
    def name(self) -> str:
        return self.copies.name


class Copied(Struct, frozen=True, kw_only=True):
    """A checkpoint that is now complete in a tier."""

    key: str
    tier: str
    packs: int
    """Those that were not there yet."""
    size_bytes: int
    """Of those."""


class Missed(NamedTuple):
    """A piece that a place could not serve."""

    place: str
    piece: str
    reason: str


class _Place(NamedTuple):
    name: str
    reader: PackReader


class _FirstThatServes:
    """Reads each group from the first of several places that serves it rightly."""

    def __init__(self, places: Sequence[_Place]) -> None:
        self._places = places
        self.missed: list[Missed] = []

    def chunks(self, digest: str) -> tuple[Chunk, ...]:
        return self._try(digest, lambda reader: reader.chunks(digest))

    def read_group(self, digest: str, out: memoryview) -> None:
        self._try(digest, lambda reader: reader.read_group(digest, out))

    def _try(self, digest: str, act: Callable[[PackReader], _T]) -> _T:
        reasons: list[Missed] = []
        for place in self._places:
            try:
                return act(place.reader)
            except (StateInvalid, OSError) as error:
                reasons.append(Missed(place.name, digest, str(error)))
                self.missed.append(reasons[-1])
        told = "; ".join(f"{miss.place}: {miss.reason}" for miss in reasons)
        raise StateInvalid(f"no place has a good copy of group {digest} ({told})")


class Tiers:
    """The tiers of one job beside its own store, the cheapest to read first. Not for use by two threads at once."""

    def __init__(self, repository: Repository, tiers: Sequence[Tier]) -> None:
        self.repository, self.tiers = repository, tuple(tiers)

    # ---- copying

    def due(self, tier: Tier) -> list[Commit]:
        """VERIFIED commits that the tier wants and does not have, oldest first. Raises OSError."""
        held = self._held(tier)
        found = [c for c in self.repository.commits() if c.state == "verified" and c.seq not in held and tier.wants(c)]
        return found[::-1]

    def copy(self, key: str, tier: Tier) -> Copied:
        """Copy a VERIFIED commit: packs, manifest, records; each pack is read back. Raises StateInvalid if the source is
        damaged, SaveFailed if the copy is, or OSError; what is complete by then need not be copied again."""
        with Lease(self.repository, key) as lease:
            if lease.commit.state != "verified":
                raise StateInvalid(f"checkpoint {key} is {lease.commit.state}: only VERIFIED ones are copied")
            manifest = self.repository.manifest(key)
            new = []
            for entry in manifest.packs:
                if not self._has(tier, manifest, entry):
                    self._copy_pack(tier, manifest, entry)
                    new.append(entry)
                lease.renew()
            record = self.repository.log.record(lease.commit.seq)
            tier.copies.keep(manifest_key(record.folder, record.manifest), seal(manifest))
            self._mirror_keys(tier, manifest.sessions)
            self.copy_records(tier)
            tier.copies.keep(self._mark(record.seq), seal(record))
        return Copied(key=key, tier=tier.name, packs=len(new), size_bytes=sum(entry.size_bytes for entry in new))

    def _has(self, tier: Tier, manifest: Manifest, entry: PackEntry) -> bool:
        return tier.copies.size(entry.key) == entry.size_bytes and _is_sound(tier.copies, manifest, entry)

    def _copy_pack(self, tier: Tier, manifest: Manifest, entry: PackEntry) -> None:
        store = self.repository.store
        pack_reader(store, manifest).scrub(entry)
        tier.copies.put(entry.key, functools.partial(store.read_into, entry.key), entry.size_bytes)
        try:
            pack_reader(tier.copies, manifest).scrub(entry)
        except StateInvalid as error:
            raise SaveFailed(f"the copy of {entry.key} in {tier.name} is damaged: {error}") from error

    def copy_records(self, tier: Tier) -> int:
        """Copy the records that the log has more: states, pins, what expired; and what changed of the wrapped keys that are
        there: a key that was rewrapped or forgotten. Returns how many of the former. Raises OSError."""
        log, job = self.repository.log, self.repository.job
        log.refresh()
        there = set(tier.copies.names(evidence_prefix(job)))
        new = [
            record for record in log.records(job) if evidence_key(job, record.seq, log.digest(record.seq)) not in there
        ]
        for record in new:
            tier.copies.keep(evidence_key(job, record.seq, log.digest(record.seq)), seal(record))
        self._mirror_keys(tier, _sessions(tier.copies.names(_KEYS)))
        return len(new)

    def _mirror_keys(self, tier: Tier, sessions: Iterable[str]) -> None:
        """Make the wrapped keys of ``sessions`` in the tier the same as in the job's own store; those of other stores stay."""
        store = self.repository.store
        for session in sorted(filter(_SESSION.fullmatch, sessions)):
            own = {entry.key for entry in store.list(f"{_KEYS}{session}/")}
            for key in own:
                tier.copies.keep(key, store.read(key))
            for key in tier.copies.names(f"{_KEYS}{session}/") if own else ():
                if key not in own:
                    tier.copies.delete(key)

    def _mark(self, seq: int) -> str:
        return f"{_copied_prefix(self.repository.job)}{key_of(seq)}-{self.repository.log.digest(seq)}.json"

    def _held(self, tier: Tier) -> set[int]:
        """Numbers of the commits of this very log that are complete in a tier."""
        self.repository.log.refresh()
        names = tier.copies.names(_copied_prefix(self.repository.job))
        found = [match for name in names if (match := _NAME.fullmatch(name))]
        return {int(match[1]) for match in found if self._is_ours(int(match[1]), match[2])}

    def _is_ours(self, seq: int, digest: str) -> bool:
        try:
            self.repository.log.record(seq)
        except StateInvalid:
            return False
        return self.repository.log.digest(seq) == digest

    def prune(self, tier: Tier) -> list[str]:
        """Remove copies of commits that have expired, and of records that the log let go. Returns the keys of what is
        removed; nothing while fewer than ``min_valid`` live VERIFIED ones are complete in the tier, or the log is damaged.
        Raises OSError or StateInvalid."""
        held, log, job = self._held(tier), self.repository.log, self.repository.job
        now = self.repository.history()
        staying = [commit for commit in now.commits() if commit.seq in held]
        if log.damaged() or sum(commit.state == "verified" for commit in staying) < tier.min_valid:
            return []
        needed = {key for commit in staying for key in _objects(tier.copies, log.record(commit.seq))}
        removed = []
        for mark in tier.copies.names(_copied_prefix(job)):
            if self._is_over(mark, now):
                # The mark last: it tells an interrupted removal what else there is.
                gone = [key for key in _objects_left(tier.copies, mark) if key not in needed]
                removed += [*gone, mark]
        removed += [name for name in tier.copies.names(evidence_prefix(job)) if log.is_let_go(_number(name))]
        for key in removed:
            tier.copies.delete(key)
        return removed

    def _is_over(self, mark: str, now: History) -> bool:
        seq = _number(mark)
        return self.repository.log.is_let_go(seq) or (seq in now.expired and mark == self._mark(seq))

    # ---- reading

    def manifest(self, key: str) -> Manifest:
        """Of a commit of the job's own log, from wherever its very bytes are. Raises StateInvalid, a key error or OSError."""
        try:
            return self.repository.manifest(key)
        except (StateInvalid, OSError):
            record = self.repository.log.record(int(key))
            for tier in self.tiers:
                try:
                    return _proven(tier.copies, record, self.repository.keys, self.repository.tenant)
                except (StateInvalid, OSError):
                    continue
            raise

    def load(self, key: str, rank: int, names: tuple[str, ...] | None = None) -> tuple[dict[str, Any], list[Missed]]:
        """The groups of one rank, each from the first place that serves it rightly, and what the places before it could not.

        Begins with the job's own store. Raises StateInvalid if no place has a group, a key error, or OSError.
        """
        self.repository.commit(key)
        manifest = self.manifest(key)
        keys, tenant = self.repository.keys, self.repository.tenant
        places = [_Place(self.repository.store.name, self.repository.reader(manifest))]
        places += [_Place(tier.name, pack_reader(tier.copies, manifest, keys, tenant)) for tier in self.tiers]
        source = _FirstThatServes(places)
        return load_part(manifest, rank, names, source), source.missed

    def repair(self, key: str) -> list[Repaired]:
        """Put back what the job's own store has lost of a commit, from the tiers, and let each tier mend what it holds of it.
        Raises StateInvalid naming what nobody has, or OSError."""
        done = repair(self.repository, key, [tier.copies for tier in self.tiers])
        manifest = self.repository.manifest(key)
        for tier in self.tiers:
            if int(key) in self._held(tier):
                mended = [what for entry in manifest.packs for what in tier.copies.mend(entry.key)]
                done += [Repaired(key=what, reason="missing or damaged", source=tier.name) for what in mended]
        return done


# ---- when the job's own store is gone


class Found(Struct, frozen=True, kw_only=True):
    """A checkpoint that is complete among copies, every stored byte read."""

    commit: Commit
    manifest: Manifest
    reader: PackReader

    def load(self, rank: int, names: tuple[str, ...] | None = None) -> dict[str, Any]:
        """The groups of one rank, checked again. Raises like :meth:`Repository.load`."""
        return load_part(self.manifest, rank, names, self.reader)


def from_copies(
    copies: Copies, job: str, *, tenant: str = "", keys: Keys | None = None
) -> tuple[Found | None, list[Missed]]:
    """The newest checkpoint that can be had from copies alone, and why newer ones cannot. Raises OSError.

    Newest: of the highest generation, then the latest by the clock of who committed, then by number. SUSPECT, CORRUPT and
    expired ones are left out, as far as the records that were copied tell.
    """
    missed: list[Missed] = []
    candidates: list[tuple[LogRecord, str]] = []
    for name in copies.names(_copied_prefix(job)):
        try:
            record = _record(copies, name)
        except StateInvalid as error:
            missed.append(Missed(copies.name, name, str(error)))
            continue
        if record.kind == "commit" and record.job == job:
            candidates.append((record, name))
    evidence = _evidence(copies, job)
    for record, name in sorted(candidates, key=lambda of: (of[0].generation, of[0].at_unix_s, of[0].seq), reverse=True):
        try:
            return _judge(copies, record, evidence, (tenant, keys)), missed
        except (CheckpointError, OSError) as error:
            missed.append(Missed(copies.name, name, str(error)))
    return None, missed


def _judge(copies: Copies, record: LogRecord, evidence: dict[str, LogRecord], seals: tuple[str, Keys | None]) -> Found:
    now = history.read(_chain(record, evidence))
    commit = now.live.get(record.seq)
    if commit is None or commit.state in ("suspect", "corrupt"):
        raise StateInvalid(f"checkpoint {key_of(record.seq)} is {'expired' if commit is None else commit.state}")
    tenant, keys = seals
    manifest = _proven(copies, record, keys, tenant)
    scrubber = pack_reader(copies, manifest)
    for entry in manifest.packs:
        scrubber.scrub(entry)
    if keys is not None:
        for session, identity in manifest.sessions.items():
            keys.learn(session, identity)
    reader = pack_reader(copies, manifest, keys, tenant)
    return Found(commit=commit, manifest=manifest, reader=reader)


def _chain(record: LogRecord, evidence: dict[str, LogRecord]) -> list[LogRecord]:
    """The records of the log that ``record`` is of, as far as they were copied: two logs may have the same numbers."""
    chain = [record]
    while chain[0].previous in evidence:
        chain.insert(0, evidence[chain[0].previous])
    following = {known.previous: known for known in evidence.values() if known.seq > 1}
    digest = digest_of(seal(record))
    while digest in following:
        chain.append(following[digest])
        digest = digest_of(seal(chain[-1]))
    return chain


def _evidence(copies: Copies, job: str) -> dict[str, LogRecord]:
    """Digest -> record, of the sound ones."""
    found: dict[str, LogRecord] = {}
    for name in copies.names(evidence_prefix(job)):
        match = _NAME.fullmatch(name)
        with contextlib.suppress(StateInvalid):
            record = _record(copies, name)
            if match is not None:
                found[match[2]] = record
    return found


def _record(copies: Copies, name: str) -> LogRecord:
    check = functools.partial(check_record, name)
    return check(copies.kept(name, check))


def _proven(copies: Copies, record: LogRecord, keys: Keys | None, tenant: str) -> Manifest:
    """A manifest from copies, of the right origin. Raises StateInvalid, a key error, or OSError."""
    data = kept_manifest(record, copies)
    prove(keys, tenant, record, data)
    return check_manifest_of(record, data, manifest_key(record.folder, record.manifest))


def _objects(copies: Copies, record: LogRecord) -> list[str]:
    """Keys of what a commit needs in a tier: packs, then the manifest, which names them. Needs no key. Raises StateInvalid."""
    manifest = _proven(copies, record, None, "")
    return [*(entry.key for entry in manifest.packs), manifest_key(record.folder, record.manifest)]


def _objects_left(copies: Copies, mark: str) -> list[str]:
    """The same, of a commit whose copy goes: nothing, if its manifest is gone."""
    try:
        return _objects(copies, _record(copies, mark))
    except (StateInvalid, FileNotFoundError):
        return []


def _is_sound(copies: Copies, manifest: Manifest, entry: PackEntry) -> bool:
    try:
        pack_reader(copies, manifest).scrub(entry)
    except (StateInvalid, OSError):
        return False
    return True


def _sessions(keys: Iterable[str]) -> set[str]:
    return {key.split("/")[1] for key in keys if key.count("/") > 1}


def _number(name: str) -> int:
    """Of the record that a copy is of; beyond all if it is none."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match is not None else 1 << 63


def _copied_prefix(job: str) -> str:
    return f"copied/{job_mark(job)}/"
