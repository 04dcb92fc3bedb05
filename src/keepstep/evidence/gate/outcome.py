"""How the outcome of a validation test is told: passed, failed and which part, or not run. Pure.

A tool that ends with an error of its own says nothing about the hardware.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from keepstep.core.observation import Observation
from keepstep.evidence.document import Document
from keepstep.evidence.reading import Fine, Reading

MIN_PEERS = 4
SLOW_SHARE = 0.7
MAX_TOLD = 2000

_TOOL_ERRORS = re.compile(
    r"must be run on at least \d+ nodes|command not found|No such file or directory|error while loading shared libraries|"
    r"[Uu]nrecognized option|[Ii]nvalid (?:argument|option)|[Uu]sage: |not enough slots|"
    r"unable to find the specified executable|"
    r"Permission denied|Host key verification failed|no CUDA-capable device|CUDA driver version is insufficient|"
    r"Couldn't init a GPU test|Failed to initialize NVML|nvcc fatal|libcuda\S* |ModuleNotFoundError|"
    r"Couldn't connect to|Unable to init the socket|failed to connect|"
    r"not found: |IB device \S+ not found|Unable to find the Infiniband"
)
_MEMORY = re.compile(r"uncorrectable ECC|ECC error|double.?bit|row remap|retired page", re.IGNORECASE)
_LOST = re.compile(
    r"unspecified launch failure|illegal (?:memory|instruction)|device (?:is )?lost|fallen off|Unknown Error",
    re.IGNORECASE,
)


def tool_error(line: str) -> bool:
    """Whether a line says that the tool could not run."""
    return _TOOL_ERRORS.search(line[:1000]) is not None


def device_error(line: str) -> str:
    """The signal of a device's error in a tool's complaint; empty where it names none."""
    if _MEMORY.search(line[:1000]):
        return "gate.gpu.memory"
    return "gate.gpu.died" if _LOST.search(line[:1000]) else ""


def add(reading: Reading, signal: str, part: str, detail: str, line: int, node: str = "") -> None:
    if len(reading.observations) < MAX_TOLD:
        seen = Observation(
            signal=signal, node=node or reading.node, part=part, detail=detail[:500], source=reading.reader,
            file=reading.file, line=line,
        )  # fmt: skip
        reading.observations.append(seen)


def passed(reading: Reading, part: str, text: str, line: int = 0) -> None:
    if len(reading.fine) < MAX_TOLD:
        reading.fine.append(Fine(part=part, text=text, node=reading.node, file=reading.file, line=line))


def slow(values: Mapping[str, float], share: float = SLOW_SHARE) -> list[tuple[str, float, float]]:
    """(name, value, median) of those far below the median of at least ``MIN_PEERS``; none where many are below."""
    if len(values) < MIN_PEERS:
        return []
    middle = median(values.values())
    found = [(name, value, middle) for name, value in values.items() if value < share * middle]
    return found if len(found) * 4 <= len(values) else []


def median(values: Iterable[float]) -> float:
    ordered: Sequence[float] = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


def lines_match(document: Document, pattern: re.Pattern[str], most: int = 400) -> bool:
    return not document.is_binary and any(pattern.search(line[:1000]) for line in document.head.split("\n")[:most])
