"""Finding a rank's part and its bytes, cheapest place first: this node's memory, peers' memory, a store.

Owns the order of sources. Runs on worker threads of the snapshot server; the restoring rank verifies every digest itself.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.format.records import Manifest
from keepstep.checkpoint.repository.leases import Lease
from keepstep.checkpoint.repository.pack_reader import PackReader
from keepstep.checkpoint.repository.traffic import Traffic
from keepstep.checkpoint.snapshot.copier import Copier, DurableTiers
from keepstep.checkpoint.snapshot.fetched import Fetched
from keepstep.checkpoint.snapshot.hedge import first_to_fill
from keepstep.checkpoint.snapshot.memory import Memory
from keepstep.checkpoint.snapshot.messages import DiskStock, FindPart, Part, PeerHello, Source
from keepstep.checkpoint.snapshot.peers import PeerLink
from keepstep.checkpoint.snapshot.slots import Slot


class Finding(Struct):
    """Sources with their descriptors (to be closed) and the slots that must stay until the worker has read them."""

    sources: list[Source]
    descriptors: list[int]
    pinned: list[Slot]


class Finder:
    """Thread-safe. ``durable``: None without a durable tier. ``report`` gets words for people, from any thread."""

    def __init__(
        self,
        memory: Memory,
        hello: PeerHello,
        durable: DurableTiers | None,
        copier: Copier | None,
        report: Callable[[str], None],
    ) -> None:
        self._memory, self._hello, self._copier = memory, hello, copier
        self._open = durable.open_repository if durable is not None else None
        self._repository = self._open() if self._open is not None else None
        if durable is not None and self._repository is not None:
            self._traffic = Traffic(self._repository.store, self._repository.job, durable.pace, report)
        self._disk = threading.Lock()
        self._fetching: dict[str, threading.Lock] = {}

    # ---- disk

    def disk_stock(self) -> tuple[DiskStock, ...]:
        """Commits of the job, newest first."""
        if self._repository is None:
            return ()
        with self._disk:
            commits = self._repository.commits()
        return tuple(
            DiskStock(step=commit.step, generation=commit.generation, world_size=commit.world_size, key=commit.key)
            for commit in commits
            if commit.state not in ("suspect", "corrupt")
        )

    def verify_disk(self, key: str) -> None:
        """Read everything of a commit of this job. Raises StateInvalid."""
        if self._open is None:
            raise StateInvalid("this node has no checkpoint directory")
        # An instance of its own: a long read must not hold up those who only list.
        repository = self._open()
        try:
            repository.verify(key)
        except (StateInvalid, OSError):
            if self._copier is None or not self._copier.repair(key):
                raise
            repository.verify(key)

    # ---- restore

    def find(self, request: FindPart, progress: Callable[[int], None]) -> Finding:
        """Everything of one rank's part. ``progress`` gets bytes that came from elsewhere, on any thread. Raises StateInvalid
        naming what is nowhere."""
        finding = Finding([], [], [])
        try:
            with self._links(request.peers) as links:
                part = self._part(request, links)
                with self._leased(request, progress) as alive:
                    for name, digest in part.groups.items():
                        self._locate(name, digest, part.sizes_bytes[digest], links, finding, alive)
        except BaseException:
            self.release(finding)
            raise
        return finding

    @contextlib.contextmanager
    def _leased(self, request: FindPart, progress: Callable[[int], None]) -> Iterator[Callable[[int], None]]:
        """Retention leaves a checkpoint alone while it is read; what is yielded is called as it goes on."""
        if request.tier != "disk" or self._open is None:
            yield progress
            return
        with Lease(self._open(), request.key) as lease:

            def both(size_bytes: int) -> None:
                lease.progress(size_bytes)
                progress(size_bytes)

            yield both

    def release(self, finding: Finding) -> None:
        """Close the descriptors; the slots are free to be reused."""
        for fd in finding.descriptors:
            os.close(fd)
        finding.descriptors.clear()
        for slot in finding.pinned:
            self._memory.release(slot)
        finding.pinned.clear()

    @contextlib.contextmanager
    def _links(self, peers: Sequence[str]) -> Iterator["_Links"]:
        links = _Links(peers, self._hello)
        try:
            yield links
        finally:
            links.close()

    def _part(self, request: FindPart, links: "_Links") -> Part:
        if request.tier == "disk":
            return self._disk_part(request)
        part = self._memory.part(request.generation, request.step, request.rank)
        if part is not None:
            return part
        for link in links:
            with links.guard(link):
                if (part := link.ask_part(request.generation, request.step, request.rank)) is not None:
                    return part
        raise StateInvalid(
            f"no node knows what rank {request.rank} consisted of at step {request.step}: asked {links.asked()}"
        )

    def _disk_part(self, request: FindPart) -> Part:
        if self._repository is None:
            raise StateInvalid("a checkpoint on disk was ordered, but this node has no checkpoint directory")
        with self._disk:
            manifest = self._repository.manifest(request.key)
        if manifest.step != request.step:
            raise StateInvalid(
                f"commit {request.key} is step {manifest.step} of job {manifest.job}, not what was ordered"
            )
        return Part(
            generation=manifest.generation, step=manifest.step, rank=request.rank, world_size=manifest.world_size,
            groups=manifest.ranks[request.rank % manifest.world_size].groups, sizes_bytes=manifest.sizes_bytes,
        )  # fmt: skip

    def _locate(
        self,
        name: str,
        digest: str,
        size_bytes: int,
        links: "_Links",
        finding: Finding,
        progress: Callable[[int], None],
    ) -> None:
        # One fetch per node: the ranks that want the same bytes wait for the first.
        with self._disk:
            lock = self._fetching.setdefault(digest, threading.Lock())
        with lock:
            if self._here(name, digest, finding):
                return
            fetched = self._from_peers(digest, size_bytes, links, progress) or self._from_store(
                digest, size_bytes, progress
            )
            if fetched is None:
                raise StateInvalid(f"the bytes of group {name!r} ({digest}) are nowhere: asked {links.asked()}")
            self._memory.keep_fetched(digest, fetched)
            if not self._here(name, digest, finding):
                raise StateInvalid(f"the bytes of group {name!r} ({digest}) were let go before they were read")

    @staticmethod
    def _from_peers(digest: str, size_bytes: int, links: "_Links", progress: Callable[[int], None]) -> Fetched | None:
        for link in links:
            with links.guard(link):
                if (fetched := link.fetch(digest, size_bytes, progress)) is not None:
                    return fetched
        return None

    def _here(self, name: str, digest: str, finding: Finding) -> bool:
        with self._memory.located(digest) as found:
            if found is None:
                return False
            fd, offset = found.descriptor()
            finding.descriptors.append(fd)
            if found.slot is not None:
                found.slot.freeze()
                self._memory.acquire(found.slot)
                finding.pinned.append(found.slot)
            finding.sources.append(Source(name=name, digest=digest, offset=offset, size_bytes=found.size_bytes))
            return True

    def _from_store(self, digest: str, size_bytes: int, progress: Callable[[int], None]) -> Fetched | None:
        """The bytes of a group in any checkpoint that exists, newest first. Raises StateInvalid, a key error, or OSError."""
        if self._repository is None:
            return None
        with self._traffic.enter(size_bytes, progress) as passage:

            def both(done_bytes: int) -> None:
                progress(done_bytes)
                passage.progress(done_bytes)

            return self._from_checkpoints(digest, size_bytes, both)

    def _from_checkpoints(self, digest: str, size_bytes: int, progress: Callable[[int], None]) -> Fetched | None:
        assert self._repository is not None
        wrong: StateInvalid | OSError | None = None
        for manifest in self._manifests(digest, size_bytes):
            with self._disk:
                reader = self._repository.reader(manifest)
            try:
                return self._read_group(manifest, reader, digest, progress)
            except (StateInvalid, OSError) as error:
                wrong = error
        if wrong is not None:
            raise wrong
        return None

    def _read_group(
        self, manifest: Manifest, reader: PackReader, digest: str, progress: Callable[[int], None]
    ) -> Fetched:
        size_bytes, copier = manifest.sizes_bytes[digest], self._copier

        def own(fd: int, tell: Callable[[int], None]) -> None:
            reader.copy_group(digest, fd, size_bytes, tell)

        def copies(fd: int, tell: Callable[[int], None]) -> None:
            if copier is None or not copier.copy_group(manifest, digest, fd, tell):
                raise StateInvalid(f"no tier has a good copy of group {digest}")

        return first_to_fill(size_bytes, own, copies if copier is not None else None, progress)

    def _manifests(self, digest: str, size_bytes: int) -> list[Manifest]:
        """Of the checkpoints that have a group."""
        found: list[Manifest] = []
        assert self._repository is not None
        with self._disk:
            for commit in self._repository.commits():
                with contextlib.suppress(StateInvalid):
                    manifest = self._repository.manifest(commit.key)
                    if manifest.sizes_bytes.get(digest) == size_bytes:
                        found.append(manifest)
        return found


class _Links:
    """Connections to peers, made when first needed; one that fails is not asked again."""

    def __init__(self, addresses: Sequence[str], hello: PeerHello) -> None:
        self._addresses, self._hello = list(addresses), hello
        self._links: dict[str, PeerLink] = {}
        self._failed: dict[str, str] = {}

    def __iter__(self) -> Iterator[PeerLink]:
        for address in self._addresses:
            if address in self._failed:
                continue
            if address not in self._links:
                try:
                    self._links[address] = PeerLink(address, self._hello)
                except OSError as error:
                    self._failed[address] = error.strerror or str(error)
                    continue
            yield self._links[address]

    @contextlib.contextmanager
    def guard(self, link: PeerLink) -> Iterator[None]:
        """What goes wrong with this peer is remembered, and the next one is asked."""
        try:
            yield
        except (OSError, StateInvalid) as error:
            self._failed[link.address] = str(error)
            link.close()

    def asked(self) -> str:
        said = [f"{address}: {self._failed.get(address, 'does not have it')}" for address in self._addresses]
        return "; ".join(["this node", *said])

    def close(self) -> None:
        for link in self._links.values():
            link.close()
