"""Serves the app with uvicorn in the event loop that is there. Owns its start and its end; binds nothing, handles no signal."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import uvicorn
from litestar import Litestar

from keepstep.web.events import Readers
from keepstep.web.options import WebOptions
from keepstep.web.patience import PatientProtocol

GRACE_S = 2
"""What is being answered when it ends has so long to be finished."""


class _Server(uvicorn.Server):
    """Signals are the wiring's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(app: Litestar, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None = None) -> None:
    """Until cancelled; then live streams are ended and what is being answered is finished, within GRACE_S."""
    options: WebOptions = app.state.options
    protocol: Any = partial(PatientProtocol, patience_s=options.patience_s, at_most=options.connections_max)
    config = uvicorn.Config(
        app, http=protocol, loop="none", lifespan="on", access_log=False, log_config=None, server_header=False, ws="none",
        timeout_graceful_shutdown=GRACE_S, timeout_keep_alive=30, h11_max_incomplete_event_size=64 * 1024,
        proxy_headers=False,
    )  # fmt: skip
    for listening in sockets:
        if listening.family in (socket.AF_INET, socket.AF_INET6):
            # Head and body are two writes; asyncio sets this itself only where the socket was made with its protocol named.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config.load()
    config.ssl = tls
    server = _Server(config)
    running = asyncio.create_task(server.serve(sockets=list(sockets)))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        readers: Readers = app.state.readers
        readers.closing.set()
        server.should_exit = True
        await running
        raise
