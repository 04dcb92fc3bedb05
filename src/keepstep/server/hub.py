"""The hub: clients on one side, the loop on the other. Owns connections, batching, timers and the delivery of orders.

Everything that arrives within one pass of the event loop becomes one batch, so that a burst of facts costs one flush to
disk. Orders are delivered at least once: when they are decided, and again whenever their session connects.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keepstep.core.access import Principal
from keepstep.core.decision import Entry
from keepstep.core.facts import CertificateIssued, CertificateRevoked, Fact, TokenRevoked
from keepstep.core.ids import JobId, NodeId, Session
from keepstep.core.intents import Order
from keepstep.core.job import TERMINAL
from keepstep.core.vitals import RankSample
from keepstep.ports import Clock, Deposed, Engine, JournalUnavailable
from keepstep.server.admission import foreign_job, in_its_name, objection, unfit_session
from keepstep.server.answering import answer_to, answered, outcome_of
from keepstep.server.authentication import Authentication, refusal_to_forward
from keepstep.server.connection import Connection
from keepstep.server.desk import Desk
from keepstep.server.in_turn import InTurn
from keepstep.server.local_orders import is_local, session_of
from keepstep.server.loop import ControlLoop, Received
from keepstep.server.site import Bulletin, NoLeader
from keepstep.server.views import Leaving
from keepstep.server.vitals_view import BEATS, pack
from keepstep.wire.messages import (
    PROTOCOL,
    Ack,
    Act,
    Beat,
    Command,
    Enrol,
    Health,
    Hello,
    JobEnded,
    Message,
    NotLeader,
    Query,
    Refused,
    Reply,
    Report,
    Superseded,
    Welcome,
)
from keepstep.wire.requests import Accepted, Request

if TYPE_CHECKING:  # it needs the library that only servers with certificates have
    from keepstep.server.enrolment import Enrolment

log = logging.getLogger("keepstep.server")

JOURNAL_RETRY_S = 0.5
EXPIRED_GRACE_S = 60.0
"""A connection outlives its certificate by so much: a renewal may be on its way."""
EXPIRED_LOOK_S = 10.0
"""Looking at every connection for that would make each pass slow in a large fleet."""


class Hub:
    """Meets connection.Hub. ``identity`` names this life of the server."""

    def __init__(self, loop: ControlLoop, authentication: Authentication, identity: str, clock: Clock) -> None:
        self._loop = loop
        self._authentication = authentication
        self.identity = identity
        self._clock = clock
        self._own = Session(f"server-{identity}")
        self._own_reports = loop.acked(self._own)
        """It goes on where an earlier spell of leading ended: what is counted twice would be taken for a repetition."""
        self._connections: dict[Connection, None] = {}
        self._sessions: dict[Session, Connection] = {}
        self._wake: asyncio.Handle | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._stopped = False
        self._local: Engine | None = None
        self._superseded_s: dict[Connection, float] = {}
        self._principals: dict[Connection, Principal] = {}
        self._looked_s = clock.now_s()
        """When certificates that expired were last looked for."""
        self._waiting: dict[Session, list[asyncio.Future[int]]] = {}
        """Request -> whoever waits until it is in the journal."""
        self.bulletin = Bulletin()
        self.kept: Callable[[Sequence[Entry]], None] = lambda entries: None
        """Told of entries once they are in the journal, before anybody outside is."""
        self.deposed: Callable[[Deposed], None]
        """Told once, when another server leads; from then on this hub does nothing more."""
        self.last_client_s = clock.now_s()
        self._tasks: set[asyncio.Task[None]] = set()
        self.in_turn = InTurn()
        self.act: Callable[[Request, Principal, str], Awaitable[Accepted]]
        """How a request is taken; see server.leading."""
        self.refused: Callable[[str, str, str], None] = lambda who, what, why: None
        self.enrolment: Enrolment | None = None
        """Where there is a certificate authority."""
        self.on_leave: Callable[[], None] | None = None
        """Ends an embedded server; None for one that was started to stay."""

    def run(self, local: Engine) -> None:
        """Begin. ``local`` carries out the orders that no launcher can; open ones of an earlier life go to it again."""
        self._local = local
        local.submit(o for o in self._loop.open_orders() if is_local(o))
        self._work()

    def stop(self) -> None:
        """Close what is open; clients come back to the next life of the server. What is observed from now on is nobody's: this
        process may lead again, and what these books say would be written under its new term."""
        self._stopped = True
        for handle in (self._tick, self._wake):
            if handle is not None:
                handle.cancel()
        for connection in list(self._connections):
            connection.close()
        for waiting in [future for several in self._waiting.values() for future in several if not future.done()]:
            waiting.set_exception(NoLeader("this server stopped leading before it was kept; ask again"))
        self._waiting.clear()

    @property
    def idle(self) -> bool:
        """No client is connected and no job lives."""
        return not self._connections and not self._loop.books.world.live_jobs

    # ---- clients (connection.Hub)

    def accept(self, connection: Connection, hello: Hello) -> Message:
        if hello.protocol != PROTOCOL:
            return Refused(
                reason=f"the client speaks protocol {hello.protocol}, this server speaks {PROTOCOL}: use the same "
                "Keepstep version on both sides, or another --state-dir"
            )
        principal = self._authentication.identify(hello, connection)
        if isinstance(principal, Refused):
            return self._turned_away(connection, hello, connection.peer, principal.reason)
        if hello.role == "launcher" and None in (hello.job, hello.node, hello.session):
            return Refused(reason="a launcher's Hello names its job, node and session")
        if hello.role == "agent" and None in (hello.node, hello.session):
            return Refused(reason="an agent's Hello names its node and session")
        why = foreign_job(principal, hello, self._loop.books.world) or self._unfit(hello)
        if why:
            return self._turned_away(connection, hello, principal.name, why)
        self._connections[connection] = None
        self._principals[connection] = principal
        self._loop.meters.connected(hello.role, 1)
        self.last_client_s = self._clock.now_s()
        if hello.session is not None and hello.role != "tool":
            self._sessions[hello.session] = connection
        asyncio.get_running_loop().call_soon(self._greet, connection, hello)
        return Welcome(
            protocol=PROTOCOL,
            server=self.identity,
            acked=self._loop.acked(hello.session) if hello.session else 0,
            term=self._loop.term,
            certificate_expires_in_s=self._authentication.expires_in_s(connection),
        )

    def _turned_away(self, connection: Connection, hello: Hello, who: str, why: str) -> Refused:
        self.refused(who, f"Hello as {hello.role}", why)
        return Refused(reason=why)

    def _unfit(self, hello: Hello) -> str:
        """Why the session of a Hello is not this client's; empty where it is, or where it is a new one."""
        if hello.session is None or hello.role == "tool":
            return ""  # a tool's is nobody's: it reports nothing, and no order goes to it
        speaking = self._sessions.get(hello.session)
        other = speaking.hello if speaking is not None else None
        if other is not None and (other.role, other.job, other.node) != (hello.role, hello.job, hello.node):
            return "this session is another client's"
        history = self._loop.books.history
        if hello.session in history.processes:
            known = history.sessions.get((hello.job or JobId(""), hello.node or NodeId("")), [])
            return "" if hello.session in known else "this session is another launcher's"
        return unfit_session(hello)

    def enrol(self, connection: Connection, message: Enrol) -> None:
        """Answered once the certificate is in the journal."""
        self._spawn(self._enrolled(connection, message))

    async def _enrolled(self, connection: Connection, message: Enrol) -> None:
        if self.enrolment is None:
            answer: Message = Refused(reason="this server has no certificate authority: it does not listen over TLS")
        else:
            try:
                answer = await self.enrolment.enrol(message, connection)
            except NoLeader:
                answer = NotLeader()
        if isinstance(answer, Refused):
            known = self._principals.get(connection)
            self.refused(known.name if known is not None else connection.peer, "Enrol", answer.reason)
        connection.send(answer)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _greet(self, connection: Connection, hello: Hello) -> None:
        """After Welcome: what the client has missed."""
        job = self._loop.books.world.jobs.get(hello.job) if hello.job is not None else None
        if hello.role == "launcher":
            assert hello.job is not None and hello.node is not None and hello.session is not None
            if not self._loop.is_present(hello.job, hello.node, hello.session):
                connection.send(Superseded(generation=job.generation if job else 0))
                return
            if job is None or job.state not in TERMINAL:
                self._loop.vitals.connected(hello.job, hello.node, hello.session, self._clock.now_s())
        if hello.role == "agent":
            assert hello.node is not None and hello.session is not None
            self._loop.vitals.agent_connected(hello.node, hello.session, self._clock.now_s())
        if hello.session is not None and self._sessions.get(hello.session) is connection:
            for order in self._loop.open_orders_for(hello.session):
                connection.send(Command(order=order, term=self._loop.term))
        if job is not None and job.state in TERMINAL and (not hello.run or hello.run in job.runs):
            self._tell_end(job.id, [connection])

    def received(self, connection: Connection, message: Message) -> None:
        match message:
            case Report():
                self._report(connection, message)
            case Beat():
                self._beat(connection, message)
            case Health():
                self._health(connection, message)
            case Query():
                self.in_turn.answer(connection, self._answer(message, self._principals[connection]))
            case Act():
                self.in_turn.answer(connection, self._act(message, self._principals[connection]))
            case _:
                connection.drop(f"it sent {type(message).__name__}, which is the server's to send")

    def closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._superseded_s.pop(connection, None)
        self._principals.pop(connection, None)
        self.last_client_s = self._clock.now_s()
        hello = connection.hello
        if hello is not None:
            self._loop.meters.connected(hello.role, -1)
        if hello is None or hello.session is None or self._sessions.get(hello.session) is not connection:
            return
        del self._sessions[hello.session]
        if hello.role == "agent" and hello.node is not None:
            self._loop.vitals.agent_disconnected(hello.node, hello.session)
        if hello.role == "launcher" and hello.job is not None and hello.node is not None:
            job = self._loop.books.world.jobs.get(hello.job)
            launcher = job.launchers.get(hello.node) if job else None
            if launcher is not None and launcher.session == hello.session and launcher.left:
                self._loop.vitals.left(hello.job, hello.node)
            else:
                self._loop.vitals.disconnected(hello.job, hello.node, hello.session)

    # ---- what clients send

    def _report(self, connection: Connection, report: Report) -> None:
        hello = connection.hello
        assert hello is not None
        if hello.session is None:
            connection.drop("it reports without a session in its Hello")
            return
        principal = self._principals[connection]
        why = objection(principal, hello, report.fact, self._loop.books.world)
        if why:
            self.refused(principal.name, f"report of {type(report.fact).__name__} as {hello.role}", why)
            connection.drop(why)
            return
        if hello.role == "agent" and hello.node is not None:
            # A word is as good as a beat: an agent that was thought silent is ordered about what it tells here.
            self._loop.vitals.agent_heard(hello.node, hello.session, self._clock.now_s())
        self._loop.receive(Received(in_its_name(principal, report.fact), hello.session, report.number))
        self._wake_up()

    def _beat(self, connection: Connection, beat: Beat) -> None:
        hello = connection.hello
        if hello is not None and hello.role in ("agent", "launcher") and beat.dropped > 0:
            self._loop.meters.spool_dropped(hello.role, beat.dropped)
        if hello is not None and hello.role == "agent" and hello.node is not None and hello.session is not None:
            self._loop.vitals.agent_heard(hello.node, hello.session, self._clock.now_s())
            return
        if hello is None or hello.role != "launcher" or hello.job is None or hello.node is None:
            return
        vitals = self._loop.vitals
        known = vitals.nodes.get((hello.job, hello.node))
        if known is None or known.session != hello.session:
            return
        job = self._loop.books.world.jobs.get(hello.job)
        launcher = job.launchers.get(hello.node) if job else None
        if launcher is not None and beat.ranks and 0 < beat.generation <= launcher.fenced:
            # Counted as dead by a proof (the self-fence deadline), and yet it runs: it must end what it has. A fenced
            # launcher without ranks stands by for the next generation, and is heard like any other.
            self._supersede(connection, launcher.fenced)
            return
        samples = tuple(
            RankSample(
                rank=r.rank,
                phase=r.phase,
                step=r.step,
                idle_s=r.idle_s,
                phase_s=r.phase_s,
                step_time_s=r.step_time_s,
                loss=r.loss,
                state=r.state,
                cpu_s=r.cpu_s,
            )
            for r in beat.ranks
        )
        vitals.beat(hello.job, hello.node, self._clock.now_s(), beat.generation, samples)

    def _health(self, connection: Connection, health: Health) -> None:
        """Only an agent has one to tell."""
        hello = connection.hello
        if hello is not None and hello.role == "agent" and hello.node is not None:
            self._loop.vitals.health[hello.node] = health.report

    def _supersede(self, connection: Connection, generation: int) -> None:
        """At most once a second per connection."""
        now_s = self._clock.now_s()
        if now_s - self._superseded_s.get(connection, 0.0) >= 1.0:
            self._superseded_s[connection] = now_s
            connection.send(Superseded(generation=generation))

    async def _answer(self, query: Query, asker: Principal) -> Reply:
        if query.what == "leave":
            return answered(self._leaving())
        if query.what == BEATS and not refusal_to_forward(asker):
            return answered(pack(self._loop.vitals))
        return await answer_to(query, self.desk, asker, self.refused)

    def _leaving(self) -> Leaving:
        """The last client of an embedded server sees it off, so that nothing is left behind."""
        alone = len(self._connections) <= 1 and not self._loop.books.world.live_jobs
        if self.on_leave is None or not alone:
            return Leaving(leaves=False)
        asyncio.get_running_loop().call_soon(self.on_leave)
        return Leaving(leaves=True)

    def desk(self) -> Desk:
        """Everything that a question may look at, as of now."""
        return Desk(self._loop.books, self._loop.vitals, self._clock.now_s(), self._loop.journal)

    async def take(self, fact: Fact, session: Session) -> int:
        """One fact of a session of its own, which says nothing else. Returns its entry's number once it is in the journal;
        0 where it was there before. Raises NoLeader."""
        if self._stopped:
            raise NoLeader("this server has just stopped leading; ask again")
        waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(session, []).append(waiting)
        self._loop.receive(Received(fact, session, 1))
        self._wake_up()
        return await waiting

    async def _act(self, act: Act, asker: Principal) -> Reply:
        """Answered when it is durable."""
        return await outcome_of(act, asker, self.act, self.refused, self._authentication.holds)

    def observe(self, *facts: Fact) -> None:
        """Facts of the server itself: what its own orders brought about."""
        for fact in facts:
            self._own_reports += 1
            self._loop.receive(Received(fact, self._own, self._own_reports))
        self._wake_up()

    # ---- the loop

    def _wake_up(self) -> None:
        if self._wake is None and not self._stopped:
            self._wake = asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        """Fold, decide, keep, deliver. The only place that drives the loop."""
        self._wake = None
        began_s = time.perf_counter()
        try:
            self._loop.work()
            pause_s = self._loop.pause_s()
            self._loop.meters.passed(time.perf_counter() - began_s, self._clock.now_s())
        except JournalUnavailable as error:
            log.error("%s; trying again (jobs train on, nothing new is decided)", error)
            self._loop.meters.journal_failed(str(error))
            pause_s = JOURNAL_RETRY_S
        except Deposed as error:
            self.stop()
            self.deposed(error)
            return
        self._deliver()
        self._cut_expired()
        if self._tick is not None:
            self._tick.cancel()
        self._tick = asyncio.get_running_loop().call_later(pause_s, self._work)

    def _deliver(self) -> None:
        outcome = self._loop.collect()
        if outcome.kept:
            self.kept(outcome.kept)
            for entry in outcome.kept:
                if isinstance(entry.record, CertificateIssued) and entry.record.replaces:
                    self._renew(entry.record)
            if any(isinstance(entry.record, TokenRevoked | CertificateRevoked) for entry in outcome.kept):
                self._expel()
            self.bulletin.publish(outcome.kept)
        for session, number in outcome.acks.items():
            for waiting in self._waiting.pop(session, ()):
                if not waiting.done():
                    waiting.set_result(outcome.entries.get(session, 0))
            if (connection := self._sessions.get(session)) is not None:
                connection.send(Ack(number=number))
        local: list[Order] = []
        for order in outcome.orders:
            if is_local(order):
                local.append(order)
            elif (target := session_of(order)) is not None and target in self._sessions:
                self._sessions[target].send(Command(order=order, term=self._loop.term))
        if local and self._local is not None:
            self._local.submit(local)
        for job in outcome.ended:
            self._tell_end(job, list(self._connections))

    def _expel(self) -> None:
        """Whoever came in by what was revoked goes at once."""
        for connection, principal in list(self._principals.items()):
            if self._authentication.is_revoked(principal):
                connection.drop(f"{principal.proof} of {principal.name} was revoked", flush=False)

    def _renew(self, issued: CertificateIssued) -> None:
        """Whoever is connected by the certificate that was renewed stays, from now on by the new one."""
        old, new = f"certificate:{issued.replaces}", f"certificate:{issued.serial}"
        for connection, principal in self._principals.items():
            if principal.proof == old:
                self._principals[connection] = replace(principal, proof=new)

    def _cut_expired(self) -> None:
        """Whoever let its certificate expire goes, as whoever comes with such a one is refused."""
        now_s = self._clock.now_s()
        if now_s - self._looked_s < EXPIRED_LOOK_S:
            return
        self._looked_s = now_s
        for connection, principal in list(self._principals.items()):
            if self._authentication.has_run_out(principal, EXPIRED_GRACE_S):
                connection.drop(f"the certificate of {principal.name} has expired; `keepstep join` gives a new one")

    def _tell_end(self, job: JobId, connections: Iterable[Connection]) -> None:
        ended = self._loop.books.world.jobs[job]
        message = JobEnded(job=job, exit_code=ended.exit_code or 0, message=ended.message)
        for connection in connections:
            hello = connection.hello
            if hello is not None and hello.job == job and hello.role in ("front", "launcher"):
                connection.send(message)
