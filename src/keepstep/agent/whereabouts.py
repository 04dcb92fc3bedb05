"""Where the agent's server is: told, or read from the state directory. Owns no connection."""

import os
from collections.abc import Sequence

from keepstep.adapters.probe import resolve
from keepstep.adapters.server_link.address import Address, parse_addresses
from keepstep.agent.settings import Settings

_LOOK_UP_S = 5.0


async def find_servers(settings: Settings) -> Sequence[Address]:
    """What was given, or what the server of the state directory wrote down. Raises OSError before there was one."""
    if settings.server:
        return parse_addresses(settings.server)
    with open(os.path.join(settings.state_dir, "server.address"), encoding="utf-8") as file:
        return parse_addresses(file.read())


async def host_of(name: str) -> str:
    """Looked up in a child: a resolver that hangs must not hold up this process."""
    return (await resolve(name, _LOOK_UP_S))[0]
