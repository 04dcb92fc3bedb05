"""Putting back what a store has lost or damaged, from copies elsewhere. Owns replacing damaged objects; nothing else does.

An object is replaced only by bytes that match the digests that its checkpoint has for it: a manifest that of its commit
record, a pack those of its manifest, a record that of its neighbour in the chain. They are checked as they are written, and the
damaged object goes when the whole new one is there.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, cast

from msgspec import Struct

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.format import pack as layout
from keepstep.checkpoint.format.records import LogRecord, Manifest, PackEntry, unseal
from keepstep.checkpoint.keys.port import Keys
from keepstep.checkpoint.repository.copies import Copies, write
from keepstep.checkpoint.repository.history import key_of
from keepstep.checkpoint.repository.log import name_of
from keepstep.checkpoint.repository.notary import check_manifest_of
from keepstep.checkpoint.repository.pack_reader import PackReader
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.repository.save import job_mark, manifest_key
from keepstep.checkpoint.state.blob import digest_of
from keepstep.checkpoint.state.leaves import CHUNK_BYTES, PAGE_BYTES, round_up
from keepstep.checkpoint.stores.port import Store

_T = TypeVar("_T")


class Repaired(Struct, frozen=True, kw_only=True):
    """An object that was put back, or rebuilt within one place."""

    key: str
    reason: str
    """What was wrong."""
    source: str
    """Where the good bytes came from."""


def repair(repository: Repository, key: str, others: Sequence[Copies]) -> list[Repaired]:
    """Read every stored byte of a commit, and put back from ``others`` (the cheapest first) what is wrong. Needs no key.

    The state of the commit stays as it is: verify it, then mark it. Raises StateInvalid naming the first object that nobody
    has, with what was repaired before it in place; or OSError.
    """
    repository.log.refresh()
    record = repository.log.record(int(key))
    manifest, done = _repair_manifest(repository, record, others)
    for entry in manifest.packs:
        try:
            pack_reader(repository.store, manifest).scrub(entry)
        except (StateInvalid, FileNotFoundError) as error:
            _, source = _first(entry.key, others, functools.partial(_replace, repository, manifest, entry))
            done.append(Repaired(key=entry.key, reason=str(error), source=source))
    return done


def pack_reader(place: Store | Copies, manifest: Manifest, keys: Keys | None = None, tenant: str = "") -> PackReader:
    """A reader of packs in some place: it asks for nothing but sizes and bytes. Without keys, it can scrub."""
    return PackReader(cast(Store, place), manifest.packs, keys, tenant=tenant, job=manifest.job)


def _first(key: str, others: Sequence[Copies], act: Callable[[Copies], _T]) -> tuple[_T, str]:
    """What ``act`` gives at the first place where it succeeds, and that place's name. Raises StateInvalid with all reasons."""
    reasons = []
    for copies in others:
        try:
            return act(copies), copies.name
        except (StateInvalid, OSError) as error:
            reasons.append(f"{copies.name}: {error}")
    raise StateInvalid(f"{key} is damaged or missing, and nobody has a good copy ({'; '.join(reasons) or 'no tiers'})")


def _repair_manifest(
    repository: Repository, record: LogRecord, others: Sequence[Copies]
) -> tuple[Manifest, list[Repaired]]:
    name = manifest_key(record.folder, record.manifest)
    try:
        return check_manifest_of(record, repository.store.read(name), name), []
    except (StateInvalid, FileNotFoundError) as error:
        reason = str(error)
    data, source = _first(name, others, functools.partial(kept_manifest, record))
    _put(repository.store, name, data)
    return check_manifest_of(record, data, name), [Repaired(key=name, reason=reason, source=source)]


def kept_manifest(record: LogRecord, copies: Copies) -> bytes:
    """The manifest that a commit record names, from copies. Raises StateInvalid or OSError."""
    name = manifest_key(record.folder, record.manifest)
    return copies.kept(name, lambda data: check_manifest_of(record, data, name))


def _put(store: Store, key: str, data: bytes) -> None:
    store.delete(key)
    store.create(key, data)


def _replace(repository: Repository, manifest: Manifest, entry: PackEntry, copies: Copies) -> None:
    write(repository.store, entry.key, checked_pieces(copies, manifest, entry), entry.size_bytes)


def checked_pieces(place: Store | Copies, manifest: Manifest, entry: PackEntry) -> Iterator[memoryview]:
    """The bytes of a pack in order, each piece checked before it is given away, in two buffers by turns. Raises StateInvalid
    at the first that is wrong, or OSError."""
    reader = pack_reader(place, manifest)
    reader.check_header(entry)
    buffers = [memoryview(bytearray(round_up(CHUNK_BYTES, PAGE_BYTES))) for _ in range(2)]
    head = memoryview(bytearray(layout.HEADER_BYTES))
    place.read_into(entry.key, 0, head)
    layout.check_header(bytes(head), entry.id, entry.key)
    yield head
    end = layout.HEADER_BYTES
    for number, chunk in enumerate(reader.footer(entry).chunks):
        piece = buffers[number % 2][: round_up(chunk.stored_bytes, PAGE_BYTES)]
        place.read_into(entry.key, chunk.offset, piece)
        if layout.stored_digest(piece) != chunk.stored:
            raise StateInvalid(f"chunk {number} of {entry.key} in {place.name} does not match its digest")
        yield piece
        end = chunk.offset + len(piece)
    tail = memoryview(bytearray(entry.size_bytes - end))
    place.read_into(entry.key, end, tail)
    _check_tail(bytes(tail), entry)
    yield tail


def _check_tail(tail: bytes, entry: PackEntry) -> None:
    """Footer, zeros and trailer, from where the last chunk ends."""
    end = layout.read_trailer(tail[-layout.TRAILER_BYTES :], entry.size_bytes, entry.key)
    footer, rest = tail[: end.footer_bytes], tail[end.footer_bytes : -layout.TRAILER_BYTES]
    if layout.stored_digest(footer) != entry.footer or end.footer.hex() != entry.footer or any(rest):
        raise StateInvalid(f"the footer of {entry.key} does not match its digest: its bytes are damaged")


# ---- records


def evidence_prefix(job: str) -> str:
    """Of the copies of log records, each named by its number and its digest."""
    return f"evidence/{job_mark(job)}/"


def evidence_key(job: str, seq: int, digest: str) -> str:
    return f"{evidence_prefix(job)}{key_of(seq)}-{digest}.json"


def repair_log(repository: Repository, others: Sequence[Copies]) -> list[Repaired]:
    """Put back records of the commit log that are damaged or missing, where the chain proves which ones were there; a damaged
    last one, which nothing follows, only if all copies of that number agree.

    Returns what was done; what could not be proven is still among ``log.damaged()``. Raises OSError.
    """
    log, done = repository.log, []
    log.refresh()
    # From the end: a record that is sound again proves the one before it.
    for seq in sorted(log.damaged(), reverse=True):
        reason = log.damaged()[seq]
        digest = log.expected_digest(seq)
        for job in dict.fromkeys((repository.job, *log.jobs())):
            try:
                name = evidence_key(job, seq, digest or _agreed(others, job, seq))
                data, source = _first(name, others, functools.partial(_kept_record, name))
            except StateInvalid:
                continue
            _put(repository.store, name_of(seq), data)
            log.forget(seq)
            log.refresh()
            done.append(Repaired(key=name_of(seq), reason=reason, source=source))
            break
    return done


def _agreed(others: Sequence[Copies], job: str, seq: int) -> str:
    """The digest of the only record with a number that there are copies of. Raises StateInvalid if there are none or more."""
    begin = f"{evidence_prefix(job)}{key_of(seq)}-"
    found = {name for copies in others for name in copies.names(evidence_prefix(job)) if name.startswith(begin)}
    if len(found) != 1:
        raise StateInvalid(f"there are {len(found)} records with number {seq} among the copies: none can be believed")
    return found.pop()[len(begin) :].removesuffix(".json")


def _kept_record(name: str, copies: Copies) -> bytes:
    """A copy of a log record that is the one that its name says. Raises StateInvalid or OSError."""
    return copies.kept(name, functools.partial(check_record, name))


def check_record(name: str, data: bytes) -> LogRecord:
    """The record in a copy of one. Raises StateInvalid unless it matches the copy's name."""
    if not name.endswith(f"-{digest_of(data)}.json"):
        raise StateInvalid(f"{name} does not match its name: its bytes are damaged")
    return unseal(data, LogRecord, name)
