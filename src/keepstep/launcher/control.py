"""What launcher and zygote say to each other over a SOCK_SEQPACKET pair. Owns these messages and their framing.

One message is one packet; file descriptors travel with it (SCM_RIGHTS). Both ends are the same program of the same
version, so this is no public wire.
"""

import socket
from collections.abc import Sequence

import msgspec
from msgspec import Struct

MAX_PACKET_BYTES = 192 * 1024
"""Under the kernel's default socket buffer; a rank's plan with its restore order stays far below."""
MAX_FDS = 8
NO_GENERATION = "0" * 10
"""The fence token of our own helpers: zygote, stores, snapshot server."""


class RankPlan(Struct, frozen=True, kw_only=True):
    """Everything a rank needs before user code runs."""

    rank: int
    slot: int
    generation: int
    node: str
    environment: dict[str, str]
    """What is set on top of the zygote's own environment."""
    argv: tuple[str, ...]
    """``script.py args…`` or ``-m module args…``."""
    cell: str
    """Path of the progress cell."""
    error_file: str
    stack_file: str
    state_dir: str


class StartRank(Struct, frozen=True, kw_only=True, tag=True):
    """Start a rank. Three descriptors come with it: its stdout, its stderr and its notice pipe."""

    plan: RankPlan
    cold: bool = False


class StartStore(Struct, frozen=True, kw_only=True, tag=True):
    """Host one more rendezvous store, bound to ``address``."""

    address: str


class Ready(Struct, frozen=True, kw_only=True, tag=True):
    """Preloading is over. ``why_cold`` is empty where a fork from here is a warm start."""

    wants_torch: bool
    preloaded: tuple[str, ...] = ()
    seconds: float = 0.0
    why_cold: str = ""


class RankStarted(Struct, frozen=True, kw_only=True, tag=True):
    """A pidfd of the process comes with it."""

    rank: int
    generation: int
    pid: int
    started: int
    """Start time in clock ticks since boot."""
    warm: bool
    why_cold: str = ""


class RankNotStarted(Struct, frozen=True, kw_only=True, tag=True):
    rank: int
    generation: int
    reason: str


class StoreUp(Struct, frozen=True, kw_only=True, tag=True):
    """``address`` (host:port) is empty where this zygote hosts no stores; ``why`` then says why. A pidfd comes with an
    address."""

    address: str
    pid: int = 0
    why: str = ""


class Exited(Struct, frozen=True, kw_only=True, tag=True):
    """A child of the zygote was reaped."""

    pid: int
    exit_code: int | None = None
    signal: int | None = None
    store: bool = False
    """It hosted a store, or was about to."""


ToZygote = StartRank | StartStore
ToLauncher = Ready | RankStarted | RankNotStarted | StoreUp | Exited

_encoder = msgspec.msgpack.Encoder()
_to_zygote = msgspec.msgpack.Decoder(ToZygote)
_to_launcher = msgspec.msgpack.Decoder(ToLauncher)


def send(link: socket.socket, message: ToZygote | ToLauncher, fds: Sequence[int] = ()) -> None:
    """One packet. Raises OSError where the other end is gone."""
    packet = _encoder.encode(message)
    if len(packet) > MAX_PACKET_BYTES:
        raise ValueError(
            f"a control message of {len(packet)} bytes is over {MAX_PACKET_BYTES}; shorten the arguments of the script"
        )
    if fds:
        socket.send_fds(link, [packet], list(fds))
    else:
        link.send(packet)


def receive_order(link: socket.socket) -> tuple[ToZygote, list[int]] | None:
    """In the zygote. None when the launcher is gone."""
    packet, fds, _, _ = socket.recv_fds(link, MAX_PACKET_BYTES, MAX_FDS)
    return (_to_zygote.decode(packet), fds) if packet else None


def receive_report(link: socket.socket) -> tuple[ToLauncher, list[int]] | None:
    """In the launcher. None when the zygote is gone. Raises BlockingIOError where nothing waits."""
    packet, fds, _, _ = socket.recv_fds(link, MAX_PACKET_BYTES, MAX_FDS)
    return (_to_launcher.decode(packet), fds) if packet else None
