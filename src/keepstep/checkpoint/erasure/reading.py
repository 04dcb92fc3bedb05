"""Blocks from locations, judged by the digest table, made up for by the code. Owns hedging: nobody waits for one slow location.

A window of stripes is read from the shards that are wanted; where one fails, is damaged, or has not come after a while, others
are read instead, and as soon as every stripe has enough good blocks the rest is computed. Every block is checked before anybody
sees it. Must not write.
"""

import itertools
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

from keepstep.checkpoint.erasure.coder import Coder
from keepstep.checkpoint.erasure.field import Bytes
from keepstep.checkpoint.erasure.lanes import Lanes
from keepstep.checkpoint.erasure.layout import Window
from keepstep.checkpoint.erasure.opening import Copy, Opened, Patience
from keepstep.checkpoint.erasure.shards import good_blocks
from keepstep.checkpoint.erasure.writing import aligned
from keepstep.checkpoint.errors import StateInvalid

Good = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
_SPARE_BUFFERS = 32


class ShardReader:
    """Reads one object for one operation. For one thread."""

    def __init__(self, opened: Opened, coder: Coder, lanes: Lanes, patience: Patience) -> None:
        self.opened, self.coder, self.lanes, self.patience = opened, coder, lanes, patience
        self.late = {shard for shard, copy in opened.copies.items() if copy.location.slow}
        """Shards whose locations are asked only if the others are not enough."""
        self.troubles: dict[int, str] = {}
        """Shard -> what was last wrong with it."""
        self._spare: list[Bytes] = []

    def begin(self, window: Window, wanted: Sequence[int]) -> "Fetch":
        """Start reading ``wanted`` shards' blocks of a window."""
        return Fetch(self, window, tuple(wanted))

    def buffer(self, size_bytes: int) -> Bytes:
        for number, spare in enumerate(self._spare):
            if spare.nbytes == size_bytes:
                return self._spare.pop(number)
        return aligned(size_bytes)

    def give_back(self, buffer: Bytes) -> None:
        if len(self._spare) < _SPARE_BUFFERS:
            self._spare.append(buffer)

    def read_row(self, shard: int, window: Window, row: Bytes) -> Callable[[], Good]:
        """A call that fills ``row`` (blocks x bytes) and says which blocks are good."""
        copy: Copy = self.opened.copies[shard]
        digests = self.opened.table[window.first : window.first + window.stripes, shard]

        def act() -> Good:
            copy.location.store.read_into(str(copy.name), window.shard_offset, row.reshape(-1).data)
            return good_blocks(row, digests)

        return act


class Fetch:
    """One window on its way. :meth:`wait`, take the rows, :meth:`release`."""

    def __init__(self, reader: ShardReader, window: Window, wanted: tuple[int, ...]) -> None:
        self._reader, self.window, self._wanted = reader, window, wanted
        self._rows: dict[int, Bytes] = {}
        self._pending: dict[int, tuple[Future[Good], Bytes]] = {}
        self._came: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._good = np.zeros((reader.opened.geometry.shards, window.stripes), bool)
        self._unread = sorted(
            reader.opened.copies, key=lambda shard: (bool(reader.opened.copies[shard].trouble), shard)
        )
        for shard in wanted:
            if shard in self._unread and shard not in reader.late:
                self._start(shard)

    def wait(self) -> None:
        """Return when all wanted blocks are there. Raises StateInvalid if they cannot be had before the deadline."""
        now = time.monotonic()
        dead_at, late_at = now + self._reader.patience.deadline_s, now + self._reader.patience.hedge_s
        self._start_more()
        while not self._enough():
            now = time.monotonic()
            if now >= late_at:
                self._pass_over()
                late_at = now + self._reader.patience.hedge_s
                self._start_more()
            if now >= dead_at or not self._pending:
                raise self._lost()
            try:
                shard = self._came.get(timeout=max(0.0, min(dead_at, late_at) - now))
            except queue.Empty:
                continue
            self._take(shard)
            self._start_more()
        self._rebuild()

    def row(self, shard: int) -> Bytes:
        """Blocks x bytes of a wanted shard, after :meth:`wait`, until :meth:`release`."""
        return self._rows[shard]

    def release(self) -> None:
        """Give the buffers back, except those that a late call may still write to."""
        for future, _ in self._pending.values():
            future.cancel()
        for row in self._rows.values():
            self._reader.give_back(row.reshape(-1))
        self._rows.clear()

    def _start(self, shard: int) -> None:
        self._unread.remove(shard)
        row = self._reader.buffer(self.window.stripes * self.window.block_bytes).reshape(self.window.stripes, -1)
        lane = self._reader.lanes.to(self._reader.opened.copies[shard].location)
        future = lane.submit(self._reader.read_row(shard, self.window, row))
        self._pending[shard] = (future, row)
        future.add_done_callback(lambda _: self._came.put(shard))

    def _start_more(self) -> None:
        """Read as many further shards as the stripe that lacks most does."""
        good, hopeful = self._good, np.zeros((len(self._good), 1), bool)
        hopeful[[shard for shard in self._pending if shard not in self._reader.late]] = True
        served = (good | hopeful)[list(self._wanted)].all(axis=0)
        lacking = self._reader.opened.geometry.data - (good | hopeful).sum(axis=0)
        lacking[served] = 0
        late = self._reader.late
        for shard in sorted(self._unread, key=lambda shard: shard in late)[: max(0, int(lacking.max(initial=0)))]:
            self._start(shard)

    def _pass_over(self) -> None:
        for shard in self._pending:
            self._reader.late.add(shard)
            self._reader.opened.copies[shard].location.note_slow()

    def _take(self, shard: int) -> None:
        future, row = self._pending.pop(shard)
        try:
            self._good[shard] = future.result()
        except OSError as error:
            self._reader.troubles[shard] = str(error) or type(error).__name__
            self._reader.late.add(shard)
            return
        if not self._good[shard].all():
            self._reader.troubles[shard] = (
                f"{int((~self._good[shard]).sum())} blocks from stripe {self.window.first} are damaged"
            )
        self._rows[shard] = row

    def _enough(self) -> bool:
        have = self._good.sum(axis=0) >= self._reader.opened.geometry.data
        return bool((self._good[list(self._wanted)].all(axis=0) | have).all())

    def _rebuild(self) -> None:
        """Compute what is wanted and not there: once for each run of stripes that lack the same."""
        for shard in self._wanted:
            if shard not in self._rows:
                size_bytes = self.window.stripes * self.window.block_bytes
                self._rows[shard] = self._reader.buffer(size_bytes).reshape(self.window.stripes, -1)
        made = self._good.copy()
        for _, group in itertools.groupby(
            range(self.window.stripes), key=lambda stripe: self._good[:, stripe].tobytes()
        ):
            stripes = list(group)
            run = slice(stripes[0], stripes[-1] + 1)
            missing = [shard for shard in self._wanted if not self._good[shard, stripes[0]]]
            present = {int(shard): self._rows[int(shard)][run] for shard in np.flatnonzero(self._good[:, stripes[0]])}
            self._reader.coder.reconstruct(present, missing, [self._rows[shard][run] for shard in missing])
            table = self._reader.opened.table[self.window.first :][run]
            for shard in missing:
                made[shard, run] = good_blocks(self._rows[shard][run], table[:, shard])
        if not made[list(self._wanted)].all():
            raise StateInvalid(
                f"{self._reader.opened.key}: blocks computed from sound ones do not match the digest table: "
                "its parity was never that of its data"
            )

    def _lost(self) -> StateInvalid:
        opened = self._reader.opened
        good = int(self._good.sum(axis=0).min())
        troubles = {
            copy.name.shard: copy.trouble for copy in opened.copies.values() if copy.trouble
        } | self._reader.troubles
        troubles |= dict.fromkeys(self._pending, "no answer in time")
        reasons = [
            f"shard {shard} at {opened.copies[shard].location}: {why}" for shard, why in sorted(troubles.items())
        ]
        reasons += [f"location {name}: {why}" for name, why in opened.unreachable.items()]
        reasons += [
            f"shard {shard} is missing" for shard in range(opened.geometry.shards) if shard not in opened.copies
        ]
        return StateInvalid(
            f"{opened.key}: {good} good blocks of a stripe where {opened.geometry.data} are needed ({'; '.join(reasons)})"
        )
