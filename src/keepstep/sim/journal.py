"""The simulator's journal: canonical bytes in memory, chained. Owns what survives a crash of the simulated server."""

import hashlib
import struct
from collections.abc import Iterator, Sequence

import msgspec

from keepstep.core.decision import Record
from keepstep.core.ids import Session

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


class SimJournal:
    """Reading decodes the bytes again: a replay sees what a real journal would give, not the live objects."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, bytes]] = []
        self._chain = hashlib.blake2b(digest_size=16)
        self.received: dict[Session, int] = {}
        """Highest report number per session."""

    def append(self, at_s: float, records: Sequence[Record], origin: tuple[Session, int] | None = None) -> None:
        for record in records:
            body = _encoder.encode(record)
            self._rows.append((at_s, body))
            self._chain.update(struct.pack(">d", at_s))
            self._chain.update(body)
        if origin is not None:
            self.received[origin[0]] = max(origin[1], self.received.get(origin[0], 0))

    def __len__(self) -> int:
        return len(self._rows)

    def read(self) -> Iterator[tuple[float, Record]]:
        for at_s, body in self._rows:
            yield at_s, _decoder.decode(body)

    @property
    def digest(self) -> str:
        """Of every byte so far: equal for two runs that did the same."""
        return self._chain.hexdigest()
