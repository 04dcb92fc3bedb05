"""Finding a rank's part and its bytes, cheapest place first: this node's memory, peers' memory, the disk.

Owns the order of sources. Runs on worker threads of the snapshot server; the restoring rank verifies every digest itself.
"""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence

from msgspec import Struct

from keepstep.checkpoint.directory import CheckpointDirectory
from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.memory import Memory
from keepstep.checkpoint.messages import DiskStock, FindPart, Part, PeerHello, Source
from keepstep.checkpoint.peers import PeerLink
from keepstep.checkpoint.slots import Slot


class Finding(Struct):
    """Sources with their descriptors (to be closed) and the slots that must stay until the worker has read them."""

    sources: list[Source]
    descriptors: list[int]
    pinned: list[Slot]


class Finder:
    """Thread-safe. ``directory`` may be empty: then there is no disk tier."""

    def __init__(self, memory: Memory, hello: PeerHello, directory: str) -> None:
        self._memory, self._hello = memory, hello
        self._directory = CheckpointDirectory(directory) if directory else None
        self._disk = threading.Lock()
        self._fetching: dict[str, threading.Lock] = {}

    # ---- disk

    def disk_stock(self) -> tuple[DiskStock, ...]:
        """Commits of the job, newest first."""
        if self._directory is None:
            return ()
        with self._disk:
            commits = self._directory.commits(self._hello.job)
        return tuple(
            DiskStock(step=commit.step, generation=commit.generation, world_size=commit.world_size, key=commit.key)
            for commit in commits
        )

    def verify_disk(self, key: str) -> None:
        """Read everything of a commit of this job. Raises StateInvalid."""
        if self._directory is None:
            raise StateInvalid("this node has no checkpoint directory")
        # An instance of its own: a long read must not hold up those who only list.
        commit = CheckpointDirectory(self._directory.path).verify(key)
        if commit.job != self._hello.job:
            raise StateInvalid(f"commit {key} is of job {commit.job}, not of {self._hello.job}")

    # ---- restore

    def find(self, request: FindPart) -> Finding:
        """Everything of one rank's part. Raises StateInvalid naming what is nowhere."""
        finding = Finding([], [], [])
        try:
            with self._links(request.peers) as links:
                part = self._part(request, links)
                for name, digest in part.groups.items():
                    self._locate(name, digest, part.sizes_bytes[digest], links, finding)
        except BaseException:
            self.release(finding)
            raise
        return finding

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
        if self._directory is None:
            raise StateInvalid("a checkpoint on disk was ordered, but this node has no checkpoint directory")
        with self._disk:
            _, manifest = self._directory.manifest(request.key)
        if (manifest.job, manifest.step) != (self._hello.job, request.step):
            raise StateInvalid(
                f"commit {request.key} is step {manifest.step} of job {manifest.job}, not what was ordered"
            )
        return Part(
            generation=manifest.generation, step=manifest.step, rank=request.rank, world_size=manifest.world_size,
            groups=manifest.ranks[request.rank % manifest.world_size], sizes_bytes=manifest.sizes_bytes,
        )  # fmt: skip

    def _locate(self, name: str, digest: str, size_bytes: int, links: "_Links", finding: Finding) -> None:
        # One fetch per node: the ranks that want the same bytes wait for the first.
        with self._disk:
            lock = self._fetching.setdefault(digest, threading.Lock())
        with lock:
            if self._here(name, digest, finding):
                return
            path = self._file(digest, size_bytes)
            for link in links:
                with links.guard(link):
                    if (fetched := link.fetch(digest, size_bytes)) is not None:
                        self._memory.keep_fetched(digest, fetched)
                        if self._here(name, digest, finding):
                            return
        if not path:
            raise StateInvalid(f"the bytes of group {name!r} ({digest}) are nowhere: asked {links.asked()}")
        finding.sources.append(Source(name=name, digest=digest, offset=0, size_bytes=size_bytes, path=path))

    def _here(self, name: str, digest: str, finding: Finding) -> bool:
        with self._memory.located(digest) as found:
            if found is None:
                return False
            fd, offset = found.descriptor()
            finding.descriptors.append(fd)
            if found.slot is not None:
                self._memory.acquire(found.slot)
                finding.pinned.append(found.slot)
            finding.sources.append(Source(name=name, digest=digest, offset=offset, size_bytes=found.size_bytes))
            return True

    def _file(self, digest: str, size_bytes: int) -> str:
        """The path of a blob in any checkpoint that is committed, or an empty string."""
        if self._directory is None:
            return ""
        with self._disk:
            for commit in self._directory.commits(self._hello.job):
                with contextlib.suppress(StateInvalid):
                    folder, manifest = self._directory.manifest(commit.key)
                    if manifest.sizes_bytes.get(digest) == size_bytes:
                        return str(folder / f"{digest}.group")
        return ""


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
