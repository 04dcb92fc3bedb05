"""Take-over: two servers on one PostgreSQL, the leader is killed, and an agent waits until another one takes its word."""

import statistics
import time
from contextlib import ExitStack

from bench.server.journal import start_postgres
from bench.server.process import Server, server
from keepstep.adapters.server_link.address import parse_address
from keepstep.core import facts as f
from keepstep.core.ids import NodeId, Session
from keepstep.wire import messages as m

ROUNDS = 5
WAIT_S = 30.0
GOAL_S = 5.0
RETRY_S = 0.02


def section(quick: bool = False) -> str:
    rounds = 1 if quick else ROUNDS
    lines = [
        "## Take-over",
        "",
        "Two servers on one PostgreSQL. SIGKILL for the leader; an agent dials the other one again and again until a fact of",
        f"its own is in the journal. {rounds} round(s). Goal: {GOAL_S:g} s.",
        "",
    ]
    with ExitStack() as stack:
        urls = start_postgres(stack)
        if urls is None:
            return "\n".join([*lines, "PostgreSQL is not installed here.", ""])
        took = [_round(urls[0], number) for number in range(rounds)]
    lines += [
        "| median | longest |",
        "|---:|---:|",
        f"| {statistics.median(took):.2f} s | {max(took):.2f} s |",
        "",
    ]
    return "\n".join(lines)


def _round(url: str, number: int) -> float:
    with server("--database", url) as first, server("--database", url) as second:
        leader, other = _by_role(first, second)
        assert _told(leader, f"before-{number}"), "the leader takes facts"
        leader.process.kill()
        began_s = time.perf_counter()
        leader.process.wait()
        while not _told(other, f"after-{number}"):
            if time.perf_counter() - began_s > WAIT_S:
                raise RuntimeError(f"nobody took over within {WAIT_S:.0f} s:\n{other.state.log.read_text()[-2000:]}")
            time.sleep(RETRY_S)
        return time.perf_counter() - began_s


def _by_role(first: Server, second: Server) -> tuple[Server, Server]:
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        if _told(first, "probe"):
            return first, second
        if _told(second, "probe"):
            return second, first
        time.sleep(0.1)
    raise RuntimeError("neither server leads")


def _told(one: Server, name: str) -> bool:
    """One fact of an agent of that name, acknowledged; False where that server does not lead."""
    node, session = NodeId(name), Session(f"bench-{name}-{time.time_ns()}")
    hello = m.Hello(protocol=m.PROTOCOL, token=one.state.token(), role="agent", node=node, session=session)
    fact = f.AgentJoined(node=node, session=session, boot_id="boot")
    try:
        with parse_address(one.address).connect(5.0) as sock, sock.makefile("rb") as file:
            sock.sendall(m.encode(hello) + m.encode(m.Report(number=1, fact=fact)))
            while head := file.read(4):
                if isinstance(m.decode(file.read(int.from_bytes(head, "big"))), m.Ack):
                    return True
    except OSError:
        pass
    return False
