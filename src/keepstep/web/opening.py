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


class Web:
    """Made before its server leads, since that takes the better part of a second."""

    def __init__(self, site: Site, *, owner_token: str, names: Sequence[str], secure: bool) -> None:
        self._app = make_app(site, WebOptions(owner_token=owner_token, hosts=tuple(names), secure=secure), routes())

    def open(self, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None) -> "asyncio.Task[None]":
        """Answers on ``sockets`` until the task is cancelled."""
        return asyncio.ensure_future(serve(self._app, sockets, tls))
