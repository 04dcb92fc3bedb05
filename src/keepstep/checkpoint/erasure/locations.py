"""Where shards live: stores with a name and a failure domain. Owns placement, and what is known about a location's health.

A *failure domain* is whatever fails together: a rack, a zone, a site. No more than m shards of an object stand in one
domain, so that the loss of a whole domain is no loss. Must not read or write.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from blake3 import blake3

from keepstep.checkpoint.errors import StoreUnfit
from keepstep.checkpoint.stores.port import Store

ABANDONED_MAX = 4
"""Calls to one location that may hang at a time; then further ones fail at once, so that threads do not pile up."""
SLOW_FOR_S = 30.0

_T = TypeVar("_T")


class Location:
    """One store in one failure domain. Thread-safe."""

    def __init__(self, name: str, domain: str, store: Store) -> None:
        self.name, self.domain, self.store = name, domain, store
        self._lock = threading.Lock()
        self._abandoned = 0
        self._slow_until_s = 0.0

    def __repr__(self) -> str:
        return f"{self.name} ({self.domain})"

    def admit(self) -> None:
        """Raises TimeoutError while too many calls hang here."""
        if self._abandoned >= ABANDONED_MAX:
            raise TimeoutError(f"location {self.name} does not answer: {self._abandoned} calls to it still hang")

    def abandon(self, calls: int) -> None:
        """Count calls that nobody waits for any more, or (negative) that came back after all."""
        with self._lock:
            self._abandoned += calls

    def note_slow(self) -> None:
        """For a while, it is asked only if the others are not enough."""
        self._slow_until_s = time.monotonic() + SLOW_FOR_S

    @property
    def slow(self) -> bool:
        return time.monotonic() < self._slow_until_s


class Locations(Sequence[Location]):
    """All locations of a tier. Raises ValueError for names given twice."""

    def __init__(self, locations: Iterable[Location]) -> None:
        self._all = tuple(locations)
        twice = [name for name, count in Counter(location.name for location in self._all).items() if count > 1]
        if twice:
            raise ValueError(f"more than one location is called {', '.join(twice)}: give each a name of its own")

    def __getitem__(self, index: int) -> Location:  # type: ignore[override]
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    def require(self, data: int, parity: int) -> None:
        """Raises StoreUnfit unless every object of a ``data``+``parity`` code can be placed."""
        shards, per_domain = data + parity, Counter(location.domain for location in self._all)
        room = sum(min(parity, count) for count in per_domain.values())
        if room >= shards:
            return
        raise StoreUnfit(
            f"a {data}+{parity} code needs {shards} locations, at most {parity} of them in one failure domain (so at least "
            f"{-(-shards // parity)} domains); there are {len(self._all)} locations in {len(per_domain)} domains "
            f"({', '.join(f'{domain}: {count}' for domain, count in sorted(per_domain.items()))}), which take {room} shards: "
            f"add {shards - room} locations in other domains"
        )

    def place(self, key: str, data: int, parity: int) -> tuple[Location, ...]:
        """The location of each shard of ``key``: in turn from every domain, beginning at one that the key chooses."""
        self.require(data, parity)
        turn = int.from_bytes(blake3(key.encode()).digest(8), "little")
        queues = self._by_domain(turn)
        chosen: list[Location] = []
        for _ in range(parity):
            chosen += [queue.pop(0) for queue in queues if queue]
        chosen = chosen[: data + parity]
        # Which shards stand in the domains that were asked first must vary too, or parity would gather in a few places.
        start = (turn >> 32) % len(chosen)
        placed = tuple(chosen[start:] + chosen[:start])
        check_spread(placed, parity)
        return placed

    def _by_domain(self, turn: int) -> list[list[Location]]:
        domains = sorted({location.domain for location in self._all})
        queues = []
        for domain in _rotated(domains, turn):
            inside = sorted((location for location in self._all if location.domain == domain), key=lambda one: one.name)
            queues.append(_rotated(inside, turn >> 16))
        return queues

    def spare(self, used: Sequence[Location], preferred: Location, parity: int) -> Location | None:
        """A location for one more shard of an object that stands in ``used``: ``preferred`` if it may be."""
        full = {domain for domain, count in Counter(location.domain for location in used).items() if count >= parity}
        for location in (preferred, *sorted(self._all, key=lambda one: one.name)):
            if location not in used and location.domain not in full:
                return location
        return None


def _rotated(items: list[_T], turn: int) -> list[_T]:
    start = turn % len(items)
    return items[start:] + items[:start]


def check_spread(placed: Sequence[Location], parity: int) -> None:
    """Raises StoreUnfit if a location holds two shards, or a domain more than ``parity``."""
    names = Counter(location.name for location in placed)
    domains = Counter(location.domain for location in placed)
    for name, count in names.items():
        if count > 1:
            raise StoreUnfit(f"location {name} would hold {count} shards of one object")
    for domain, count in domains.items():
        if count > parity:
            raise StoreUnfit(
                f"failure domain {domain} would hold {count} shards of one object, and only {parity} may be lost"
            )
