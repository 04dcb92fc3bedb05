"""``keepstep token``: secrets for people and programs, and tokens by which nodes join. The secret is made here and shown once:
the server is told its digest only."""

from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.terminal import JsonOption, StateDirOption, fail, print_json, said

token = typer.Typer(help="Tokens: who may come in, and as whom.", no_args_is_help=True)

JOIN_EXPIRES, API_EXPIRES = "1h", "90d"
NEVER = "never"
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@token.command("create")
def create(
    role: Annotated[
        str,
        typer.Option(
            help="viewer, operator, approver, admin or metrics; with --join: agent, launcher or replica. See "
            "docs/reference/access.md.",
            show_default=False,
        ),
    ],
    name: Annotated[
        str, typer.Option(help="Whose it is; with --join: the node that may join with it, any where left out.")
    ] = "",
    tenant: Annotated[
        list[str] | None, typer.Option(help="Bind it to a tenant; may be given several times. Default: all tenants.")
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            help=f"30m, 12h, 90d, or never. Default: {API_EXPIRES}, for a join token {JOIN_EXPIRES}.",
            metavar="AFTER",
            show_default=False,
        ),
    ] = None,
    join: Annotated[
        bool, typer.Option("--join", help="A token that buys one certificate, by `keepstep join`.")
    ] = False,
    state_dir: StateDirOption = None,
    json: JsonOption = False,
) -> None:
    """Make a token and print it. It cannot be shown again."""
    from keepstep.cli.reading import act, state_of
    from keepstep.server.registry import digest_of, new_secret
    from keepstep.wire.requests import IssueToken

    expires_in_s = duration_s(expires or (JOIN_EXPIRES if join else API_EXPIRES))
    if join and expires_in_s is None:
        fail("a join token must expire: give --expires, for example 1h", 2)
    _check_role(role, join)
    pin = _pin(state_of(state_dir).path) if join else ""
    secret = new_secret()
    accepted = act(
        state_dir,
        IssueToken(
            digest=digest_of(secret), kind="join" if join else "api", role=role, name=name,
            tenants=tuple(tenant or ()), expires_in_s=expires_in_s,
        ),
    )  # fmt: skip
    shown = secret
    if join:
        from keepstep.adapters.pki.pinning import join_token

        shown = join_token(secret, pin)
    if json:
        print_json({"id": accepted.subject, "token": shown})
        return
    typer.echo(shown)
    use = "keepstep join SERVER TOKEN" if join else "KEEPSTEP_SERVER_TOKEN, or the header Authorization: Bearer"
    typer.echo(f"{accepted.subject}: keep it now, it cannot be shown again; for {use}", err=True)


def duration_s(text: str) -> float | None:
    """``90d`` and the like; None for ``never``. Ends the program where it is neither."""
    if text == NEVER:
        return None
    unit = _UNITS_S.get(text[-1:])
    try:
        value = float(text[:-1])
    except ValueError:
        value = 0.0
    if unit is None or not 0 < value * unit < float("inf"):
        fail(f"{text!r} is no duration; write 30m, 12h, 90d, or {NEVER}", 2)
    return value * unit


def _check_role(role: str, join: bool) -> None:
    """Before a secret is made: a token that can never be used helps nobody."""
    from keepstep.core.access import PEOPLE, Role

    nodes = (Role.AGENT, Role.LAUNCHER, Role.REPLICA)
    fit = [one.value for one in (nodes if join else (*PEOPLE, Role.METRICS, *nodes))]
    if role not in fit:
        fail(f"{role!r} is no role {'that joins' if join else 'for a token'}; there are {', '.join(fit)}", 2)


def _pin(state_dir: Path) -> str:
    """The key of the authority that whoever joins will meet."""
    from keepstep.cli.needs import need

    need("cryptography", "server")
    from keepstep.adapters.pki.describe import describe_authority

    try:
        found = describe_authority(state_dir)
    except (OSError, ValueError) as error:
        fail(f"the certificate authority in {state_dir} cannot be read: {error}")
    if found is None:
        fail(
            f"{state_dir} knows no certificate authority: run this where the server runs, after it has listened on a tls: "
            "address once, or on a machine that has joined"
        )
    return found[1].pin


@token.command("list")
def list_(state_dir: StateDirOption = None, json: JsonOption = False) -> None:
    """List tokens that were not revoked. Their secrets are known to nobody but their holders."""
    from keepstep.cli.reading import ask
    from keepstep.cli.tables import show, table
    from keepstep.cli.terminal import moment
    from keepstep.server.access_views import Tokens

    found = ask(state_dir, "tokens", Tokens)
    if json:
        print_json(found)
        return
    made = table("id", "for", "role", "name", "tenants", "expires", "state", "made by", flexible=("name", "tenants"))
    for one in found.tokens:
        tenants = ", ".join(one.tenants) or "all"
        expires = moment(one.expires_s) if one.expires_s is not None else NEVER
        made.add_row(one.id, one.kind, one.role, one.name or "any", tenants, expires, one.state, one.by)
    show(made, "no token was made yet; the token file of the state directory is the owner's")


@token.command("revoke")
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="As `keepstep token list` shows it.", show_default=False)],
    state_dir: StateDirOption = None,
    json: JsonOption = False,
) -> None:
    """Take a token back. A certificate that it bought stays: revoke that with `keepstep ca revoke`."""
    from keepstep.cli.reading import act
    from keepstep.wire.requests import RevokeToken

    said(f"{id} is revoked", act(state_dir, RevokeToken(id=id)), json)
