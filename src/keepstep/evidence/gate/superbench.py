"""SuperBench: results of nodes (one JSON object a line) and its diagnosis of them (lines, or one JSON list).

A missing result is not a bad one: the benchmark has to be run again before anybody judges the node.
"""

import json
import re
from typing import Any

from keepstep.evidence.document import Document
from keepstep.evidence.gate import outcome
from keepstep.evidence.reading import Reader, Reading

MAX_NODES = 20_000
MIN_NODES = 3
WORSE = 3.0
_METRIC = re.compile(r"^[\w.-]{1,80}(?:/[\w.:-]{1,120})+$")
_VIOLATION = re.compile(r"([\w./-]{1,160}?)(?::(\d{1,3}))?\((?:B/L:[^)]{0,60}VAL:|VAL:)[^)]{0,120}\)")
_LOWER_IS_BETTER = re.compile(
    r"overhead|latency|_time|steptime|step_time|time_|_lat\b|temperature|error", re.IGNORECASE
)
_HIGHER_IS_BETTER = re.compile(r"bw\b|_bw|bandwidth|throughput|flops|_bus|_alg", re.IGNORECASE)


def _entries(document: Document) -> list[tuple[int, dict[str, Any]]]:
    found = document.json
    if isinstance(found, list):
        return [(0, x) for x in found[:MAX_NODES] if isinstance(x, dict)]
    if isinstance(found, dict):
        return [(1, found)]
    entries = []
    for number, line in _whole_lines(document):
        try:
            one = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(one, dict):
            entries.append((number, one))
        if len(entries) >= MAX_NODES:
            break
    return entries


def _whole_lines(document: Document) -> list[tuple[int, bytes]]:
    """Lines of any length: a node's results are one, and longer than what is a line elsewhere."""
    if document.data.lstrip()[:1] != b"{":
        return []
    lines = document.data.split(b"\n")[:MAX_NODES]
    return [(number, line) for number, line in enumerate(lines, 1) if line.startswith(b"{") and len(line) < 4 << 20]


def _is_result(entry: dict[str, Any]) -> bool:
    metrics = sum(bool(_METRIC.match(key)) for key in list(entry)[:50])
    return metrics >= 3 and ("node" in entry or "index" in entry)


def _is_diagnosis(entry: dict[str, Any]) -> bool:
    return "Defective Details" in entry or "diagnosis/issue_details" in entry


def _recognise(document: Document) -> float:
    head = document.head.lstrip()
    if (
        head[:1] not in ("{", "[")
        or document.is_binary
        or ("return_code" not in head and "Defective" not in head and "diagnosis/" not in head)
    ):
        return 0.0
    entries = _entries(document)[:5]
    return 0.9 if any(_is_diagnosis(x) or _is_result(x) for _, x in entries) else 0.0


def _read(document: Document) -> Reading:
    reading = Reading(reader="superbench", file=document.path)
    entries = _entries(document)
    reading.records = len(entries)
    results = []
    for number, entry in entries:
        node = str(entry.get("node", entry.get("index", "")))[:128]
        if _is_diagnosis(entry):
            details = str(entry.get("Defective Details", entry.get("diagnosis/issue_details", "")))[:20_000]
            category = str(entry.get("Category", entry.get("diagnosis/category", "")))[:100]
            _diagnosis(reading, node, category, details, number)
        elif _is_result(entry):
            results.append((number, node, entry))
    if results:
        _results(reading, results)
    return reading


def _diagnosis(reading: Reading, node: str, category: str, details: str, number: int) -> None:
    if not details.strip() or details.strip().lower() in ("nan", "none", "null"):
        return
    violations = [(name, rank or "") for name, rank in _VIOLATION.findall(details) if not name.endswith("return_code")]
    text = f"{node}: {category}: {details}"
    if not violations:
        outcome.add(reading, "gate.incomplete", "", text, number, node)
        return
    ranks = {rank for _, rank in violations}
    signal = _signal(violations[0][0])
    rank = next(iter(ranks))
    if len(ranks) == 1 and rank and signal.startswith("gate.gpu"):
        outcome.add(reading, signal, f"gpu/{rank}", text, number, node)
    else:
        outcome.add(reading, "gate.network" if signal == "gate.network" else "gate.node", "", text, number, node)


def _signal(metric: str) -> str:
    name = metric.lower()
    if re.search(r"\bib[-_]|rdma|roce|network|tcp", name):
        return "gate.network"
    if re.search(r"h2d|d2h|cpu_to|to_cpu|pcie", name):
        return "gate.gpu.pcie"
    if re.search(r"nccl|rccl|allreduce|nvlink", name):
        return "gate.node"
    return "gate.gpu.slow"


def _results(reading: Reading, results: list[tuple[int, str, dict[str, Any]]]) -> None:
    """Nodes and ranks beside each other, metric by metric; a benchmark's own error is told once."""
    values: dict[str, list[float]] = {}
    for number, node, entry in results:
        broken = [
            key.rpartition("/")[0]
            for key, x in entry.items()
            if key.endswith("return_code") and isinstance(x, int) and x > 0
        ]
        if broken:
            outcome.add(reading, "gate.incomplete", "", f"{node}: could not run {', '.join(broken[:8])}", number, node)
        for metric, value in _figures(entry):
            values.setdefault(metric, []).append(value)
    # The same rank of the other nodes: ranks of one node differ by where they are plugged in.
    middles = {metric: outcome.median(found) for metric, found in values.items() if len(found) >= MIN_NODES}
    for number, node, entry in results:
        before = len(reading.observations)
        for metric, value in _figures(entry):
            middle = middles.get(metric, 0.0)
            if middle > 0 and _worse(metric, value, middle):
                rank = metric.rpartition(":")[2] if ":" in metric else ""
                part = f"gpu/{rank}" if rank.isdecimal() else ""
                signal = _signal(metric) if part else "gate.node"
                outcome.add(reading, signal, part, f"{node}: {metric} {value:g}, median {middle:g}", number, node)
        if len(reading.observations) == before:
            outcome.passed(reading, "", f"{node}: benchmarks like the others", number)


def _figures(entry: dict[str, Any]) -> list[tuple[str, float]]:
    return [
        (key, float(value))
        for key, value in entry.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and "/" in key
        and not key.endswith("return_code")
    ]


def _worse(metric: str, value: float, middle: float) -> bool:
    if _HIGHER_IS_BETTER.search(metric):
        return 0 < value < middle / WORSE
    return _LOWER_IS_BETTER.search(metric) is not None and value > middle * WORSE


READER = Reader(name="superbench", text="SuperBench: results and diagnosis", recognise=_recognise, read=_read)
