"""How much evidence a core reads and judges, beside what the machine can at most: ``grep -c`` and a plain loop over lines."""

import json
import random
import subprocess
import tempfile
import time
from collections.abc import Callable

from keepstep.core.catalog import CATALOG
from keepstep.core.combine import judge
from keepstep.core.engine import turn
from keepstep.core.facts import AgentJoined, NodePart, SignalSeen
from keepstep.core.fold import fold
from keepstep.core.ids import NodeId, Session, node_resource
from keepstep.core.observation import Observation
from keepstep.core.policy import Policy
from keepstep.core.root_cause import root_causes
from keepstep.core.signal import Context
from keepstep.core.world import World
from keepstep.evidence.document import Document
from keepstep.evidence.recognise import read

LINES = 200_000
REPEATS = 3
NODES = 2_000

_NOISE = (
    "[{t}] mlx5_core 0000:18:00.0: firmware version: 28.39.1002",
    '[{t}] audit: type=1400 audit(1700000000.1:{n}): apparmor="STATUS" operation="profile_load" name="x" pid={n}',
    "[{t}] IPv6: ADDRCONF(NETDEV_CHANGE): veth{n}: link becomes ready",
    "[{t}] docker0: port {n}(veth) entered blocking state",
    "[{t}] nvidia-nvswitch0: open (major=510)",
    "[{t}] EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode",
)
_FAULTS = (
    "[{t}] NVRM: Xid (PCI:0000:{b:02x}:00): 31, pid={n}, name=python, Ch 00000010, intr 00000000. MMU Fault",
    "[{t}] pcieport 0000:00:1c.0: AER: Correctable error message received from 0000:{b:02x}:00.0",
    "[{t}] EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
)


def kernel_log(lines: int, share: float) -> bytes:
    """A log of which ``share`` of the lines matter."""
    rng = random.Random(1)
    made = []
    for n in range(lines):
        form = rng.choice(_FAULTS if rng.random() < share else _NOISE)
        made.append(form.format(t=f"{n / 7:12.6f}", n=n, b=rng.randrange(16, 32)))
    return "\n".join(made).encode()


def timed(work: Callable[[], object]) -> float:
    """The best of some repeats, in seconds of this process."""
    best = float("inf")
    for _ in range(REPEATS):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best


def page() -> str:
    rows = [*_kernel(), *_documents(), *_judging(), *_engine()]
    head = ["| what | rate | beside the limit |", "|---|---|---|"]
    return "\n".join([
        "Written by `python -m bench.diagnosis throughput`: one core, the best of three.", "", *head,
        *(f"| {what} | {rate} | {beside} |" for what, rate, beside in rows), "",
    ])  # fmt: skip


def _kernel() -> list[tuple[str, str, str]]:
    content = kernel_log(LINES, 0.01)
    storm = kernel_log(LINES // 4, 1.0)
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        started = time.monotonic()
        for _ in range(REPEATS):
            subprocess.run(["grep", "-c", "NVRM", file.name], check=True, stdout=subprocess.DEVNULL)
        grep = LINES * REPEATS / (time.monotonic() - started)
    loop = LINES / timed(lambda: sum("NVRM" in line for line in content.decode().split("\n")))
    ours = LINES / timed(lambda: read(Document("k", content)))
    worst = LINES // 4 / timed(lambda: read(Document("k", storm)))
    return [
        ("`grep -c`", f"{grep:,.0f} lines/s", "the machine's limit"),
        ("a loop over lines in Python", f"{loop:,.0f} lines/s", "the language's limit"),
        (
            "kernel log, 1 % of lines matter",
            f"{ours:,.0f} lines/s",
            f"{ours / loop:.3f} of the loop, {ours / grep:.4f} of grep",
        ),
        ("kernel log, every line matters", f"{worst:,.0f} lines/s", f"{worst / loop:.3f} of the loop"),
    ]


def _documents() -> list[tuple[str, str, str]]:
    resources = {
        f"/redfish/v1/Systems/1/Processors/GPU_{n}": {
            "@odata.id": f"/redfish/v1/Systems/1/Processors/GPU_{n}", "@odata.type": "#Processor.v1_13_0.Processor",
            "Id": f"GPU_{n}", "ProcessorType": "GPU", "Status": {"State": "Enabled", "Health": "OK"},
            "Oem": {"Nvidia": {"PCIeErrors": dict.fromkeys(("a", "b", "c"), 0), "text": "x" * 400}},
        }
        for n in range(3000)
    }  # fmt: skip
    content = json.dumps({"resources": resources}).encode()
    megabytes = len(content) / 1e6
    plain = megabytes / timed(lambda: json.loads(content))
    ours = megabytes / timed(lambda: read(Document("r", content)))
    return [
        ("JSON by the standard library", f"{plain:.0f} MB/s", "the language's limit"),
        ("Redfish documents", f"{ours:.0f} MB/s", f"{ours / plain:.2f} of plain JSON"),
    ]


def _signals(count: int) -> list[Observation]:
    keys = sorted(CATALOG.rows)
    return [
        Observation(
            signal=keys[n % len(keys)], node=f"n{n % 200}", part=f"gpu/{n % 8}", at_s=float(n), clock="c", source="kernel_log",
            file="f", line=n, attributes={"pid": str(n), "rank": str(n % 900)},
        )
        for n in range(count)
    ]  # fmt: skip


def _judging() -> list[tuple[str, str, str]]:
    rows = []
    for count in (1_000, 10_000):
        some = _signals(count)
        took = timed(lambda some=some: root_causes(judge(some, Context()), Context()))  # type: ignore[misc]
        rows.append((f"signals judged and joined, {count:,} at once", f"{count / took:,.0f} signals/s", ""))
    return rows


def _engine() -> list[tuple[str, str, str]]:
    world, policy, now_s = World(), Policy(), 1000.0
    for n in range(NODES):
        parts = tuple(NodePart(names=(f"gpu/0000:{16 + slot:02x}:00", f"gpu/{slot}"), slot=slot) for slot in range(8))
        fold(world, AgentJoined(node=NodeId(f"n{n}"), session=Session(f"a{n}"), boot_id="b", parts=parts,
                                domains={"rack": f"r{n // 16}"}), now_s)  # fmt: skip
        turn(world, policy, now_s)
    benign = _each_turn(world, policy, "pcie.aer.corrected", 400)
    fault = _each_turn(world, policy, "xid.79", 100)
    return [
        (f"engine of {NODES:,} nodes: fact, turn, decision; signals without a fault", f"{benign:,.0f} signals/s", ""),
        (f"engine of {NODES:,} nodes: each signal a new fault of another node", f"{fault:,.0f} signals/s", ""),
    ]


def _each_turn(world: World, policy: Policy, signal: str, count: int) -> float:
    started = time.process_time()
    for n in range(count):
        node = NodeId(f"n{(n * 17) % NODES}")
        now_s = 2000.0 + n
        fold(
            world, SignalSeen(resource=node_resource(node), signal=signal, part=f"gpu/0000:{16 + n % 8:02x}:00"), now_s
        )
        turn(world, policy, now_s)
    return count / (time.process_time() - started)
