"""A copy of a blob in a peer's memory, verified there, against a raw TCP stream of the same bytes, in turns in one run.

The receiver of ours is a real snapshot server: memory that is there already, digests of everything, and its word that it holds
it. The receiver of the raw stream is a process that reads into memory that is there. Loopback, so both ends share the cores.
"""

from bench.checkpoint.disk import Blob
from bench.checkpoint.figures import Row, interleave, rate, ratios, timed
from bench.checkpoint.limits import Sink
from bench.checkpoint.server import JOB, Server
from keepstep.checkpoint.snapshot.messages import Offer, PeerHello
from keepstep.checkpoint.snapshot.peers import PeerLink
from keepstep.checkpoint.snapshot.policy import SnapshotPolicy
from keepstep.checkpoint.state.blob import digest_chunks

FIRST_TRIES = 6


def measure(blob: Blob, server: Server, repetitions: int) -> tuple[list[Row], list[float]]:
    """Rows, and the seconds of ours. Changes the blob."""
    room = blob.size_bytes + 64 * 1024 * 1024
    generation = server.begin(SnapshotPolicy(memory_bytes=room, replica_bytes=room))
    hello = PeerHello(job=JOB, secret="")
    link = _after_first_copy(blob, server, generation, hello)
    step = 0

    def ours() -> float:
        nonlocal step
        step += 1
        # Another blob every time: what the peer has is not sent again.
        offer = _offer(blob, generation, step)
        verdict = ""

        def send() -> None:
            nonlocal verdict
            verdict = link.offer(offer, blob.view).verdict

        seconds = timed(send)
        if verdict != "held":
            raise RuntimeError(f"the peer answered {verdict}")
        return seconds

    with Sink(blob.size_bytes) as sink:
        taken = interleave({"ours": ours, "raw": lambda: timed(lambda: sink.send(blob.view))}, repetitions)
    link.close()
    row = Row(
        f"copy to a peer, {blob.size_bytes / 1e9:.2g} GB, verified there, against a raw TCP stream",
        rate(blob.size_bytes, taken["ours"]), rate(blob.size_bytes, taken["raw"]), ratios(taken["raw"], taken["ours"]),
        0.7, at_most=False,
    )  # fmt: skip
    return [row], taken["ours"]


def _offer(blob: Blob, generation: int, step: int) -> Offer:
    blob.view[0] = step % 256
    digest = digest_chunks(blob.view).root
    return Offer(generation=generation, step=step, digest=digest, size_bytes=blob.size_bytes)


def _after_first_copy(blob: Blob, server: Server, generation: int, hello: PeerHello) -> PeerLink:
    """A connection to a peer that has its memory paged in: for the first copy that can take longer than a sender waits."""
    offer = _offer(blob, generation, 0)
    for _ in range(FIRST_TRIES):
        link = PeerLink(server.address, hello)
        try:
            link.offer(offer, blob.view)
            return link
        except TimeoutError:
            link.close()
    raise TimeoutError("the peer did not page in its memory")
