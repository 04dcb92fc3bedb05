"""Small objects, whole, at every location: manifests and commit records. Owns writing them everywhere and mending them.

What makes a copy right is the check that the caller brings (its digest), never how many locations agree. Not a lock: which of
two different objects under one key exists is for one store's ``create`` to say, before anything comes here.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from msgspec import Struct

from keepstep.checkpoint.erasure.lanes import Lanes
from keepstep.checkpoint.erasure.locations import Location, Locations
from keepstep.checkpoint.erasure.opening import Patience
from keepstep.checkpoint.errors import SaveFailed, StateInvalid

REPLICATED_MAX_BYTES = 64 * 1024

Check = Callable[[bytes], object]
"""Raises StateInvalid for bytes that are not what was saved."""


class Replicated(Struct, frozen=True, kw_only=True):
    """Where a small object is now."""

    stored: tuple[str, ...]
    failed: dict[str, str]
    """Location -> why it has no copy yet."""


def replicate(locations: Locations, key: str, data: Any, patience: Patience, may_fail: int) -> Replicated:
    """Store ``data`` everywhere; a location that has these bytes already counts. Raises SaveFailed if more than ``may_fail``
    locations fail, or any has other bytes under ``key``."""
    content = bytes(data)
    if len(content) > REPLICATED_MAX_BYTES:
        raise ValueError(f"{key} has {len(content)} bytes: above {REPLICATED_MAX_BYTES}, use put")
    with Lanes() as lanes:
        calls = {one.name: lanes.to(one).submit(_create(one, key, content)) for one in locations}
        wait(calls.values(), patience.deadline_s)
        failed = {name: why for name, call in calls.items() if (why := _failure(call)) is not None}
    clashes = [name for name, call in calls.items() if name not in failed and not call.result()]
    if clashes:
        raise SaveFailed(f"{key} is already at {', '.join(clashes)} with other bytes: it is not overwritten")
    if len(failed) > may_fail:
        reasons = "; ".join(f"{name}: {why}" for name, why in failed.items())
        raise SaveFailed(f"{key}: {len(failed)} of {len(locations)} locations failed where {may_fail} may: {reasons}")
    return Replicated(stored=tuple(name for name in calls if name not in failed), failed=failed)


def _create(location: Location, key: str, content: bytes) -> Callable[[], bool]:
    """A call that tells whether the location now has just these bytes."""

    def act() -> bool:
        if location.store.create(key, content):
            return True
        return location.store.size(key) == len(content) and location.store.read(key) == content

    return act


def _failure(call: "Future[Any]") -> str | None:
    if not call.done():
        return "no answer in time"
    error = call.exception()
    if error is None:
        return None
    if not isinstance(error, OSError):
        raise error
    return str(error) or type(error).__name__


def read_replicated(locations: Locations, key: str, check: Check, patience: Patience) -> bytes:
    """The first copy that passes ``check``; locations that answer in time without it are given it too.

    Raises StateInvalid if no location has one.
    """
    with Lanes() as lanes:
        calls = {lanes.to(one).submit(_read(one, key)): one for one in locations}
        pending: set[Future[bytes | None]] = set(calls)
        right: bytes | None = None
        wrong: dict[str, str] = {}
        until = time.monotonic() + patience.deadline_s
        while pending and (left := until - time.monotonic()) > 0:
            done, pending = wait(pending, left, return_when=FIRST_COMPLETED)
            for call in done:
                found, why = _judge(call, check)
                if found is None:
                    wrong[calls[call].name] = why
                elif right is None:
                    right = found
                    until = min(until, time.monotonic() + patience.hedge_s)
        if right is None:
            late = {calls[call].name: "no answer in time" for call in pending}
            reasons = "; ".join(f"{name}: {why}" for name, why in (wrong | late).items())
            raise StateInvalid(f"no location has a valid copy of {key} ({reasons})")
        _mend(lanes, calls, wrong, (key, right), patience)
    return right


def _read(location: Location, key: str) -> Callable[[], bytes | None]:
    def act() -> bytes | None:
        size_bytes = location.store.size(key)
        if size_bytes is None:
            return None
        if size_bytes > REPLICATED_MAX_BYTES:
            return b""
        return location.store.read(key)

    return act


def _judge(call: "Future[bytes | None]", check: Check) -> tuple[bytes | None, str]:
    """The bytes if they are right, or what is wrong."""
    if (why := _failure(call)) is not None:
        return None, why
    data = call.result()
    if data is None:
        return None, _ABSENT
    try:
        check(data)
    except StateInvalid as error:
        return None, str(error)
    return data, ""


_ABSENT = "it is not there"


def _mend(
    lanes: Lanes,
    calls: Mapping["Future[bytes | None]", Location],
    wrong: dict[str, str],
    right: tuple[str, bytes],
    patience: Patience,
) -> None:
    """Replace the copies that are absent or wrong. A location that fails at it is mended by the next read."""
    mending = [
        lanes.to(location).submit(_replace(location, right, call.result() is not None))
        for call, location in calls.items()
        if location.name in wrong and call.exception() is None
    ]
    wait(mending, patience.hedge_s)


def _replace(location: Location, right: tuple[str, bytes], taken: bool) -> Callable[[], None]:
    key, content = right

    def act() -> None:
        with contextlib.suppress(OSError):
            if taken:
                location.store.delete(key)
            location.store.create(key, content)

    return act
