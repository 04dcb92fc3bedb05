"""How packs reach a store and come back: large pieces of whole pages, in the clear and sealed, with and without older packs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keepstep.checkpoint import flatten
from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.repository.pack_reader import PackReader
from keepstep.checkpoint.repository.pack_writer import WRITE_BYTES, Group, PackWriter, Sealing
from keepstep.checkpoint.repository.repository import staging
from keepstep.checkpoint.state.blob import blob_bytes, digest_chunks, write_tail
from keepstep.checkpoint.state.leaves import CHUNK_BYTES, LeafViews
from keepstep.checkpoint.stores.port import BLOCK_BYTES
from keepstep.checkpoint.stores.posix import PosixStore, PosixWriter

from .keyrings import Place

MEBIBYTE = 1024 * 1024
TENANT, JOB = "acme", "gpt"


class WatchedStore(PosixStore):
    """Notes the address and the size of what is written and read."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.written: list[tuple[int, int]] = []
        self.read_bytes: list[int] = []

    def writer(self, key: str, size_bytes: int) -> Any:
        inner = super().writer(key, size_bytes)
        write = inner.write

        def note(block: Any) -> None:
            self.written.append((np.frombuffer(block, np.uint8).ctypes.data, memoryview(block).nbytes))
            write(block)

        inner.write = note  # type: ignore[method-assign]
        return inner

    def read_into(self, key: str, offset: int, view: memoryview) -> None:
        self.read_bytes.append(len(view))
        super().read_into(key, offset, view)


def group(seed: int, tensors: int = 24, elements: int = 300_000) -> Group:
    """A blob of tensors of 1.2 MB each, on a page boundary as in a slot."""
    random = np.random.default_rng(seed)
    flat = flatten({f"w{n}": random.random(elements, np.float32) for n in range(tensors)})
    blob = staging(blob_bytes(flat))
    LeafViews(flat.specs, blob.data, 0).fill(flat.leaves)
    write_tail(blob.data, 0, flat)
    return Group(blob, digest_chunks(blob))


@contextmanager
def two_cases(tmp_path: Path) -> Iterator[Any]:
    place = Place(tmp_path / "keyring")
    yield {"clear": None, "sealed": place.process()}


@pytest.mark.parametrize("kind", ["clear", "sealed"])
def test_small_tensors_are_written_and_read_together(tmp_path: Path, kind: str) -> None:
    store, one = WatchedStore(tmp_path / "packs"), group(1)
    with two_cases(tmp_path) as keys, PackWriter(store, "", 0, Sealing(keys[kind], TENANT, JOB, 1, 7)) as writer:
        writer.add(one)
        entry = writer.finish()
        size = len(memoryview(one.blob))
        assert len(one.chunks.ends) > 20
        # Header, payload in as few pieces as there can be of whole chunks, tail, footer.
        assert len(store.written) <= 4 + size // (WRITE_BYTES - CHUNK_BYTES)
        assert all(address % BLOCK_BYTES == 0 and count % BLOCK_BYTES == 0 for address, count in store.written)
        assert max(count for _, count in store.written) <= WRITE_BYTES
        store.read_bytes.clear()
        out = staging(size)
        reader = PackReader(store, [entry], keys[kind], tenant=TENANT, job=JOB)
        reader.read_group(one.chunks.root, memoryview(out.data))
        assert np.array_equal(out, one.blob)
        # Footer in two pieces; every piece of the payload but the last holds several chunks.
        assert len(store.read_bytes) <= 4 + size // (CHUNK_BYTES // 2)
        assert max(store.read_bytes) <= CHUNK_BYTES
        done: list[int] = []
        reader.verify_group(one.chunks.root, done.append)
        assert sum(done) == size
        with open(tmp_path / "copy", "w+b") as file:
            reader.copy_group(one.chunks.root, file.fileno(), size)
            assert file.read() == bytes(one.blob)


class Watched(PosixStore):
    """Remembers its writers."""

    def writer(self, key: str, size_bytes: int) -> PosixWriter:
        self.last = super().writer(key, size_bytes)
        return self.last


def test_nothing_makes_a_pack_fall_back_to_the_page_cache(tmp_path: Path) -> None:
    """One block at an odd address would: direct I/O refuses it, and the rest of the file goes the slow way."""
    store, one = Watched(tmp_path), group(1)
    with PackWriter(store, "", 0, Sealing(None, TENANT, JOB, 1, 7)) as writer:
        can = store.last.direct
        writer.add(one)
        writer.finish()
    if not can:
        pytest.skip("this file system has no direct I/O")
    assert store.last.direct


@pytest.mark.parametrize("kind", ["clear", "sealed"])
def test_runs_end_where_a_chunk_stands_in_an_older_pack(tmp_path: Path, kind: str) -> None:
    store, before = PosixStore(tmp_path / "packs"), group(1)
    with two_cases(tmp_path) as keys:
        with PackWriter(store, "a/", 0, Sealing(keys[kind], TENANT, JOB, 1, 7)) as writer:
            writer.add(before)
            first = writer.finish()
            known = {(chunk.plain, chunk.plain_bytes): chunk for chunk in writer.own_chunks()}
        blob = before.blob.copy()
        for number in (3, 4, 11):
            blob[before.chunks.ranges()[number][0]] ^= 1
        after = Group(blob, digest_chunks(blob))
        with PackWriter(store, "b/", 0, Sealing(keys[kind], TENANT, JOB, 1, 8), known) as writer:
            writer.add(after)
            second = writer.finish()
            assert len(writer.own_chunks()) == 3 and writer.leans_on() == {first.id}
        reader = PackReader(store, [second, first], keys[kind], tenant=TENANT, job=JOB)
        out = staging(len(blob))
        reader.read_group(after.chunks.root, memoryview(out.data))
        assert np.array_equal(out, blob)


@pytest.mark.parametrize("kind", ["clear", "sealed"])
@pytest.mark.parametrize("number", [0, 5, -1])
def test_damage_inside_a_run_is_named_by_its_chunk(tmp_path: Path, kind: str, number: int) -> None:
    store, one = PosixStore(tmp_path / "packs"), group(1)
    with two_cases(tmp_path) as keys:
        with PackWriter(store, "", 0, Sealing(keys[kind], TENANT, JOB, 1, 7)) as writer:
            writer.add(one)
            entry = writer.finish()
            chunk = writer.own_chunks()[number]
        with open(store.path / entry.key, "r+b") as file:
            file.seek(chunk.offset + 17)
            byte = file.read(1)[0]
            file.seek(chunk.offset + 17)
            file.write(bytes([byte ^ 4]))
        reader = PackReader(store, [entry], keys[kind], tenant=TENANT, job=JOB)
        with pytest.raises(StateInvalid, match=r"damaged|authentic|match"):
            reader.read_group(one.chunks.root, memoryview(staging(len(one.blob)).data))
        with pytest.raises(StateInvalid, match=f"chunk {chunk.number} of .* does not match its digest"):
            reader.verify_group(one.chunks.root)
        with pytest.raises(StateInvalid, match=f"chunk {chunk.number} of .* does not match its digest"):
            reader.scrub(entry)
