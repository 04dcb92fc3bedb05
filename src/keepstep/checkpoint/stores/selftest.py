"""Tries out a store before commits go there. Owns what a store must prove; must not know what kind of store it is.

A checkpoint exists because a commit record was *created if absent*. A server that ignores the condition lets two writers
both believe that they committed, and the second destroys the record of the first. Such servers exist, they report success,
and no documentation is as good as the attempt.
"""

import contextlib
import errno
import secrets
import threading
from collections.abc import Callable, Iterator

from keepstep.checkpoint.errors import StoreUnfit
from keepstep.checkpoint.stores.port import Store

PREFIX = "selftest/"
RACERS = 8
_BODY = bytes(range(256)) * 33
_TOO_MANY_ANSWERS = f"{RACERS} creators raced for one key, and {{}} of them were told that they made it"


def selftest(store: Store) -> None:
    """Prove that ``store`` can hold a commit log: about 40 small requests below ``selftest/<random>/``, removed afterwards.

    Raises StoreUnfit if it cannot, and OSError if it cannot be told (unreachable, access refused, …).
    """
    prefix = f"{PREFIX}{secrets.token_hex(8)}/"
    checks = (_creates_once, _reads_its_writes, _reads_ranges, _lists_its_writes, _decides_races, _deletes)
    try:
        for check in checks:
            with _unfit_if_refused(store):
                check(store, prefix)
    finally:
        for name in ("once", "race"):
            with contextlib.suppress(OSError):
                store.delete(prefix + name)


@contextlib.contextmanager
def _unfit_if_refused(store: Store) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS):
            raise _unfit(store, f"it does not support what is needed ({error.strerror})") from error
        raise


def _unfit(store: Store, what: str) -> StoreUnfit:
    return StoreUnfit(
        f"{store.name} cannot hold checkpoints: {what}. Use a directory on a POSIX file system, or an object store with"
        " conditional writes (Amazon S3, Google Cloud Storage, Azure Blob Storage, SeaweedFS 4). S3 servers that ignore"
        " If-None-Match, such as `rclone serve s3`, lose commits without a word"
    )


def _creates_once(store: Store, prefix: str) -> None:
    key = prefix + "once"
    if not store.create(key, _BODY):
        raise _unfit(store, "it says that a new key is taken")
    if store.create(key, _BODY[::-1]):
        raise _unfit(
            store, "it overwrites an object that must only be created if it is absent (If-None-Match is ignored)"
        )


def _reads_its_writes(store: Store, prefix: str) -> None:
    key = prefix + "once"
    try:
        found, size = store.read(key), store.size(key)
    except FileNotFoundError as error:
        raise _unfit(store, "an object that was just written cannot be read") from error
    if found != _BODY:
        raise _unfit(store, "an object does not hold what was written, or a refused create changed it")
    if size != len(_BODY):
        raise _unfit(store, f"it says that an object of {len(_BODY)} bytes has {size}")
    if store.size(prefix + "absent") is not None:
        raise _unfit(store, "it says that an object is there which never was")


def _reads_ranges(store: Store, prefix: str) -> None:
    for offset, length in ((0, 16), (300, 4000), (len(_BODY) - 7, 7)):
        out = bytearray(length)
        store.read_into(prefix + "once", offset, memoryview(out))
        if out != _BODY[offset : offset + length]:
            raise _unfit(store, "reading a part of an object returns other bytes")
    try:
        store.read_into(prefix + "once", len(_BODY) - 7, memoryview(bytearray(8)))
    except OSError as error:
        if error.errno in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EACCES, errno.EBUSY):
            raise
        return
    raise _unfit(store, "reading beyond the end of an object succeeds")


def _lists_its_writes(store: Store, prefix: str) -> None:
    if [(entry.key, entry.size_bytes) for entry in store.list(prefix)] != [(prefix + "once", len(_BODY))]:
        raise _unfit(store, "a listing does not show an object that was just written")


def _decides_races(store: Store, prefix: str) -> None:
    """Exactly one wins, and it is the one that finds its own bytes there."""
    key = prefix + "race"
    start = threading.Barrier(RACERS)
    answers: dict[int, bool | OSError] = {}

    def race(number: int) -> None:
        start.wait()
        try:
            answers[number] = store.create(key, b"%d" % number)
        except OSError as error:
            answers[number] = error

    _together(race)
    winners = [number for number, answer in answers.items() if answer is True]
    unsure = [number for number, answer in answers.items() if isinstance(answer, OSError)]
    if len(winners) > 1:
        raise _unfit(store, _TOO_MANY_ANSWERS.format(len(winners)))
    try:
        found = store.read(key)
    except FileNotFoundError:
        found = b""
    possible = winners or unsure
    if not possible:
        raise _unfit(store, _TOO_MANY_ANSWERS.format("none"))
    if found not in [b"%d" % number for number in possible]:
        if len(unsure) == RACERS:
            raise next(answer for answer in answers.values() if isinstance(answer, OSError))
        raise _unfit(store, "after a race, the object is not the winner's")


def _together(act: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=act, args=(number,)) for number in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _deletes(store: Store, prefix: str) -> None:
    for _ in range(2):
        store.delete(prefix + "once")
    store.delete(prefix + "race")
    if store.size(prefix + "once") is not None or list(store.list(prefix)):
        raise _unfit(store, "an object is still there after it was deleted")
    if not store.create(prefix + "once", _BODY):
        raise _unfit(store, "a deleted key cannot be created again")
