"""Puts the server together. The only place of it that reads arguments and the environment."""

import asyncio
import contextlib
import functools
import importlib
import logging
import os
import resource
import secrets
import signal
import socket
import ssl
import sys
import time
import tomllib
from typing import TYPE_CHECKING, Any

import msgspec

from keepstep.adapters.database.opening import Database, open_database
from keepstep.adapters.server_link.address import is_loopback, parse_address
from keepstep.adapters.server_link.credentials import Credentials
from keepstep.adapters.server_link.tls import server_context
from keepstep.core.access import OWNER
from keepstep.core.catalog import CATALOG, Catalog
from keepstep.core.catalog.override import override
from keepstep.core.ids import NodeId
from keepstep.logs import configure
from keepstep.ports import Bmc, JournalCorrupt, JournalSchemaNewer, JournalUnavailable
from keepstep.server.authentication import Authentication
from keepstep.server.bmc_file import open_bmc, read_bmc_file
from keepstep.server.clock import ServerClock
from keepstep.server.collecting import Collecting
from keepstep.server.config import HttpAddress, ServerConfig, read_config
from keepstep.server.following import Following
from keepstep.server.forwarding import Forwarding
from keepstep.server.history import Books
from keepstep.server.leader import Equipment, Leader, MakeEnrolment
from keepstep.server.listening import Listening, bind, url_host
from keepstep.server.observability import open_observability
from keepstep.server.reception import Reception
from keepstep.server.replay import file_away
from keepstep.server.replica import Replica, Standing
from keepstep.server.site import Bulletin, NoLeader
from keepstep.server.snapshot import load
from keepstep.server.state_dir import HttpSign, ServerLock, StateDir, StateDirInUse
from keepstep.wire.requests import SetPolicy

if TYPE_CHECKING:
    from keepstep.adapters.pki.authority import Authority, ServerIdentity

log = logging.getLogger("keepstep.server")

DAY_S = 86400.0
IDLE_CHECK_S = 0.5
ANSWER_WAIT_S = 5.0
"""How long the holder of the state directory has to answer before a second server calls it stuck."""
COMING_UP_WAIT_S = 60.0
"""The same while it only starts, which a busy machine or a slow disk may draw out."""


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 in peace (for a run also where another server answers), 1 for bad input or journal, 70 for a bug of ours,
    75 where another server runs for the state directory."""
    config = read_config(sys.argv[1:] if argv is None else argv, os.environ)
    configure(config.log_format)
    _raise_descriptor_limit()
    try:
        config.state.create()
        return serve(config)
    except StateDirInUse as error:
        return _second(config, str(error))
    except (ValueError, OSError, JournalCorrupt, JournalSchemaNewer, JournalUnavailable) as error:
        print(f"keepstep server: {_advised(error, config)}", file=sys.stderr)
        return 1


def _advised(error: Exception, config: ServerConfig) -> str:
    away = isinstance(error, JournalUnavailable) and config.shared
    return f"{error}; see that it runs, and what --database or $KEEPSTEP_DATABASE names" if away else str(error)


def serve(config: ServerConfig) -> int:
    """Run until told to end, or idle. Raises StateDirInUse and what the journal raises when it is opened."""
    with contextlib.ExitStack() as stack:
        if not config.follow:
            stack.callback(ServerLock(config.state).release)
            _say_who_keeps_it(config)
        database = open_database(config.database or config.state.journal, read_only=config.follow)
        stack.callback(database.close)
        return asyncio.run(_Server(config, database).run())


def _say_who_keeps_it(config: ServerConfig) -> None:
    if config.exit_when_idle_s is None:
        config.state.kept_file.touch()
    else:
        config.state.kept_file.unlink(missing_ok=True)


class _Server:
    """The parts of one process, and their order at its beginning and its end."""

    def __init__(self, config: ServerConfig, database: Database) -> None:
        self._config = config
        self._database = database
        self._identity = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._clock = ServerClock()
        self._reception = Reception()
        self._listening = Listening()
        self._token = config.state.token()
        self._catalog = _catalog(config.state)
        self._bmcs = _bmcs(config.state)
        self._collecting = Collecting()

    async def run(self) -> int:
        config, loop = self._config, asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        loop.set_exception_handler(lambda _, context: _crash(done, context))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _end, done, 0)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._listening.close)
            if not config.follow:
                await self._listening.open(config.listen, config.state, self._reception, self._tls)
            replica = self._replica(self._address())
            self._watch = open_observability(config.state.path, replica, self._identity, os.environ)
            stack.push_async_callback(self._watch.stop)
            web = self._make_web(replica)
            doors = self._doors(web, stack)
            running = asyncio.ensure_future(replica.run())
            stack.push_async_callback(replica.release)
            stack.push_async_callback(_cancel, running)
            running.add_done_callback(lambda task: _failed(done, task, config))
            await _first(replica.began, done)
            if self._config.names:
                stack.push_async_callback(_cancel, asyncio.ensure_future(self._keep_certificate()))
            if not done.done():
                await self._open_for_people(replica, web, doors, stack)
                self._publish()
                self._collecting.begin()
                if config.exit_when_idle_s is not None:
                    _leave_when_idle(replica, self._clock, config.exit_when_idle_s, done)
            code = await done
        log.info("server %s ends with code %d", self._identity, code)
        return code

    def _replica(self, address: str) -> Replica:
        config, database = self._config, self._database
        standing = Standing(
            identity=self._identity,
            address=address,
            lease_s=config.lease_s,
            may_lead=not config.follow,
            alone=not config.shared,
        )
        return Replica(
            standing, database.leadership, database.news(), self._reception, self._following, self._leader
        )  # fmt: skip

    def _following(self, bulletin: Bulletin) -> Following:
        database = self._database
        books = load(database.snapshots, database.journal, database.archive, files=False)
        self._clock.advance_to(books.history.last_s)
        made = Following(
            books, database.journal, self._clock, self._authentication(books), self._identity,
            Forwarding(Credentials.of(str(self._config.state.path), os.environ)),
        )  # fmt: skip
        made.bulletin = bulletin
        return made

    def _leader(self, following: Following, bulletin: Bulletin) -> Leader:
        books = following.books
        file_away(books)
        self._clock.advance_to(books.history.last_s)
        equipment = Equipment(
            state=self._config.state, identity=self._identity, catalog=self._catalog, bmcs=self._bmcs,
            authentication=self._authentication(books), enrolment=self._enrolment(books), watch=self._watch,
            database=self._config.database or str(self._config.state.journal), snapshots=self._database.snapshots,
        )  # fmt: skip
        return Leader(equipment, books, self._database.journal, self._clock, bulletin, self._reception)

    def _authentication(self, books: Books) -> Authentication:
        return Authentication(self._token, lambda: books.registry, self._clock)

    def _enrolment(self, books: Books) -> MakeEnrolment | None:
        if not self._config.names:
            return None
        from keepstep.server.enrolment import Enrolment

        authority = self._authority()
        return lambda hub: Enrolment(authority, lambda: books.registry, self._clock, hub.take)

    @functools.cached_property
    def _shown(self) -> "ServerIdentity":
        """The certificate by which others know this server."""
        return self._authority().server_identity(self._config.names, self._clock.now_s())

    async def _keep_certificate(self) -> None:
        """Made anew before it expires; whoever connects from then on is shown the new one."""
        while True:
            await asyncio.sleep(DAY_S)
            await asyncio.to_thread(self._authority().server_identity, self._config.names, self._clock.now_s())

    def _authority(self) -> "Authority":
        """Made on first need: a server on unix sockets and loopback needs none."""
        from keepstep.adapters.pki.authority import Authority

        return Authority.open(self._config.state.path / "ca")

    def _tls(self) -> ssl.SSLContext:
        own = self._shown
        return server_context(str(own.certificate), str(own.key), str(own.authority))

    def _address(self) -> str:
        """Where others reach this server."""
        known = self._listening.addresses
        reachable = [a for a in known if not a.path] or known
        return self._config.advertise or (str(reachable[0]) if reachable else "")

    def _doors(self, web: Any, stack: contextlib.AsyncExitStack) -> list[socket.socket]:
        """For HTTP. Had before this server leads: where a port is taken, nobody is to lead for that moment."""
        wanted = self._config.http
        doors = bind(wanted) if wanted is not None and web is not None else []
        for door in doors:
            stack.callback(door.close)
        return doors

    async def _open_for_people(
        self, replica: Replica, web: Any, doors: list[socket.socket], stack: contextlib.AsyncExitStack
    ) -> None:
        """Policy file and HTTP."""
        config = self._config
        if config.policy is not None and replica.leads:
            await _set_policy(replica, config.policy.read_text(encoding="utf-8"), str(config.policy))
        if config.http is not None and doors:
            serving, sign = self._open_http(config.http, web, doors)
            stack.push_async_callback(_cancel, serving)
            stack.callback(sign.take_down)

    def _make_web(self, replica: Replica) -> Any:
        """None where it is off, or missing and nobody insists. Raises ValueError where it is missing and somebody does."""
        wanted = self._config.http
        if wanted is None:
            return None
        try:
            web = importlib.import_module("keepstep.web.opening")
        except ImportError as error:
            if wanted.must:
                raise ValueError(f"--http needs the extra `server` (pip install 'keepstep[server]'): {error}") from None
            log.warning("no API and no dashboard: install the extra `server` (pip install 'keepstep[server]')")
            return None
        secure = not is_loopback(wanted.host)
        return web.Web(replica, owner_token=self._token, names=self._config.names, secure=secure)

    def _open_http(
        self, wanted: HttpAddress, web: Any, doors: list[socket.socket]
    ) -> "tuple[asyncio.Task[None], HttpSign]":
        """Serve API and dashboard. Beyond loopback only with a certificate."""
        secure = not is_loopback(wanted.host)
        serving: asyncio.Task[None] = web.open(doors, self._tls() if secure else None)
        url = f"http{'s' if secure else ''}://{url_host(wanted.host)}:{doors[0].getsockname()[1]}"
        sign = HttpSign(self._config.state, url)
        log.info("API and dashboard at %s; `keepstep dashboard` logs you in", url)
        return serving, sign

    def _publish(self) -> None:
        addresses = self._listening.addresses
        if addresses:
            self._config.state.publish(self._config.state.address_file, ",".join(map(str, addresses[:1])))
            listens = ", ".join(map(str, addresses))
            log.info("server %s of %s listens on %s", self._identity, self._config.state.path, listens)


async def _first(begun: asyncio.Event, done: "asyncio.Future[int]") -> None:
    """Until one of the two."""
    waiting = asyncio.ensure_future(begun.wait())
    done.add_done_callback(lambda _: waiting.cancel())
    await asyncio.wait({waiting})


async def _set_policy(replica: Replica, overrides: str, where: str) -> None:
    """Raises ValueError that says what is wrong with the file."""
    known = replica.desk().registry.policy
    if known is not None and known.overrides == overrides:
        return
    try:
        await replica.submit(SetPolicy(overrides=overrides), msgspec.structs.replace(OWNER, name=f"file {where}"))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    except NoLeader as error:
        log.warning("the policy of %s was not set: %s", where, error)


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _failed(done: "asyncio.Future[int]", task: "asyncio.Task[None]", config: ServerConfig) -> None:
    """The end of the role before its time is a bug of ours, or a journal that is not what it was."""
    if task.cancelled():
        return
    error = task.exception()
    if isinstance(error, JournalCorrupt | JournalSchemaNewer | JournalUnavailable):
        print(f"keepstep server: {_advised(error, config)}", file=sys.stderr)
        _end(done, 1)
    else:
        log.critical("the server cannot go on", exc_info=error)
        _end(done, 70)


def _raise_descriptor_limit() -> None:
    """One connection is one descriptor; a fleet has more than the usual soft limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _bmcs(state: StateDir) -> dict[NodeId, Bmc]:
    """The management controllers that the site names. Raises ValueError that says what is wrong with which."""
    return {node: open_bmc(state.bmcs, node, entry) for node, entry in read_bmc_file(state.bmcs).items()}


def _catalog(state: StateDir) -> Catalog:
    """The built-in catalogue, with the site's own rows where there are any. Raises ValueError that says what is wrong."""
    path = state.catalog
    if not path.exists():
        return CATALOG
    try:
        return override(CATALOG, tomllib.loads(path.read_text(encoding="utf-8")), path.name)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}; `keepstep catalog check` says the same of a file") from None


def _leave_when_idle(replica: Replica, clock: ServerClock, idle_s: float, done: "asyncio.Future[int]") -> None:
    """An embedded server ends with its last client."""
    leader = replica.role
    if isinstance(leader, Leader):
        leader.hub.on_leave = lambda: _end(done, 0)
        if leader.hub.idle and clock.now_s() - leader.hub.last_client_s >= idle_s:
            _end(done, 0)
            return
    asyncio.get_running_loop().call_later(min(IDLE_CHECK_S, idle_s), _leave_when_idle, replica, clock, idle_s, done)


def _crash(done: "asyncio.Future[int]", context: dict[str, Any]) -> None:
    """A bug of ours: end, so that the next life starts from the journal. Jobs train on meanwhile."""
    log.critical("%s", context.get("message"), exc_info=context.get("exception"))
    _end(done, 70)


def _end(done: "asyncio.Future[int]", code: int) -> None:
    if not done.done():
        done.set_result(code)


def _second(config: ServerConfig, holder: str) -> int:
    """Another server holds the state directory: fine for a run if that one answers, and for nobody who has asked for this
    one."""
    state = config.state
    began_s = time.monotonic()
    while True:
        text = state.address()
        try:
            if text is not None:
                parse_address(text).connect(1.0).close()
                whose = "" if state.kept_file.exists() else "; `keepstep run` started it, and it ends with the last job"
                print(f"a server (pid {holder}) already runs for {state.path} at {text}{whose}", file=sys.stderr)
                return 0 if config.exit_when_idle_s is not None else os.EX_TEMPFAIL
        except OSError:
            pass  # it is still on its way up
        if time.monotonic() - began_s > (COMING_UP_WAIT_S if state.is_coming_up() else ANSWER_WAIT_S):
            break
        time.sleep(0.05)
    print(
        f"keepstep server: {state.path} is held by pid {holder or 'unknown'}, which does not answer; end it first",
        file=sys.stderr,
    )
    return 1
