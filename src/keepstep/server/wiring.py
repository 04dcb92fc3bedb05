"""Puts the server together. The only place of it that reads arguments and the environment."""

import argparse
import asyncio
import logging
import os
import secrets
import signal
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepstep import __version__
from keepstep.adapters.local import LocalHost
from keepstep.adapters.sqlite.journal import SqliteJournal
from keepstep.core.catalog import CATALOG, Catalog
from keepstep.core.catalog.override import override
from keepstep.core.ids import NodeId
from keepstep.core.policy import Policy
from keepstep.ports import Bmc, JournalCorrupt, JournalSchemaNewer, JournalUnavailable
from keepstep.server.address import Address, parse_address
from keepstep.server.bmc_file import open_bmc, read_bmc_file
from keepstep.server.clock import ServerClock
from keepstep.server.connection import Connection
from keepstep.server.hub import Hub
from keepstep.server.leading import LeadingSite
from keepstep.server.local_orders import LocalOrders
from keepstep.server.loop import ControlLoop
from keepstep.server.out_of_band import OutOfBand
from keepstep.server.replay import replay
from keepstep.server.state_dir import ServerLock, StateDir, StateDirInUse, default_state_dir

log = logging.getLogger("keepstep.server")

IDLE_CHECK_S = 0.5
ANSWER_WAIT_S = 5.0
"""How long the holder of the state directory has to answer before a second server calls it stuck."""


@dataclass(frozen=True)
class ServerConfig:
    state: StateDir
    listen: Address | None = None
    """None: a unix socket in the state directory."""
    exit_when_idle_s: float | None = None
    """Leave this long after the last job and the last client; None: stay."""


def parse_config(argv: list[str]) -> ServerConfig:
    parser = argparse.ArgumentParser(prog="keepstep server", description="The control plane of one state directory.")
    parser.add_argument(
        "--state-dir", type=Path, default=None, help="default: $KEEPSTEP_STATE_DIR or the XDG state directory"
    )
    parser.add_argument(
        "--listen", default=None, metavar="ADDRESS", help="unix:/path or tcp:host:port (port 0: any free one)"
    )
    parser.add_argument("--exit-when-idle-s", type=float, default=None, metavar="S")
    options = parser.parse_args(argv)
    try:
        listen = parse_address(options.listen) if options.listen else None
    except ValueError as error:
        parser.error(str(error))
    return ServerConfig(StateDir(options.state_dir or default_state_dir()), listen, options.exit_when_idle_s)


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 in peace (also where another server answers), 1 for bad input or journal, 70 for a bug of ours."""
    config = parse_config(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        config.state.create()
        return serve(config)
    except StateDirInUse as error:
        return _second(config.state, str(error))
    except (ValueError, OSError, JournalCorrupt, JournalSchemaNewer, JournalUnavailable) as error:
        print(f"keepstep server: {error}", file=sys.stderr)
        return 1


def serve(config: ServerConfig) -> int:
    """Run until told to end, or idle. Raises StateDirInUse and what the journal raises when it is opened."""
    lock = ServerLock(config.state)
    try:
        journal = SqliteJournal(config.state.journal)
        try:
            return asyncio.run(_serve(config, journal))
        finally:
            journal.close()
    finally:
        lock.release()


async def _serve(config: ServerConfig, journal: SqliteJournal) -> int:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[int] = loop.create_future()
    loop.set_exception_handler(lambda _, context: _crash(done, context))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, done, 0)
    books = replay(journal)
    clock = ServerClock(not_before_s=books.history.last_s)
    policy = Policy(catalog=_catalog(config.state))
    control = ControlLoop(journal, books, policy, clock)
    identity = f"{os.getpid()}-{secrets.token_hex(4)}"
    control.start(identity, __version__)
    hub = Hub(control, config.state.token(), identity, clock)
    bmcs = _bmcs(config.state)
    local = LocalOrders(LocalHost(), config.state.repairs, books.history.processes.get, hub.observe, bmcs)
    out_of_band = OutOfBand(bmcs, hub.observe, catalog=policy.catalog)
    LeadingSite(control, hub, journal, clock)
    server, address = await _listen(config, hub)
    hub.run(local)
    out_of_band.start()
    config.state.publish_address(address)
    log.info("server %s of %s listens on %s", identity, config.state.path, address)
    if config.exit_when_idle_s is not None:
        hub.on_leave = lambda: _end(done, 0)
        _leave_when_idle(hub, clock, config.exit_when_idle_s, done)
    code = await done
    await out_of_band.stop()
    hub.stop()
    server.close()
    if address.startswith("unix:"):
        Path(address.removeprefix("unix:")).unlink(missing_ok=True)
    log.info("server %s ends with code %d", identity, code)
    return code


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


async def _listen(config: ServerConfig, hub: Hub) -> tuple[asyncio.Server, str]:
    """Bound and accepting. A socket file that is already there is a dead server's: the lock says that none lives."""
    loop = asyncio.get_running_loop()
    address = config.listen or parse_address(config.state.default_address())
    if address.path:
        path = Path(address.path)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.parent.stat().st_uid != os.getuid():
            raise ValueError(f"{path.parent} belongs to somebody else; use --listen unix:/path in a directory of yours")
        path.unlink(missing_ok=True)
        server = await loop.create_unix_server(lambda: Connection(hub), address.path)
        path.chmod(0o600)
        return server, str(address)
    server = await loop.create_server(lambda: Connection(hub), address.host, address.port)
    return server, str(Address(host=address.host, port=server.sockets[0].getsockname()[1]))


def _leave_when_idle(hub: Hub, clock: ServerClock, idle_s: float, done: "asyncio.Future[int]") -> None:
    if hub.idle and clock.now_s() - hub.last_client_s >= idle_s:
        _end(done, 0)
        return
    asyncio.get_running_loop().call_later(min(IDLE_CHECK_S, idle_s), _leave_when_idle, hub, clock, idle_s, done)


def _crash(done: "asyncio.Future[int]", context: dict[str, Any]) -> None:
    """A bug of ours: end, so that the next life starts from the journal. Jobs train on meanwhile."""
    log.critical("%s", context.get("message"), exc_info=context.get("exception"))
    _end(done, 70)


def _end(done: "asyncio.Future[int]", code: int) -> None:
    if not done.done():
        done.set_result(code)


def _second(state: StateDir, holder: str) -> int:
    """Another server holds the state directory: fine if it answers."""
    deadline = time.monotonic() + ANSWER_WAIT_S
    while time.monotonic() < deadline:
        text = state.address()
        try:
            if text is not None:
                parse_address(text).connect(1.0).close()
                print(f"a server (pid {holder}) already runs for {state.path} at {text}", file=sys.stderr)
                return 0
        except OSError:
            pass  # it is still on its way up
        time.sleep(0.05)
    print(
        f"keepstep server: {state.path} is held by pid {holder or 'unknown'}, which does not answer; end it first",
        file=sys.stderr,
    )
    return 1
