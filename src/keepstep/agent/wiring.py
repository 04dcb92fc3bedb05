"""Reads the agent's configuration once, puts its parts together and runs them. Owns the command line."""

import argparse
import asyncio
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence

from keepstep import logs
from keepstep.adapters.local import procfs
from keepstep.adapters.server_link.address import FORMS, parse_addresses
from keepstep.adapters.server_link.credentials import Credentials, new_session
from keepstep.agent import sources
from keepstep.agent.agent import Agent
from keepstep.agent.config import Config, read_config
from keepstep.agent.once import look_once
from keepstep.agent.settings import Settings
from keepstep.agent.sources import Surroundings
from keepstep.core.ids import NodeId
from keepstep.ports import Source

_ONCE_S = 3.0


class AnotherRuns(ValueError):
    """A node has one agent for each state directory."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 in peace, 1 where it cannot run, 2 for wrong input."""
    options = _parser().parse_args(arguments)
    try:
        logs.configure(options.log_format, text="[keepstep agent] %(message)s")
        settings = read_settings(options, os.environ)
        wanted = names_of(settings)
        os.makedirs(settings.own_dir, mode=0o700, exist_ok=True)
        if options.once:
            made = _make(settings, wanted, lambda: False, keeps=False)
            return asyncio.run(look_once(settings, made, options.for_s, as_json=options.json))
        with _Lock(settings), logs.about(node=settings.node, session=settings.session):
            return asyncio.run(_run(settings, wanted))
    except AnotherRuns as error:
        print(f"keepstep agent: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"keepstep agent: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"keepstep agent: {error}", file=sys.stderr)
        return 1


async def _run(settings: Settings, wanted: Sequence[str]) -> int:
    holder: list[Agent] = []
    made = _make(settings, wanted, lambda: bool(holder) and holder[0].is_settled, keeps=True)
    agent = Agent(settings, made, Credentials.of(settings.state_dir, os.environ))
    holder.append(agent)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, agent.stop)
    await agent.run()
    return 0


def _make(settings: Settings, wanted: Sequence[str], is_settled: Callable[[], bool], *, keeps: bool) -> list[Source]:
    """Raises ValueError that names the configuration file, where it is one of its tables."""
    around = Surroundings(settings, procfs.boot_id(), keeps, is_settled)
    try:
        return [sources.make(name, around) for name in wanted]
    except ValueError as error:
        raise ValueError(f"{settings.config}: {error}" if settings.config else str(error)) from error


class _Lock:
    """Held for the life of the agent. Released by the kernel however it ends."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._fd = -1

    def __enter__(self) -> None:
        """Raises AnotherRuns."""
        self._fd = os.open(self._settings.file("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise AnotherRuns(
                f"an agent of node {self._settings.node} already runs for {self._settings.state_dir}"
            ) from None

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="keepstep agent",
        description="Watches hardware, kernel, network and dependencies of this node and tells the server.",
    )
    parser.add_argument(
        "--config", default="", metavar="FILE", help="TOML file with tables for sources and dependencies"
    )
    parser.add_argument("--server", default="", metavar="ADDRESS,…", help=f"{FORMS}; several for replicas")
    parser.add_argument("--node", default="", help="name of this node, as launchers call it; the host name by default")
    parser.add_argument("--state-dir", default="", help="token of the server, holds, and how far logs were read")
    parser.add_argument(
        "--sources", default="", metavar="NAME,…", help=f"of {', '.join(sources.NAMES)}; all by default"
    )
    parser.add_argument("--once", action="store_true", help="look once, print what is seen, and leave")
    parser.add_argument("--for-s", type=float, default=_ONCE_S, metavar="S", help="with --once: how long to look")
    parser.add_argument("--json", action="store_true", help="with --once: print JSON")
    parser.add_argument("--log-format", choices=logs.FORMATS, help="$KEEPSTEP_LOG_FORMAT by default, else text")
    return parser


def read_settings(options: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Argument, then environment, then configuration file, then default. Raises ValueError that says what to change."""
    config = read_config(options.config) if options.config else Config()
    node = options.node or environ.get("KEEPSTEP_NODE") or config.agent.get("node") or socket.gethostname()
    if not node or "/" in node:
        raise ValueError(f"the node is called {node!r}; --node must be a name without '/'")
    server = options.server or environ.get("KEEPSTEP_SERVER") or config.agent.get("server", "")
    if server:
        parse_addresses(server, "--server")
    state_dir = options.state_dir or environ.get("KEEPSTEP_STATE_DIR") or config.agent.get("state_dir")
    settings = Settings(
        node=NodeId(node),
        session=new_session(),
        server=server,
        state_dir=os.path.abspath(state_dir or _default_state_dir(environ)),
        domains=config.domains,
        sources=_wanted(options.sources, config),
        options=config.options,
        dependencies=config.dependencies,
        mounts=config.mounts,
        services=config.services,
        devices=config.devices,
        config=options.config,
    )
    sources.check_options(settings)
    return settings


def names_of(settings: Settings) -> tuple[str, ...]:
    """The sources that shall run. Raises ValueError for one that there is not."""
    wanted = settings.sources if settings.sources is not None else sources.NAMES
    extra = next((name for name in wanted if name not in sources.NAMES), None)
    if extra is not None:
        raise ValueError(f"there is no source {extra!r}; --sources takes {', '.join(sources.NAMES)}")
    return tuple(dict.fromkeys(wanted))


def _wanted(text: str, config: Config) -> tuple[str, ...] | None:
    if text:
        return tuple(name.strip() for name in text.split(",") if name.strip())
    return tuple(config.agent["sources"]) if "sources" in config.agent else None


def _default_state_dir(environ: Mapping[str, str]) -> str:
    """The server's default."""
    base = environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "keepstep")
