"""Keeps the journal quick to start from: takes a snapshot now and then, in a process of its own. Owns when.

Encoding the books of ten thousand nodes takes half a second, in which no order would leave, so the leader does not do it: a
child reads the newest snapshot and what came after, like a server that starts, and puts the new one. ``python -m
keepstep.server.upkeep`` is that child; it gets the database from its standard input, for a URL may hold a password.
"""

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable

from keepstep.ports import Snapshots
from keepstep.server.history import Books
from keepstep.server.snapshot import snapshot_of

log = logging.getLogger("keepstep.server")

LOOK_S = 30.0
ENTRIES = 20_000
"""Since the last snapshot, before the next one: about two seconds of reading at a start."""
ENTRIES_AT_THE_END = 2_000
"""The same for a server that ends."""
PATIENCE_S = 600.0
NICE = 15
"""Of the child: it has time, and on a machine of few cores orders would wait for it."""


class Upkeep:
    """``seq`` tells how far the journal is. ``where``: the database, as open_database takes it."""

    def __init__(self, where: str, seq: Callable[[], int], covered: int = 0) -> None:
        self._where = where
        self._seq = seq
        self.covered = covered
        """The newest entry with a snapshot."""

    async def run(self) -> None:
        """Until cancelled; while this server leads. A snapshot that fails is tried again and stops nothing."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._seq() - self.covered >= ENTRIES:
                await self.take()

    async def take(self) -> bool:
        """One snapshot now. False where it failed; the log says why."""
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "keepstep.server.upkeep",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(PATIENCE_S):
                told, errors = await child.communicate(self._where.encode())
        except TimeoutError:
            log.warning("taking a snapshot took longer than %.0f s and was given up", PATIENCE_S)
            return False
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        if child.returncode:
            log.warning("no snapshot was taken: %s", errors.decode(errors="replace").strip()[-500:])
            return False
        self.covered = int(told)
        log.info("a snapshot covers the journal up to entry %d", self.covered)
        return True


def at_the_end(books: Books, snapshots: Snapshots, covered: int = 0) -> None:
    """Before the database is closed in peace, so that the next start is quick. Blocks; raises what the snapshots raise."""
    if books.world.seq - covered >= ENTRIES_AT_THE_END:
        snapshots.put(snapshot_of(books))


def main() -> int:
    from pathlib import Path

    from keepstep.adapters.database.opening import open_database
    from keepstep.server.compaction import Store, take_snapshot

    os.nice(NICE)
    gc.disable()  # it builds the books once and ends
    database = open_database(sys.stdin.read().strip())
    try:
        store = Store(database.journal, database.snapshots, database.archive, Path())
        print(take_snapshot(store))
    finally:
        database.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
