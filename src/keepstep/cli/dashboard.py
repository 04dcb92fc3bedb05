"""``keepstep dashboard``: a link that logs in. Owns the way to a server that shows one, and starts a reader where none does."""

import getpass
import subprocess
import sys
import time
import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.terminal import StateDirOption, fail

if TYPE_CHECKING:
    from keepstep.server.state_dir import StateDir

START_WAIT_S = 60.0
LOGIN_S = 12 * 3600.0
"""How long the link is good."""


def dashboard(
    state_dir: StateDirOption = None,
    http: Annotated[
        str, typer.Option(help="Where to serve it when no server does yet.", metavar="HOST:PORT")
    ] = "127.0.0.1:7447",
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser of this machine.")] = False,
) -> None:
    """Print a link to the dashboard that logs you in.

    Where the server shows none (the one that `keepstep run` starts for itself does not), this command serves it until Ctrl-C:
    it reads the journal, and passes what you ask on to the server.
    """
    from keepstep.cli.needs import need
    from keepstep.cli.reading import state_of

    need("httpx", "server")
    state = state_of(state_dir)
    if not state.journal.exists() and state.address() is None:
        fail(f"nothing is recorded in {state.path} yet; `keepstep run` or `keepstep server` begins")
    url = serving_url(state)
    if url is not None:
        _show(f"{url}/login#{_login(state)}", open_it)
        return
    typer.echo(f"keepstep: no server of {state.path} shows a dashboard; serving it here until Ctrl-C", err=True)
    _serve(state, http, open_it)


def _show(link: str, open_it: bool) -> None:
    typer.echo(link)
    if open_it:
        webbrowser.open(link)


def serving_url(state: "StateDir") -> str | None:
    """Where a server of the state directory shows the dashboard right now."""
    import httpx

    url = state.http_served()
    if url is None:
        return None
    try:
        httpx.get(f"{url}/healthz", timeout=2.0, verify=False).raise_for_status()
    except httpx.HTTPError:
        return None
    return url


def _login(state: "StateDir") -> str:
    """A token of one's own where a server leads; the owner's where only a journal is read."""
    from keepstep.adapters.server_link.errors import ServerGone, ServerRefused
    from keepstep.cli.client import open_tool
    from keepstep.server.registry import digest_of, new_secret
    from keepstep.wire.requests import IssueToken

    secret = new_secret()
    request = IssueToken(
        digest=digest_of(secret), kind="api", role="admin", name=getpass.getuser(), expires_in_s=LOGIN_S
    )
    try:
        tool = open_tool(state)
        if tool is None:
            return state.token()
        with tool:
            tool.act(request)
    except (ServerGone, ServerRefused):
        return state.token()
    return secret


def _serve(state: "StateDir", http: str, open_it: bool) -> None:
    """Runs a server that only follows, until it ends or Ctrl-C ends it."""
    argv = [sys.executable, "-m", "keepstep.server", "--state-dir", str(state.path), "--follow", "--http", http]
    reader = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_WAIT_S
        while (url := serving_url(state)) is None:
            if reader.poll() is not None or time.monotonic() > deadline:
                fail("the dashboard does not come up; the lines above say why")
            time.sleep(0.05)
        _show(f"{url}/login#{_login(state)}", open_it)
        reader.wait()
    except KeyboardInterrupt:
        pass
    finally:
        reader.terminate()
        reader.wait()
