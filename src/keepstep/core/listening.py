"""Who is listened to, and whose silence may have become long enough to be told. Owns the order in which one is looked at.

A pass must not look at everybody: of ten thousand that beat, it looks at those who were last heard a lease ago as far as it
knows, finds most of them heard since, and comes back to those a lease later. Pure and deterministic; judges nothing.
"""

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

from msgspec import Struct, field

from keepstep.core.ids import Session


class Heard(Struct, kw_only=True, eq=False):
    """Somebody that is listened to. Two are the same only as objects: a new session is somebody new."""

    session: Session
    heard_s: float
    connected: bool = True
    reported_silent: bool = False
    gone: bool = False
    """Nobody listens to it any more."""
    queued: bool = False
    """It stands in ``Listening.waiting``."""


T = TypeVar("T", bound=Heard)


class Listening(Struct, Generic[T], kw_only=True):
    waiting: list[tuple[float, int, T]] = field(default_factory=list)
    """Heap of (heard at, when it began or was looked at, who): everybody connected whose silence was not told, once each."""
    urgent: dict[T, None] = field(default_factory=dict)
    """Those about whom something may have to be said at once."""
    counted: int = 0

    def begin(self, who: T) -> None:
        """From now on its silence counts; one that was told to be silent is asked after at once."""
        if who.reported_silent:
            self.urgent[who] = None
        else:
            self._wait(who)

    def heard(self, who: T, now_s: float) -> None:
        who.heard_s, who.connected = now_s, True
        self.again(who)

    def broke(self, who: T) -> None:
        """Its connection is gone."""
        who.connected = False
        self.urgent[who] = None

    def due(self, lease_s: float, now_s: float) -> Iterator[T]:
        """Those that something may have to be said of. Each is judged by whoever asks, and comes back only where it must:
        while its silence was not told yet, or once it is heard again."""
        for who in list(self.urgent):
            yield who
            if who.reported_silent or who.connected:
                del self.urgent[who]
                if not who.reported_silent:
                    self._wait(who)
        late: list[T] = []
        while self.waiting and now_s - self.waiting[0][0] >= lease_s:
            who = heapq.heappop(self.waiting)[2]
            who.queued = False
            if not who.gone and who not in self.urgent:
                late.append(who)
        for who in late:
            yield who
            if not who.reported_silent:
                self._wait(who)

    def end(self, who: T) -> None:
        """Its silence means nothing any more."""
        who.gone = True
        self.urgent.pop(who, None)

    def again(self, who: T) -> None:
        """What is known of when it was heard has changed: it is looked at once more."""
        if who.reported_silent:
            self.urgent[who] = None

    def _wait(self, who: T) -> None:
        if not who.queued:
            who.queued = True
            self.counted += 1
            heapq.heappush(self.waiting, (who.heard_s, self.counted, who))
