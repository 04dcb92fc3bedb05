"""Reads what a job prints: training logs, launchers, communication libraries, tracebacks, in one stream of many ranks.

Owns the prefixes of ranks and hosts, the state of tracebacks, and what is said once for many lines. The matchers know the
formats. A program that went on training after an error has survived it: then it is no fault.
"""

import json
import re

import msgspec
from msgspec import Struct, field

from keepstep.core.observation import Observation
from keepstep.core.steps import Step
from keepstep.evidence.document import Document
from keepstep.evidence.job import errors
from keepstep.evidence.job.comm import Communication
from keepstep.evidence.job.ends import Ends
from keepstep.evidence.job.metrics import observed
from keepstep.evidence.job.sighting import Sighting
from keepstep.evidence.job.steps import step_of
from keepstep.evidence.reading import Fine, Reader, Reading

NAME = "job_log"
MAX_OBSERVATIONS = 5_000
MAX_STEPS = 1_000_000
MAX_MATCHED_CHARS = 2048
"""An error says what it is in its beginning; the end of a longer line is data."""
_TAIL_BYTES = 64 * 1024
_SURVIVED_STEPS = 2

_STRONG = re.compile(
    r"ProcessGroup(?:NCCL|Gloo|HCCL|XCCL)|WorkNCCL\(|(?:NCCL|RCCL) (?:WARN|INFO|ERROR)|HCCL|torch[./]distributed|torchrun|"
    r"slurmstepd: |srun: (?:error|Job step)|ChildFailedError|elapsed time per iteration|DataLoader worker|"
    r"\[#(?:step|log|save)\] \[|Fatal Python error: |"
    r"SignalException|RankID:\d|gloo/transport|mpirun noticed|NET/IB : Got completion|model-parallel size|"
    r"monitoredBarrier|exitcode +: -?\d+ \(pid|\{'loss': |CUDA out of memory|CUDA error: |deepspeed|exits with return code|"
    r"coordination[_ ]service|ncclUniqueId|NCCL (?:communicator|operations)|store_based_barrier|initializing process group|"
    r"NCCL error|NCCL WARN|c10::(?:Dist|Error)"
)
_WEAK = re.compile(
    r"Traceback \(most recent call last\)|\(core dumped\)|^terminate called |\[rank\d+\]:|Fatal Python error|\bglobal_step\b|"
    r"\bstep:? ?=? ?\d+.{0,60}\bloss|^[A-Za-z_.]+Error: |\bepoch[ :=]+\d+.{0,60}\bloss", re.M | re.I
)  # fmt: skip
_TRIGGER = re.compile(
    r"iteration|loss|[Tt]raceback|[Ee]rror|ERROR|CCL|Rank|rank|slurm|srun|signal|SIG|exit|[Kk]ill|Abort|fault|Terminated|"
    r"Watchdog|watchdog|Exception|NaN|nan|Gloo|gloo|NET/|step|CUDA|HIP|memory|Interrupt|Node failure|\{|: \[|time|host|EI000|"
    r"above exception| joined | finished |didn't |first observed|Failures|ECC|lost|devices|STATUS|assert"
)
_STRIP = re.compile(
    r"^(?:\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:?\d\d) (?:stdout|stderr) [FP] |\[pod/\S{1,200}\] |"
    r"\[\d{1,2},\d{1,6}\]<std(?:err|out)>:\s?)"
)
_GLOG = re.compile(r"^E\d{4} [\d:.]{8,20} +\d{1,10} \S{1,200}:\d{1,6}\] ?")
_MOST_PREFIXES = 3
_MPI_RANK = re.compile(r"^\[\d{1,2},(\d{1,6})\]<std(?:err|out)>:")
_RANK = re.compile(
    r"^\[(?:rank|Rank |RANK )(\d{1,6})\]:? ?|^\[(?:default)?(\d{1,6})\]:\s?|^(\d{1,5}): |^\[rank: (\d{1,6})\] ?"
)
_RAY = re.compile(r"^\(([\w.:-]{1,80}) pid=(\d{1,9})(?:, ip=([\d.]{7,15}))?\) ")
_HOST = re.compile(r"^([a-z][a-z0-9.-]{0,60}\d[a-z0-9.-]{0,60}): (?=\S|\s)")
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w{0,60}\.){0,8}(?:[A-Z]\w{1,80}|\w{0,20}error)(?:: |$)")
_NAMED_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Timeout|Failure): ?"
)
_WARNING = re.compile(r"\b\w*Warning(?:: |\))|^\[?W\d{3,4} |\bWARN(?:ING)?\b[\]: ]")
_RECORD = re.compile(r'^\{.{0,400}?"(?:log|message|msg)": ?"')
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_TRACEBACK = "Traceback (most recent call last)"


class _Block(Struct, kw_only=True):
    """A traceback of one rank that is being read, or was just read."""

    open: bool = False
    chained: bool = False
    key: str = ""
    found: tuple[str, ...] = ()
    """Identity of the observation it made."""


class _Log(Struct, kw_only=True):
    reading: Reading
    comm: Communication = field(default_factory=Communication)
    ends: Ends = field(default_factory=Ends)
    steps: list[Step] = field(default_factory=list)
    blocks: dict[str, _Block] = field(default_factory=dict)
    found: dict[tuple[str, ...], Observation] = field(default_factory=dict)
    counts: dict[tuple[str, ...], int] = field(default_factory=dict)
    last_line: dict[tuple[str, ...], int] = field(default_factory=dict)

    def take(self, number: int, raw: str) -> None:
        rank, node, line = _unprefixed(raw)
        block = self.blocks.get(rank)
        if block is not None and block.open and self._in_traceback(block, number, line, (rank, node)):
            return
        if not _TRIGGER.search(line):
            return
        if _TRACEBACK in line:
            was = self.blocks.get(rank, _Block())
            self.blocks[rank] = _Block(open=True, chained=was.chained, key=was.key, found=was.found)
            return
        if line.startswith(_CHAIN):
            self.blocks.setdefault(rank, _Block()).chained = True
            return
        step = step_of(line, number)
        if step is not None:
            if len(self.steps) < MAX_STEPS:
                self.steps.append(step)
            return
        line = line[:MAX_MATCHED_CHARS]
        sighting = self.comm.take(line) or self.ends.take(line) or _plain_error(line)
        if sighting is not None:
            self._see(sighting, number, raw, (rank, node))

    def _in_traceback(self, block: _Block, number: int, line: str, who: tuple[str, str]) -> bool:
        """Frames are passed over; the exception that ends them is classed. Whatever else follows closes it."""
        if not line or line[0] in " \t":
            return True
        if not _EXCEPTION.match(line):
            block.open = _TRACEBACK in line or "Previous line repeated" in line
            return block.open
        block.open = False
        line = line[:MAX_MATCHED_CHARS]
        sighting = self.comm.take(line) or self.ends.take(line)
        key = sighting.key if sighting is not None else errors.raised(line)
        general = key in ("job.error.application", "job.peer_lost", "")
        if block.chained and general and block.key not in ("", "job.error.application"):
            block.chained = False
            return True
        if block.chained and block.key == "job.error.application" and key and block.found in self.found:
            del self.found[block.found]
        block.chained, block.key = False, key
        if key:
            told = sighting.attributes if sighting is not None else {}
            block.found = self._see(Sighting(key, told | {"exception": "yes"}), number, line, who)
        return True

    def _see(self, sighting: Sighting, number: int, text: str, who: tuple[str, str]) -> tuple[str, ...]:
        told = dict(sighting.attributes)
        rank = told.get("rank") or who[0]
        if rank:
            told["rank"] = rank
        node = told.pop("node", "") or who[1]
        names = ("seq", "op", "pg", "peer", "reporter", "ranks", "nic", "pid", "exitcode")
        identity = (sighting.key, rank, node, *(told.get(name, "") for name in names))
        if not rank and sighting.key.startswith("job.error."):
            # Printed again by a handler that does not know its rank.
            identity = next((known for known in self.found if known[0] == sighting.key), identity)
        self.counts[identity] = self.counts.get(identity, 0) + 1
        self.last_line[identity] = number
        if identity not in self.found and len(self.found) < MAX_OBSERVATIONS:
            self.found[identity] = Observation(
                signal=sighting.key, node=node, part=_part(sighting.key, rank, told), source=NAME,
                file=self.reading.file, line=number, detail=text.strip()[:500], attributes=told,
            )  # fmt: skip
        return identity

    def finish(self) -> None:
        goes_on = [step.line for step in self.steps][-_SURVIVED_STEPS:]
        for identity, seen in self.found.items():
            survived = len(goes_on) == _SURVIVED_STEPS and self.last_line[identity] < goes_on[0]
            if survived and not seen.signal.startswith("job.collective_state"):
                attributes = seen.attributes | {"was": seen.signal}
                seen = _again(seen, signal="job.survived", attributes=attributes)
            self.reading.observations.append(_again(seen, count=self.counts[identity]))
        self.reading.observations.extend(observed(self.steps, self.reading.file, NAME))
        if self.steps and not self.reading.observations:
            text = f"{len(self.steps)} steps without a finding"
            self.reading.fine.append(Fine(part="job", text=text, file=self.reading.file))


def recognise(document: Document) -> float:
    if document.is_binary:
        return 0.0
    tail = document.data[-_TAIL_BYTES:].decode("utf-8", errors="replace") if len(document.data) > _TAIL_BYTES else ""
    text = document.head + "\n" + tail
    if "# Avg bus bandwidth" in text:
        return 0.3
    if _STRONG.search(text):
        return 0.55
    return 0.4 if _WEAK.search(text) else 0.0


def read(document: Document) -> Reading:
    log = _Log(reading=Reading(reader=NAME, file=document.path))
    for number, line in document.lines():
        log.reading.records = number
        log.take(number, line)
    log.finish()
    return log.reading


def _again(seen: Observation, **changes: object) -> Observation:
    return msgspec.structs.replace(seen, **changes)


def _part(key: str, rank: str, told: dict[str, str]) -> str:
    if "nic" in told:
        return f"nic/{told['nic']}"
    if key == "job.peer_unreachable" and told.get("peer"):
        return f"link/{told['peer']}"
    if key in ("job.node_failure", "job.oom_killed"):
        return ""
    if rank:
        return f"rank/{rank}"
    return f"process/{told['pid']}" if "pid" in told else "job"


def _plain_error(line: str) -> Sighting | None:
    """An error outside a traceback: texts that mean it anywhere, or an exception that stands at the beginning of a line."""
    if _WARNING.search(line):
        return None
    key = errors.anywhere(line)
    if not key and _NAMED_EXCEPTION.match(line):
        key = errors.raised(line)
        key = "" if key == "job.error.application" else key
    return Sighting(key, {}) if key else None


def _unwrapped(raw: str) -> str:
    """The text in a record of a container's log (``{"log": …}``); the line itself where it is none."""
    if not _RECORD.match(raw):
        return raw
    try:
        told = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    text = next((told[name] for name in ("log", "message", "msg") if isinstance(told.get(name), str)), raw)
    return str(text).rstrip("\n")


def _unprefixed(raw: str) -> tuple[str, str, str]:
    """(rank, host, the line without what the collector of logs put before it)."""
    mpi = _MPI_RANK.match(raw)
    line = _STRIP.sub("", _unwrapped(raw) if raw[:1] == "{" else raw)
    node = ""
    host = _HOST.match(line)
    if host is not None:
        node, line = host[1], line[host.end() :]
    ray = _RAY.match(line)
    if ray is not None:
        node, line = ray[3] or node, line[ray.end() :]
    named = mpi[1] if mpi is not None else ""
    for _ in range(_MOST_PREFIXES):
        rank = _RANK.match(line)
        if rank is None:
            break
        # The launcher's prefix comes first and counts within the node; that of the rank itself follows and wins.
        named, line = next(word for word in rank.groups() if word is not None), line[rank.end() :]
    return named, node, _GLOG.sub("", line)


READER = Reader(
    name=NAME, text="what a job prints: training, launcher, communication, tracebacks", recognise=recognise, read=read
)
