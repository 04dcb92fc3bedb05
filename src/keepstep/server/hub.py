"""The hub: clients on one side, the loop on the other. Owns connections, batching, timers and the delivery of orders.

Everything that arrives within one pass of the event loop becomes one batch, so that a burst of facts costs one flush to
disk. Orders are delivered at least once: when they are decided, and again whenever their session connects.
"""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from keepstep.core.access import OWNER, Action, Principal, refusal
from keepstep.core.facts import Fact
from keepstep.core.ids import JobId, Session
from keepstep.core.intents import Order
from keepstep.core.job import TERMINAL
from keepstep.core.vitals import RankSample
from keepstep.ports import Clock, Engine, JournalUnavailable
from keepstep.server.connection import Connection
from keepstep.server.desk import Desk, UnknownSubject
from keepstep.server.local_orders import is_local, session_of
from keepstep.server.loop import ControlLoop, Received
from keepstep.server.queries import answer
from keepstep.server.requests import Forbidden
from keepstep.server.site import Bulletin
from keepstep.server.views import Leaving
from keepstep.wire.messages import (
    PROTOCOL,
    Ack,
    Act,
    Beat,
    Command,
    Health,
    Hello,
    JobEnded,
    Message,
    Query,
    Refused,
    Reply,
    Report,
    Superseded,
    Welcome,
)
from keepstep.wire.requests import Accepted, Request

log = logging.getLogger("keepstep.server")

JOURNAL_RETRY_S = 0.5
ROLES = ("launcher", "agent", "front", "tool")


class Hub:
    """Meets connection.Hub. ``identity`` names this life of the server."""

    def __init__(self, loop: ControlLoop, token: str, identity: str, clock: Clock) -> None:
        self._loop = loop
        self._token = token
        self.identity = identity
        self._clock = clock
        self._own = Session(f"server-{identity}")
        self._own_reports = 0
        self._connections: dict[Connection, None] = {}
        self._sessions: dict[Session, Connection] = {}
        self._wake: asyncio.Handle | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._local: Engine | None = None
        self._superseded_s: dict[Connection, float] = {}
        self._principals: dict[Connection, Principal] = {}
        self._waiting: dict[Session, asyncio.Future[int]] = {}
        """Request -> whoever waits until it is in the journal."""
        self.bulletin = Bulletin()
        self.last_client_s = clock.now_s()
        self._tasks: set[asyncio.Task[None]] = set()
        self.act: Callable[[Request, Principal, str], Awaitable[Accepted]]
        """How a request is taken; see server.leading."""
        self.refused: Callable[[str, str, str], None] = lambda who, what, why: None
        self.on_leave: Callable[[], None] | None = None
        """Ends an embedded server; None for one that was started to stay."""

    def run(self, local: Engine) -> None:
        """Begin. ``local`` carries out the orders that no launcher can; open ones of an earlier life go to it again."""
        self._local = local
        local.submit(o for o in self._loop.open_orders() if is_local(o))
        self._work()

    def stop(self) -> None:
        """Close what is open; clients come back to the next life of the server."""
        for handle in (self._tick, self._wake):
            if handle is not None:
                handle.cancel()
        for connection in list(self._connections):
            connection.close()

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
        principal = self._identify(hello)
        if principal is None:
            self.refused("(unknown)", f"Hello as {hello.role}", "wrong token")
            return Refused(reason="wrong token: use the `token` file of the server's state directory")
        if hello.role not in ROLES:
            return Refused(reason=f"unknown role {hello.role!r}; known: {', '.join(ROLES)}")
        if hello.role == "launcher" and None in (hello.job, hello.node, hello.session):
            return Refused(reason="a launcher's Hello names its job, node and session")
        if hello.role == "agent" and None in (hello.node, hello.session):
            return Refused(reason="an agent's Hello names its node and session")
        self._connections[connection] = None
        self._principals[connection] = principal
        self.last_client_s = self._clock.now_s()
        if hello.session is not None:
            self._sessions[hello.session] = connection
        asyncio.get_running_loop().call_soon(self._greet, connection, hello)
        return Welcome(
            protocol=PROTOCOL,
            server=self.identity,
            acked=self._loop.acked(hello.session) if hello.session else 0,
            term=self._loop.term,
        )

    def _identify(self, hello: Hello) -> Principal | None:
        """Whoever can read the token file of the state directory owns it; else the token must have been issued."""
        if hmac.compare_digest(hello.token.encode(), self._token.encode()):
            return msgspec.structs.replace(OWNER, name=hello.user or OWNER.name)
        return self._loop.books.registry.of_token(hello.token, self._clock.now_s())

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
            for order in self._loop.open_orders():
                if not is_local(order) and session_of(order) == hello.session:
                    connection.send(Command(order=order, term=self._loop.term))
        if hello.role == "agent":
            assert hello.node is not None and hello.session is not None
            self._loop.vitals.agent_connected(hello.node, hello.session, self._clock.now_s())
        if job is not None and job.state in TERMINAL and (not hello.run or hello.run in job.runs):
            self._tell_end(job.id, [connection])

    def received(self, connection: Connection, message: Message) -> None:
        match message:
            case Report():
                self._report(connection, message)
            case Beat():
                self._beat(connection, message)
            case Health() if connection.hello is not None and connection.hello.node is not None:
                self._loop.vitals.health[connection.hello.node] = message.report
            case Query():
                connection.send(self._answer(message))
            case Act():
                self._act(connection, message)
            case _:
                connection.drop(f"it sent {type(message).__name__}, which is the server's to send")

    def closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._superseded_s.pop(connection, None)
        self._principals.pop(connection, None)
        self.last_client_s = self._clock.now_s()
        hello = connection.hello
        if hello is None or hello.session is None or self._sessions.get(hello.session) is not connection:
            return
        del self._sessions[hello.session]
        if hello.role == "agent" and hello.node is not None:
            self._loop.vitals.agent_disconnected(hello.node, hello.session)
        if hello.role == "launcher" and hello.job is not None and hello.node is not None:
            job = self._loop.books.world.jobs.get(hello.job)
            launcher = job.launchers.get(hello.node) if job else None
            if launcher is not None and launcher.session == hello.session and launcher.left:
                self._loop.vitals.nodes.pop((hello.job, hello.node), None)  # it said goodbye; this is not silence
            else:
                self._loop.vitals.disconnected(hello.job, hello.node, hello.session)

    # ---- what clients send

    def _report(self, connection: Connection, report: Report) -> None:
        hello = connection.hello
        assert hello is not None
        if hello.session is None:
            connection.drop("it reports without a session in its Hello")
            return
        self._loop.receive(Received(report.fact, hello.session, report.number))
        self._wake_up()

    def _beat(self, connection: Connection, beat: Beat) -> None:
        hello = connection.hello
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

    def _supersede(self, connection: Connection, generation: int) -> None:
        """At most once a second per connection."""
        now_s = self._clock.now_s()
        if now_s - self._superseded_s.get(connection, 0.0) >= 1.0:
            self._superseded_s[connection] = now_s
            connection.send(Superseded(generation=generation))

    def _answer(self, query: Query) -> Reply:
        if query.what == "leave":
            return Reply(ok=True, body=msgspec.Raw(msgspec.msgpack.encode(self._leaving())))
        try:
            view = answer(self.desk(), query.what, query.args)
        except (UnknownSubject, ValueError) as error:
            return Reply(ok=False, error=str(error))
        return Reply(ok=True, body=msgspec.Raw(msgspec.msgpack.encode(view)))

    def _leaving(self) -> Leaving:
        """The last client of an embedded server sees it off, so that nothing is left behind."""
        alone = len(self._connections) <= 1 and not self._loop.books.world.live_jobs
        if self.on_leave is None or not alone:
            return Leaving(leaves=False)
        asyncio.get_running_loop().call_soon(self.on_leave)
        return Leaving(leaves=True)

    def desk(self) -> Desk:
        """Everything that a question may look at, as of now."""
        return Desk(self._loop.books, self._loop.vitals, self._clock.now_s())

    async def take(self, fact: Fact, session: Session) -> int:
        """One fact of a session of its own, which says nothing else. Returns its entry's number once it is in the journal;
        0 where it was there before."""
        waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[session] = waiting
        self._loop.receive(Received(fact, session, 1))
        self._wake_up()
        return await waiting

    def _act(self, connection: Connection, act: Act) -> None:
        """Answers come when they are durable; a client that asks several things gets them in the order of that."""
        task = asyncio.get_running_loop().create_task(self._acted(connection, act))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _acted(self, connection: Connection, act: Act) -> None:
        asker = self._principals[connection]
        try:
            if act.by is not None and (why := refusal(asker, Action.FORWARD)):
                raise Forbidden(why)
            accepted = await self.act(act.request, act.by or asker, act.key)
        except (Forbidden, UnknownSubject, ValueError) as error:
            if isinstance(error, Forbidden):
                self.refused((act.by or asker).name, type(act.request).__name__, str(error))
            connection.send(Reply(ok=False, error=str(error), kind=type(error).__name__))
            return
        connection.send(Reply(ok=True, body=msgspec.Raw(msgspec.msgpack.encode(accepted))))

    def observe(self, *facts: Fact) -> None:
        """Facts of the server itself: what its own orders brought about."""
        for fact in facts:
            self._own_reports += 1
            self._loop.receive(Received(fact, self._own, self._own_reports))
        self._wake_up()

    # ---- the loop

    def _wake_up(self) -> None:
        if self._wake is None:
            self._wake = asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        """Fold, decide, keep, deliver. The only place that drives the loop."""
        self._wake = None
        try:
            self._loop.work()
            pause_s = self._loop.pause_s()
        except JournalUnavailable as error:
            log.error("%s; trying again (jobs train on, nothing new is decided)", error)
            pause_s = JOURNAL_RETRY_S
        finally:
            self._deliver()
        if self._tick is not None:
            self._tick.cancel()
        self._tick = asyncio.get_running_loop().call_later(pause_s, self._work)

    def _deliver(self) -> None:
        outcome = self._loop.collect()
        self.bulletin.publish(outcome.kept)
        for session, number in outcome.acks.items():
            if (waiting := self._waiting.pop(session, None)) is not None and not waiting.done():
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

    def _tell_end(self, job: JobId, connections: Iterable[Connection]) -> None:
        ended = self._loop.books.world.jobs[job]
        message = JobEnded(job=job, exit_code=ended.exit_code or 0, message=ended.message)
        for connection in connections:
            hello = connection.hello
            if hello is not None and hello.job == job and hello.role in ("front", "launcher"):
                connection.send(message)
