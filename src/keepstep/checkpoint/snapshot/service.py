"""The loop of the snapshot server: workers, the launcher, and the threads that hash, copy, save and find.

Owns who may do what (generations) and the order of events. Everything slow runs on a thread; the loop itself only moves
small messages, so a worker's grant is never behind a disk or a peer.
"""

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from keepstep.checkpoint.errors import CheckpointError, StateInvalid
from keepstep.checkpoint.snapshot.connection import Connection
from keepstep.checkpoint.snapshot.copier import Copier, DurableTiers
from keepstep.checkpoint.snapshot.gates import Gates
from keepstep.checkpoint.snapshot.hashing import Hasher, Next
from keepstep.checkpoint.snapshot.listing import Listing
from keepstep.checkpoint.snapshot.memory import Memory
from keepstep.checkpoint.snapshot.messages import (
    Attach,
    Attached,
    Begin,
    Committed,
    Control,
    FindPart,
    Flush,
    Grant,
    Hold,
    ListDisk,
    NoRoom,
    NotFound,
    Notice,
    Ok,
    PartFound,
    PeerHello,
    Quit,
    Reading,
    Ready,
    Refused,
    Reserve,
    Safe,
    SaveError,
    Seal,
    Stock,
    TakeInventory,
    VerifyDisk,
    VerifyRam,
    WaitDurable,
    Wrong,
)
from keepstep.checkpoint.snapshot.outcomes import Outcomes, Worker
from keepstep.checkpoint.snapshot.peers import Mirror, PeerServer
from keepstep.checkpoint.snapshot.policy import SnapshotPolicy
from keepstep.checkpoint.snapshot.replicas import Replicas, Where
from keepstep.checkpoint.snapshot.restore import Finder, Finding
from keepstep.checkpoint.snapshot.slots import Sealed, Slot
from keepstep.checkpoint.snapshot.writer import Told, Writer

FINISH_S = 30.0
READING_S = 0.5
"""How often a rank that restores is told that bytes arrive: it is alive then, however long it takes."""
LEFT_GRACE_S = 5.0
"""A rank that was killed leaves as well. Its generation is fenced long before this, and the others with it."""


class Service:
    """See the module. ``run`` returns when the launcher has gone or said Quit."""

    def __init__(
        self,
        listener: socket.socket,
        hello: PeerHello,
        host: str,
        durable: DurableTiers | None,
    ) -> None:
        self._listener = listener
        # First of all: the threads that start below post to the loop.
        self._posted: deque[Callable[[], None]] = deque()
        self._wake_in, self._wake_out = socket.socketpair()
        self._memory = Memory()
        self._copier = Copier(durable.open_repository, durable.places, self._reply) if durable is not None else None
        self._finder = Finder(self._memory, hello, durable, self._copier, self._tell_traffic)
        self._peers = PeerServer(host, hello, self._memory, lambda: self._post(self._arrived), self._reply)
        self._hello = msgspec.structs.replace(hello, address=self._peers.address)
        self._gates = Gates(SnapshotPolicy().gating)
        self._replicas = Replicas(self._memory, self._reply, self._tell_peers, self._freed)
        then = Next(save=self._save, failed=self._saved, notice=self._reply, freed=self._freed)
        self._hasher = Hasher(self._memory, self._gates, self._replicas, then)
        told = Told(saved=self._saved, notice=self._reply)
        self._writer = Writer(durable, self._memory, told, self._copier) if durable is not None else None
        self._finders = ThreadPoolExecutor(max_workers=8, thread_name_prefix="find")
        # Apart from the finders: a restore that waits for a peer must not hold up the next inventory.
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="control")
        self._listing = Listing(self._finder.disk_stock)
        self._connections: dict[Connection, Worker | None] = {}
        self._launcher: Connection | None = None
        self._outcomes = Outcomes()
        self._searching: set[Worker] = set()
        self._reading_lock, self._read_bytes, self._told_s = threading.Lock(), 0, 0.0
        self._selector = selectors.DefaultSelector()
        self._ended = False
        self.address = self._peers.address

    # ---- loop

    def run(self) -> None:
        for sock in (self._listener, self._wake_in):
            sock.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._hasher.start()
        self._listing.begin()
        while not self._ended:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._wake_in:
                    self._run_posted()
                else:
                    self._service(key.data)
            self._tidy()
        self._close()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            connection = Connection(self._listener.accept()[0])
            self._connections[connection] = None
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def _post(self, act: Callable[[], None]) -> None:
        """Run ``act`` in the loop; callable from any thread."""
        self._posted.append(act)
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_out.send(b"x")

    def _run_posted(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_in.recv(4096)
        while self._posted:
            self._posted.popleft()()

    def _service(self, connection: Connection) -> None:
        for message in connection.read():
            self._handle(connection, message)
        connection.flush()

    def _tidy(self) -> None:
        """Let go of connections that ended; watch for room where something is unsent."""
        for connection, worker in list(self._connections.items()):
            if connection.open:
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.wants_to_write() else 0)
                self._selector.modify(connection.socket, events, connection)
                continue
            if connection is self._launcher:
                self._ended = True
            self._forget(connection, worker, still_mapped=False)

    def _forget(self, connection: Connection, worker: Worker | None, *, still_mapped: bool) -> None:
        self._connections.pop(connection, None)
        self._selector.unregister(connection.socket)
        connection.close()
        if worker is None:
            return
        if self._writer is not None:
            # It ended, or died: what it saved is not to wait for better times.
            self._writer.hurry(worker.durable_step)
        if worker.granted is not None:
            self._memory.give_back(worker.rank, worker.granted, still_mapped=still_mapped)
        if worker.finding is not None:
            self._finder.release(worker.finding)
        if worker.generation == self._memory.generation:
            timer = threading.Timer(LEFT_GRACE_S, lambda: self._post(lambda: self._has_left(worker)))
            timer.daemon = True
            timer.start()

    def _has_left(self, worker: Worker) -> None:
        here = [(other.generation, other.rank) for other in self._connections.values() if other is not None]
        if worker.generation == self._memory.generation and (worker.generation, worker.rank) not in here:
            self._outcomes.has_left(worker)
            self._outcomes.tell(self._connections.values())

    def _close(self) -> None:
        self._hasher.stop()
        self._replicas.stop()
        for mirror in self._hasher.mirrors:
            mirror.stop()
        self._peers.close()
        self._listing.close()
        for pool in (self._finders, self._pool):
            pool.shutdown(wait=False, cancel_futures=True)
        for connection in self._connections:
            connection.close()

    # ---- messages

    def _handle(self, connection: Connection, message: Any) -> None:
        worker = self._connections.get(connection)
        try:
            if isinstance(message, Attach):
                self._attach(connection, message)
            elif isinstance(message, Control):
                self._control(connection, message)
            elif worker is not None:
                self._handle_worker(worker, message)
            elif connection is self._launcher:
                self._handle_launcher(message)
            else:
                connection.open = False
        except ValueError:
            # A worker that describes a slot wrongly is not to be trusted with another one.
            connection.open = False

    def _attach(self, connection: Connection, attach: Attach) -> None:
        reason = ""
        if attach.job != self._hello.job:
            reason = f"this snapshot server belongs to job {self._hello.job}, not {attach.job}"
        elif attach.generation < self._memory.generation:
            reason = f"generation {attach.generation} is over: generation {self._memory.generation} has begun"
        if reason:
            connection.send(Refused(reason=reason))
            return
        self._memory.begin(attach.generation)
        worker = self._connections[connection] = Worker(connection, attach)
        self._outcomes.is_back(worker)
        connection.send(Attached(pid=os.getpid()))

    def _control(self, connection: Connection, control: Control) -> None:
        if control.job != self._hello.job or self._launcher is not None:
            connection.send(Refused(reason=f"this snapshot server serves job {self._hello.job} and has its launcher"))
            return
        self._launcher = connection
        connection.send(Ready(address=self.address, pid=os.getpid()))

    def _handle_worker(self, worker: Worker, message: Any) -> None:
        match message:
            case Reserve(number=number, size_bytes=size):
                worker.reserve, worker.wants_bytes = number, size
                if worker.granted is not None:
                    self._memory.give_back(worker.rank, worker.granted, still_mapped=False)
                    worker.granted = None
                self._grant(worker)
            case Seal():
                self._seal(worker, message)
            case WaitDurable(step=step):
                if self._writer is not None:
                    self._writer.hurry(step)
                worker.waits_for.add(step)
                self._outcomes.tell([worker])
            case FindPart():
                self._find(worker, message)
            case _:
                raise ValueError("not a worker's message")

    def _seal(self, worker: Worker, seal: Seal) -> None:
        slot = worker.granted
        if slot is None or slot.number != seal.slot or worker.generation < self._memory.generation:
            raise ValueError("sealed a slot that it was not granted")
        if worker.finding is not None:
            self._finder.release(worker.finding)
            worker.finding = None
        sealed = self._memory.seal(worker.rank, slot, seal, generation=worker.generation, world_size=worker.world_size)
        worker.granted = None
        if self._writer is not None:
            self._writer.moved(sealed.step)
        if sealed.durable:
            worker.durable_step = sealed.step
            self._outcomes.again(worker, seal.step)
        self._hasher.put(slot, sealed)
        self._grant(worker)

    def _grant(self, worker: Worker) -> None:
        """Give the worker its next slot as soon as there is one."""
        if worker.granted is not None or not worker.wants_bytes or not worker.connection.open:
            return
        slot = self._memory.grant(worker.rank, worker.wants_bytes)
        if slot is None:
            self._refuse(worker)
            return
        worker.granted = slot
        new = slot.number not in worker.mapped
        worker.mapped.add(slot.number)
        grant = Grant(
            slot=slot.number, size_bytes=slot.size_bytes, new=new, reserve=worker.reserve, durable_only=slot.spilled
        )  # fmt: skip
        worker.connection.send(grant, [slot.fd] if new else [])

    def _refuse(self, worker: Worker) -> None:
        """Say it, once, if the worker waits for what this node will not have."""
        reason = self._memory.refusal(worker.rank)
        if not reason or worker.refused == worker.reserve:
            return
        if worker.refused < 0:
            self._answer(Notice(topic="memory", generation=worker.generation, step=-1, reason=reason))
        worker.refused = worker.reserve
        worker.connection.send(NoRoom(reserve=worker.reserve, reason=reason))

    def _arrived(self) -> None:
        """A peer's part has come in."""
        self._grant_all()
        self._replicas.consider()

    def _freed(self) -> None:
        self._post(self._grant_all)

    def _tell_traffic(self, words: str) -> None:
        self._reply(Notice(topic="traffic", generation=self._memory.generation, step=-1, reason=words))

    def _tell_peers(self, word: Safe) -> None:
        for mirror in self._hasher.mirrors:
            mirror.put(word)

    def _grant_all(self) -> None:
        for worker in list(self._connections.values()):
            if worker is not None:
                self._grant(worker)

    def _read(self, size_bytes: int) -> None:
        """Bytes of a restore have arrived, on any thread: whoever waits is told now and then."""
        with self._reading_lock:
            self._read_bytes += size_bytes
            if time.monotonic() < self._told_s + READING_S:
                return
            self._told_s, done = time.monotonic(), self._read_bytes
        self._post(lambda: self._tell_reading(done))

    def _tell_reading(self, done: int) -> None:
        for worker in self._searching:
            worker.connection.send(Reading(size_bytes=done))

    def _find(self, worker: Worker, request: FindPart) -> None:
        self._searching.add(worker)

        def work() -> None:
            # What was sealed before the question is part of the answer.
            self._hasher.join()
            try:
                finding = self._finder.find(request, self._read)
            except (CheckpointError, OSError, ValueError) as error:
                reason = str(error)
                self._post(lambda: self._not_found(worker, reason))
                return
            self._post(lambda: self._found(worker, finding))

        self._finders.submit(work)

    def _not_found(self, worker: Worker, reason: str) -> None:
        self._searching.discard(worker)
        worker.connection.send(NotFound(reason=reason))

    def _found(self, worker: Worker, finding: Finding) -> None:
        self._searching.discard(worker)
        if worker.finding is not None:
            self._finder.release(worker.finding)
        worker.connection.send(PartFound(sources=tuple(finding.sources)), finding.descriptors)
        worker.finding = finding
        if not worker.connection.open:
            self._finder.release(finding)
            worker.finding = None

    def _handle_launcher(self, message: Any) -> None:
        match message:
            case Begin():
                self._begin(message)
                self._answer(Ok(request=message.request))
            case TakeInventory(request=request):
                self._drain()
                self._pool.submit(self._inventory, request)
            case VerifyRam(request=request, step=step, digests=digests):
                # Whoever verifies a step means to restore it: its slots must not be reused meanwhile.
                self._memory.hold(step, -1)
                self._check(request, lambda: self._verify_ram(digests))
            case ListDisk(request=request):
                self._pool.submit(lambda: self._reply(Stock(request=request, disk=self._listing.asked())))
            case VerifyDisk(request=request, key=key):
                self._check(request, lambda: self._finder.verify_disk(key))
            case Hold(request=request, step=step, generation=generation):
                self._memory.hold(step, generation)
                self._answer(Ok(request=request))
            case Flush(request=request, step=step):
                for slot, sealed in self._memory.sealed_at(step):
                    self._save(slot, sealed)
                if self._writer is not None:
                    self._writer.hurry(step)
                self._answer(Ok(request=request))
            case Quit(request=request):
                self._pool.submit(self._quit, request)

    def _begin(self, begin: Begin) -> None:
        self._drain()
        for connection, worker in list(self._connections.items()):
            if worker is not None and worker.generation < begin.generation:
                # It may live on, stopped, with the slot mapped: that memory is never handed to anyone again.
                self._forget(connection, worker, still_mapped=connection.open)
        self._memory.begin(begin.generation)
        self._outcomes.begin(begin.generation)
        self._memory.limit(begin.policy)
        self._gates.policy = begin.policy.gating
        peers = tuple(address for address in begin.peers if address != self.address)
        for mirror in self._hasher.mirrors:
            mirror.stop()
        self._hasher.mirrors = [Mirror(address, self._hello) for address in peers]
        where = Where(own=self.address, peers=peers, replication=begin.policy.replication)
        self._replicas.begin(where, self._hello)
        if self._writer is not None:
            self._writer.begin(begin.generation, begin.restored_from)

    def _drain(self) -> None:
        """Take in everything that workers sent, those that have died since included."""
        for connection, worker in list(self._connections.items()):
            if worker is not None:
                self._service(connection)

    def _answer(self, message: Any) -> None:
        if self._launcher is not None:
            self._launcher.send(message)

    def _reply(self, message: Any) -> None:
        self._post(lambda: self._answer(message))

    # ---- on threads

    def _save(self, slot: Slot, sealed: Sealed) -> None:
        """Hand an acquired slot to the writer."""
        if self._writer is None:
            self._memory.release(slot)
            self._saved(
                SaveError(step=sealed.step, generation=sealed.generation, reason="no checkpoint directory is set")
            )
            return
        self._writer.put(slot, sealed)

    def _saved(self, event: Committed | SaveError) -> None:
        def tell() -> None:
            self._outcomes.decided(event, self._connections.values())
            self._answer(event)
            self._outcomes.tell(self._connections.values())
            self._grant_all()

        self._post(tell)

    def _inventory(self, request: int) -> None:
        self._hasher.join()
        self._reply(Stock(request=request, ram=self._memory.stock(), disk=self._listing.soon()))

    def _check(self, request: int, check: Callable[[], None]) -> None:
        def work() -> None:
            try:
                check()
            except (CheckpointError, OSError) as error:
                self._reply(Wrong(request=request, reason=str(error), damaged=isinstance(error, StateInvalid)))
                return
            self._reply(Ok(request=request))

        self._pool.submit(work)

    def _verify_ram(self, digests: tuple[str, ...]) -> None:
        for digest in digests:
            wrong = self._memory.verify(digest)
            if wrong:
                raise StateInvalid(wrong)

    def _quit(self, request: int) -> None:
        self._hasher.join()
        if self._writer is not None:
            self._writer.stop(FINISH_S)
        if self._copier is not None:
            self._copier.stop(FINISH_S)
        self._reply(Ok(request=request))

        def end() -> None:
            deadline = time.monotonic() + 1.0
            while self._launcher is not None and self._launcher.wants_to_write() and time.monotonic() < deadline:
                self._launcher.flush()
            self._ended = True

        self._post(end)
