"""API and dashboard, put together for one server, whose wiring loads this module by its name: it stands a layer above it."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Sequence

from keepstep.server.site import Site
from keepstep.web.app import make_app
from keepstep.web.options import WebOptions
from keepstep.web.pages import routes
from keepstep.web.serving import serve

logging.getLogger("uvicorn").setLevel(logging.WARNING)


def open_web(
    site: Site, sockets: Sequence[socket.socket], *, owner_token: str, names: Sequence[str], tls: ssl.SSLContext | None
) -> "asyncio.Task[None]":
    """Answers on ``sockets`` until the task is cancelled."""
    options = WebOptions(owner_token=owner_token, hosts=tuple(names), secure=tls is not None)
    return asyncio.ensure_future(serve(make_app(site, options, routes()), sockets, tls))
