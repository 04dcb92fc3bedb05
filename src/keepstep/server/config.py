"""What a server is told at its start. Owns its command line; opens nothing."""

import argparse
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from keepstep.adapters.server_link.address import Address, is_loopback, parse_address
from keepstep.logs import FORMATS
from keepstep.server.state_dir import StateDir, default_state_dir

LEASE_S = 3.0
"""A leader that is gone is replaced after this long at the latest."""
HTTP_DEFAULT = "127.0.0.1:7447"
OFF = "off"
EVERYWHERE = ("0.0.0.0", "::", "")
"""To listen on; nobody dials it."""


@dataclass(frozen=True)
class HttpAddress:
    host: str
    port: int
    must: bool
    """Fail where it cannot be had; else any other free port does."""


@dataclass(frozen=True)
class ServerConfig:
    state: StateDir
    database: str = ""
    """``postgresql://…``; empty: a SQLite file in the state directory."""
    listen: tuple[Address, ...] = ()
    """None: a unix socket in the state directory."""
    http: HttpAddress | None = None
    advertise: str = ""
    """Where others reach this server; empty: the first address that is no unix socket, else that one."""
    hosts: tuple[str, ...] = ()
    """Names and addresses that stand in its certificate, beside those it listens on."""
    lease_s: float = LEASE_S
    follow: bool = False
    """Never lead."""
    policy: Path | None = None
    log_format: str = "text"
    exit_when_idle_s: float | None = None
    """Leave this long after the last job and the last client; None: stay."""

    @property
    def shared(self) -> bool:
        """Other servers may write the same database."""
        return bool(self.database)

    @property
    def names(self) -> tuple[str, ...]:
        """For the certificate: everything by which somebody may dial. Empty where none is needed: on loopback and on unix
        sockets."""
        own = [a.host for a in self.listen if a.kind == "tls"]
        if self.http is not None and not is_loopback(self.http.host):
            own.append(self.http.host)
        if not own:
            return ()
        named = [name for name in (*self.hosts, *own) if name not in EVERYWHERE]
        return tuple(dict.fromkeys(named or (socket.gethostname(),)))


def read_config(argv: Sequence[str], environ: Mapping[str, str]) -> ServerConfig:
    """Ends the program with a message for wrong input."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        listen = tuple(map(parse_address, options.listen))
        http = parse_http(options.http, must=options.http != HTTP_DEFAULT)
    except ValueError as error:
        parser.error(str(error))
    if options.database == "":
        parser.error(
            "--database is empty; write postgresql://…, or leave it out for a SQLite file in the state directory"
        )
    if options.lease_s < 1.0:
        parser.error(f"--lease-s is {options.lease_s}; below 1 s every pause of a server would change the leader")
    return ServerConfig(
        state=StateDir((options.state_dir or default_state_dir()).absolute()),
        database=options.database or environ.get("KEEPSTEP_DATABASE", ""),
        listen=listen,
        http=http,
        advertise=options.advertise,
        hosts=tuple(options.host),
        lease_s=options.lease_s,
        follow=options.follow,
        policy=options.policy,
        log_format=options.log_format or environ.get("KEEPSTEP_LOG_FORMAT", "text"),
        exit_when_idle_s=options.exit_when_idle_s,
    )


def parse_http(text: str, *, must: bool = True) -> HttpAddress | None:
    """``host:port`` or ``off``. Raises ValueError."""
    if text == OFF:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"--http is {text!r}; write host:port, or off")
    return HttpAddress(host.strip("[]"), int(port), must)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="keepstep server", description="The control plane of one state directory.")
    add = parser.add_argument
    add("--state-dir", type=Path, default=None, help="default: $KEEPSTEP_STATE_DIR or the XDG state directory")
    add(
        "--database", default=None, metavar="URL",
        help="postgresql://…: several servers share it, one leads; default: $KEEPSTEP_DATABASE, else a SQLite file",
    )  # fmt: skip
    add(
        "--listen", action="append", default=[], metavar="ADDRESS",
        help="unix:/path, tls:host:port, or (loopback only) tcp:host:port; may be given several times",
    )  # fmt: skip
    add("--http", default=OFF, metavar="HOST:PORT", help="where API and dashboard answer; off by default")
    add(
        "--advertise",
        default="",
        metavar="ADDRESS",
        help="where launchers, agents and the other servers reach this one",
    )
    add("--host", action="append", default=[], metavar="NAME", help="a further name or address for its certificate")
    add("--lease-s", type=float, default=LEASE_S, metavar="S", help="how long a leader that is gone still counts")
    add("--follow", action="store_true", help="answer questions only, and never lead")
    add("--policy", type=Path, default=None, metavar="FILE", help="TOML; set where it differs from what is set")
    add("--log-format", choices=FORMATS, default="", help="default: $KEEPSTEP_LOG_FORMAT, else text")
    add("--exit-when-idle-s", type=float, default=None, metavar="S")
    return parser
