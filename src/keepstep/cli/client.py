"""How a command finds its server: named in the environment, else that of the state directory. Owns that choice only."""

import getpass
import os
from typing import TYPE_CHECKING

from keepstep.adapters.server_link.address import parse_addresses
from keepstep.adapters.server_link.credentials import Credentials
from keepstep.adapters.server_link.errors import ServerRefused
from keepstep.adapters.server_link.tool import ToolClient
from keepstep.wire import environment

if TYPE_CHECKING:
    from keepstep.server.state_dir import StateDir


ANSWER_WAIT_S = 30.0
"""A server whose disk stalls for seconds is not gone; whoever does not want to wait has Ctrl-C."""


def named_server() -> str:
    """Where KEEPSTEP_SERVER points; empty where it is not set: then the state directory says it."""
    return os.environ.get(environment.SERVER, "")


def open_tool(state: "StateDir", *, timeout_s: float = ANSWER_WAIT_S) -> ToolClient | None:
    """None where no server has run in the state directory yet, and none is named.

    Raises ServerGone, ServerRefused, and ValueError for an address that is none.
    """
    named = named_server()
    addresses = named or state.address()
    if not addresses:
        return None
    credentials = Credentials.of(str(state.path), os.environ)
    try:
        token = credentials.token_for(parse_addresses(addresses, environment.SERVER if named else "server.address")[0])
    except FileNotFoundError:
        if not named:
            return None
        raise ServerRefused(
            f"there is nothing to show to {named}: set KEEPSTEP_SERVER_TOKEN, or `keepstep join` it"
        ) from None
    return ToolClient(addresses, token, identity_dir=credentials.identity_dir, user=_user(), timeout_s=timeout_s)


def _user() -> str:
    """Empty where the system knows no name, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
