"""The erasure-coded tier: objects spread over locations so that any m of them may be lost. Owns what may be asked of it.

Not to be asked: whether a checkpoint exists (that is the commit log's), and what the bytes mean. An object is written once.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from keepstep.checkpoint.erasure.coder import Coder
from keepstep.checkpoint.erasure.lanes import Lanes
from keepstep.checkpoint.erasure.layout import DEFAULT_BLOCK_BYTES, DIGEST_BYTES, Geometry, Window
from keepstep.checkpoint.erasure.locations import Location, Locations
from keepstep.checkpoint.erasure.names import ShardName, parse_name
from keepstep.checkpoint.erasure.opening import Opened, Patience, is_foreign, open_object
from keepstep.checkpoint.erasure.reading import Fetch, ShardReader
from keepstep.checkpoint.erasure.replicas import Check, Replicated, read_replicated, replicate
from keepstep.checkpoint.erasure.scrub import Condition, Report, choose_targets, examine, rebuild
from keepstep.checkpoint.erasure.shards import MAX_KEY_BYTES, block_digest, root_digest, root_text
from keepstep.checkpoint.erasure.writing import RING, ShardWriters, Target, aligned
from keepstep.checkpoint.errors import SaveFailed, StateInvalid

Source = Callable[[int, memoryview], None] | bytes | bytearray | memoryview
"""An object's bytes, or a call that fills a view from an offset on (``functools.partial(store.read_into, key)``)."""

_REMEMBERED_OBJECTS = 8


class Policy(Struct, frozen=True, kw_only=True):
    """How a tier codes and waits."""

    data: int = 4
    parity: int = 2
    block_bytes: int = DEFAULT_BLOCK_BYTES
    degraded_ok: int = 0
    """Locations that may fail while an object is written: at most parity - 1, so that it can still lose one. Their shards are
    reported, for ``repair``."""
    deadline_s: float = 60.0
    """For one call to one location: a stripe's block written, a window of blocks read."""
    hedge_s: float = 0.5
    """When a location has not answered for this long, others are read instead."""
    window_bytes: int = 8 * 1024 * 1024
    """Of data, read at once; two windows are in memory."""


class Stored(Struct, frozen=True, kw_only=True):
    """An object that is durable."""

    size_bytes: int
    digest: str
    """Covers every byte, the key and the geometry. Give it to the calls that read."""
    missing: dict[int, str]
    """Shards that could not be written, and why: ``repair`` is due."""


class Listed(NamedTuple):
    """An object in a listing."""

    key: str
    shards: int
    """Different ones seen; an object needs ``data`` of them."""


class ErasureTier:
    """k+m over ``locations``. Thread-safe. Raises StoreUnfit at once if the locations cannot take the code's shards."""

    def __init__(self, locations: Locations, policy: Policy | None = None) -> None:
        self.policy = policy if policy is not None else Policy()
        if not 0 <= self.policy.degraded_ok < self.policy.parity:
            raise ValueError(
                f"degraded_ok is {self.policy.degraded_ok}; 0 to {self.policy.parity - 1} leave an object that can lose a shard"
            )
        locations.require(self.policy.data, self.policy.parity)
        self._geometry(0)
        self.locations = locations
        self.coder = Coder(self.policy.data, self.policy.parity)
        self._patience = Patience(self.policy.deadline_s, self.policy.hedge_s)
        self._known: OrderedDict[tuple[str, str], Opened] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, key: str, source: Source, size_bytes: int) -> Stored:
        """Store an object. Memory: ``RING`` stripes, whatever its size. Raises SaveFailed with nothing left behind, or
        whatever ``source`` raises."""
        if not 1 <= len(key.encode()) <= MAX_KEY_BYTES:
            raise ValueError(f"a key of {len(key.encode())} bytes is not possible: 1 to {MAX_KEY_BYTES}")
        try:
            geometry = self._geometry(size_bytes)
        except StateInvalid as error:
            raise SaveFailed(f"{key}: {error}; use larger blocks or smaller objects") from None
        placed = self.locations.place(key, geometry.data, geometry.parity)
        targets = [Target(location, ShardName(key, shard, 0)) for shard, location in enumerate(placed)]
        table = np.empty((geometry.stripes, geometry.shards, DIGEST_BYTES), np.uint8)
        fill = _filler(source, size_bytes)
        ring = [aligned(geometry.shards * geometry.block_bytes) for _ in range(min(RING, max(1, geometry.stripes)))]
        tail: dict[int, Any] = {}
        with ShardWriters(geometry, targets, self.policy.deadline_s, self.policy.degraded_ok) as writers:
            writers.open()
            for stripe in range(geometry.stripes):
                writers.make_room()
                window = geometry.window(stripe, 1)
                blocks = self._code(geometry, window, fill, ring[stripe % RING])
                table[stripe] = [np.frombuffer(block_digest(block), np.uint8) for block in blocks]
                if stripe == geometry.full_stripes:
                    tail = dict(enumerate(blocks))
                else:
                    writers.write(dict(enumerate(blocks)))
            root = root_digest(key, geometry, table)
            writers.finish(tail, table.tobytes(), root)
        return Stored(size_bytes=size_bytes, digest=root_text(root), missing=writers.failed)

    def size(self, key: str, *, digest: str = "") -> int:
        """Of an object, in bytes. Raises StateInvalid if it is not there."""
        return self._open(key, digest).geometry.size_bytes

    def get_into(self, key: str, offset: int, view: memoryview, *, digest: str = "") -> None:
        """Fill ``view`` from ``offset`` on, with bytes that match their digests (with ``digest``: those of that object).

        Raises StateInvalid if they cannot be had; ``view`` is then partly filled, and worth nothing.
        """
        target = np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
        try:
            self._get(self._open(key, digest), offset, target)
        except StateInvalid:
            # What was known of it may be out of date, or from before a slow location answered. Look again, in no hurry.
            self._forget(key)
            patient = Patience(self.policy.deadline_s, self.policy.deadline_s)
            self._get(self._open(key, digest, patient), offset, target)

    def verify(self, key: str, *, digest: str = "") -> Report:
        """Read every byte of every shard, and report. Raises StateInvalid if nothing usable is there."""
        with Lanes() as lanes:
            reader, home = self._examiner(lanes, key, digest)
            return examine(reader, home, self.policy.window_bytes)

    def repair(self, key: str, *, digest: str = "") -> Report:
        """Rebuild what is missing or damaged, delete what it replaces, and report how things are now. Raises StateInvalid if
        the object cannot be read, SaveFailed if nothing could be rebuilt."""
        with Lanes() as lanes:
            reader, home = self._examiner(lanes, key, digest)
            report = examine(reader, home, self.policy.window_bytes)
            if not report.readable:
                raise StateInvalid(f"{key}: {len(report.lost_stripes)} stripes have too few good blocks to be repaired")
            opened = reader.opened
            targets = choose_targets(report, opened, self.locations, home)
            failed = rebuild(reader, targets, self.policy.window_bytes) if targets else {}
            mended = {target.name.shard for target in targets} - set(failed)
            good = {*report.having(Condition.GOOD), *mended}
            stale = [c for c in opened.others if c.name.shard in good and not is_foreign(c, opened.identity)]
            stale += [copy for shard, copy in opened.copies.items() if shard in mended]
            calls = [lanes.to(copy.location).submit(_deleting(copy.location, [str(copy.name)])) for copy in stale]
            wait(calls, self.policy.deadline_s)
        self._forget(key)
        return self.verify(key, digest=digest)

    def delete(self, key: str) -> None:
        """Delete every shard. An absent key is fine. Raises OSError, after trying everywhere, if some may be left."""
        self._forget(key)

        def act(location: Location) -> Callable[[], None]:
            def delete_all() -> None:
                names = [entry.key for entry in location.store.list(f"{key}/")]
                _deleting(location, [name for name in names if (n := parse_name(name)) is not None and n.key == key])()

            return delete_all

        self._everywhere(act, f"{key} is not wholly deleted")

    def list(self, prefix: str = "") -> Iterator[Listed]:
        """Objects below ``prefix`` (ends in ``/`` or is empty), in order.

        Raises OSError if more locations fail than may be lost: some objects might then not be seen.
        """

        def act(location: Location) -> Callable[[], set[tuple[str, int]]]:
            def names() -> set[tuple[str, int]]:
                parsed = (parse_name(entry.key) for entry in location.store.list(prefix))
                return {(name.key, name.shard) for name in parsed if name is not None}

            return names

        seen = set().union(*self._everywhere(act, f"the list of {prefix!r} is not complete", self.policy.parity))
        shards: dict[str, int] = {}
        for key, _ in seen:
            shards[key] = shards.get(key, 0) + 1
        return (Listed(key, shards[key]) for key in sorted(shards))

    def tidy(self, idle_s: float) -> None:
        """Remove what dead writers left half written. Raises OSError, after trying everywhere, if a location failed."""

        def act(location: Location) -> Callable[[], None]:
            return lambda: location.store.tidy(idle_s)

        self._everywhere(act, "what is half written is not wholly removed")

    def replicate(self, key: str, data: Any) -> Replicated:
        """Store a small object whole at every location. See ``replicas``."""
        return replicate(self.locations, key, data, self._patience, self.policy.degraded_ok)

    def read_replicated(self, key: str, check: Check) -> bytes:
        """The copy that passes ``check`` (which raises StateInvalid). See ``replicas``."""
        return read_replicated(self.locations, key, check, self._patience)

    def _geometry(self, size_bytes: int) -> Geometry:
        policy = self.policy
        return Geometry(
            data=policy.data, parity=policy.parity, block_bytes=policy.block_bytes, size_bytes=size_bytes
        ).check()

    def _code(self, geometry: Geometry, window: Window, fill: Callable[[int, Any], None], buffer: Any) -> Any:
        """All blocks of one stripe: shards x bytes."""
        blocks = buffer[: geometry.shards * window.block_bytes].reshape(geometry.shards, window.block_bytes)
        flat = buffer[: geometry.data * window.block_bytes]
        count = min(flat.nbytes, geometry.size_bytes - window.object_offset)
        fill(window.object_offset, flat[:count])
        flat[count:] = 0
        self.coder.encode(list(blocks[: geometry.data]), list(blocks[geometry.data :]))
        return blocks

    def _get(self, opened: Opened, offset: int, target: Any) -> None:
        geometry, end = opened.geometry, offset + target.nbytes
        if offset < 0 or end > geometry.size_bytes:
            raise ValueError(f"bytes {offset} to {end} of {opened.key} were asked for; it has {geometry.size_bytes}")
        with Lanes() as lanes:
            reader = ShardReader(opened, self._coder_for(geometry), lanes, self._patience)
            ahead: Fetch | None = None
            windows = geometry.windows(offset, end, self.policy.window_bytes)
            for number, window in enumerate(windows):
                fetch = ahead if ahead is not None else reader.begin(window, _wanted(geometry, window, offset, end))
                later = windows[number + 1] if number + 1 < len(windows) else None
                ahead = reader.begin(later, _wanted(geometry, later, offset, end)) if later is not None else None
                fetch.wait()
                _copy_out(geometry, fetch, offset, target)
                fetch.release()

    def _open(self, key: str, digest: str, patience: Patience | None = None) -> Opened:
        with self._lock:
            if (known := self._known.get((key, digest))) is not None:
                self._known.move_to_end((key, digest))
                return known
        with Lanes() as lanes:
            opened = open_object(lanes, self.locations, key, patience or self._patience, digest)
        with self._lock:
            self._known[key, digest] = opened
            while len(self._known) > _REMEMBERED_OBJECTS:
                self._known.popitem(last=False)
        return opened

    def _forget(self, key: str) -> None:
        with self._lock:
            for known in [known for known in self._known if known[0] == key]:
                del self._known[known]

    def _examiner(self, lanes: Lanes, key: str, digest: str) -> tuple[ShardReader, tuple[Location, ...]]:
        """A reader of ``key`` that has waited for every location, and where its shards belong."""
        patient = Patience(self.policy.deadline_s, self.policy.deadline_s)
        opened = open_object(lanes, self.locations, key, patient, digest)
        home = self.locations.place(key, opened.geometry.data, opened.geometry.parity)
        return ShardReader(opened, self._coder_for(opened.geometry), lanes, self._patience), home

    def _coder_for(self, geometry: Geometry) -> Coder:
        """Objects written under another policy stay readable."""
        if (geometry.data, geometry.parity) == (self.coder.data, self.coder.parity):
            return self.coder
        return Coder(geometry.data, geometry.parity)

    def _everywhere(
        self, act: Callable[[Location], Callable[[], Any]], failure: str, may_fail: int = 0
    ) -> tuple[Any, ...]:
        """Results of a call to each location. Raises OSError beginning with ``failure`` if more than ``may_fail`` fail."""
        with Lanes() as lanes:
            calls = {one.name: lanes.to(one).submit(act(one)) for one in self.locations}
            wait(calls.values(), self.policy.deadline_s)
        results, failed = [], {}
        for name, call in calls.items():
            try:
                results.append(call.result(0))
            except OSError as error:
                failed[name] = str(error) or "no answer in time"
        if len(failed) > may_fail:
            raise OSError(f"{failure}: " + "; ".join(f"{name}: {why}" for name, why in failed.items()))
        return tuple(results)


def _filler(source: Source, size_bytes: int) -> Callable[[int, Any], None]:
    if callable(source):
        read = source
        return lambda offset, array: read(offset, memoryview(array))
    data = np.frombuffer(source, np.uint8) if memoryview(source).nbytes else np.empty(0, np.uint8)
    if data.nbytes != size_bytes:
        raise ValueError(f"{data.nbytes} bytes were given as an object of {size_bytes} bytes")

    def fill(offset: int, array: Any) -> None:
        array[:] = data[offset : offset + array.nbytes]

    return fill


def _wanted(geometry: Geometry, window: Window, begin: int, end: int) -> "list[int]":
    """Data shards that hold any of bytes ``begin`` to ``end`` in a window."""
    if window.stripes > 1:
        return [*range(geometry.data)]
    first = max(0, begin - window.object_offset) // window.block_bytes
    last = (min(end - window.object_offset, geometry.data * window.block_bytes) - 1) // window.block_bytes
    return [*range(first, last + 1)]


def _copy_out(geometry: Geometry, fetch: Fetch, begin: int, target: Any) -> None:
    """Put a window's bytes where they belong in ``target``, which begins at ``begin`` of the object."""
    window, end = fetch.window, begin + target.nbytes
    for stripe in range(window.stripes):
        for shard in range(geometry.data):
            at = window.object_offset + (stripe * geometry.data + shard) * window.block_bytes
            low, high = max(at, begin), min(at + window.block_bytes, end)
            if low < high:
                target[low - begin : high - begin] = fetch.row(shard)[stripe, low - at : high - at]


def _deleting(location: Location, names: "list[str]") -> Callable[[], None]:
    def act() -> None:
        for name in names:
            location.store.delete(name)

    return act
