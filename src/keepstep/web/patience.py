"""One HTTP connection, with an end to patience: whoever connects and then does not finish what it sends is cut off, and there
are never more than so many. Owns these two bounds; without them strangers could hold every descriptor of the server.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class PatientProtocol(H11Protocol):
    """Looks every ``patience_s``: a request whose head or body was not there at two looks is given up, and so is a connection
    that asks nothing. What the server itself takes long over, as a live stream, is none of that."""

    def __init__(self, *, patience_s: float, at_most: int, **rest: Any) -> None:
        super().__init__(**rest)
        self._patience_s = patience_s
        self._at_most = at_most

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._seen: Any = self
        """What was waited for at the last look; itself: nothing."""
        self._next_look = self.loop.call_later(self._patience_s, self._look)
        if len(self.connections) > self._at_most:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._next_look.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        waits = self.cycle is None or self.cycle.response_complete or self.cycle.more_body
        if waits and self._seen is self.cycle:
            self.transport.abort()
            return
        self._seen = self.cycle if waits else self
        self._next_look = self.loop.call_later(self._patience_s, self._look)
