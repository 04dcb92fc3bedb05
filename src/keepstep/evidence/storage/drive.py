"""What a drive says of its health, however it was asked, and what follows. Pure; knows no file format.

Shared by the readers and by the agent's source. A drive that answers "passed" can still be used up: the spare blocks count.
That the tool could not open a drive says nothing about the drive; that the drive refused the question does.
"""

from collections.abc import Sequence

from msgspec import Struct, field

from keepstep.core.observation import Observation
from keepstep.evidence.reading import Fine

HOT_C = 85


class Drive(Struct, kw_only=True):
    name: str
    """``nvme9``, ``sda``, or a serial where nothing better is told."""
    passed: bool | None = None
    critical: int | None = None
    """NVMe's critical warning bits."""
    spare: int | None = None
    spare_limit: int | None = None
    used: int | None = None
    media_errors: int | None = None
    log_entries: int | None = None
    pending: int = 0
    """Sectors that could not be read (ATA 197, 198)."""
    reallocated: int = 0
    temperature: int | None = None
    failing_attributes: tuple[str, ...] = ()
    answered: bool = False
    """Whether it said anything of its health."""
    refused: str = ""
    """The drive's answer, where it is there and did not say."""
    unopened: str = ""
    """Why the tool could not ask."""
    serial: str = ""
    model: str = ""
    line: int = 0
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def part(self) -> str:
        return f"disk/{self.name}"


class Told(Struct, kw_only=True):
    observations: list[Observation] = field(default_factory=list)
    fine: list[Fine] = field(default_factory=list)


def judge(drives: Sequence[Drive], node: str, source: str, file: str) -> Told:
    """What the drives of one node say, each by itself and beside the others."""
    told = Told()
    logs = sorted(drive.log_entries for drive in drives if drive.log_entries is not None)
    for drive in drives:
        found = _judge(drive, logs)
        for signal, detail in found:
            told.observations.append(
                Observation(
                    signal=signal, node=node, part=drive.part, detail=f"{drive.name}: {detail}"[:500], source=source,
                    file=file, line=drive.line, attributes=dict(drive.notes),
                )
            )  # fmt: skip
        if not found and drive.answered:
            told.fine.append(
                Fine(part=drive.part, text="drive reports good health", node=node, file=file, line=drive.line)
            )
    return told


_BITS = (
    (0x01, "smart.failed", "spare blocks below the limit"), (0x02, "smart.hot", "temperature outside its limits"),
    (0x04, "smart.failed", "reliability degraded by media errors"), (0x08, "smart.read_only", "read-only"),
    (0x10, "smart.failed", "backup of its volatile memory failed"), (0x20, "smart.read_only", "persistent region read-only"),
)  # fmt: skip


def _judge(drive: Drive, logs: Sequence[int]) -> list[tuple[str, str]]:
    if drive.unopened and not drive.answered:
        return [("smart.unreadable", drive.unopened)]
    if drive.refused and not drive.answered:
        return [("smart.missing", drive.refused)]
    told: dict[str, str] = {}
    for bit, signal, what in _BITS:
        if (drive.critical or 0) & bit:
            told.setdefault(signal, f"critical warning 0x{drive.critical:02x}: {what}")
    if drive.passed is False:
        told.setdefault("smart.failed", "self-assessment failed")
    if drive.spare is not None and drive.spare_limit is not None and drive.spare < drive.spare_limit:
        told.setdefault("smart.failed", f"{drive.spare} % spare blocks left, limit {drive.spare_limit} %")
    if drive.failing_attributes:
        told.setdefault("smart.failed", f"attributes failing now: {', '.join(drive.failing_attributes)}")
    if drive.media_errors or drive.pending:
        what = f"{drive.media_errors} media errors" if drive.media_errors else f"{drive.pending} unreadable sectors"
        told.setdefault("smart.media_errors", what)
    elif drive.reallocated > 100:
        told.setdefault("smart.media_errors", f"{drive.reallocated} reallocated sectors")
    if drive.used is not None and drive.used >= 100:
        told.setdefault("smart.worn", f"{drive.used} % of the rated wear")
    if drive.temperature is not None and HOT_C <= drive.temperature < 200:
        told.setdefault("smart.hot", f"{drive.temperature} C")
    if drive.log_entries is not None and len(logs) >= 3 and drive.log_entries > max(10_000, 20 * logs[len(logs) // 2]):
        told.setdefault("smart.errors", f"{drive.log_entries} entries in its error log; median {logs[len(logs) // 2]}")
    return list(told.items())
