"""A read that fails or stands still goes on from another place, and nothing of it stays behind."""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from keepstep.checkpoint.errors import KeyMissing, StateInvalid
from keepstep.checkpoint.snapshot.hedge import Fill, first_to_fill

DATA = b"0123456789" * 500


def fills(data: bytes = DATA, *, begun: list[bool] | None = None) -> Fill:
    def fill(fd: int, progress: Callable[[int], None]) -> None:
        if begun is not None:
            begun.append(True)
        os.pwrite(fd, data, 0)
        progress(len(data))

    return fill


def fails(error: Exception) -> Fill:
    def fill(fd: int, progress: Callable[[int], None]) -> None:
        raise error

    return fill


def read(own: Fill, other: Fill | None, patience_s: float = 120.0) -> tuple[bytes, list[int]]:
    told: list[int] = []
    fetched = first_to_fill(len(DATA), own, other, told.append, patience_s)
    try:
        return bytes(fetched.view), told
    finally:
        fetched.close()


def fetched_here() -> int:
    """Memory of reads that this process has open."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += "memfd:keepstep-fetched" in os.readlink(f"/proc/self/fd/{fd}")
    return found


def test_what_reads_well_is_not_hedged() -> None:
    begun: list[bool] = []
    assert read(fills(), fills(begun=begun)) == (DATA, [len(DATA)])
    assert begun == []


@pytest.mark.parametrize("error", [StateInvalid("damaged"), OSError("gone")])
def test_a_read_that_fails_goes_on_elsewhere(error: Exception) -> None:
    assert read(fails(error), fills())[0] == DATA
    for other in (None, fails(StateInvalid("nor here"))):
        with pytest.raises(type(error), match=str(error)):
            read(fails(error), other)


def test_a_missing_key_is_missing_everywhere() -> None:
    begun: list[bool] = []
    with pytest.raises(KeyMissing):
        read(fails(KeyMissing("no key")), fills(begun=begun))
    assert begun == []


def test_a_read_that_stands_still_goes_on_elsewhere_and_lets_go_in_the_end(eventually: Callable[..., Any]) -> None:
    release = threading.Event()

    def hangs(fd: int, progress: Callable[[int], None]) -> None:
        assert release.wait(120)
        os.pwrite(fd, b"late", 0)
        progress(4)

    before = fetched_here()
    data, told = read(hangs, fills(), patience_s=0.05)
    assert data == DATA and told == [len(DATA)]
    release.set()
    eventually(lambda: fetched_here() == before, "the late read to let go of its memory")
    assert told == [len(DATA)], "bytes that nobody waits for are no progress"
