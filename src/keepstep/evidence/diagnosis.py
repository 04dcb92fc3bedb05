"""A folder of evidence, diagnosed: what its documents say together. The offline half of the engine's own road. Pure."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct, field

from keepstep.core.catalog import CATALOG, Catalog
from keepstep.core.catalog.row import Mode, Verdict
from keepstep.core.combine import judge
from keepstep.core.observation import Observation, Same, kind_of
from keepstep.core.parts import Parts, joined
from keepstep.core.root_cause import RootCause, root_causes
from keepstep.core.signal import Context, Signal
from keepstep.evidence.reading import Fine, Reading

HELPFUL: tuple[tuple[str, str], ...] = (
    ("kernel_log", "the kernel log of the node (dmesg, journalctl -k), from before the fault on"),
    ("gpu", "nvidia-smi -q -x, or the exporter's metrics, taken before a reset"),
    ("bmc", "the BMC's event log and health (Redfish, ipmitool sel list)"),
    ("job", "every rank's last output, the collective library's flight recorder, and stacks of a hang"),
    ("network", "state and counters of the InfiniBand ports (ibstat, perfquery), of both ends"),
)
"""Kind of source -> what would help; those that were not seen are named in the report."""


class Diagnosed(Struct, kw_only=True):
    """What the evidence says, and what it does not."""

    readings: list[Reading]
    signals: list[Signal]
    incidents: list[RootCause]
    unread: list[str] = field(default_factory=list)
    """Documents that no reader knows."""
    against: dict[str, list[Fine]] = field(default_factory=dict)
    """Resource of an incident -> what was looked at there and is well."""
    missing: list[str] = field(default_factory=list)
    """What would have helped."""


def diagnose(readings: Sequence[Reading], unread: Sequence[str] = (), catalog: Catalog = CATALOG) -> Diagnosed:
    """Judge everything together. The order of the readings does not matter."""
    readings = sorted(readings, key=lambda reading: reading.file)
    home = _only_host(readings)
    parts = joined(_at(same, same.node or reading.node or home) for reading in readings for same in reading.same)
    observations = [
        msgspec.structs.replace(seen, node=seen.node or reading.node or home, file=seen.file or reading.file)
        for reading in readings
        for seen in reading.observations
    ]
    signals = judge(observations, Context(catalog=catalog, parts=parts))
    causes = root_causes(signals, Context(catalog=catalog, parts=parts), _one_rack(signals, readings))
    incidents = [cause for cause in causes if cause.row.mode is Mode.ACT]
    if not incidents and (stopped := _only_victims(signals, catalog)) is not None:
        signals = [*signals, stopped]
        incidents = root_causes([stopped], Context(catalog=catalog, parts=parts))
    found = Diagnosed(readings=list(readings), signals=signals, incidents=incidents, unread=sorted(unread))
    for cause in incidents:
        found.against[cause.resource] = _against(cause, readings, parts, home)
    found.missing = _missing(readings, incidents)
    return found


_BAD = (Verdict.SUSPECT, Verdict.FAULTY)
FACILITY = ("gpu.power.brake", "gpu.thermal", "thermal.facility", "power.facility")
MANY_NODES = 3
UNNAMED = {"rack": "unnamed"}


def _one_rack(signals: Sequence[Signal], readings: Sequence[Reading]) -> dict[str, dict[str, str]]:
    """Nodes that are braked or hot together, and most of those that were looked at: power or cooling is what they share.

    A folder does not say which racks there are; the engine knows them.
    """
    nodes = {reading.node for reading in readings} | {fine.node for reading in readings for fine in reading.fine}
    nodes |= {signal.seen.node for signal in signals}
    nodes.discard("")
    ill = {s.seen.node for s in signals if s.row.failure_class in FACILITY and s.row.verdict in _BAD} - {""}
    return dict.fromkeys(nodes, UNNAMED) if len(ill) >= MANY_NODES and 2 * len(ill) >= len(nodes) else {}


_ENDED = ("job.exit.sigterm", "job.exit.sighup", "job.peer_lost", "job.launcher_stops")
_KNOWN_END = ("job.exit.interrupt", "job.time_limit", "job.preempted", "job.cancelled", "job.interrupted")


def _only_victims(signals: Sequence[Signal], catalog: Catalog) -> Signal | None:
    """A run that died of which only victims speak: somebody should know that it died, though not of what. Live, the engine
    knows who stopped a job; here a folder is all that there is."""
    ended = [signal for signal in signals if signal.key in _ENDED]
    if not ended or any(signal.key in _KNOWN_END for signal in signals):
        return None
    first = ended[0].seen
    parts = list(dict.fromkeys(signal.seen.part for signal in ended))
    peers = {signal.seen.attributes.get("peer", "") for signal in ended} - {""}
    stopped = any(signal.key != "job.peer_lost" for signal in ended)
    seen = msgspec.structs.replace(
        first, signal="job.ended_outside" if stopped else "job.peers_gone", node="",
        part=f"link/{peers.pop()}" if len(peers) == 1 and not stopped else "job", source="combination", count=len(ended),
        detail=f"victims: {', '.join(parts[:8])}; {first.detail}"[:500], attributes={},
    )  # fmt: skip
    return Signal(seen=seen, row=catalog.row(seen.signal), because=("nothing else in this evidence says why",))


def _only_host(readings: Sequence[Reading]) -> str:
    """The host of documents that do not name theirs: the only one that the others name, if there is one."""
    named = {reading.node for reading in readings} | {
        seen.node for reading in readings for seen in reading.observations
    }
    named.discard("")
    return named.pop() if len(named) == 1 else ""


def _at(same: Same, node: str) -> Same:
    return msgspec.structs.replace(same, node=node)


def _against(cause: RootCause, readings: Sequence[Reading], parts: Parts, home: str) -> list[Fine]:
    """What was looked at on the same part, and is well."""
    found = []
    for reading in readings:
        for fine in reading.fine:
            node = fine.node or reading.node or home
            if node == cause.node and cause.part and parts.canonical(node, fine.part) == cause.part:
                found.append(msgspec.structs.replace(fine, node=node, file=fine.file or reading.file))
    return found


def _missing(readings: Sequence[Reading], incidents: Sequence[RootCause]) -> list[str]:
    if incidents and min(cause.confidence for cause in incidents[:1]) >= 0.9:
        return []
    seen = {_source(reading.reader) for reading in readings}
    return [text for kind, text in HELPFUL if kind not in seen]


def _source(reader: str) -> str:
    """The kind of source that a reader belongs to, by what it is called."""
    kinds: tuple[tuple[str, Callable[[str], bool]], ...] = (
        ("kernel_log", lambda name: "kernel" in name),
        ("gpu", lambda name: name.startswith(("nvidia", "dcgm", "gpu", "amd", "prometheus"))),
        ("bmc", lambda name: name.startswith(("redfish", "sel", "ipmi"))),
        ("network", lambda name: name.startswith(("ib", "perfquery", "sysfs", "port", "network"))),
    )
    return next((kind for kind, is_it in kinds if is_it(reader)), "job")


def worst(signals: Sequence[Signal]) -> Verdict:
    """The worst verdict of some signals; BENIGN of none."""
    order = (Verdict.FAULTY, Verdict.SUSPECT, Verdict.WATCH)
    return next((v for v in order if any(s.row.verdict is v for s in signals)), Verdict.BENIGN)


def resource_of(seen: Observation) -> str:
    """A signal's resource as it is printed."""
    if kind_of(seen.part) in ("dependency", "rack", "switch", "job", "rank") or not seen.node:
        return seen.part
    return f"{seen.node}/{seen.part}" if seen.part else seen.node
