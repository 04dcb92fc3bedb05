"""Many restores from one store at once, with nobody in charge. Owns the objects below ``lanes/`` and the pace of a reader.

    lanes/<job mark>-<random>-<number>-<lane>-<cost per s>-<bytes left>-<limit>-<second asked>-<share>-<second it ends>

Everyone who reads announces that it waits (share 0) or runs, lists all announcements, and comes to the same decisions by
``interval.lanes``: who is next, and everybody's share. A reader keeps to its own share. All that an announcement says is in its
name; it is renewed by a new object, made before the old one goes and listed after it, so that a listing in order misses
neither. A holder that dies ends by itself. A larger share is announced before it is used, and looked at once more: two who did
not see each other go above the capacity only until then.

Must not make a restore fail: where a store cannot be listed or written, or the wait is over, the reader goes on at the least
useful rate, and says so.
"""

import contextlib
import functools
import math
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from keepstep.checkpoint.interval.lanes import Capacity, Lane, Request, Token, admit
from keepstep.checkpoint.repository.save import job_mark
from keepstep.checkpoint.stores.port import Store

PREFIX = "lanes/"
SKEW_S = 10.0
"""Clocks of two nodes may differ so much."""
CLEARED_S = 60.0
"""What ended so long ago is removed by whoever sees it."""
AT_ONCE = 8
"""As many restores get a useful rate each."""
BURST_S = 1.0
"""A reader that was slower than its share may catch up on so much."""
_LOOKS = 3
_LEAST_PAUSE_S = 0.001
_LANES: dict[str, Lane] = {"u": "urgent", "n": "normal", "b": "background"}
_LETTERS = {lane: letter for letter, lane in _LANES.items()}
_NAME = re.compile(r"lanes/[0-9a-f]{8}-([0-9a-f]{16})-(\d{8})-([unb])" + r"-(\d{1,18})" * 6)


class Pace(Struct, frozen=True, kw_only=True):
    """What the restores of a job may take of the store. All who share a store should be told the same ``bytes_s``."""

    bytes_s: int = 0
    """Of all restores together; 0: no limit, and nothing is announced."""
    lane: Lane = "normal"
    cost_per_s: int = 1
    """What waiting costs, in any unit that all share: accelerators that stand idle, say. 1 or more."""
    patience_s: float = 600.0
    """After so long a restore goes on without its turn."""
    token_s: float = 30.0
    """A holder that died gives back its share after this and SKEW_S."""

    def __post_init__(self) -> None:
        if self.bytes_s < 0 or self.cost_per_s < 1 or self.patience_s < 0 or self.token_s <= 0:
            raise ValueError(
                "the pace of restores needs bytes per second and a patience of 0 or more, and a cost and a token time above 0"
            )

    def capacity(self) -> Capacity:
        return Capacity(
            bytes_s=self.bytes_s, useful_bytes_s=max(1, self.bytes_s // AT_ONCE),
            reserved_bytes_s=self.bytes_s // AT_ONCE, token_s=self.token_s,
        )  # fmt: skip


class Announced(Struct, frozen=True):
    """What a name says."""

    id: str
    number: int
    lane: Lane
    cost_per_s: int
    left_bytes: int
    limit_bytes_s: int
    asked_s: int
    share_bytes_s: int
    """0: it waits."""
    expires_s: int

    def key(self, mark: str) -> str:
        numbers = (
            self.cost_per_s, self.left_bytes, self.limit_bytes_s, self.asked_s, self.share_bytes_s, self.expires_s,
        )  # fmt: skip
        return f"{PREFIX}{mark}-{self.id}-{self.number:08d}-{_LETTERS[self.lane]}-" + "-".join(map(str, numbers))


@functools.lru_cache(maxsize=4096)
def parsed(key: str) -> Announced | None:
    """None for a name that keepstep would not have given."""
    match = _NAME.fullmatch(key)
    if match is None:
        return None
    return Announced(match[1], int(match[2]), _LANES[match[3]], *map(int, match.groups()[3:]))


class Traffic:
    """The restores of one job in one store. Thread-safe.

    report: gets words for people where a restore goes on without its turn, from any thread.
    """

    def __init__(
        self, store: Store, job: str, pace: Pace, report: Callable[[str], None],
        clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.store, self.mark, self.pace, self.report = store, job_mark(job), pace, report
        self.clock, self.sleep = clock, sleep
        self._lock = threading.Lock()
        self._inside, self._since_s, self._left_s = 0, 0.0, -math.inf

    def enter(self, size_bytes: int, alive: Callable[[int], None] = lambda _: None) -> "Passage":
        """A passage for one read of ``size_bytes``; its ``with`` block begins when it is this one's turn.

        alive: called with 0 every few seconds while it waits.
        """
        return Passage(self, size_bytes, alive)

    def came(self) -> float:
        """One more reads. Since when this counts as waiting: reads that follow each other are one restore."""
        with self._lock:
            now_s = self.clock()
            if not self._inside and now_s > self._left_s + self.pace.token_s:
                self._since_s = now_s
            self._inside += 1
            return self._since_s

    def left(self) -> None:
        """One less reads."""
        with self._lock:
            self._inside, self._left_s = self._inside - 1, self.clock()

    def others(self, own: str) -> list[Announced]:
        """Everybody else in force, each as announced last. Raises OSError."""
        now_s, newest = self.clock(), dict[str, Announced]()
        for entry in list(self.store.list(PREFIX)):
            one = parsed(entry.key)
            if one is None or one.id == own:
                continue
            if one.expires_s + SKEW_S > now_s:
                if one.id not in newest or newest[one.id].number < one.number:
                    newest[one.id] = one
            elif one.expires_s + SKEW_S + CLEARED_S < now_s:
                with contextlib.suppress(OSError):
                    self.store.delete(entry.key)
        return list(newest.values())


class Passage:
    """One read. Use as a context manager, and call :meth:`progress` for what was read, from any of its threads."""

    def __init__(self, traffic: Traffic, size_bytes: int, alive: Callable[[int], None]) -> None:
        self._traffic, self._alive, self._pace = traffic, alive, traffic.pace
        self._free = not traffic.pace.bytes_s
        self._key = ""
        self._over = False
        """Left: a thread of it that still reads waits for nothing, and announces nothing more."""
        if self._free:
            return
        self._capacity = traffic.pace.capacity()
        self._said = Announced(
            secrets.token_hex(8), 0, self._pace.lane, self._pace.cost_per_s, size_bytes, self._pace.bytes_s, 0, 0, 0
        )
        self._look_s, self._due_s = self._pace.token_s / 6, 0.0
        self._jitter = random.Random(self._said.id)
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._left_bytes, self._credit_bytes, self._filled_s = size_bytes, 0.0, 0.0

    @property
    def share_bytes_s(self) -> int:
        """The rate in force; 0 without a limit."""
        return 0 if self._free else self._said.share_bytes_s

    def __enter__(self) -> "Passage":
        if not self._free:
            self._said = replace(self._said, asked_s=int(self._traffic.came()))
            try:
                self._await_turn()
            except BaseException:
                self.__exit__()
                raise
            self._filled_s = self._traffic.clock()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._free:
            with self._lock:
                self._over = True
            self._withdraw()
            self._traffic.left()

    def progress(self, size_bytes: int) -> None:
        """So much more was read. Returns when the share allows the next."""
        if self._free:
            return
        with self._lock:
            self._left_bytes = max(0, self._left_bytes - size_bytes)
            self._credit_bytes -= size_bytes
        while not self._over:
            self._keep_up()
            pause_s = self._pause_s()
            if pause_s < _LEAST_PAUSE_S:
                return
            self._traffic.sleep(min(pause_s, self._look_s))
            self._alive(0)

    # ---- pace

    def _pause_s(self) -> float:
        """How long the share forbids to read on."""
        with self._lock:
            now_s, rate = self._traffic.clock(), self._said.share_bytes_s
            if not rate:
                # The other thread waits for a turn.
                return self._look_s
            earned = max(0.0, now_s - self._filled_s) * rate
            self._credit_bytes = min(self._credit_bytes + earned, rate * BURST_S)
            self._filled_s = now_s
            return max(0.0, -self._credit_bytes / rate)

    def _keep_up(self) -> None:
        """Look again when it is time: renew, take a larger or a smaller share."""
        if self._traffic.clock() < self._due_s:
            return
        with self._turn:
            if self._traffic.clock() < self._due_s:
                return
            self._pause_s()
            self._look()
            if not self._said.share_bytes_s:
                self._await_turn()
                self._filled_s = self._traffic.clock()

    # ---- turns

    def _await_turn(self) -> None:
        """Until there is a share, or the patience is over."""
        since_s = self._traffic.clock()
        try:
            self._announce(0)
        except OSError as error:
            self._go(f"nothing can be announced in {self._traffic.store.name} ({error})")
            return
        while not self._over:
            ahead = self._look()
            if self._said.share_bytes_s:
                return
            waited_s = self._traffic.clock() - since_s
            if waited_s >= self._pace.patience_s:
                self._go(f"it waited {waited_s:.0f} s, and {ahead} are before it")
                return
            # Whoever is next takes a turn soon after it is free; the others need not be quick.
            looks = 0.2 if ahead < AT_ONCE else 1.0 if ahead < 4 * AT_ONCE else 3.0
            pause_s = self._look_s * self._jitter.uniform(0.75, 1.25) * looks
            self._traffic.sleep(min(pause_s, self._pace.patience_s - waited_s + _LEAST_PAUSE_S))
            self._alive(0)

    def _go(self, why: str) -> None:
        """Without a turn. The others make room as soon as they see it."""
        rate = self._capacity.useful_bytes_s
        try:
            self._announce(rate)
        except OSError:
            # Nobody knows of it, so it does not end either; it is tried again at every look.
            self._withdraw()
            self._said = replace(self._said, share_bytes_s=rate)
        self._due_s = self._traffic.clock() + self._look_s
        self._traffic.report(f"a restore of {self._said.left_bytes} bytes reads without its turn, at {rate} B/s: {why}")

    def _look(self) -> int:
        """See who else is there and act on it. How many are ahead of this one; 0 if that is not known."""
        now_s = self._traffic.clock()
        self._due_s = now_s + self._look_s * self._jitter.uniform(0.75, 1.25)
        if self._key and now_s >= self._said.expires_s:
            # It could not be renewed: the share may be another's by now.
            self._said = replace(self._said, share_bytes_s=0)
        ahead = 0
        with contextlib.suppress(OSError):
            for _ in range(_LOOKS):
                share, ahead = self._decide(self._traffic.others(self._said.id))
                grew = share > self._said.share_bytes_s
                third_over = self._said.expires_s - self._traffic.clock() < self._pace.token_s * 2 / 3
                if grew or share < self._said.share_bytes_s or third_over or not self._key:
                    self._announce(share)
                if not grew:
                    break
        return ahead

    def _decide(self, others: Sequence[Announced]) -> tuple[int, int]:
        """(share, how many are ahead) of this one."""
        now_s, own = self._traffic.clock(), self._said
        everybody = [
            *others,
            replace(own, expires_s=math.ceil(now_s + self._pace.token_s), left_bytes=self._left_bytes),
        ]
        decided = admit(
            [_request(one) for one in everybody if not one.share_bytes_s],
            [_token(one) for one in everybody if one.share_bytes_s], now_s, self._capacity,
        )  # fmt: skip
        for token in (*decided.lowered, *decided.granted, *decided.raised):
            if token.id == own.id:
                return max(1, token.share_bytes_s), 0
        return own.share_bytes_s, next((wait.ahead for wait in decided.waiting if wait.id == own.id), 0)

    def _announce(self, share_bytes_s: int) -> None:
        """Raises OSError; what was announced before then still stands."""
        said = replace(
            self._said, number=self._said.number + 1, left_bytes=self._left_bytes, share_bytes_s=share_bytes_s,
            expires_s=math.ceil(self._traffic.clock() + self._pace.token_s),
        )  # fmt: skip
        key = said.key(self._traffic.mark)
        self._traffic.store.create(key, b"")
        with self._lock:
            if self._over:
                before = key
            else:
                before, self._key, self._said = self._key, key, said
        self._delete(before)

    def _withdraw(self) -> None:
        """Idempotent."""
        with self._lock:
            before, self._key = self._key, ""
        self._delete(before)

    def _delete(self, key: str) -> None:
        if key:
            # What cannot be removed ends by itself.
            with contextlib.suppress(OSError):
                self._traffic.store.delete(key)


def _request(one: Announced) -> Request:
    return Request(
        id=one.id, lane=one.lane, size_bytes=one.left_bytes, asked_s=one.asked_s, limit_bytes_s=one.limit_bytes_s,
        cost_per_s=one.cost_per_s,
    )  # fmt: skip


def _token(one: Announced) -> Token:
    # Time is told by who has announced it: whether it is in force was seen to before.
    return Token(
        id=one.id, lane=one.lane, share_bytes_s=one.share_bytes_s, limit_bytes_s=one.limit_bytes_s,
        expires_s=one.expires_s + SKEW_S,
    )  # fmt: skip
