"""Messages between the server and its clients (launchers, the front, the CLI). Owns shapes and the protocol version.

A connection begins with Hello / Welcome. Then a launcher sends Report (facts, numbered per session, repeated until
acknowledged) and Beat (vitals, never repeated); the server sends Command (orders) and Ack. A tool sends Query and gets
Reply. Every frame is one msgpack message behind a 4-byte big-endian length.
"""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from keepstep.core.access import Principal
from keepstep.core.facts import Fact
from keepstep.core.health.report import HealthReport
from keepstep.core.ids import JobId, NodeId, Session
from keepstep.core.intents import Order
from keepstep.wire.requests import Request

PROTOCOL = 2
MAX_FRAME_BYTES = 64 * 1024 * 1024


class Hello(Struct, frozen=True, kw_only=True, tag=True):
    protocol: int
    role: str
    """``launcher``, ``front`` (the local engine: started launchers on this machine) or ``tool``."""
    token: str = ""
    """Shared secret of the state directory, or a token that was issued; empty where a client certificate says who it is."""
    job: JobId | None = None
    node: NodeId | None = None
    session: Session | None = None
    user: str = ""
    """Who sits at a tool; believed where the token is that of the state directory."""
    run: str = ""
    """Of launchers and fronts: the call of ``keepstep run`` that they belong to, see core.facts.JobSubmitted."""


class Welcome(Struct, frozen=True, kw_only=True, tag=True):
    protocol: int
    server: str
    """Identity of this life of the server."""
    acked: int = 0
    """Highest report number of this session that is in the journal."""
    term: int = 0
    """Of the server's leadership. A client that has met a newer one hangs up: this server has been deposed and does not know
    it yet."""
    certificate_expires_in_s: float | None = None
    """Of the client's own certificate, by the server's clock; None where it showed none."""


class NotLeader(Struct, frozen=True, kw_only=True, tag=True):
    """Instead of Welcome: this server follows. ``leader`` is where the leader listens; empty while none is known."""

    leader: str = ""


class Enrol(Struct, frozen=True, kw_only=True, tag=True):
    """Instead of Hello, over TLS: sign this key. With a join token it is the first certificate of a node or a server; without,
    on a connection that showed a valid certificate, it renews that one."""

    request: bytes
    """PKCS #10, DER. Its subject is not trusted: name and role come from the token, or from the certificate that it renews."""
    token: str = ""
    name: str = ""
    """Where the token leaves it open: what the node is called."""


class Enrolled(Struct, frozen=True, kw_only=True, tag=True):
    certificate: bytes
    """PEM."""
    authority: bytes
    """PEM of the authority's certificate."""


class Refused(Struct, frozen=True, kw_only=True, tag=True):
    reason: str


class Report(Struct, frozen=True, kw_only=True, tag=True):
    """A fact from a session; ``number`` grows by one per fact and orders them."""

    number: int
    fact: Fact


class Ack(Struct, frozen=True, kw_only=True, tag=True):
    """To a client: reports up to this one are in the journal. From a client, with number 0: is the server there? The server's
    connection answers with the same."""

    number: int


class RankVitals(Struct, frozen=True, kw_only=True, array_like=True):
    """How one rank is, measured by its launcher over the time since its last beat."""

    rank: int
    phase: str
    step: int
    idle_s: float
    """Time since anything moved in this rank, counted only while the launcher itself was running."""
    phase_s: float
    """Time in this phase, counted the same way."""
    step_time_s: float
    loss: float
    state: str
    """Letter of /proc/<pid>/stat."""
    cpu_s: float
    """CPU time of the process so far."""


class Beat(Struct, frozen=True, kw_only=True, tag=True):
    """The launcher lives. ``running_s`` is how much of the time since the last beat it was itself able to run: after a
    suspend or a job-control stop the lost time is not held against the ranks."""

    generation: int
    running_s: float
    ranks: tuple[RankVitals, ...]
    dropped: int = 0
    """Facts for which the sender's spool had no room, since the last beat that it sent."""


class Health(Struct, frozen=True, kw_only=True, tag=True):
    """An agent's forecast for its node, with the riskiest parts. Never repeated and never a fact: it is no verdict."""

    report: HealthReport


class Command(Struct, frozen=True, kw_only=True, tag=True):
    order: Order
    term: int = 0
    """Under which it was sent. Whoever has met a newer term does not carry it out."""


class Superseded(Struct, frozen=True, kw_only=True, tag=True):
    """To a launcher: a newer generation of its job exists elsewhere; fence yourself up to this one."""

    generation: int


class JobEnded(Struct, frozen=True, kw_only=True, tag=True):
    """To fronts and launchers of a job."""

    job: JobId
    exit_code: int
    message: str


class Query(Struct, frozen=True, kw_only=True, tag=True):
    """A question or a request of a tool; ``what`` names it, see server.queries."""

    what: str
    args: dict[str, Any] = {}


class Reply(Struct, frozen=True, kw_only=True, tag=True):
    ok: bool
    body: Raw = Raw(b"\xc0")
    """msgpack of the answer's own type."""
    error: str = ""
    kind: str = ""
    """Of the error: ``Forbidden``, ``UnknownSubject``, ``Conflict``, …"""


class Act(Struct, frozen=True, kw_only=True, tag=True):
    """A person's request. Answered by Reply with requests.Accepted, once it is in the journal."""

    request: Request
    key: str = ""
    """Idempotency key: the same one with the same request does nothing a second time."""
    by: Principal | None = None
    """Of a replica, which has identified that person itself."""


Message = (
    Hello
    | Welcome
    | NotLeader
    | Enrol
    | Enrolled
    | Act
    | Refused
    | Report
    | Ack
    | Beat
    | Health
    | Command
    | Superseded
    | JobEnded
    | Query
    | Reply
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """One frame, length first."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"message of {len(body)} bytes is over the frame limit of {MAX_FRAME_BYTES}")
    return len(body).to_bytes(4, "big") + body


def decode(body: bytes) -> Message:
    """The message in one frame (without its length). Raises msgspec.DecodeError on anything else."""
    try:
        return _decoder.decode(body)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None
