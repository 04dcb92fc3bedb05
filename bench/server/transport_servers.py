"""Servers that take heartbeats over one transport each, and do nothing with them. A process of its own for each run.

``python -m bench.server.transport_servers KIND DIR`` prints its port; ``KIND``: tcp, tls, http, websocket.
"""

import asyncio
import hmac
import sys
import time
from pathlib import Path
from typing import Any

from keepstep.adapters.pki.authority import Authority
from keepstep.adapters.server_link.tls import server_context
from keepstep.server.connection import Connection
from keepstep.wire import messages
from keepstep.wire.messages import Beat, Enrol, Hello, Message, Welcome

TOKEN = "0123456789abcdef" * 4


class Counting:
    """Meets server.connection.Hub."""

    beats = 0

    def accept(self, connection: Connection, hello: Hello) -> Message:
        assert hmac.compare_digest(hello.token, TOKEN)
        return Welcome(protocol=messages.PROTOCOL, server="bench")

    def enrol(self, connection: Connection, message: Enrol) -> None:
        raise NotImplementedError

    def received(self, connection: Connection, message: Message) -> None:
        assert isinstance(message, Beat)
        self.beats += 1

    def closed(self, connection: Connection) -> None:
        pass


async def framed(folder: Path | None) -> None:
    """As Keepstep has it."""
    hub, context = Counting(), None
    if folder is not None:
        files = Authority.open(folder / "ca").server_identity(("localhost",), time.time())
        context = server_context(str(files.certificate), str(files.key), str(files.authority))
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(hub), "127.0.0.1", 0, ssl=context, backlog=4096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def app(scope: Any, receive: Any, send: Any) -> None:
    """The least that an ASGI program can do with a heartbeat: check who it is, decode, count."""
    if scope["type"] == "lifespan":
        return
    sent = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    assert hmac.compare_digest(sent, TOKEN.encode())
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (event := await receive())["type"] == "websocket.receive":
            assert isinstance(messages.decode(event["bytes"]), Beat)
        return
    body, more = b"", True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    assert isinstance(messages.decode(body), Beat)
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def asgi() -> None:
    """uvicorn with the fastest of what is installed: httptools over h11."""
    import uvicorn

    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_level="warning", access_log=False, lifespan="off", backlog=4096, loop="asyncio",
        ws_per_message_deflate=False, ws_ping_interval=None,
    )  # fmt: skip
    config.load()
    server = uvicorn.Server(config)
    life = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await life


if __name__ == "__main__":
    wanted, place = sys.argv[1], Path(sys.argv[2])
    asyncio.run(asgi() if wanted in ("http", "websocket") else framed(place if wanted == "tls" else None))
