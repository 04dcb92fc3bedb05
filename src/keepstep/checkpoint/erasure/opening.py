"""Which shards of an object there are, and which shape and root digest they agree on. Owns the vote; reads no data blocks.

What a location says is not believed: names, headers and seals are small and bounded, and the digest table is read only from a
shard whose real length is the one that its header asks for.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from keepstep.checkpoint.erasure.field import Bytes
from keepstep.checkpoint.erasure.lanes import Lanes
from keepstep.checkpoint.erasure.layout import HEADER_BYTES, SEAL_BYTES, Geometry
from keepstep.checkpoint.erasure.locations import Location
from keepstep.checkpoint.erasure.names import ShardName, parse_name
from keepstep.checkpoint.erasure.shards import Misplaced, read_footer, read_header, read_seal, root_text
from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.stores.port import Entry

_NAMES_MAX = 256
"""Of one object at one location: more can only be somebody's mischief."""


class Identity(NamedTuple):
    """What a shard says that it is a part of."""

    geometry: Geometry
    root: bytes


class Copy(NamedTuple):
    """A shard that was found."""

    location: Location
    name: ShardName
    size_bytes: int
    identity: Identity | None
    trouble: str
    """In words; empty if header, length and seal are in order."""
    misplaced: bool
    """Whether it is a sound shard, and not the one that its name says."""


class Opened(Struct, frozen=True, kw_only=True):
    """An object as far as it is known without its data."""

    key: str
    geometry: Geometry
    root: bytes
    table: Bytes
    copies: dict[int, Copy]
    """Shard -> the copy to read. One with a damaged header may be among them: the table judges its blocks."""
    others: tuple[Copy, ...]
    """Earlier revisions, and what does not belong to this object."""
    unreachable: dict[str, str]
    """Location -> what went wrong. In a hurry, also those that were not waited for."""

    @property
    def identity(self) -> Identity:
        return Identity(self.geometry, self.root)

    @property
    def digest(self) -> str:
        return root_text(self.root)


class Patience(NamedTuple):
    """How long to wait for locations."""

    deadline_s: float
    hedge_s: float
    """After this, those that have not answered are passed over if the others are enough."""


def open_object(lanes: Lanes, locations: Iterable[Location], key: str, patience: Patience, digest: str = "") -> Opened:
    """Ask all locations. Raises StateInvalid if no shard of ``key`` (with ``digest``) is there, or none can be believed."""
    looks = {lanes.to(location).submit(_look(location, key)): location for location in locations}
    found, unreachable = _gather(looks, patience)
    votes: dict[Identity, list[Copy]] = {}
    for copy in found:
        if copy.identity is not None and not copy.trouble and digest in ("", root_text(copy.identity.root)):
            votes.setdefault(copy.identity, []).append(copy)
    troubles = [f"{copy.name} at {copy.location}: {copy.trouble}" for copy in found if copy.trouble]
    for identity, copies in sorted(votes.items(), key=lambda item: -len(item[1])):
        table = _first_table(lanes, copies, patience, troubles)
        if table is not None:
            chosen, others = _choose(found, identity)
            return Opened(
                key=key,
                geometry=identity.geometry,
                root=identity.root,
                table=table,
                copies=chosen,
                others=others,
                unreachable=unreachable,
            )
    reasons = troubles + [f"{name}: {reason}" for name, reason in unreachable.items()]
    wanted = f"{key} with digest {digest}" if digest else key
    raise StateInvalid(f"no usable shard of {wanted} was found" + (f" ({'; '.join(reasons)})" if reasons else ""))


def _gather(looks: dict[Future[list[Copy]], Location], patience: Patience) -> tuple[list[Copy], dict[str, str]]:
    """Copies found, and the locations that failed or are late."""
    found: list[Copy] = []
    unreachable: dict[str, str] = {}
    pending, began = set(looks), time.monotonic()
    while pending:
        waited = time.monotonic() - began
        left = patience.deadline_s - waited
        if _agreed(found):
            left = min(left, patience.hedge_s - waited)
        if left <= 0:
            break
        # Woken now and then, because agreement shortens the wait.
        done, pending = wait(pending, min(left, max(patience.hedge_s - waited, 0.05)), return_when=FIRST_COMPLETED)
        for future in done:
            try:
                found += future.result()
            except OSError as error:
                unreachable[looks[future].name] = str(error) or type(error).__name__
    for future in pending:
        future.cancel()
        looks[future].note_slow()
        unreachable[looks[future].name] = "no answer in time"
    return found, unreachable


def _agreed(found: list[Copy]) -> bool:
    """Whether some identity has as many shards as it needs."""
    shards: dict[Identity, set[int]] = {}
    for copy in found:
        if copy.identity is not None and not copy.trouble:
            shards.setdefault(copy.identity, set()).add(copy.name.shard)
    return any(len(numbers) >= identity.geometry.data for identity, numbers in shards.items())


def _look(location: Location, key: str) -> Callable[[], list[Copy]]:
    def act() -> list[Copy]:
        listed = [(entry, parse_name(entry.key)) for entry in islice(location.store.list(f"{key}/"), _NAMES_MAX)]
        return [_inspect(location, entry, name) for entry, name in listed if name is not None and name.key == key]

    return act


def _inspect(location: Location, entry: Entry, name: ShardName) -> Copy:
    """Header and seal of one shard. An OSError here is damage (the location did answer), unless it is a timeout."""
    identity, trouble, misplaced = None, "", False
    head, seal = bytearray(HEADER_BYTES), bytearray(SEAL_BYTES)
    try:
        if entry.size_bytes < HEADER_BYTES + SEAL_BYTES:
            raise StateInvalid(f"it has only {entry.size_bytes} bytes")
        location.store.read_into(str(name), 0, memoryview(head))
        geometry = read_header(head, name.key, name.shard)
        if geometry.shard_bytes != entry.size_bytes:
            raise StateInvalid(f"it has {entry.size_bytes} bytes where {geometry.shard_bytes} were written")
        location.store.read_into(str(name), entry.size_bytes - SEAL_BYTES, memoryview(seal))
        identity = Identity(geometry, read_seal(seal))
    except TimeoutError:
        raise
    except (StateInvalid, OSError) as error:
        trouble, misplaced = str(error), isinstance(error, Misplaced)
    return Copy(location, name, entry.size_bytes, identity, trouble, misplaced)


def _first_table(lanes: Lanes, copies: list[Copy], patience: Patience, troubles: list[str]) -> Bytes | None:
    """The digest table that ``copies`` agree on, from the first that can show it. Adds to ``troubles`` those that cannot."""
    calls: dict[Future[Bytes], Copy] = {}
    waiting = sorted(copies, key=lambda copy: copy.location.slow)
    until = time.monotonic() + patience.deadline_s
    while (waiting or calls) and (left := until - time.monotonic()) > 0:
        if waiting:
            copy = waiting.pop(0)
            calls[lanes.to(copy.location).submit(_read_table(copy))] = copy
        done, _ = wait(calls, min(left, patience.hedge_s) if waiting else left, return_when=FIRST_COMPLETED)
        for call in done:
            copy = calls.pop(call)
            try:
                return call.result()
            except (OSError, StateInvalid) as error:
                troubles.append(f"{copy.name} at {copy.location}: {error}")
    troubles += [f"{copy.name} at {copy.location}: no answer in time" for copy in calls.values()]
    return None


def _read_table(copy: Copy) -> Callable[[], Bytes]:
    assert copy.identity is not None
    geometry, expected = copy.identity

    def act() -> Bytes:
        data = np.empty(geometry.table_bytes + SEAL_BYTES, np.uint8)
        copy.location.store.read_into(str(copy.name), geometry.table_offset, data.data)
        table, root = read_footer(data, copy.name.key, geometry)
        if root != expected:
            raise StateInvalid("its digest table changed while it was read")
        return table

    return act


def _choose(found: list[Copy], identity: Identity) -> tuple[dict[int, Copy], tuple[Copy, ...]]:
    """The best copy of each shard, and all the others. A damaged one may have good blocks; a misplaced one has none."""
    usable = [copy for copy in found if not is_foreign(copy, identity) and copy.name.shard < identity.geometry.shards]
    chosen: dict[int, Copy] = {}
    for copy in sorted(usable, key=lambda copy: (bool(copy.trouble), -copy.name.revision)):
        chosen.setdefault(copy.name.shard, copy)
    used = {id(copy) for copy in chosen.values()}
    return chosen, tuple(copy for copy in found if id(copy) not in used)


def is_foreign(copy: Copy, identity: Identity) -> bool:
    """Whether it is a sound shard of something else: perhaps the only one, so that it is nobody's to delete."""
    return copy.misplaced or copy.identity not in (None, identity)
