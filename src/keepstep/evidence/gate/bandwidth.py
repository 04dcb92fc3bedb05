"""What nvbandwidth (text and JSON), SuperBench's copy test and perftest (``ib_write_bw`` …) print.

Compares cards with each other; there is no absolute limit here.
"""

import re
from typing import Any

from keepstep.evidence.document import Document
from keepstep.evidence.gate import outcome
from keepstep.evidence.reading import Reader, Reading

_NVB = re.compile(r"^nvbandwidth Version: |^Running (?:host|device|all)_\w+_(?:ce|sm)\.")
_RUNNING = re.compile(r"^Running (\w{3,80})\.")
_HEADER = re.compile(r"^ +\d+(?: +\d+)*\s*$")
_ROW = re.compile(r"^ *(\d{1,3})((?: +(?:[\d.]{1,16}|N/A)){1,128})\s*$")
_ERROR = re.compile(r"\[?CUDA_ERROR_\w+|^ERROR\b|Invalid value when checking the pattern|: Error\b|Error:")
_COPY = re.compile(r"^((?:cpu|gpu)\w{0,8}_(?:to|and)_(?:cpu|gpu)\w*) ([\d.]{1,16})$")
_PERFTEST = re.compile(
    r"(?:RDMA_(?:Write|Read)|Send|Atomic\S*|Raw Ethernet\S*|RDMA_Write_With_Imm) "
    r"(?:Bidirectional )?(?:BW|Latency|Post List BW) Test|^#bytes +#iterations"
)
_DEVICE = re.compile(r"Device +: (\S{1,32})")
_RESULT = re.compile(r"^ *\d{1,12} +\d{1,12} +[\d.]{1,16} +[\d.]{1,16}")
_STATUS = re.compile(r"(?:Completion with error at|Failed status) ?.{0,120}")
_PORT_DOWN = re.compile(r"Port number \d+ state is (\w+)")


def _recognise_nvbandwidth(document: Document) -> float:
    if document.head.lstrip()[:1] == "{":
        found = document.json if "nvbandwidth" in document.head else None
        return 0.9 if isinstance(found, dict) and isinstance(found.get("nvbandwidth"), dict) else 0.0
    if outcome.lines_match(document, _NVB):
        return 0.9
    copies = sum(bool(_COPY.match(line.rstrip("\r")[:200])) for line in document.head.split("\n")[:100])
    return 0.85 if copies >= 4 and not document.is_binary else 0.0


def _read_nvbandwidth(document: Document) -> Reading:
    reading = Reading(reader="copy_bandwidth", file=document.path)
    if document.head.lstrip()[:1] == "{":
        _read_json(reading, document.json)
        return reading
    test, header = "", False
    copies: dict[str, tuple[float, int]] = {}
    for number, line in document.lines():
        if match := _RUNNING.match(line):
            test, header = match.group(1), False
            reading.records += 1
        elif _ERROR.search(line[:600]):
            key = "gate.gpu.wrong_results" if "checking the pattern" in line else outcome.device_error(line)
            outcome.add(reading, key or "gate.tool_failed", "", line.strip(), number)
        elif match := _COPY.match(line):
            copies[match.group(1)] = (
                (float(match.group(2).strip(".") or 0), number) if match.group(2).count(".") < 2 else (0.0, number)
            )
        elif test and not header and _HEADER.match(line[:2000]):
            header = True
        elif header and (match := _ROW.match(line[:4000])):
            _matrix_row(reading, test, match, number)
    _copies(reading, copies)
    if reading.records and not reading.observations:
        outcome.passed(reading, "", "no card copies far slower than the others")
    return reading


def _matrix_row(reading: Reading, test: str, match: re.Match[str], number: int) -> None:
    values = {}
    for index, cell in enumerate(match.group(2).split()):
        if cell != "N/A" and cell.count(".") < 2 and cell.strip("."):
            values[str(index)] = float(cell)
    if "latency" in test:
        return
    for card, value, middle in outcome.slow(values):
        between = "device_to_device" in test
        key = "gate.nvlink" if between else "gate.gpu.pcie"
        outcome.add(reading, key, f"gpu/{card}", f"{test}: {value:g} GB/s where the median is {middle:g}", number)


def _copies(reading: Reading, copies: dict[str, tuple[float, int]]) -> None:
    """The same copy at every card, beside each other."""
    kinds: dict[str, dict[str, float]] = {}
    for name, (value, _) in copies.items():
        reading.records += 1
        cards = re.findall(r"gpu(\d{1,3})", name)
        if len(set(cards)) == 1:
            kinds.setdefault(re.sub(r"gpu\d+", "gpu", name), {})[cards[0]] = value
    for kind, values in kinds.items():
        for card, value, middle in outcome.slow(values):
            key = "gate.gpu.pcie" if "cpu" in kind else "gate.gpu.slow"
            line = next((number for name, (at, number) in copies.items() if at == value and f"gpu{card}" in name), 0)
            outcome.add(reading, key, f"gpu/{card}", f"{kind}: {value:g} GB/s where the median is {middle:g}", line)


def _read_json(reading: Reading, found: Any) -> None:
    root = found.get("nvbandwidth") if isinstance(found, dict) else None
    cases = root.get("testcases") if isinstance(root, dict) else None
    for case in cases[:500] if isinstance(cases, list) else ():
        if not isinstance(case, dict):
            continue
        reading.records += 1
        status, name = str(case.get("status", "")), str(case.get("name", ""))[:80]
        if status.lower() in ("error", "failed", "fail"):
            outcome.add(
                reading, outcome.device_error(str(case)[:1000]) or "gate.tool_failed", "", f"{name}: {status}", 0
            )
    if isinstance(root, dict) and root.get("error"):
        outcome.add(reading, "gate.tool_failed", "", str(root["error"])[:400], 0)


def _recognise_perftest(document: Document) -> float:
    return 0.9 if outcome.lines_match(document, _PERFTEST) else 0.0


def _read_perftest(document: Document) -> Reading:
    reading = Reading(reader="perftest", file=document.path)
    device, results, told = "", 0, False
    for number, line in document.lines():
        line = line[:1000]
        if match := _DEVICE.search(line):
            device = match.group(1)
        elif _RESULT.match(line):
            results += 1
        elif (match := _STATUS.search(line)) or _PORT_DOWN.search(line):
            if not told:
                outcome.add(reading, "gate.network", f"nic/{device}" if device else "", line.strip(), number)
            told = True
        elif outcome.tool_error(line) and not told:
            outcome.add(reading, "gate.tool_failed", "", line.strip(), number)
            told = True
    reading.records = results
    if results and not told:
        outcome.passed(reading, f"nic/{device}" if device else "", f"{results} sizes measured")
    elif not told:
        outcome.add(reading, "gate.tool_failed", "", "the test gave no result", 0)
    return reading


COPIES = Reader(
    name="copy_bandwidth", text="nvbandwidth, gpu_copy: copies of cards beside each other",
    recognise=_recognise_nvbandwidth, read=_read_nvbandwidth,
)  # fmt: skip
PERFTEST = Reader(
    name="perftest", text="ib_write_bw and its sisters", recognise=_recognise_perftest, read=_read_perftest
)
