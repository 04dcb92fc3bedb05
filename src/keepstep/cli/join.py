"""``keepstep join``: a join token becomes the identity of this machine. Owns no cryptography."""

import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.terminal import StateDirOption, fail

if TYPE_CHECKING:
    from keepstep.adapters.pki.joining import Joined
    from keepstep.adapters.pki.request import Identity
    from keepstep.server.state_dir import StateDir


def join(
    server: Annotated[
        str, typer.Argument(metavar="SERVER", help="tls:host:port, where the server listens.", show_default=False)
    ],
    token: Annotated[
        str,
        typer.Argument(
            metavar="TOKEN",
            help="From `keepstep token create --join`; - reads it from standard input.",
            show_default=False,
        ),
    ],
    name: Annotated[
        str, typer.Option(help="What this node is called, where the token leaves it open. Default: the host's name.")
    ] = "",
    host: Annotated[
        list[str] | None,
        typer.Option(help="Of a replica: a name or address under which it is reached; may be given several times."),
    ] = None,
    state_dir: StateDirOption = None,
) -> None:
    """Get this machine a certificate: once, with a token. Its programs renew it from then on.

    The token names the key of the server's authority: nothing is told to any other server.
    """
    from keepstep.cli.needs import need
    from keepstep.cli.reading import state_of

    need("cryptography", "server")
    from keepstep.adapters.pki.request import read_identity, store_identity

    state = state_of(state_dir)
    secret = sys.stdin.readline() if token == "-" else token
    try:
        state.create()
        joined, where = _joined(server, secret.strip(), name, tuple(host or ()))
        store_identity(state.path / "identity", joined.key, joined.certificate, joined.authority)
        identity = read_identity(state.path / "identity")
    except (ValueError, OSError) as error:
        fail(str(error) if isinstance(error, ValueError | ConnectionError) else f"cannot join {server}: {error}")
    if name and identity.name != name:
        typer.echo(f"keepstep: the token is for {identity.name}, so that is what this node is called", err=True)
    _welcome(state, identity, where)


def _joined(server: str, token: str, name: str, hosts: tuple[str, ...]) -> "tuple[Joined, str]":
    """What came, and where from: the server that leads, wherever one asked first."""
    from keepstep.adapters.pki.joining import FollowsOnly
    from keepstep.adapters.pki.joining import join as join_at
    from keepstep.adapters.server_link.address import parse_address

    if ":" in server and server.partition(":")[0] not in ("tls", "tcp", "unix"):
        server = f"tls:{server}"
    for last in (False, True):
        address = parse_address(server)
        if not address.tls:
            raise ValueError(f"{server} is not encrypted; certificates are handed out at tls:host:port only")
        try:
            return join_at(address.host, address.port, token, name or _host_name(), hosts), server
        except FollowsOnly as follower:
            if last or not follower.leader:
                raise
            server = follower.leader
    raise AssertionError("not reached")


def _host_name() -> str:
    return socket.gethostname().partition(".")[0]


def _welcome(state: "StateDir", identity: "Identity", server: str) -> None:
    from keepstep.cli.terminal import moment

    typer.echo(
        f"{identity.name} is {identity.role} until {moment(identity.not_after_s)}; renewed by itself from then on"
    )
    typer.echo(f"identity: {Path(state.path) / 'identity'}, serial {identity.serial}")
    if identity.role == "replica":
        return
    if not state.lock_file.exists():
        state.publish(state.address_file, server)
    start = {
        "agent": f"keepstep agent --server {server} --node {identity.name}",
        "launcher": f"keepstep run --server {server} --node {identity.name} … train.py",
    }
    typer.echo(f"start it with: {start.get(identity.role, '')}")
