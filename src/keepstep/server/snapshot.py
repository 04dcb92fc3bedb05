"""Books as bytes and back, so that a start need not read the whole journal. Owns that format; must not decide what is kept.

What comes back continues exactly like the original: the same decisions from the same facts. The archive is not part of it.
A snapshot of another format is no error: the journal is read instead, as far as it is there.
"""

import typing
import zlib
from collections import deque
from typing import Any

import msgspec
from msgspec import Struct

from keepstep.core.ids import JobId, NodeId, Session
from keepstep.core.preemptions import Act, Ledger
from keepstep.core.world import World
from keepstep.ports import Archive, Journal, JournalCorrupt, Snapshot, Snapshots
from keepstep.review.records import FaultRecord, IncidentRecord, JobRecord
from keepstep.server.history import Books, History, OrderRecord, Step
from keepstep.server.registry import Registry
from keepstep.server.replay import catch_up
from keepstep.server.tallies import Tallies

FORMAT = 1
"""Raise it where an older snapshot can no longer be read; new fields with defaults need nothing."""
COMPRESSION = 1
"""Of zlib, the quickest: names of fields are most of it, and they shrink to a tenth."""
RECENT_SIGNALS = 64
"""As core.apply bounds ``World.recent``."""


_RECORDS: dict[str, type[IncidentRecord | JobRecord | FaultRecord]] = {
    kind.__name__: kind for kind in (IncidentRecord, JobRecord, FaultRecord)
}


class SnapshotUnknown(ValueError):
    """It is of another format, or of another version's shapes. The journal tells the same, more slowly."""


class _Acts(Struct, kw_only=True):
    """The ledger, with each act once: its tables name acts by their place in ``acts``, since they change them there."""

    rest: Ledger
    acts: list[Act]
    open: dict[str, list[int]]
    on: dict[str, list[int]]
    at: list[tuple[NodeId | None, str, list[int]]]


class _Past(Struct, kw_only=True):
    """History, with each step once."""

    steps: list[Step]
    of: dict[str, list[int]]
    orders: dict[int, OrderRecord]
    sessions: list[tuple[JobId, NodeId, list[Session]]]
    processes: dict[Session, tuple[str, int, int]]
    faults: dict[str, int]
    last_s: float
    rehearsed: dict[str, None] = {}


class _Body(Struct, kw_only=True):
    format: int
    world: World
    past: _Past
    acts: _Acts
    registry: Registry
    tallies: Tallies
    unfiled: list[tuple[str, msgspec.Raw, bytes]]
    """Kind, record, report."""


class _Head(Struct):
    format: int = 0


def encode(books: Books) -> bytes:
    """Takes about a second for ten thousand nodes; not to be called where something waits for the event loop."""
    body = _Body(
        format=FORMAT,
        world=books.world,
        past=_past(books.history),
        acts=_acts(books.history.ledger),
        registry=books.registry,
        tallies=books.tallies,
        unfiled=[(type(record).__name__, _raw(record), report) for record, report in books.unfiled],
    )
    return _encoder.encode(body)


def decode(body: bytes, into: Books) -> Books:
    """``into`` has the archive and is otherwise fresh. Raises SnapshotUnknown."""
    try:
        found = _head.decode(body).format
        if found != FORMAT:
            raise SnapshotUnknown(f"the snapshot is of format {found}, this Keepstep writes {FORMAT}")
        kept = _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise SnapshotUnknown(f"the snapshot is none of this version of Keepstep: {error}") from error
    into.world, into.registry, into.tallies = kept.world, kept.registry, kept.tallies
    into.unfiled = [(msgspec.msgpack.decode(raw, type=_RECORDS[kind]), report) for kind, raw, report in kept.unfiled]
    into.history = _history(kept.past, kept.acts)
    for node, signals in into.world.recent.items():
        into.world.recent[node] = deque(signals, maxlen=RECENT_SIGNALS)
    return into


def snapshot_of(books: Books) -> Snapshot:
    """Of the state after the newest entry that ``books`` have."""
    body = zlib.compress(encode(books), COMPRESSION)
    return Snapshot(seq=books.world.seq, hash=books.hash, at_s=books.history.last_s, body=body)


def load(snapshots: Snapshots, journal: Journal, archive: Archive, *, files: bool = True) -> Books:
    """The state of affairs after the last entry: from the newest snapshot on, where there is one that can be read.

    ``files`` as in replay.catch_up. Raises JournalCorrupt, also where the snapshot that is needed is of no use.
    """
    books, newest = Books(archive=archive), snapshots.newest()
    if newest is not None:
        try:
            decode(zlib.decompress(newest.body), books)
            books.hash = newest.hash
        except (SnapshotUnknown, zlib.error) as error:
            first = journal.first()
            if first > 1:
                raise JournalCorrupt(first - 1, f"was compacted away, and {error}", "the snapshot") from error
            books = Books(archive=archive)
    catch_up(books, journal, files=files)
    return books


# ---- what is shared is written once


def _past(history: History) -> _Past:
    steps: list[Step] = []
    places: dict[int, int] = {}

    def place(step: Step) -> int:
        if id(step) not in places:
            places[id(step)] = len(steps)
            steps.append(step)
        return places[id(step)]

    return _Past(
        of={subject: [place(step) for step in taken] for subject, taken in history.steps.items()},
        steps=steps,
        orders=history.orders,
        sessions=[(job, node, known) for (job, node), known in history.sessions.items()],
        processes=history.processes,
        faults=history.faults,
        last_s=history.last_s,
        rehearsed=history.rehearsed,
    )


def _history(past: _Past, acts: _Acts) -> History:
    return History(
        steps={subject: [past.steps[n] for n in places] for subject, places in past.of.items()},
        orders=past.orders,
        sessions={(job, node): known for job, node, known in past.sessions},
        processes=past.processes,
        faults=past.faults,
        ledger=_ledger(acts),
        last_s=past.last_s,
        rehearsed=past.rehearsed,
    )


def _acts(ledger: Ledger) -> _Acts:
    places = {id(act): place for place, act in enumerate(ledger.acts)}

    def of(acts: list[Act]) -> list[int]:
        return [places[id(act)] for act in acts]

    rest = msgspec.structs.replace(ledger, acts=[], _open={}, _on={}, _at={})
    return _Acts(
        rest=rest,
        acts=ledger.acts,
        open={fault: of(acts) for fault, acts in ledger._open.items()},
        on={resource: of(acts) for resource, acts in ledger._on.items()},
        at=[(node, kind, of(acts)) for (node, kind), acts in ledger._at.items()],
    )


def _ledger(kept: _Acts) -> Ledger:
    def of(places: list[int]) -> list[Act]:
        return [kept.acts[place] for place in places]

    return msgspec.structs.replace(
        kept.rest,
        acts=kept.acts,
        _open={fault: of(places) for fault, places in kept.open.items()},
        _on={resource: of(places) for resource, places in kept.on.items()},
        _at={(node, kind): of(places) for node, kind, places in kept.at},
    )


def _raw(record: Struct) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(record))


# ---- shapes that the codec does not know


def _write(value: Any) -> Any:
    if isinstance(value, deque):
        return list(value)
    raise NotImplementedError(f"{type(value).__name__} has no place in a snapshot")


def _read(kind: Any, value: Any) -> Any:
    if typing.get_origin(kind) is deque:
        return deque(msgspec.convert(value, list[typing.get_args(kind)[0]], dec_hook=_read))  # type: ignore[misc]
    raise NotImplementedError(f"{kind} has no place in a snapshot")


_encoder = msgspec.msgpack.Encoder(enc_hook=_write)
_head = msgspec.msgpack.Decoder(_Head)
_decoder = msgspec.msgpack.Decoder(_Body, dec_hook=_read)
