"""``keepstep ca``: the built-in certificate authority, and the certificates that it gave out. Owns no cryptography."""

from typing import Annotated

import typer

from keepstep.cli.terminal import JsonOption, StateDirOption, fail, moment, print_json, said

ca = typer.Typer(help="Certificates: the authority, who has one, and taking one back.", no_args_is_help=True)


@ca.command("show")
def show(state_dir: StateDirOption = None, json: JsonOption = False) -> None:
    """Show the authority that this machine trusts, and its own identity."""
    from keepstep.cli.needs import need
    from keepstep.cli.reading import state_of

    need("cryptography", "server")
    from keepstep.adapters.pki.describe import describe_authority
    from keepstep.adapters.pki.request import NoIdentity, read_identity

    path = state_of(state_dir).path
    try:
        authority = describe_authority(path)
    except (OSError, ValueError) as error:
        fail(f"the authority in {path} cannot be read: {error}")
    try:
        identity = read_identity(path / "identity")
    except NoIdentity as error:
        identity, why = None, str(error)
    if authority is None and identity is None:
        fail(
            f"{path} has neither an authority (a server that listens on tls: makes one) nor an identity (`keepstep join`)"
        )
    if json:
        own = {"role": identity.role, "name": identity.name, "serial": identity.serial,
               "expires_s": identity.not_after_s} if identity is not None else None  # fmt: skip
        print_json({"authority": authority[1] if authority is not None else None, "identity": own})
        return
    if authority is not None:
        file, known = authority
        typer.echo(f"authority    {file}")
        typer.echo(f"fingerprint  {known.fingerprint} (SHA-256)")
        typer.echo(f"until        {moment(known.expires_s)}")
    if identity is not None:
        until = moment(identity.not_after_s)
        typer.echo(f"identity     {identity.role} {identity.name}, serial {identity.serial}, until {until}")
    else:
        typer.echo(f"identity     none: {why}")


@ca.command("list")
def list_(state_dir: StateDirOption = None, json: JsonOption = False) -> None:
    """List the certificates that were given out and have not ended long ago."""
    from keepstep.cli.reading import ask
    from keepstep.cli.tables import show as show_table
    from keepstep.cli.tables import table
    from keepstep.server.access_views import Certificates

    found = ask(state_dir, "certificates", Certificates)
    if json:
        print_json(found)
        return
    made = table("serial", "role", "name", "tenants", "until", "state", flexible=("serial", "name", "tenants", "state"))
    for one in found.certificates:
        state = f"{one.state}: {one.reason}" if one.reason else one.state
        made.add_row(one.serial, one.role, one.name, ", ".join(one.tenants) or "all", moment(one.expires_s), state)
    show_table(
        made, "no certificate was given out yet; `keepstep token create --join`, then `keepstep join` on the node"
    )


@ca.command("revoke")
def revoke(
    which: Annotated[
        str,
        typer.Argument(
            metavar="SERIAL|NAME", help="One certificate, or all that a node has, by its name.", show_default=False
        ),
    ],
    reason: Annotated[str, typer.Option(help="Why, for the record.", show_default=False)] = "",
    state_dir: StateDirOption = None,
    json: JsonOption = False,
) -> None:
    """Take a certificate back, with all that it was renewed into. Its holder is refused from the next connection on."""
    from keepstep.cli.reading import act, ask
    from keepstep.server.access_views import Certificates
    from keepstep.wire.requests import RevokeCertificate

    known = ask(state_dir, "certificates", Certificates).certificates
    serials = [one.serial for one in known if one.name == which and one.state in ("good", "replaced")]
    for serial in serials or [which]:
        said(f"{serial} is revoked", act(state_dir, RevokeCertificate(serial=serial, reason=reason)), json)


@ca.command("renew")
def renew(
    server: Annotated[
        str | None,
        typer.Option(
            help="tls:host:port. Default: $KEEPSTEP_SERVER, else what the state directory says.", metavar="ADDRESS"
        ),
    ] = None,
    state_dir: StateDirOption = None,
) -> None:
    """Renew this machine's certificate now, with a new key. Its programs do so by themselves while they run."""
    import asyncio

    from keepstep.cli.needs import need
    from keepstep.cli.reading import state_of

    need("cryptography", "server")
    import msgspec

    from keepstep.adapters.pki.request import read_identity
    from keepstep.adapters.server_link import tls
    from keepstep.adapters.server_link.address import parse_addresses
    from keepstep.adapters.server_link.renewal import renew as renew_at
    from keepstep.adapters.server_link.sockets import Streams, open_streams
    from keepstep.cli.client import named_server

    state = state_of(state_dir)
    directory = state.path / "identity"

    async def dial() -> Streams:
        return await open_streams(address, tls.client_context(str(directory)), 10.0)

    try:
        identity = read_identity(directory)
        addresses = parse_addresses(server or named_server() or state.address() or "")
        address = next((one for one in addresses if one.tls), addresses[0])
        if not address.tls:
            fail(f"{address} is not encrypted; name the tls: address of the server with --server")
        asyncio.run(renew_at(identity.name, str(directory), dial))
        identity = read_identity(directory)
    except (OSError, ValueError, EOFError, TimeoutError, msgspec.DecodeError) as error:
        fail(f"not renewed: {error}")
    typer.echo(f"{identity.name} is {identity.role} until {moment(identity.not_after_s)}, serial {identity.serial}")
