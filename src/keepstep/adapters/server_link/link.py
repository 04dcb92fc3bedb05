"""The one connection to the server: hello, reports until acknowledged, reconnection. Owns the wire and the newest term that
was met; must not obey orders, nor know what any of them means.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from keepstep.adapters.server_link import tls
from keepstep.adapters.server_link.address import Address
from keepstep.adapters.server_link.backoff import Backoff
from keepstep.adapters.server_link.credentials import Credentials
from keepstep.adapters.server_link.errors import ServerRefused
from keepstep.adapters.server_link.renewal import keep_renewed
from keepstep.adapters.server_link.route import Route
from keepstep.adapters.server_link.sockets import FindHost, Streams, as_given, open_streams, read_message
from keepstep.adapters.server_link.spool import Spool, Worth
from keepstep.core.facts import Fact
from keepstep.wire import messages
from keepstep.wire.messages import Ack, Beat, Command, Health, Hello, Message, NotLeader, Query, Refused, Welcome

log = logging.getLogger("keepstep.link")

CONNECT_WAIT_S = 20.0
"""For the handshakes, and once more for the answer to Hello: a server that was just started is busy with a fleet."""
_SEND_BUFFER_LIMIT_BYTES = 16 * 1024 * 1024
"""A server that reads nothing is as good as gone; reports wait in the spool, not in the socket."""
_ROUNDS_TO_READ = 4
"""Of the loop, until a message that has arrived by now is taken, though we stood still when it came."""
_NO_SERVER = (OSError, EOFError, ValueError, msgspec.DecodeError, TimeoutError)


class OlderTerm(ConnectionError):
    """The server believes that it leads."""


class SentOn(Exception):
    """The server follows another one."""

    def __init__(self, leader: str) -> None:
        super().__init__(f"this server follows; the leader is at {leader or 'an address that it does not know'}")
        self.leader = leader


class Listener(Protocol):
    """Who is told what happens on the connection."""

    def connected(self, welcome: Welcome) -> None: ...

    def received(self, message: Message) -> None: ...

    def lost(self, problem: str) -> None:
        """The connection is gone; or there is none, for a reason that is another one than before."""
        ...


@dataclass(frozen=True, kw_only=True)
class LinkSettings:
    """What distinguishes the programs that keep a connection."""

    hello: Hello
    """Without its token."""
    credentials: Credentials
    backoff: Backoff
    worth: Worth
    """Of facts, where the spool has no room for all."""
    on_refusal: Literal["raise", "raise at first", "try again"]
    """``raise at first``: a server that refuses us before any took us says that something is set up wrong."""
    lease_s: float = 10.0
    connect_wait_s: float = CONNECT_WAIT_S
    find_host: FindHost = as_given


class ServerLink:
    """Keeps one connection up. ``report`` may be called at any time; order and number of reports survive reconnects.

    ``find_servers`` gives the addresses to choose from, each time anew; it may wait, or start a server.
    """

    def __init__(
        self, settings: LinkSettings, find_servers: Callable[[], Awaitable[Sequence[Address]]], listener: Listener
    ) -> None:
        self._settings = settings
        self._find_servers = find_servers
        self._listener = listener
        self._spool = Spool(settings.worth)
        self._told_dropped = 0
        self._route = Route()
        self._writer: asyncio.StreamWriter | None = None
        self._clock = asyncio.get_running_loop().time
        self._since_s = self._clock()
        """The connection is up, or missed, since then."""
        self._attempts = 0
        self._ever_connected = False
        self._was_up = False
        """In the present turn of ``run``."""
        self._told = ""
        self._acked = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        """Of the present connection."""
        self._heard = False
        self.term = 0
        """The newest that was met in this life. Whoever is older has been deposed and may not know it."""

    # ---- for its owner

    @property
    def is_up(self) -> bool:
        return self._writer is not None

    @property
    def silent_s(self) -> float:
        """Time without a server. An open connection counts as heard: the kernel closes it when the other host is gone."""
        return 0.0 if self.is_up else self._clock() - self._since_s

    @property
    def is_empty(self) -> bool:
        """All that was reported is in the server's journal."""
        return not len(self._spool)

    @property
    def dropped(self) -> int:
        return self._spool.dropped

    def report(self, fact: Fact) -> None:
        self._acked.clear()
        self._send(self._spool.add(fact))

    def forget(self, kind: type[Fact], *, but_oldest: bool = False) -> None:
        """See Spool.forget."""
        self._spool.forget(kind, but_oldest=but_oldest)

    def holds(self, kind: type[Fact]) -> bool:
        """Whether one of this kind is not acknowledged yet."""
        return self._spool.holds(kind)

    def say(self, word: Beat | Health | Query) -> None:
        """Never repeated; lost while there is no connection. A beat also tells how many facts the spool has dropped."""
        if isinstance(word, Beat) and self.is_up and self._spool.dropped > self._told_dropped:
            word = msgspec.structs.replace(word, dropped=self._spool.dropped - self._told_dropped)
            self._told_dropped = self._spool.dropped
        self._send(word)

    async def drained(self, wait_s: float) -> bool:
        """All reports are acknowledged, within ``wait_s``."""
        if self.is_empty:
            return True
        try:
            async with asyncio.timeout(wait_s):
                await self._acked.wait()
        except TimeoutError:
            return False
        return True

    # ---- life

    async def run(self) -> None:
        """Connects again and again, until cancelled. Raises ServerRefused as ``on_refusal`` says, and nothing else but bugs.

        No ``wait_for`` in here: that of 3.11 loses a cancellation that meets the end of what it waits for.
        """
        while True:
            known: Sequence[Address] = ()
            self._was_up = refused = failed = False
            try:
                known = await self._find_servers()
                await self._meet(self._route.next(known), known)
            except ServerRefused as refusal:
                if self._is_final():
                    raise
                refused = failed = True
                self._tell(f"the server refuses this {self._settings.hello.role}: {refusal}")
            except _NO_SERVER as problem:
                failed = True
                self._tell(self._in_words(problem))
            # All clients of a server lose it at the same instant: whoever had one waits before anything else.
            if self._was_up or (failed and self._route.failed(known)):
                pause_s = self._settings.backoff.pause_s(self._attempts, random.random(), refused=refused)
                self._attempts += 1
                await asyncio.sleep(pause_s)

    def _is_final(self) -> bool:
        how = self._settings.on_refusal
        return how == "raise" or (how == "raise at first" and not self._ever_connected)

    async def _meet(self, address: Address, known: Sequence[Address]) -> None:
        """Returns where another server is to be dialled at once; else raises what went wrong."""
        try:
            await self._converse(address, has_others=len(known) > 1 or address not in known)
        except SentOn as hint:
            if not self._route.sent_on(hint.leader, address):
                raise ConnectionError(str(hint)) from hint

    async def _converse(self, address: Address, *, has_others: bool) -> None:
        reader, writer = await self._dial(address)
        try:
            token = self._settings.credentials.token_for(address)
            writer.write(messages.encode(msgspec.structs.replace(self._settings.hello, token=token)))
            first = await self._first_word(reader, address)
            self._up(writer, address, self._judge(first))
            if has_others:
                self._tasks.append(asyncio.create_task(self._mind_silence(writer)))
            while True:
                message = await read_message(reader)
                self._heard = True
                self._take(message)
        finally:
            self._down()
            writer.close()

    async def _dial(self, address: Address) -> Streams:
        settings = self._settings
        context = settings.credentials.context_for(address)
        async with asyncio.timeout(settings.connect_wait_s):
            return await open_streams(address, context, settings.lease_s, settings.find_host)

    async def _first_word(self, reader: asyncio.StreamReader, address: Address) -> Message:
        try:
            async with asyncio.timeout(self._settings.connect_wait_s):
                return await read_message(reader)
        except (EOFError, ssl.SSLError, ConnectionResetError) as end:
            if not address.tls:
                raise
            identity_dir = self._settings.credentials.identity_dir
            raise tls.IdentityProblem(await asyncio.to_thread(tls.hung_up, identity_dir)) from end

    def _judge(self, first: Message) -> Welcome:
        """Raises ServerRefused, SentOn, ConnectionError."""
        match first:
            case Welcome(term=term, server=server) if term < self.term:
                raise OlderTerm(
                    f"server {server} leads under term {term}, but term {self.term} was met: it has been deposed"
                )
            case Welcome():
                return first
            case Refused(reason=reason):
                raise ServerRefused(reason)
            case NotLeader(leader=leader):
                raise SentOn(leader)
        raise ConnectionError(f"the server began with {type(first).__name__}, not with Welcome")

    def _up(self, writer: asyncio.StreamWriter, address: Address, welcome: Welcome) -> None:
        self._writer = writer
        self._since_s = self._clock()
        self._ever_connected = self._was_up = True
        self._told = ""
        self.term = welcome.term
        self._route.arrived()
        self._acknowledged(welcome.acked)
        for report in self._spool.waiting():
            self._send(report)
        if address.tls and welcome.certificate_expires_in_s is not None:
            self._tasks.append(asyncio.create_task(self._renew(address, welcome.certificate_expires_in_s)))
        self._listener.connected(welcome)

    def _renew(self, address: Address, expires_in_s: float) -> Coroutine[None, None, None]:
        hello, identity_dir = self._settings.hello, self._settings.credentials.identity_dir
        return keep_renewed(hello.node or hello.role, identity_dir, expires_in_s, lambda: self._dial(address))

    async def _mind_silence(self, writer: asyncio.StreamWriter) -> None:
        """Hangs up on a server that has stopped, though its kernel keeps the connection: another one may lead by now. Silence
        is asked about first, so that our own pauses are not held against it; at most a lease goes by."""
        asked = False
        while True:
            self._heard = False
            await asyncio.sleep(self._settings.lease_s / 3)
            for _ in range(_ROUNDS_TO_READ):
                await asyncio.sleep(0)
            if self._heard:
                asked = False
            elif asked:
                writer.transport.abort()
                return
            else:
                self._send(Ack(number=0))
                asked = True

    def _down(self) -> None:
        while self._tasks:
            self._tasks.pop().cancel()
        if self._writer is None:
            return
        self._writer = None
        if self._clock() - self._since_s > self._settings.backoff.last_s:
            # A server that takes us and hangs up again, over and over, is no reason to hurry.
            self._attempts = 0
        self._since_s = self._clock()

    def _take(self, message: Message) -> None:
        """Raises SentOn where the server has ceased to lead."""
        match message:
            case Ack(number=number):
                self._acknowledged(number)
            case NotLeader(leader=leader):
                raise SentOn(leader)
            case Command(term=term, order=order) if term < self.term:
                log.error("order %d of term %d is not carried out: term %d was met", order.number, term, self.term)
            case _:
                self._listener.received(message)

    def _acknowledged(self, number: int) -> None:
        self._spool.acknowledged(number)
        if self.is_empty:
            self._acked.set()

    def _send(self, message: Message) -> None:
        if self._writer is None:
            return
        if self._writer.transport.get_write_buffer_size() > _SEND_BUFFER_LIMIT_BYTES:
            self._writer.transport.abort()
            return
        self._writer.write(messages.encode(message))

    # ---- what went wrong

    def _tell(self, problem: str) -> None:
        """Said once, until it is another one: a program without a server must not fill a log."""
        if problem != self._told:
            self._told = problem
            self._listener.lost(problem)

    def _in_words(self, problem: BaseException) -> str:
        """Reasons that come and go while a server restarts are one and the same."""
        if isinstance(problem, ssl.SSLError) and not isinstance(problem, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return f"no server: {tls.explain(problem, self._settings.credentials.identity_dir)}"
        if isinstance(problem, (tls.IdentityProblem, OlderTerm, ValueError, PermissionError)):
            return f"no server: {problem}"
        if self._ever_connected:
            log.debug("%s: %s", type(problem).__name__, problem)
            return "the server is gone"
        return f"no server: {problem or type(problem).__name__}"
