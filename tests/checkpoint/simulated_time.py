"""Threads in simulated time: one runs at a time, time passes while all sleep, and one may die asleep. And a store there."""

import heapq
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

from keepstep.checkpoint.stores.port import Entry

DEADLINE_S = 120.0


class Killed(BaseException):
    """A thread's end, where it sleeps."""


class World:
    """``clock`` and ``sleep`` for threads that :meth:`spawn` makes."""

    def __init__(self, seed: int = 1) -> None:
        self.now_s, self.draw = 1_700_000_000.0, random.Random(seed)
        self.start_s = self.now_s
        self.over = False
        self.skew_s: dict[str, float] = {}
        self._asleep: list[tuple[float, int, threading.Semaphore, str]] = []
        self._numbers = itertools.count()
        self._parked = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._dead: set[str] = set()
        self._ended = 0

    def clock(self) -> float:
        return self.now_s + self.skew_s.get(threading.current_thread().name, 0.0)

    def sleep(self, seconds: float) -> None:
        if self.over:
            raise Killed
        mine = threading.Semaphore(0)
        self._put(seconds, mine, threading.current_thread().name)
        self._parked.release()
        mine.acquire()
        if self.over:
            raise Killed

    def _put(self, seconds: float, semaphore: threading.Semaphore, name: str) -> None:
        assert seconds >= 0
        heapq.heappush(self._asleep, (self.now_s + seconds, next(self._numbers), semaphore, name))

    def spawn(self, name: str, at_s: float, act: Callable[[], None]) -> None:
        begin = threading.Semaphore(0)

        def run() -> None:
            begin.acquire()
            try:
                if not self.over:
                    act()
            except Killed:
                return
            else:
                self._ended += 1
            finally:
                self._parked.release()

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        self._put(at_s - (self.now_s - self.start_s), begin, name)

    def kill(self, name: str) -> None:
        """It sleeps for ever."""
        self._dead.add(name)

    def run(self, most_s: float) -> float:
        """Until all have ended; seconds that it took. The killed end last, where they sleep."""
        dead = []
        while self._asleep:
            at_s, _, semaphore, name = heapq.heappop(self._asleep)
            if name in self._dead:
                dead.append(semaphore)
                continue
            self.now_s = at_s
            assert self.now_s - self.start_s < most_s, f"not done after {most_s} s: {name} and {len(self._asleep)} more"
            self._step(semaphore)
        took_s = self.now_s - self.start_s
        self.over = True
        for semaphore in dead:
            self._step(semaphore)
        for thread in self._threads:
            thread.join(DEADLINE_S)
        assert self._ended + len(dead) == len(self._threads)
        return took_s

    def _step(self, semaphore: threading.Semaphore) -> None:
        semaphore.release()
        assert self._parked.acquire(timeout=DEADLINE_S)


class SlowStore:
    """Object names only. Every call takes a while, and a listing is of when it began."""

    name = "simulated"

    def __init__(self, world: World) -> None:
        self._world = world
        self.objects: set[str] = set()
        self.changed: Callable[[], None] = lambda: None
        self.broken = False
        self.lists = 0

    def _pass(self) -> None:
        self._world.sleep(self._world.draw.uniform(0.005, 0.08))
        if self.broken:
            raise OSError("the store fails")

    def create(self, key: str, data: Any) -> bool:
        self._pass()
        new = key not in self.objects
        self.objects.add(key)
        self.changed()
        return new

    def list(self, prefix: str) -> Iterator[Entry]:
        self.lists += 1
        seen = [Entry(key, 0) for key in sorted(self.objects) if key.startswith(prefix)]
        self._pass()
        return iter(seen)

    def delete(self, key: str) -> None:
        self._pass()
        self.objects.discard(key)
        self.changed()
