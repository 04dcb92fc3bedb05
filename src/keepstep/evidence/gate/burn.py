"""What gpu-burn prints: progress of every card on one line, then a verdict for each."""

import re

from keepstep.core.observation import Same
from keepstep.evidence.document import Document
from keepstep.evidence.gate import outcome
from keepstep.evidence.reading import Reader, Reading

_SIGN = re.compile(r"\d+\.\d+%  proc'd: |^Tested \d+ GPUs?:|^GPU_BURN|Burning for \d+ seconds")
_CARD = re.compile(r"^GPU (\d{1,3}): .{0,80}\(UUID: (GPU-[0-9a-fA-F-]{36})\)")
_VERDICT = re.compile(r"^\s*GPU (\d{1,3}): (OK|FAULTY)\s*$")
_PROGRESS = re.compile(r"(\d{1,3}\.\d)%  proc'd: (.{0,8000}?)errors: (.{0,4000}?)temps: (.{0,2000})$")
_SPEED = re.compile(r"\((\d{1,9}) Gflop/s\)")
_COUNT = re.compile(r"(-?\d{1,19}|DIED!?)(?: \((DIED!?|WARNING!?)\))?")


def _recognise(document: Document) -> float:
    return 0.9 if outcome.lines_match(document, _SIGN) else 0.0


def _read(document: Document) -> Reading:
    reading = Reading(reader="gpu_burn", file=document.path)
    blamed: dict[str, str] = {}
    verdicts, tool, last = 0, (0, ""), ("", 0)
    for number, line in document.lines():
        piece = line.rpartition("\r")[2] or line
        if match := _VERDICT.match(piece):
            verdicts += 1
            card, word = match.groups()
            if word == "OK" and card not in blamed:
                outcome.passed(reading, f"gpu/{card}", "no wrong result under load", number)
            elif word == "FAULTY" and card not in blamed:
                blamed[card] = "wrong"
                outcome.add(reading, "gate.gpu.wrong_results", f"gpu/{card}", f"GPU {card}: FAULTY", number)
        elif match := _CARD.match(piece):
            reading.same.append(Same(parts=(f"gpu/{match.group(1)}", f"gpu/{match.group(2)}"), node=reading.node))
        elif match := _PROGRESS.search(piece[:16_000]):
            reading.records += 1
            last = (match.group(2), number)
            _errors(reading, match.group(3), number, blamed)
        elif not tool[0] and outcome.tool_error(piece):
            tool = (number, piece.strip())
    _speeds(reading, *last, blamed)
    if not verdicts and not blamed:
        outcome.add(reading, "gate.tool_failed", "", tool[1] or "the test did not come to its verdicts", tool[0])
    return reading


def _errors(reading: Reading, text: str, number: int, blamed: dict[str, str]) -> None:
    for index, item in enumerate(text.split(" - ")[:128]):
        match = _COUNT.match(item.strip())
        if match is None or str(index) in blamed:
            continue
        count, mark = match.group(1), match.group(2) or ""
        if "DIED" in mark or count.startswith("DIED") or count == "-1":
            blamed[str(index)] = "died"
            outcome.add(reading, "gate.gpu.died", f"gpu/{index}", f"GPU {index} died under load", number)
        elif count != "0":
            blamed[str(index)] = "wrong"
            outcome.add(
                reading, "gate.gpu.wrong_results", f"gpu/{index}", f"GPU {index}: {count} wrong results", number
            )


def _speeds(reading: Reading, text: str, number: int, blamed: dict[str, str]) -> None:
    """Cards of one kind do the same work in the same time; those that had not begun are left out."""
    speeds = [float(x) for x in _SPEED.findall(text)]
    if not speeds or min(speeds) <= 0:
        return
    for card, value, middle in outcome.slow({str(index): value for index, value in enumerate(speeds)}, share=0.85):
        if card not in blamed:
            detail = f"GPU {card}: {value:g} Gflop/s where the median is {middle:g}"
            outcome.add(reading, "gate.gpu.slow", f"gpu/{card}", detail, number)


READER = Reader(name="gpu_burn", text="gpu-burn: wrong results under load", recognise=_recognise, read=_read)
