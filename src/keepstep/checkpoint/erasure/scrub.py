"""What is wrong with an object's shards, and rebuilding them. Owns the report, and the order in which damage is replaced.

Nothing is deleted before its replacement is durable under the next revision.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from enum import StrEnum

import numpy as np
from msgspec import Struct

from keepstep.checkpoint.erasure.locations import Location, Locations, check_spread
from keepstep.checkpoint.erasure.names import ShardName
from keepstep.checkpoint.erasure.opening import Copy, Opened
from keepstep.checkpoint.erasure.reading import Good, ShardReader
from keepstep.checkpoint.erasure.shards import footer, header
from keepstep.checkpoint.erasure.writing import RING, ShardWriters, Target, aligned

_PIECE_BYTES = 1024 * 1024


class Condition(StrEnum):
    """Of a shard."""

    GOOD = "good"
    MISSING = "missing"
    DAMAGED = "damaged"
    UNREACHABLE = "unreachable"
    """Its location does not answer. It may be in order: it is not rebuilt."""


class ShardState(Struct, frozen=True, kw_only=True):
    """One shard, as found by reading all of it."""

    shard: int
    condition: Condition
    location: str
    """Where it is, or belongs."""
    reason: str = ""
    bad_stripes: tuple[int, ...] = ()
    """Stripes whose block in this shard is not readable or not right."""


class Report(Struct, frozen=True, kw_only=True):
    """One object, as found by reading all of it."""

    key: str
    size_bytes: int
    digest: str
    shards: tuple[ShardState, ...]
    lost_stripes: tuple[int, ...]
    """Stripes with fewer good blocks than they need: not readable now."""
    extra: tuple[str, ...] = ()
    """Further objects under this key that are no part of it: earlier revisions, shards of something else."""

    @property
    def sound(self) -> bool:
        """Whether every shard is good."""
        return all(state.condition is Condition.GOOD for state in self.shards)

    @property
    def readable(self) -> bool:
        return not self.lost_stripes

    def having(self, *conditions: Condition) -> tuple[int, ...]:
        """Numbers of the shards in one of these conditions."""
        return tuple(state.shard for state in self.shards if state.condition in conditions)


def examine(reader: ShardReader, home: tuple[Location, ...], window_bytes: int) -> Report:
    """Read every block and footer. ``home``: where each shard belongs."""
    opened = reader.opened
    geometry = opened.geometry
    good = np.zeros((geometry.shards, geometry.stripes), bool)
    silent: set[int] = set()
    for window in geometry.windows(0, geometry.size_bytes, window_bytes):
        rows = {
            n: reader.buffer(window.stripes * window.block_bytes).reshape(window.stripes, -1) for n in opened.copies
        }
        calls = {n: reader.read_row(n, window, row) for n, row in rows.items() if n not in silent}
        for shard, result in _call_all(reader, calls, silent).items():
            good[shard, window.first : window.first + window.stripes] = result
        for shard in set(rows) - silent:
            reader.give_back(rows[shard].reshape(-1))
    frames = {
        n: _frame_check(copy, opened) for n, copy in opened.copies.items() if not copy.trouble and n not in silent
    }
    framed = {shard for shard, result in _call_all(reader, frames, silent).items() if result.all()}
    states = []
    for shard in range(geometry.shards):
        bad = tuple(int(stripe) for stripe in np.flatnonzero(~good[shard]))
        states.append(_judge(reader, shard, bad, home[shard], (shard in framed, shard in silent)))
    lost = np.flatnonzero(good.sum(axis=0) < geometry.data)
    return Report(
        key=opened.key,
        size_bytes=geometry.size_bytes,
        digest=opened.digest,
        shards=tuple(states),
        lost_stripes=tuple(int(stripe) for stripe in lost),
        extra=tuple(f"{copy.name} at {copy.location}" for copy in opened.others),
    )


def _call_all(reader: ShardReader, calls: dict[int, Callable[[], Good]], silent: set[int]) -> dict[int, Good]:
    """Results by shard. Adds to ``silent`` those that do not answer; other failures are results like damage."""
    copies = reader.opened.copies
    futures: dict[int, Future[Good]] = {
        n: reader.lanes.to(copies[n].location).submit(call) for n, call in calls.items()
    }
    until, results = time.monotonic() + reader.patience.deadline_s, {}
    for shard, future in futures.items():
        try:
            results[shard] = future.result(max(0.0, until - time.monotonic()))
        except TimeoutError as error:
            silent.add(shard)
            reader.late.add(shard)
            future.cancel()
            copies[shard].location.note_slow()
            reader.troubles[shard] = str(error) or "no answer in time"
        except OSError as error:
            reader.troubles[shard] = str(error) or type(error).__name__
    return results


def _frame_check(copy: Copy, opened: Opened) -> Callable[[], Good]:
    """Whether header and footer are byte for byte what they must be."""

    def act() -> Good:
        wanted_head = np.frombuffer(header(opened.key, opened.geometry, copy.name.shard), np.uint8)
        wanted_foot = np.frombuffer(footer(opened.table, opened.root), np.uint8)
        same = copy.size_bytes == opened.geometry.shard_bytes
        for begin, wanted in ((0, wanted_head), (opened.geometry.table_offset, wanted_foot)):
            for at in range(0, wanted.nbytes, _PIECE_BYTES):
                piece = np.empty(min(_PIECE_BYTES, wanted.nbytes - at), np.uint8)
                copy.location.store.read_into(str(copy.name), begin + at, piece.data)
                same = same and np.array_equal(piece, wanted[at : at + piece.nbytes])
        return np.array([same])

    return act


def _judge(
    reader: ShardReader, shard: int, bad: tuple[int, ...], home: Location, seen: tuple[bool, bool]
) -> ShardState:
    """``seen``: whether header and footer are right, whether its location fell silent."""
    framed, silent = seen
    copy = reader.opened.copies.get(shard)
    if copy is None:
        hidden = home.name in reader.opened.unreachable
        condition = Condition.UNREACHABLE if hidden else Condition.MISSING
        reason = reader.opened.unreachable.get(home.name, "")
        return ShardState(shard=shard, condition=condition, location=home.name, reason=reason, bad_stripes=bad)
    reason = copy.trouble or reader.troubles.get(shard, "")
    if silent:
        condition = Condition.UNREACHABLE
    elif bad or not framed:
        condition, reason = Condition.DAMAGED, reason or "its header or digest table is damaged"
    else:
        condition, reason = Condition.GOOD, ""
    return ShardState(shard=shard, condition=condition, location=copy.location.name, reason=reason, bad_stripes=bad)


def choose_targets(report: Report, opened: Opened, locations: Locations, home: tuple[Location, ...]) -> list[Target]:
    """Where to write each missing or damaged shard: where it is, where it belongs, or else wherever it may be."""
    to_mend = report.having(Condition.MISSING, Condition.DAMAGED)
    used = [copy.location for shard, copy in sorted(opened.copies.items()) if shard not in to_mend]
    used += [home[shard] for shard in report.having(Condition.UNREACHABLE) if shard not in opened.copies]
    targets = []
    for shard in to_mend:
        copy = opened.copies.get(shard)
        reachable = [one for one in locations if one.name not in opened.unreachable]
        preferred = copy.location if copy is not None else home[shard]
        location = Locations(reachable).spare(used, preferred, opened.geometry.parity)
        if location is None:
            continue
        used.append(location)
        revisions = [one.name.revision for one in (*opened.copies.values(), *opened.others) if one.name.shard == shard]
        targets.append(Target(location, ShardName(opened.key, shard, max(revisions, default=-1) + 1)))
    check_spread([target.location for target in targets], opened.geometry.parity)
    return targets


def rebuild(reader: ShardReader, targets: list[Target], window_bytes: int) -> dict[int, str]:
    """Write the targets' shards anew, every block checked against the digest table. Returns those that failed, and why."""
    opened, geometry = reader.opened, reader.opened.geometry
    shards = [target.name.shard for target in targets]
    ring = [aligned(len(shards) * geometry.block_bytes).reshape(len(shards), -1) for _ in range(RING)]
    tail = {}
    with ShardWriters(geometry, targets, reader.patience.deadline_s, len(targets) - 1) as writers:
        writers.open()
        for window in geometry.windows(0, geometry.size_bytes, window_bytes):
            fetch = reader.begin(window, shards)
            fetch.wait()
            for stripe in range(window.stripes):
                if window.first == geometry.full_stripes:
                    tail = {shard: fetch.row(shard)[0].copy() for shard in shards}
                    continue
                writers.make_room()
                blocks = ring[(window.first + stripe) % RING]
                for row, shard in enumerate(shards):
                    blocks[row] = fetch.row(shard)[stripe]
                writers.write({shard: blocks[row] for row, shard in enumerate(shards)})
            fetch.release()
        writers.finish(tail, opened.table, opened.root)
    return writers.failed
