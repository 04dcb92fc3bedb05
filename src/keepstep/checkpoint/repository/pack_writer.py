"""Writing packs: group blobs in, one object out. Owns the ring that keeps digesting and writing going at once.

One thread digests and seals a chunk while another writes what came before. Chunks in the clear are written from where they
are; sealed ones, and what is not whole pages, go through a few page-aligned buffers, which are all the memory this takes.
Chunks that stand side by side are written together: a disk is kept busy by large writes, and tensors are often small.
"""

import mmap
import secrets
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from msgspec import Struct

from keepstep.checkpoint.errors import SaveFailed
from keepstep.checkpoint.format import pack as layout
from keepstep.checkpoint.format.codec import encode
from keepstep.checkpoint.format.pack import FOOTER_NUMBER, HEADER_BYTES, Chunk, Stored, Trailer
from keepstep.checkpoint.format.records import PackEntry
from keepstep.checkpoint.keys.port import Context, Keys, PackSealer
from keepstep.checkpoint.state.blob import Chunks, chunk_digest, item_sizes
from keepstep.checkpoint.state.leaves import CHUNK_BYTES, PAGE_BYTES, round_up
from keepstep.checkpoint.stores.port import ObjectWriter, Store

WRITE_BYTES = 2 * CHUNK_BYTES
"""The most that is written at once. Every write waits for the disk and then for a turn on a core that others use as well."""
RING_BUFFERS = 3
"""One that is filled, one that is written, one that waits: 48 MiB."""


class Group(Struct, frozen=True):
    """A blob to write. ``blob``: bytes-like, best on a page boundary; nobody may change it meanwhile."""

    blob: Any
    chunks: Chunks


class Sealing(Struct, frozen=True):
    """With what to seal: nothing if there are no keys."""

    keys: Keys | None
    tenant: str
    job: str
    generation: int
    step: int
    compress: bool = False
    """Make chunks smaller first, see ``format.codec``."""


def context_of(tenant: str, job: str, entry: PackEntry) -> Context:
    return Context(tenant=tenant, job=job, generation=entry.generation, step=entry.step, pack=entry.id)


class _Run(Struct):
    """Whole pages that stand side by side in memory, to be written at once."""

    view: memoryview
    begin: int
    end: int


class PackWriter:
    """Writes one pack, ``<prefix><its id>.pack``. Use as a context manager; without :meth:`finish` nothing
    stays behind. One thread only.

    ``known``: plain digest -> chunk of an older pack that can be leant on instead of writing the same bytes again.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        size_bytes: int,
        sealing: Sealing,
        known: Mapping[tuple[str, int], Chunk] | None = None,
    ) -> None:
        self._sealing = sealing
        self._known = known or {}
        self._id = secrets.token_hex(16)
        self._key = f"{prefix}{self._id}.pack"
        self._session = ""
        self._sealer: PackSealer | None = None
        if sealing.keys is not None:
            self._session = sealing.keys.session(sealing.tenant, sealing.job, sealing.generation)
            context = Context(
                tenant=sealing.tenant, job=sealing.job, generation=sealing.generation, step=sealing.step, pack=self._id
            )
            self._sealer = sealing.keys.sealer(self._session, context)
        self._groups: layout.Groups = {}
        self._stored: list[Stored] = []
        self._at = 0
        self._writer: ObjectWriter = store.writer(self._key, size_bytes)
        self._io = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pack")
        self._pending: list[Future[None]] = []
        self._ring = [aligned_pages(WRITE_BYTES) for _ in range(RING_BUFFERS)]
        self._turn = 0
        self._run: _Run | None = None
        head = self._room(HEADER_BYTES)
        head.view[head.begin : head.end] = layout.header(self._id, sealed=self._sealer is not None)
        self._put(head)

    def __enter__(self) -> "PackWriter":
        return self

    def __exit__(self, *_: object) -> None:
        for future in self._pending:
            future.cancel()
        self._io.shutdown(wait=True)
        self._writer.abort()

    def add(self, group: Group) -> None:
        """Append a blob. Raises SaveFailed if its bytes are not those that were digested, OSError from the store."""
        if group.chunks.root in self._groups:
            return
        view, ranges = memoryview(group.blob).cast("B"), group.chunks.ranges()
        items = item_sizes(view, ranges) if self._sealing.compress else [0] * len(ranges)
        chunks = [
            self._chunk(_Run(view, begin, end), digest, item)
            for (begin, end), digest, item in zip(ranges, group.chunks.digests, items, strict=True)
        ]
        self._groups[group.chunks.root] = tuple(chunks)

    def _chunk(self, where: _Run, digest: bytes, item_bytes: int) -> Chunk:
        """``item_bytes``: of one element, where chunks are made smaller; 1 if not known, 0: they are not."""
        plain = where.view[where.begin : where.end]
        known = self._known.get((digest.hex(), len(plain)))
        if chunk_digest(plain) != digest:
            raise SaveFailed(f"the state changed in memory after it was sealed: {self._key} is not written")
        if known is not None:
            return known
        coded = encode(plain, item_bytes) if item_bytes else None
        codec, data = coded if coded is not None else ("", plain)
        number, tag = len(self._stored), b""
        whole = round_up(len(data), PAGE_BYTES)
        if codec or self._sealer is not None or whole != len(data):
            where = self._room(whole)
            block = where.view[where.begin : where.end]
            block[len(data) :] = bytes(whole - len(data))
            if self._sealer is None:
                block[: len(data)] = data
            else:
                tag = self._sealer.seal(number, data, block[: len(data)], codec)
        stored = Stored(self._at, len(data), layout.stored_digest(where.view[where.begin : where.end]))
        self._stored.append(stored)
        self._put(where)
        return Chunk(
            pack=self._id, number=number, offset=stored.offset, stored_bytes=len(data), plain_bytes=len(plain),
            plain=digest.hex(), stored=stored.stored, tag=tag.hex(), codec=codec,
        )  # fmt: skip

    def _room(self, size_bytes: int) -> _Run:
        """Room in the ring: beside what waits to be written, or in the next buffer once what stands in it is written."""
        buffer, run = self._ring[self._turn], self._run
        if run is not None and run.view is buffer and run.end + size_bytes <= WRITE_BYTES:
            return _Run(buffer, run.end, run.end + size_bytes)
        self._flush()
        self._wait(RING_BUFFERS - 1)
        self._turn = (self._turn + 1) % RING_BUFFERS
        return _Run(self._ring[self._turn], 0, size_bytes)

    def _put(self, piece: _Run) -> None:
        """Have whole pages written, together with what stands before them in memory as in the pack."""
        self._at += piece.end - piece.begin
        run = self._run
        if run is None or run.view is not piece.view or run.end != piece.begin or piece.end - run.begin > WRITE_BYTES:
            self._flush()
            self._run = piece
        else:
            run.end = piece.end

    def _flush(self) -> None:
        """Hand what waits to the other thread."""
        run, self._run = self._run, None
        if run is not None:
            self._wait(RING_BUFFERS - 1)
            self._pending.append(self._io.submit(self._writer.write, run.view[run.begin : run.end]))

    def _wait(self, fewer_than: int) -> None:
        while len(self._pending) >= fewer_than:
            self._pending.pop(0).result()

    def finish(self) -> PackEntry:
        """Make it durable; returns where it is. Raises OSError."""
        groups, tag = layout.encode_groups(self._groups), b""
        if self._sealer is not None:
            sealed = bytearray(len(groups))
            tag = self._sealer.seal(FOOTER_NUMBER, groups, memoryview(sealed))
            groups = bytes(sealed)
        stored = layout.encode_footer(self._id, tuple(self._stored), groups, sealed=self._sealer is not None)
        digest = layout.stored_digest(stored)
        end = aligned_pages(layout.end_bytes(len(stored)))
        end[: len(stored)] = stored
        size = self._at + len(end)
        end[-layout.TRAILER_BYTES :] = layout.trailer(
            Trailer(
                sealed=self._sealer is not None, footer_offset=self._at, footer_bytes=len(stored), size_bytes=size,
                chunks=len(self._stored), tag=tag, footer=bytes.fromhex(digest),
            )
        )  # fmt: skip
        self._flush()
        self._wait(1)
        self._writer.write(end)
        self._writer.finish()
        return PackEntry(
            key=self._key, id=self._id, size_bytes=size, footer=digest, groups=tuple(self._groups),
            generation=self._sealing.generation, step=self._sealing.step, session=self._session,
        )  # fmt: skip

    def own_chunks(self) -> list[Chunk]:
        """The chunks that this pack holds itself."""
        return [chunk for chunks in self._groups.values() for chunk in chunks if chunk.pack == self._id]

    def leans_on(self) -> set[str]:
        """Ids of the older packs that hold some of the chunks."""
        return layout.packs_needed(self._groups) - {self._id}


def aligned_pages(size_bytes: int) -> memoryview:
    """Zeroed memory on a page boundary, as direct I/O needs it; huge pages where there are, for a first touch is dear."""
    memory = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def pack_bytes(groups: Mapping[str, Group]) -> int:
    """About how large a pack of these groups is, to reserve room for it."""
    chunks = sum(len(group.chunks.ends) for group in groups.values())
    return (
        HEADER_BYTES
        + sum(round_up(len(memoryview(g.blob).cast("B")), PAGE_BYTES) for g in groups.values())
        + chunks * 300
    )
