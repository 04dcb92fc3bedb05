"""``dcgmi diag`` and ``dcgmi health``, JSON (versions 2 to 4) and text: which tests failed on which device, and why."""

import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from keepstep.core.figures import whole
from keepstep.core.observation import Observation
from keepstep.evidence.document import Document
from keepstep.evidence.gpu.diag_codes import meaning
from keepstep.evidence.reading import Fine, Reader, Reading

MAX_FINDINGS = 2000
MAX_DEPTH = 40
_BAD = ("fail", "warn", "error", "unhealthy")
_GPU_IN_TEXT = re.compile(r"\bGPUs?:? ?(\d{1,3})\b", re.IGNORECASE)
_CELLS = re.compile(r"^\|(.{10,80}?)\|(.{10,160})\|\s*$")
_OF_ONE = re.compile(r"GPU ?(\d{1,3}): (Pass|Fail|Warn|Skip)\w*$")
_NOTE_ON = re.compile(r"Warning: GPU ?(\d{1,3})$")
_GPU_LIST = re.compile(r"GPUs?: ?([0-9, ]{1,60})")
_HEALTH_DEVICE = re.compile(r"^(?:->|\|?\s*->)?\s*(?:GPU(?: ID)?:?\s*)?(\d{1,3})$")


class _Finding(Struct):
    gpu: str
    test: str
    status: str
    text: str = ""
    code: int | None = None
    line: int = 0


_MEMORY_TESTS = ("memory", "gpu memory", "memtest")


def read(document: Document) -> Reading:
    reading = Reading(reader="dcgm_diag", file=document.path)
    found = list(_from_json(document.json) if document.json is not None else _from_text(document))[:MAX_FINDINGS]
    reading.records = len(found)
    bad: set[str] = set()
    for one in found:
        if one.status.lower().startswith(_BAD) and _report(one, reading):
            bad.add(one.gpu)
    for gpu in sorted({one.gpu for one in found if one.status.lower().startswith(("pass", "healthy"))} - bad - {""}):
        tests = sorted({one.test for one in found if one.gpu == gpu})
        reading.fine.append(Fine(part=f"gpu/{gpu}", text=f"passed {', '.join(tests)[:200]}", file=reading.file))
    return reading


def _report(one: _Finding, reading: Reading) -> bool:
    signal = meaning(one.code, one.text)
    if not signal:
        return False
    warned = one.status.lower().startswith("warn")
    if signal == "gpu.diag.failed" and warned:
        signal = "gpu.diag.warning"
    if signal == "gpu.diag.failed" and one.test.lower() in _MEMORY_TESTS:
        signal = "gpu.diag.memory"
    detail = f"{one.test}: {one.status}: {one.text}"
    attributes = {"test": one.test[:80], "status": one.status[:20]} | (
        {"code": str(one.code)} if one.code is not None else {}
    )
    same = (signal, f"gpu/{one.gpu}" if one.gpu else "")
    if any((seen.signal, seen.part) == same for seen in reading.observations):
        return True
    reading.observations.append(
        Observation(
            signal=signal, part=same[1], detail=detail[:500], attributes=attributes, source=reading.reader, file=reading.file,
            line=one.line,
        )
    )  # fmt: skip
    return True


# JSON


def _from_json(tree: Any) -> Iterator[_Finding]:
    if not isinstance(tree, dict):
        return
    diagnostic = tree.get("DCGM Diagnostic") or tree.get("DCGM GPU Diagnostic") or tree
    if isinstance(diagnostic, dict) and isinstance(diagnostic.get("test_categories"), list):
        yield from _diagnostic(diagnostic)
    elif isinstance(tree.get("body"), dict):
        yield from _health(tree["body"], "", "", 0)
    error = (diagnostic if isinstance(diagnostic, dict) else tree).get("runtime_error") or tree.get("Error")
    if isinstance(error, str) and error:
        yield _Finding("", "diagnostic", "Error", error, 44)


def _diagnostic(tree: dict[str, Any]) -> Iterator[_Finding]:
    for category in _dicts(tree.get("test_categories")):
        for test in _dicts(category.get("tests")):
            name = str(test.get("name", "?"))[:80]
            for result in _dicts(test.get("results")):
                yield from _result(name, result)


def _result(test: str, result: dict[str, Any]) -> Iterator[_Finding]:
    group = str(result.get("entity_group", "GPU"))
    gpu = result.get("gpu_id", result.get("gpu_ids", result.get("entity_id", "")))
    gpus = [text.strip() for text in str(gpu).split(",")] if group == "GPU" else [""]
    status = str(result.get("status", ""))[:40]
    warnings = result.get("warnings")
    notes = (
        warnings
        if isinstance(warnings, list)
        else [warnings]
        if isinstance(warnings, str)
        else [result.get("info", "")]
    )
    for number in gpus:
        number = number if number.isdecimal() else ""
        for note in notes or [""]:
            text, code = _note(note)
            yield _Finding(number or _named(text), test, status, text, code)


def _note(note: Any) -> tuple[str, int | None]:
    if isinstance(note, dict):
        code = note.get("error_id")
        code = code if isinstance(code, int) else whole(code) if isinstance(code, str) else None
        return str(note.get("warning") or note.get("message") or "")[:400], code
    return str(note or "")[:400], None


def _health(tree: dict[str, Any], gpu: str, label: str, depth: int) -> Iterator[_Finding]:
    """Nested ``{name: {"value": …, "children": {…}}}``; devices are known by their number below "GPU"."""
    if depth > MAX_DEPTH:
        return
    for name, node in tree.items():
        if not isinstance(node, dict):
            continue
        device = name if name.isdecimal() and label.upper().startswith("GPU") else gpu
        value = str(node.get("value", ""))
        children = node.get("children")
        if (device and isinstance(children, dict) and children) or (isinstance(children, dict) and children):
            yield from _health(children, device, name, depth + 1)
        elif device and name not in ("Errors", "Health"):
            words = value if len(value) > 12 else f"{name} {value}"
            yield _Finding(device, name, _grade(value), words)
        elif device:
            yield _Finding(device, name, _grade(value), "skipped")


def _grade(value: str) -> str:
    low = value.lower()
    if low.startswith(("healthy", "pass")):
        return "Healthy"
    return "Warning" if low.startswith("warn") else "Failure"


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _named(text: str) -> str:
    match = _GPU_IN_TEXT.search(text)
    return match[1] if match is not None else ""


# Text


def _from_text(document: Document) -> Iterator[_Finding]:
    """A table of two columns. What follows a failed line in the right column says why."""
    last: _Finding | None = None
    device = ""
    for number, text in document.lines():
        cells = _CELLS.match(text)
        if cells is None:
            continue
        left, right = cells[1].strip(), cells[2].strip()
        if (row := _OF_ONE.match(right)) is not None and not left and last is not None:
            # Newer tables give each device a line below the test's own, which only sums them up.
            if not last.gpu and last.status:
                last.status, last.text = "", ""
            yield from _spread(last) if last.status else ()
            last = _Finding(row[1], last.test, row[2], "", None, number)
            continue
        if (note := _NOTE_ON.match(left)) is not None and last is not None:
            last = _told(last, note[1], right, number)
            continue
        number_left = _HEALTH_DEVICE.match(left.removeprefix("->").strip()) if left else None
        if number_left is not None:
            device = number_left[1]
        word = right.split(" ")[0].strip("-").lower()
        if (
            word in ("pass", "fail", "warn", "warning", "failure", "healthy", "unhealthy", "skip", "error")
            and left.lower() != "warning"
        ):
            if last is not None:
                yield from _spread(last)
            last = _Finding(device, left.lstrip("-> ") or "?", right.split(" ")[0], "", None, number)
            if "GPU" in right:
                last.text = right
        elif last is not None and right and last.status.lower().startswith(_BAD):
            last.text = f"{last.text} {right}".strip()[:400]
    if last is not None:
        yield from _spread(last)


def _told(last: _Finding, gpu: str, text: str, number: int) -> _Finding:
    """A warning below the lines of the devices names its own; the last of them may be another."""
    if last.gpu == gpu:
        last.text = f"{last.text} {text}".strip()[:400]
        return last
    return _Finding(gpu, last.test, "Fail", text, None, number)


def _spread(one: _Finding) -> Iterator[_Finding]:
    """One finding for each device that the line names."""
    if not one.text and one.status.lower().startswith(_BAD) and one.test in ("Overall Health", "GPU", "Errors"):
        return
    if one.status.lower().startswith(_BAD) and one.test.isdecimal() and not one.text:
        return
    named = _GPU_LIST.search(one.text)
    numbers = [text.strip() for text in named[1].split(",") if text.strip().isdecimal()] if named is not None else []
    for gpu in numbers or [one.gpu or _named(one.text)]:
        yield _Finding(gpu, one.test, one.status, one.text, one.code, one.line)


def _recognise(document: Document) -> float:
    head = document.head
    if head.lstrip("\ufeff \t\r\n").startswith("{"):
        if '"test_categories"' in head or '"DCGM GPU Diagnostic"' in head or '"DCGM Diagnostic"' in head:
            return 0.9
        return 0.85 if '"Overall Health"' in head and '"body"' in head else 0.0
    if "| Diagnostic" in head and "| Result" in head and "DCGM" in head:
        return 0.85
    return 0.85 if "Health Monitor Report" in head else 0.0


READER = Reader(
    name="dcgm_diag", text="the vendor's diagnostic and health watch: dcgmi", recognise=_recognise, read=read
)
