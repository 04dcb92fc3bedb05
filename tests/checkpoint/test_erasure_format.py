"""The bytes of a shard: what an object of any length becomes, and that no header can do harm."""

import hashlib
import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.checkpoint.erasure.layout import HEADER_BYTES, SEAL_BYTES, Geometry
from keepstep.checkpoint.erasure.names import ShardName, parse_name
from keepstep.checkpoint.erasure.shards import (
    Misplaced,
    block_digest,
    footer,
    header,
    read_footer,
    read_header,
    root_digest,
)
from keepstep.checkpoint.errors import StateInvalid

from .erasure_stores import BLOCK, Site, flipped

SHAPE = Geometry(data=4, parity=2, block_bytes=BLOCK, size_bytes=100_000)


def resealed(head: bytes) -> bytes:
    """A forged header with a right digest: what an attacker would write."""
    return head[:-32] + block_digest(head[:-32])


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 20), st.integers(1, 4), st.integers(0, 400_000), st.data())
def test_windows_cover_what_was_asked_for_and_fit_the_shard(k: int, m: int, size: int, data: st.DataObject) -> None:
    shape = Geometry(data=k, parity=m, block_bytes=BLOCK, size_bytes=size).check()
    begin = data.draw(st.integers(0, size))
    end = data.draw(st.integers(begin, size))
    windows = shape.windows(begin, end, data.draw(st.integers(1, 200_000)))
    at = windows[0].object_offset if windows else begin
    assert at <= begin
    for window in windows:
        assert window.object_offset == at
        assert window.block_bytes == (BLOCK if window.first < shape.full_stripes else shape.tail_bytes)
        assert window.shard_offset + window.stripes * window.block_bytes <= shape.table_offset
        at += window.stripes * window.block_bytes * k
    assert at >= end
    assert shape.table_offset + shape.table_bytes + SEAL_BYTES == shape.shard_bytes
    # Padding and digests are all that is added to the code's own (k + m) / k.
    overhead = (k + m) * (HEADER_BYTES + SEAL_BYTES + shape.table_bytes + 64)
    assert shape.shard_bytes * (k + m) <= size * (k + m) / k + overhead


def test_a_shard_is_written_the_same_for_good() -> None:
    """A vector: key, geometry, content and so every byte of every shard."""
    site = Site()
    stored = site.tier.put("packs/vector", random.Random(5).randbytes(3 * 4 * BLOCK + 1234), 3 * 4 * BLOCK + 1234)
    every = b"".join(site.contents("packs/vector")[shard] for shard in range(6))
    assert stored.digest == "ec1-c1c08673c0765cfff4dbbec5223372499645f879f1e5db9b1ae2f52a03220106"
    assert hashlib.sha256(every).hexdigest() == "793fcef2f7f4ebf0dd092cfd136d3f964a89f142e6457129b535ffd1cb6c44df"


def test_a_header_says_what_it_is_part_of() -> None:
    assert read_header(header("a/b", SHAPE, 3), "a/b", 3) == SHAPE
    with pytest.raises(Misplaced, match="shard 3 of 'a/b'"):
        read_header(header("a/b", SHAPE, 3), "a/c", 3)
    with pytest.raises(Misplaced):
        read_header(header("a/b", SHAPE, 3), "a/b", 2)
    with pytest.raises(ValueError, match="1001 bytes"):
        header("k" * 1001, SHAPE, 0)


@pytest.mark.parametrize("at", [0, 8, 12, 13, 16, 20, 28, 31, 2000, 4070])
def test_a_flipped_bit_in_a_header_is_seen(at: int) -> None:
    with pytest.raises(StateInvalid):
        read_header(flipped(at)(header("a/b", SHAPE, 3)), "a/b", 3)


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=0, max_size=48), st.booleans())
def test_a_forged_header_is_refused_in_words_or_harmless(body: bytes, begins_well: bool) -> None:
    start = header("a/b", SHAPE, 3)
    forged = resealed((start[:8] if begins_well else b"") + body + start[8 + len(body) :])[:HEADER_BYTES]
    try:
        shape = read_header(forged, "a/b", 3)
    except StateInvalid:
        return
    assert shape.table_bytes <= 64 * 1024 * 1024
    assert shape.block_bytes * shape.shards <= 128 * 1024 * 1024


@pytest.mark.parametrize(
    ("k", "m", "block", "size"),
    [
        (0, 2, BLOCK, 1),
        (4, 0, BLOCK, 1),
        (60, 5, BLOCK, 1),
        (4, 2, 0, 1),
        (4, 2, 5000, 1),
        (4, 2, 1 << 31, 1),
        (4, 2, BLOCK, 2**63),
        (40, 20, 4 << 20, 1),
    ],
)
def test_an_impossible_geometry_is_refused_before_anything_is_allocated(k: int, m: int, block: int, size: int) -> None:
    forged = bytearray(header("a/b", SHAPE, 3))
    struct.pack_into("<BBBxIQ", forged, 12, k, m, 3, block, size)
    with pytest.raises(StateInvalid):
        read_header(resealed(bytes(forged)), "a/b", 3)


def test_a_newer_version_says_so() -> None:
    forged = bytearray(header("a/b", SHAPE, 3))
    struct.pack_into("<H", forged, 8, 2)
    with pytest.raises(StateInvalid, match="upgrade"):
        read_header(resealed(bytes(forged)), "a/b", 3)


def test_a_footer_belongs_to_one_key_and_geometry() -> None:
    table = np.arange(SHAPE.table_bytes, dtype=np.uint64).astype(np.uint8)
    root = root_digest("a/b", SHAPE, table)
    data = np.frombuffer(footer(table, root), np.uint8)
    found, again = read_footer(data, "a/b", SHAPE)
    assert np.array_equal(found.reshape(-1), table)
    assert again == root
    larger = Geometry(data=4, parity=2, block_bytes=BLOCK, size_bytes=SHAPE.size_bytes - 1)
    for key, shape in (("a/c", SHAPE), ("a/b", larger)):
        with pytest.raises(StateInvalid, match="damaged"):
            read_footer(data, key, shape)
    for at in (0, SHAPE.table_bytes - 1, SHAPE.table_bytes, -1):
        with pytest.raises(StateInvalid, match="damaged"):
            read_footer(np.frombuffer(flipped(at)(data.tobytes()), np.uint8), "a/b", SHAPE)
    with pytest.raises(StateInvalid, match="damaged"):
        read_footer(data[:-1], "a/b", SHAPE)


def test_only_names_that_are_written_are_read() -> None:
    assert parse_name("a/b/shard-07-12") == ShardName("a/b", 7, 12)
    assert str(ShardName("a/b", 7, 12)) == "a/b/shard-07-12"
    others = ("shard-07-0", "a/shard-7-0", "a/shard-07-01", "a/shard-07-0.tmp", "a/shard-07-", "a/shard-٠٧-0")
    assert [parse_name(name) for name in others] == [None] * len(others)
