"""Blobs that a restoring worker reads out of a descriptor: bit-exact, or refused."""

import fcntl
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from keepstep.checkpoint import flatten
from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.snapshot.messages import Source
from keepstep.checkpoint.snapshot.reading import FROZEN, read_blob
from keepstep.checkpoint.snapshot.slots import anonymous
from keepstep.checkpoint.state.blob import digest_chunks, pack, unpack_verified

OFFSET = 8192
Put = Callable[[bytes], int]


def blob_of(tensors: int, elements: int = 400_000) -> tuple[bytes, str, dict[str, Any]]:
    tree = {f"w{n}": np.random.default_rng(n).random(elements, np.float32) for n in range(tensors)}
    blob = bytes(pack(flatten(tree)))
    return blob, digest_chunks(blob).root, tree


@pytest.fixture
def put() -> Iterator[Put]:
    """Bytes into new anonymous memory, some way in, as in a slot."""
    opened: list[int] = []

    def make(data: bytes) -> int:
        opened.append(anonymous(bytes(OFFSET) + data))
        return opened[-1]

    yield make
    for fd in opened:
        os.close(fd)


def source(digest: str, size_bytes: int) -> Source:
    return Source(name="model", digest=digest, offset=OFFSET, size_bytes=size_bytes)


@pytest.mark.parametrize("tensors", [0, 1, 8])
def test_a_blob_is_read_bit_exactly_into_own_memory(put: Put, tensors: int) -> None:
    blob, digest, tree = blob_of(tensors)
    fd = put(blob)
    data = read_blob(source(digest, len(blob)), fd)
    assert bytes(data) == blob
    found = unpack_verified(data)
    assert all(np.array_equal(found[name], value) for name, value in tree.items())
    os.pwrite(fd, bytes(len(blob)), OFFSET)
    assert bytes(data) == blob
    if tensors:
        # What was read is the caller's to change.
        found["w0"][:] = 1


@pytest.mark.parametrize("at", [0, 5_000_000, 12_700_000, -1, -9, -20, -41, -300])
def test_one_wrong_bit_anywhere_is_refused(put: Put, at: int) -> None:
    blob, digest, _ = blob_of(8)
    damaged = bytearray(blob)
    damaged[at] ^= 16
    with pytest.raises(StateInvalid, match="damaged"):
        read_blob(source(digest, len(blob)), put(bytes(damaged)))


@pytest.mark.parametrize("size_bytes", [0, 7, 4096, 20_000_000])
def test_another_size_than_the_blob_has_is_refused(put: Put, size_bytes: int) -> None:
    blob, digest, _ = blob_of(8)
    with pytest.raises(StateInvalid):
        read_blob(source(digest, size_bytes), put(blob))


def frozen(data: bytes) -> int:
    fd = os.memfd_create("frozen", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, bytes(OFFSET) + data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, FROZEN)
    return fd


def test_frozen_memory_is_mapped_and_what_is_changed_there_stays_with_the_reader() -> None:
    blob, digest, tree = blob_of(8)
    fd = frozen(blob)
    try:
        data, other = (read_blob(source(digest, len(blob)), fd) for _ in range(2))
        found = unpack_verified(data)
        assert all(np.array_equal(found[name], value) for name, value in tree.items())
        found["w0"][:] = 1
        assert bytes(other) == blob == os.pread(fd, len(blob), OFFSET)
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"x", OFFSET)
    finally:
        os.close(fd)
    assert bytes(other) == blob


@pytest.mark.parametrize("cut", ["a wrong bit", "shorter than announced"])
def test_frozen_memory_is_judged_as_any_other(cut: str) -> None:
    """Shorter memory must not be mapped at all: to touch what is not there would kill the process."""
    blob, digest, _ = blob_of(8)
    data = bytearray(blob)
    if cut == "a wrong bit":
        data[7_000_000] ^= 1
    else:
        del data[-1_000_000:]
    fd = frozen(bytes(data))
    try:
        with pytest.raises(StateInvalid):
            read_blob(source(digest, len(blob)), fd)
    finally:
        os.close(fd)
