"""What nccl-tests (and rccl-tests) and GPCNeT print. Must not judge a bandwidth without something to compare it with."""

import re

from keepstep.evidence.document import Document
from keepstep.evidence.gate import outcome
from keepstep.evidence.reading import Reader, Reading

_NCCL = re.compile(
    r"^# (?:nThread \d+|Using devices|nccl-tests version|Collective test starting)|^# +Rank +\d+ .{0,80}Pid +\d+ on|"
    r"^# Avg bus bandwidth|Test (?:NCCL|CUDA) failure \S+:\d+"
)
_RANK = re.compile(r"^# +Rank +(\d{1,6}) (?:Group +\d+ )?Pid +\d+ on +(\S{1,128}) device +(\d{1,3}) \[(\S{1,16})\]")
_ROW = re.compile(r"^ +(\d{1,20}) +(\d{1,20}) +(\w{1,16}) ")
_BOUNDS = re.compile(r"^# Out of bounds values : (\d{1,12}) (\w+)")
_AVERAGE = re.compile(r"^# Avg bus bandwidth +: +([\d.]{1,16}|nan)")
_FAILURE = re.compile(r"(?:(\S{1,100}): )?Test (NCCL|CUDA) failure (.{0,300})")
_GPCNET = re.compile(
    r"Network Tests (?:v|running)|GPCNeT|network_(?:test|load_test)|"
    r"this application must be run on at least \d+ nodes|RR Two-sided"
)
_GPCNET_ROW = re.compile(r"^\|\s*(?:RR |Multiple Allreduce|Allreduce|Random)")
_MPI = re.compile(r"^(?:mpirun|prterun|srun|mpiexec).{0,80}(?:exited|error|detected)")


def _recognise(document: Document) -> float:
    return 0.85 if outcome.lines_match(document, _NCCL) or outcome.lines_match(document, _GPCNET) else 0.0


def _read(document: Document) -> Reading:
    reading = Reading(reader="collectives", file=document.path)
    hosts: set[str] = set()
    ended, failed, tool = 0, False, (0, "")
    for number, line in document.lines():
        if match := _RANK.match(line):
            hosts.add(match.group(2))
            reading.records += 1
        elif match := _ROW.match(line):
            reading.records += 1
            failed |= _row(reading, line, number)
        elif match := _BOUNDS.match(line):
            if match.group(1) != "0" and not failed:
                failed = True
                outcome.add(reading, "gate.comm.wrong_results", "", f"{match.group(1)} values out of bounds", number)
        elif _AVERAGE.match(line) or _GPCNET_ROW.match(line):
            ended = number
            reading.records += 1
        elif match := _FAILURE.search(line[:1000]):
            failed = True
            key = outcome.device_error(line) or ("gate.tool_failed" if outcome.tool_error(line) else "gate.comm.failed")
            outcome.add(reading, key, "", line.strip(), number)
        elif not tool[0] and (outcome.tool_error(line) or _MPI.match(line)):
            tool = (number, line.strip())
    if len(hosts) == 1:
        reading.node = next(iter(hosts)) if "localhost" not in hosts else ""
    if failed:
        return reading
    if ended:
        outcome.passed(reading, "", "collective test ended without wrong results", ended)
    elif tool[0] or reading.records:
        outcome.add(reading, "gate.tool_failed", "", tool[1] or "the test did not come to its end", tool[0])
    return reading


def _row(reading: Reading, line: str, number: int) -> bool:
    """Whether a row of results shows wrong values: the ninth column and the last, unless checking was off."""
    cells = line.split()
    wrong = 0
    for cell in (cells[-1], cells[-5] if len(cells) >= 12 else "0"):
        # Old versions print the largest difference there, as a float: tiny ones are rounding.
        if cell.isdecimal() and len(cell) < 16:
            wrong += int(cell)
    if wrong:
        outcome.add(reading, "gate.comm.wrong_results", "", f"{wrong} wrong values at {cells[0]} bytes", number)
    return wrong > 0


READER = Reader(name="collectives", text="nccl-tests, rccl-tests, GPCNeT", recognise=_recognise, read=_read)
