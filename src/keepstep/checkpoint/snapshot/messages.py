"""Messages of the snapshot server: with workers and the launcher (unix socket) and with its peers (TCP).

Owns shapes and framing: a 4-byte big-endian length, then one msgpack message. File descriptors travel beside the bytes
of the frame that announces them. Raw blob bytes follow a Blob frame on TCP. Fields are only ever added, with a default.
"""

import socket
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from keepstep.checkpoint.snapshot.policy import SnapshotPolicy

MAX_FRAME_BYTES = 64 * 1024 * 1024
MAX_FDS = 16

# ---- worker -> server


class Attach(Struct, frozen=True, kw_only=True, tag=True):
    """First message of a worker. Answer: Attached or Refused."""

    job: str
    generation: int
    rank: int
    world_size: int


class Reserve(Struct, frozen=True, kw_only=True, tag=True):
    """The worker needs slots of at least ``size_bytes``; a granted one is given back. Answer: Grant, perhaps later."""

    number: int
    size_bytes: int


class Place(Struct, frozen=True, array_like=True):
    """Where one group blob stands in a slot."""

    name: str
    offset: int
    size_bytes: int


class Seal(Struct, frozen=True, kw_only=True, tag=True):
    """The slot is written. It belongs to the server from here on."""

    slot: int
    step: int
    groups: tuple[Place, ...]
    durable: bool = False


class WaitDurable(Struct, frozen=True, kw_only=True, tag=True):
    """Answer: Durable, once it is decided."""

    step: int


class FindPart(Struct, frozen=True, kw_only=True, tag=True):
    """The worker restores. Answer: PartFound with descriptors, or NotFound."""

    step: int
    generation: int
    """Of whoever wrote it; -1 for the newest that has this step."""
    rank: int
    tier: str
    key: str
    peers: tuple[str, ...] = ()


# ---- server -> worker


class Attached(Struct, frozen=True, kw_only=True, tag=True):
    pid: int


class Refused(Struct, frozen=True, kw_only=True, tag=True):
    reason: str


class Grant(Struct, frozen=True, kw_only=True, tag=True):
    """The worker may write slot ``slot``. ``new``: its descriptor comes with this frame."""

    slot: int
    size_bytes: int
    new: bool
    reserve: int
    """Number of the Reserve that it follows: a grant that crossed a newer Reserve is void."""
    durable_only: bool = False
    """It is a file on disk, for want of memory: too slow for anything but a durable snapshot."""


class NoRoom(Struct, frozen=True, kw_only=True, tag=True):
    """Instead of a Grant, which follows if that changes: the node's limit does not allow slots of the size reserved."""

    reserve: int
    reason: str


class Durable(Struct, frozen=True, kw_only=True, tag=True):
    """What became of a durable snapshot. Sent to whoever waits, and to every rank of the generation that is attached."""

    step: int
    key: str = ""
    """The commit, or empty where it failed."""
    reason: str = ""
    duration_s: float = 0.0
    """From the seal until it was a checkpoint."""


class Source(Struct, frozen=True, kw_only=True):
    """Where a restoring worker reads one group: in the next descriptor of the frame."""

    name: str
    digest: str
    offset: int
    size_bytes: int


class PartFound(Struct, frozen=True, kw_only=True, tag=True):
    sources: tuple[Source, ...]


class Reading(Struct, frozen=True, kw_only=True, tag=True):
    """A restore goes on: bytes for some rank of this node have arrived since the last one."""

    size_bytes: int


class NotFound(Struct, frozen=True, kw_only=True, tag=True):
    reason: str


# ---- launcher -> server. ``request`` is echoed in the answer.


class Control(Struct, frozen=True, kw_only=True, tag=True):
    """First message of the launcher. Answer: Ready or Refused. The server ends when this connection ends."""

    job: str


class Begin(Struct, frozen=True, kw_only=True, tag=True):
    """A generation begins: older workers and mirrors are refused from here. What was sealed stays. Answer: Ok."""

    request: int
    generation: int
    world_size: int
    peers: tuple[str, ...] = ()
    """host:port of the other nodes' snapshot servers."""
    restored_from: str = ""
    """For the commit log, in words."""
    policy: SnapshotPolicy = SnapshotPolicy()


class TakeInventory(Struct, frozen=True, kw_only=True, tag=True):
    """Answer: Stock. Everything that workers sealed before they died is in it."""

    request: int


class VerifyRam(Struct, frozen=True, kw_only=True, tag=True):
    """Hash these digests' bytes again; holds the step as well. Answer: Ok, or Wrong naming the first that fails."""

    request: int
    step: int
    digests: tuple[str, ...]


class ListDisk(Struct, frozen=True, kw_only=True, tag=True):
    """Answer: Stock with only ``disk`` filled."""

    request: int


class VerifyDisk(Struct, frozen=True, kw_only=True, tag=True):
    """Read everything of a commit. Answer: Ok or Wrong."""

    request: int
    key: str


class Hold(Struct, frozen=True, kw_only=True, tag=True):
    """Keep this step's slots until the next generation is on its way. Answer: Ok."""

    request: int
    step: int
    generation: int = -1


class Flush(Struct, frozen=True, kw_only=True, tag=True):
    """Write what is sealed of this step to disk. Answer: Ok once queued; the result comes as an event."""

    request: int
    step: int


class Quit(Struct, frozen=True, kw_only=True, tag=True):
    """Finish the writes that are queued, then end. Answer: Ok."""

    request: int


# ---- server -> launcher


class Ready(Struct, frozen=True, kw_only=True, tag=True):
    address: str
    """host:port for peers."""
    pid: int


class Ok(Struct, frozen=True, kw_only=True, tag=True):
    request: int


class Wrong(Struct, frozen=True, kw_only=True, tag=True):
    request: int
    reason: str
    damaged: bool = True
    """False: it could not be read just now, which says nothing about the state."""


class RamStock(Struct, frozen=True, kw_only=True):
    """Sealed snapshots of one step of one generation."""

    step: int
    generation: int
    world_size: int
    parts: dict[int, tuple[str, ...]]
    """Rank -> digests of its groups; ranks of other nodes that were mirrored here included."""
    held: tuple[str, ...]
    """Digests whose bytes are here."""


class DiskStock(Struct, frozen=True, kw_only=True):
    step: int
    generation: int
    world_size: int
    key: str


class Stock(Struct, frozen=True, kw_only=True, tag=True):
    request: int
    ram: tuple[RamStock, ...] = ()
    disk: tuple[DiskStock, ...] = ()


class Committed(Struct, frozen=True, kw_only=True, tag=True):
    """Event: a checkpoint exists, and was read back whole."""

    step: int
    generation: int
    key: str
    duration_s: float
    size_bytes: int
    world_size: int


class SaveError(Struct, frozen=True, kw_only=True, tag=True):
    """Event: a save did not become a checkpoint."""

    step: int
    generation: int
    reason: str


class Notice(Struct, frozen=True, kw_only=True, tag=True):
    """Event: something that people should know; training goes on."""

    topic: Literal["gate", "replica", "memory", "copies", "traffic", "age"]
    generation: int
    step: int
    """-1 where it is about no step."""
    reason: str


# ---- between peers


class PeerHello(Struct, frozen=True, kw_only=True, tag=True):
    job: str
    secret: str
    address: str = ""
    """host:port at which the sender itself answers; empty for one that only asks."""


class Part(Struct, frozen=True, kw_only=True, tag=True):
    """What one rank's state at one step is made of, with the bytes of its small groups."""

    generation: int
    step: int
    rank: int
    world_size: int
    groups: dict[str, str]
    """Group name -> digest."""
    sizes_bytes: dict[str, int]
    """Digest -> size."""
    inline: dict[str, bytes] = {}
    """Digest -> blob, for groups small enough."""


class AskPart(Struct, frozen=True, kw_only=True, tag=True):
    """Answer: Part without ``inline``, or NotFound."""

    generation: int
    step: int
    rank: int


class Offer(Struct, frozen=True, kw_only=True, tag=True):
    """Keep a copy of this blob for that step. Answer: Taken; after ``send`` the raw bytes follow, and one more Taken."""

    generation: int
    step: int
    digest: str
    size_bytes: int


class Taken(Struct, frozen=True, kw_only=True, tag=True):
    verdict: Literal["send", "held", "damaged", "refused"]
    """``damaged``: what arrived does not have the digest; nothing of it was kept."""
    reason: str = ""


class Safe(Struct, frozen=True, kw_only=True, tag=True):
    """Everything of these ranks at that step is where it shall be. No answer."""

    generation: int
    step: int
    world_size: int
    ranks: tuple[int, ...]
    copied: bool
    """Whether copies were needed for it; if they were for no rank, the step is nothing special."""


class Fetch(Struct, frozen=True, kw_only=True, tag=True):
    """Answer: Blob followed by its bytes, or NotFound."""

    digest: str


class Blob(Struct, frozen=True, kw_only=True, tag=True):
    size_bytes: int


ToServer = (
    Attach | Reserve | Seal | WaitDurable | FindPart
    | Control | Begin | TakeInventory | VerifyRam | ListDisk | VerifyDisk | Hold | Flush | Quit
)  # fmt: skip
ToWorker = Attached | Refused | Grant | NoRoom | Durable | PartFound | Reading | NotFound
ToLauncher = Ready | Refused | Ok | Wrong | Stock | Committed | SaveError | Notice
Answer = Ok | Wrong | Stock
BetweenPeers = PeerHello | Part | AskPart | Fetch | Blob | NotFound | Offer | Taken | Safe

_encoder = msgspec.msgpack.Encoder()
to_server = msgspec.msgpack.Decoder(ToServer)
to_worker = msgspec.msgpack.Decoder(ToWorker)
to_launcher = msgspec.msgpack.Decoder(ToLauncher)
between_peers = msgspec.msgpack.Decoder(BetweenPeers)
_T = TypeVar("_T")


def frame(message: Any) -> bytes:
    """One message, length first."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"message of {len(body)} bytes is over the frame limit of {MAX_FRAME_BYTES}")
    return len(body).to_bytes(4, "big") + body


class FrameBuffer:
    """Bytes as they arrive, taken out as whole messages."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[_T]") -> None:
        self._decoder = decoder
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def drain_into(self, view: memoryview) -> int:
        """Move raw bytes that follow the last message into ``view``; returns how many."""
        count = min(len(view), len(self._bytes))
        view[:count] = self._bytes[:count]
        del self._bytes[:count]
        return count

    def take(self) -> Any:
        """The next message, or None. Raises msgspec.DecodeError for a frame that is none."""
        if len(self._bytes) < 4:
            return None
        size = int.from_bytes(self._bytes[:4], "big")
        if size > MAX_FRAME_BYTES:
            raise msgspec.DecodeError(f"frame of {size} bytes is over the limit of {MAX_FRAME_BYTES}")
        if len(self._bytes) < 4 + size:
            return None
        body = bytes(self._bytes[4 : 4 + size])
        del self._bytes[: 4 + size]
        return self._decoder.decode(body)


def receive(connection: socket.socket, buffer: FrameBuffer) -> Any:
    """Block for the next message. Raises ConnectionError at the end of the stream."""
    while (message := buffer.take()) is None:
        data = connection.recv(256 * 1024)
        if not data:
            raise ConnectionResetError("the other side closed the connection")
        buffer.feed(data)
    return message
