"""An exporter's page, read every so often. Owns the request and its limits; what the metrics mean is ``evidence.gpu``'s.

For nodes where somebody else holds the driver's library. An exporter that is gone says nothing of the devices.
"""

import asyncio
from urllib.parse import urlsplit

import msgspec

from keepstep.adapters.devices.steady import Steady
from keepstep.core.observation import Same
from keepstep.evidence.document import Document
from keepstep.evidence.gpu.card import Card
from keepstep.evidence.gpu.dcgm import read_cards
from keepstep.ports import Outlet

MAX_PAGE_BYTES = 32 * 1024 * 1024
_ABSENT_EVERY_S = 60.0
_PIECE_BYTES = 1 << 16


class Unreadable(Exception):
    """The page was not given; the text says why."""


class ExporterSource:
    """``url``: plain HTTP on this node or one that it reaches."""

    name = "exporter"

    def __init__(
        self, *, url: str = "http://127.0.0.1:9400/metrics", interval_s: float = 15.0, deadline_s: float = 10.0
    ) -> None:
        """Raises ValueError."""
        place = urlsplit(url)
        if place.scheme != "http" or not place.hostname:
            raise ValueError(f"url is {url!r}; write http://HOST:PORT/metrics")
        if interval_s <= 0 or deadline_s <= 0:
            raise ValueError("interval_s and deadline_s must be above 0")
        self._host, self._port = place.hostname, place.port or 80
        self._path = place.path or "/metrics"
        self._interval_s, self._deadline_s = interval_s, deadline_s
        self._steady = Steady()
        self._named: set[str] = set()

    async def run(self, outlet: Outlet) -> None:
        was_there = False
        while True:
            try:
                async with asyncio.timeout(self._deadline_s):
                    page = await self._page()
            except (OSError, Unreadable, TimeoutError) as error:
                why = str(error) or f"no answer within {self._deadline_s:g} s"
                outlet.coverage("failing" if was_there else "absent", f"{self._host}:{self._port}: {why}")
                await asyncio.sleep(self._interval_s if was_there else max(_ABSENT_EVERY_S, self._interval_s))
                continue
            was_there = True
            self._take(page, outlet)
            await asyncio.sleep(self._interval_s)

    def _take(self, page: bytes, outlet: Outlet) -> None:
        reading, cards = read_cards(Document("", page))
        outlet.coverage("seen", f"{len(cards)} devices")
        for card in cards:
            self._levels(card, outlet)
        # The exporter's own name of the host may be another one than ours: what it serves here is this node's.
        seen = [msgspec.structs.replace(one, node="", source=self.name, line=0) for one in reading.observations]
        for one in self._steady.sweep(seen):
            outlet.observe(one)

    def _levels(self, card: Card, outlet: Outlet) -> None:
        if card.part not in self._named and len(card.names) > 1:
            self._named.add(card.part)
            outlet.same(Same(parts=card.names))
        for name in card.facts:
            value = card.number(name)
            if value is not None:
                outlet.level(card.part, f"gpu.{name}", value)

    async def _page(self) -> bytes:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            # HTTP/1.0: the answer is not cut into chunks, and ends with the connection.
            request = f"GET {self._path} HTTP/1.0\r\nHost: {self._host}\r\nAccept: text/plain\r\n\r\n"
            writer.write(request.encode())
            await writer.drain()
            answer = bytearray()
            while piece := await reader.read(_PIECE_BYTES):
                answer += piece
                if len(answer) > MAX_PAGE_BYTES:
                    raise Unreadable(f"its page is longer than {MAX_PAGE_BYTES} bytes")
        finally:
            writer.close()
        head, _, body = bytes(answer).partition(b"\r\n\r\n")
        status = head.split(b" ", 2)[1:2]
        if status != [b"200"]:
            raise Unreadable(f"it answers {head[:60].decode('latin-1')!r}")
        return body
