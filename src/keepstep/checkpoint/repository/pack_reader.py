"""Reading packs: one group at a time, every chunk checked before anybody sees it. Owns the checks, not where to read."""

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from keepstep.checkpoint.errors import KeyMissing, StateInvalid
from keepstep.checkpoint.format import pack as layout
from keepstep.checkpoint.format.codec import decode
from keepstep.checkpoint.format.pack import FOOTER_NUMBER, Chunk, Footer, Groups, Trailer
from keepstep.checkpoint.format.records import PackEntry
from keepstep.checkpoint.keys.port import Keys, PackSealer
from keepstep.checkpoint.repository.pack_writer import aligned_pages, context_of
from keepstep.checkpoint.state.blob import chunk_digest, root_of
from keepstep.checkpoint.state.leaves import CHUNK_BYTES, PAGE_BYTES, round_up
from keepstep.checkpoint.stores.port import Store

READ_THREADS = 2
"""One reads while another checks."""


class PackReader:
    """The packs of one checkpoint in one store. Thread-safe.

    ``packs``: every pack that the checkpoint needs. ``keys``: None reads only what is in the clear.
    """

    def __init__(self, store: Store, packs: Iterable[PackEntry], keys: Keys | None, *, tenant: str, job: str) -> None:
        self._store, self._keys, self._tenant, self._job = store, keys, tenant, job
        self._packs = {entry.id: entry for entry in packs}
        self._of_group = {digest: entry for entry in self._packs.values() for digest in entry.groups}
        self._footers: dict[str, tuple[Footer, Trailer]] = {}
        self._groups: dict[str, Groups] = {}
        self._sealers: dict[str, PackSealer] = {}
        self._lock = threading.Lock()
        self._scratch = threading.local()

    # ---- tables of contents

    def chunks(self, digest: str) -> tuple[Chunk, ...]:
        """The chunks of a group, checked against its digest. Raises StateInvalid, a key error, or OSError."""
        entry = self._of_group.get(digest)
        if entry is None:
            raise StateInvalid(f"no pack of this checkpoint has group {digest}")
        chunks = self._groups_of(entry).get(digest, ())
        ends, end = [], 0
        for chunk in chunks:
            end += chunk.plain_bytes
            ends.append(end)
        if root_of(ends, [bytes.fromhex(chunk.plain) for chunk in chunks]) != digest:
            raise StateInvalid(f"the footer of {entry.key} does not describe group {digest}")
        return chunks

    def footer(self, entry: PackEntry) -> Footer:
        """What a pack stores; needs no key. Read once, then remembered."""
        return self._contents(entry)[0]

    def _contents(self, entry: PackEntry) -> tuple[Footer, Trailer]:
        with self._lock:
            if entry.id not in self._footers:
                self._footers[entry.id] = self._read_footer(entry)
            return self._footers[entry.id]

    def _groups_of(self, entry: PackEntry) -> Groups:
        footer, end = self._contents(entry)
        with self._lock:
            if entry.id not in self._groups:
                plain: Any = footer.groups
                if end.sealed:
                    stored = layout.sealed_groups(footer, entry.key)
                    plain = bytearray(len(stored))
                    self._sealer(entry).open(FOOTER_NUMBER, stored, end.tag, memoryview(plain))
                self._groups[entry.id] = layout.decode_groups(plain, footer, entry.key)
            return self._groups[entry.id]

    def _read_footer(self, entry: PackEntry) -> tuple[Footer, Trailer]:
        size = self._store.size(entry.key)
        if size is None:
            raise StateInvalid(f"{entry.key} is missing from {self._store.name}")
        if size != entry.size_bytes:
            raise StateInvalid(f"{entry.key} has {size} bytes where {entry.size_bytes} were written")
        end = layout.read_trailer(self._read(entry, size - layout.TRAILER_BYTES, layout.TRAILER_BYTES), size, entry.key)
        if end.footer.hex() != entry.footer or end.sealed != bool(entry.session):
            raise StateInvalid(f"{entry.key} is another pack than the one that was committed: it was exchanged")
        last = self._read(entry, end.footer_offset, size - end.footer_offset)
        stored, rest = last[: end.footer_bytes], last[end.footer_bytes : -layout.TRAILER_BYTES]
        if any(rest):
            raise StateInvalid(f"{entry.key} has bytes where nothing was written: it is damaged")
        if layout.stored_digest(stored) != entry.footer:
            raise StateInvalid(f"the footer of {entry.key} does not match its digest: its bytes are damaged")
        return layout.decode_footer(stored, entry.id, end, entry.key), end

    def _read(self, entry: PackEntry, offset: int, size: int) -> bytes:
        data = bytearray(size)
        self._store.read_into(entry.key, offset, memoryview(data))
        return bytes(data)

    def _sealer(self, entry: PackEntry) -> PackSealer:
        sealer = self._sealers.get(entry.id)
        if sealer is None:
            if self._keys is None:
                raise KeyMissing(
                    f"{entry.key} is sealed, and no keys are configured here: name them (--checkpoint-keys)"
                )
            sealer = self._keys.sealer(entry.session, context_of(self._tenant, self._job, entry))
            self._sealers[entry.id] = sealer
        return sealer

    # ---- bytes

    def read_group(self, digest: str, out: memoryview, progress: Callable[[int], None] = lambda _: None) -> None:
        """Fill ``out`` (exactly the blob's size, best on a page boundary) with a group, every chunk checked.

        ``progress`` gets bytes as they are done. Raises StateInvalid naming the first wrong piece, a key error, or OSError;
        then ``out`` is worth nothing.
        """
        runs, ends = self._announced(digest, len(out))

        def read(at: int) -> None:
            begin, end = ends[at] - _plain_bytes(runs[at]), ends[at]
            self._read_run(runs[at], out[begin:end])
            progress(end - begin)

        _in_parallel(read, len(runs))

    def copy_group(
        self, digest: str, fd: int, size_bytes: int, progress: Callable[[int], None] = lambda _: None
    ) -> None:
        """Like :meth:`read_group`, into a file. For new memory that another process will read: here nobody maps it, and to map
        small pages costs more than to write them."""
        runs, ends = self._announced(digest, size_bytes)

        def copy(at: int) -> None:
            begin, room = ends[at] - _plain_bytes(runs[at]), self._room("copied", _plain_bytes(runs[at]))
            self._read_run(runs[at], room)
            while len(room):
                done = os.pwrite(fd, room, begin)
                begin, room = begin + done, room[done:]
            progress(_plain_bytes(runs[at]))

        _in_parallel(copy, len(runs))

    def _announced(self, digest: str, size_bytes: int) -> tuple[list[tuple[Chunk, ...]], list[int]]:
        """What of a group is read at once, and where each piece ends in the blob."""
        runs = _runs(self.chunks(digest))
        ends = [*itertools.accumulate(_plain_bytes(run) for run in runs)]
        if (ends[-1] if ends else 0) != size_bytes:
            raise StateInvalid(
                f"group {digest} has {sum(map(_plain_bytes, runs))} bytes where {size_bytes} were announced"
            )
        return runs, ends

    def verify_group(self, digest: str, progress: Callable[[int], None] = lambda _: None) -> None:
        """Read a group and compare both digests of every chunk, in bounded memory. Raises like :meth:`read_group`."""
        runs = _runs(self.chunks(digest))

        def verify(at: int) -> None:
            self._read_run(runs[at], None)
            progress(_plain_bytes(runs[at]))

        _in_parallel(verify, len(runs))

    def read_chunks(self, wanted: Sequence[tuple[Chunk, memoryview]]) -> None:
        """Some chunks, each into its place and checked. Raises like :meth:`read_group`."""

        def read(at: int) -> None:
            chunk, out = wanted[at]
            self._read_run((chunk,), out)

        _in_parallel(read, len(wanted))

    def _room(self, name: str, size_bytes: int) -> memoryview:
        """Memory of this thread, used again and again."""
        if not hasattr(self._scratch, name):
            setattr(self._scratch, name, aligned_pages(CHUNK_BYTES))
        room: memoryview = getattr(self._scratch, name)
        return room[:size_bytes]

    def _read_run(self, run: Sequence[Chunk], out: memoryview | None) -> None:
        """Chunks that stand side by side, read at once; their plain bytes one after the other, checked.

        Without ``out`` they go nowhere, and the digests of their stored bytes are checked as well.
        """
        entry = self._packs.get(run[0].pack)
        if entry is None:
            raise StateInvalid(f"pack {run[0].pack}, which holds a chunk of this checkpoint, is not part of it")
        if run[0].codec:
            self._read_coded(entry, run[0], out)
            return
        begin, size = run[0].offset, run[-1].offset + run[-1].stored_bytes - run[0].offset
        sealed = any(chunk.tag for chunk in run)
        place = self._room("stored", round_up(size, PAGE_BYTES)) if sealed or out is None else out
        self._store.read_into(entry.key, begin, place)
        done = 0
        for chunk in run:
            stored = place[chunk.offset - begin :]
            if out is None:
                _check_stored(entry, chunk.number, stored[: round_up(chunk.stored_bytes, PAGE_BYTES)], chunk.stored)
            plain = stored[: chunk.stored_bytes]
            if chunk.tag:
                plain = self._room("plain", chunk.plain_bytes) if out is None else out[done:][: chunk.plain_bytes]
                tag = bytes.fromhex(chunk.tag)
                self._sealer(entry).open(chunk.number, stored[: chunk.stored_bytes], tag, plain)
            if chunk_digest(plain) != bytes.fromhex(chunk.plain):
                raise StateInvalid(
                    f"chunk {chunk.number} of {entry.key} does not match its digest: its bytes are damaged"
                )
            done += chunk.plain_bytes

    def _read_coded(self, entry: PackEntry, chunk: Chunk, out: memoryview | None) -> None:
        """:meth:`_read_run` of a chunk that was made smaller."""
        pages = self._room("stored", round_up(chunk.stored_bytes, PAGE_BYTES))
        self._store.read_into(entry.key, chunk.offset, pages)
        if out is None:
            _check_stored(entry, chunk.number, pages, chunk.stored)
            out = self._room("plain", chunk.plain_bytes)
        data = pages[: chunk.stored_bytes]
        if chunk.tag:
            opened = self._room("opened", chunk.stored_bytes)
            self._sealer(entry).open(chunk.number, data, bytes.fromhex(chunk.tag), opened, chunk.codec)
            data = opened
        decode(chunk.codec, data, out)
        if chunk_digest(out) != bytes.fromhex(chunk.plain):
            raise StateInvalid(f"chunk {chunk.number} of {entry.key} does not match its digest: its bytes are damaged")

    def check_header(self, entry: PackEntry) -> None:
        layout.check_header(self._read(entry, 0, layout.HEADER_BYTES), entry.id, entry.key)

    def scrub(self, entry: PackEntry) -> None:
        """Check every stored byte of a pack; needs no key. Raises StateInvalid naming the first wrong piece, or OSError."""
        self.check_header(entry)
        for number, chunk in enumerate(self.footer(entry).chunks):
            pages = self._room("stored", round_up(chunk.stored_bytes, PAGE_BYTES))
            self._store.read_into(entry.key, chunk.offset, pages)
            _check_stored(entry, number, pages, chunk.stored)


def _check_stored(entry: PackEntry, number: int, pages: memoryview, digest: str) -> None:
    """A chunk's stored bytes, with the zeros that fill its last page."""
    if layout.stored_digest(pages) != digest:
        raise StateInvalid(f"chunk {number} of {entry.key} does not match its digest: its bytes are damaged")


def _in_parallel(work: Callable[[int], None], count: int) -> None:
    """Numbers 0 to ``count`` - 1, two at a time; the first error ends it."""
    if count <= 2:
        for at in range(count):
            work(at)
        return
    with ThreadPoolExecutor(max_workers=READ_THREADS, thread_name_prefix="read") as pool:
        futures = [pool.submit(work, at) for at in range(count)]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _runs(chunks: Sequence[Chunk]) -> list[tuple[Chunk, ...]]:
    """Chunks in order, those together that can be read at once: side by side in one pack, whole pages, CHUNK_BYTES at most."""
    runs: list[list[Chunk]] = []
    for chunk in chunks:
        run = runs[-1] if runs else []
        last = run[-1] if run else None
        beside = (
            last is not None
            and last.pack == chunk.pack
            and bool(last.tag) == bool(chunk.tag)
            and not (last.codec or chunk.codec)
            and last.offset + last.stored_bytes == chunk.offset
            and chunk.stored_bytes % PAGE_BYTES == 0
            and chunk.offset + chunk.stored_bytes - run[0].offset <= CHUNK_BYTES
        )
        if beside:
            run.append(chunk)
        else:
            runs.append([chunk])
    return [tuple(run) for run in runs]


def _plain_bytes(run: Sequence[Chunk]) -> int:
    return sum(chunk.plain_bytes for chunk in run)
