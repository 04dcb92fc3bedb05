"""Documents of Redfish as they are kept: one resource, a collection, a bundle, a list, JSON lines, an event. Owns only their
opening: (path, body, line) out, whatever is broken around them; must not know what a resource means.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from keepstep.evidence.document import Document

MAX_BODIES = 50_000
MAX_SALVAGE_BYTES = 8 * 1024 * 1024
_MARK = re.compile(rb'"@odata\.(?:id|type|context)"|"OriginOfCondition"|"MemberId"|"MessageId"|"HealthRollup"')
_AT = re.compile(rb'"(?:@odata\.id"\s{0,8}:\s{0,8}")?(/[^"\n]{1,300})"(\s{0,8}:\s{0,8}[\{\[])?')
_TYPE = re.compile(r"#?([A-Za-z]+)\.")


class Body(Struct, frozen=True, kw_only=True):
    path: str
    body: dict[str, Any]
    line: int = 0


def looks_like_redfish(data: bytes) -> int:
    """How many marks of Redfish the beginning holds."""
    return len(_MARK.findall(data[: 256 * 1024]))


def kind_of_body(body: dict[str, Any]) -> str:
    """``LogEntry`` of ``#LogEntry.v1_9_0.LogEntry``; a guess by its fields where the type is left out."""
    text = body.get("@odata.type")
    if isinstance(text, str):
        found = _TYPE.match(text)
        if found is not None:
            return found[1]
    if isinstance(body.get("Events"), list):
        return "Event"
    if isinstance(body.get("Message"), str) and ("Severity" in body or "MessageId" in body or "EntryType" in body):
        return "LogEntry"
    for field, kind in (("Members", "Collection"), ("PowerSupplies", "Power"), ("Temperatures", "Thermal"),
                        ("Conditions", "ServiceConditions"), ("DetectorState", "LeakDetector"),
                        ("ProcessorType", "Processor"), ("FailurePredicted", "Drive"),
                        ("PowerState", "ComputerSystem"), ("ReadingType", "Sensor")):  # fmt: skip
        if field in body:
            return kind
    return ""


def bodies(document: Document) -> tuple[list[Body], list[tuple[int, str]]]:
    """Every resource of a document, and (line, text) of what could not be opened."""
    broken: list[tuple[int, str]] = []
    value = document.json
    lines = _lines_of(document.data)
    if value is None:
        found = list(_from_lines(document, broken))
        if not found:
            found = _salvaged(document.data, lines)
        return found[:MAX_BODIES], broken
    return list(_opened(value, "", lines, broken))[:MAX_BODIES], broken


def _opened(value: Any, path: str, lines: dict[str, int], broken: list[tuple[int, str]]) -> Iterator[Body]:
    if isinstance(value, list):
        for one in value:
            yield from _opened(one, path, lines, broken)
        return
    if not isinstance(value, dict):
        return
    bundle = _bundle(value)
    if bundle is not None:
        for at, body in bundle.items():
            inner: Any = _parsed(body) if isinstance(body, str) else body
            if isinstance(inner, dict | list):
                yield from _opened(inner, at, lines, broken)
            else:
                broken.append((lines.get(at, 0), f"{at}: {str(body)[:120]}"))
        return
    own = value.get("@odata.id")
    where = own if isinstance(own, str) and own else path
    members = value.get("Members")
    if isinstance(members, list) and any(isinstance(member, dict) and len(member) > 1 for member in members):
        for member in members:
            if isinstance(member, dict) and len(member) > 1:
                yield from _opened(member, where, lines, broken)
        return
    events = value.get("Events")
    if isinstance(events, list):
        for event in events:
            if isinstance(event, dict):
                yield Body(path=f"{where}/Events", body={"@odata.type": "#LogEntry.", **event, "Event": True}, line=1)
        return
    yield Body(path=where, body=value, line=lines.get(where, 1 if not path else 0))


def _bundle(value: dict[str, Any]) -> dict[str, Any] | None:
    """The ``path: body`` part of a bundle; None where the value is a resource itself."""
    for name in ("resources", "Resources", "mockup"):
        inner = value.get(name)
        if isinstance(inner, dict) and any(str(key).startswith("/") for key in inner):
            return inner
    paths = sum(isinstance(key, str) and key.startswith("/") for key in value)
    if paths and paths * 2 >= len(value):
        return {key: body for key, body in value.items() if isinstance(key, str) and key.startswith("/")}
    body = value.get("body")
    path = value.get("path") or value.get("url") or value.get("uri")
    if isinstance(body, dict | list | str) and isinstance(path, str) and path.startswith("/"):
        return {path: body}
    return None


def _from_lines(document: Document, broken: list[tuple[int, str]]) -> Iterator[Body]:
    """One JSON value a line, as a list of events or as a stream of them (``data: {…}``)."""
    for number, line in document.lines():
        text = line.strip().removeprefix("data:").strip().rstrip(",")
        if not text.startswith("{") or len(text) < 3:
            continue
        value = _parsed(text)
        if value is None:
            if text.endswith("}") and '"' in text:
                broken.append((number, text))
            continue
        for body in _opened(value, "", {}, broken):
            yield Body(path=body.path, body=body.body, line=number)


def _salvaged(data: bytes, lines: dict[str, int]) -> list[Body]:
    """Whole resources out of a document that is no JSON: each object that begins with its ``@odata`` fields and closes."""
    text = data[:MAX_SALVAGE_BYTES].decode("utf-8", errors="replace")
    decoder, at, tries = json.JSONDecoder(strict=False), 0, 0
    found: list[Body] = []
    while len(found) < MAX_BODIES and tries < 4096:
        mark = text.find('"@odata.', at)
        if mark < 0:
            break
        tries += 1
        start = text.rfind("{", max(at, mark - 200), mark)
        at = mark + 8
        if start < 0:
            continue
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and len(value) > 1:
            found.extend(_opened(value, "", lines, []))
            at = max(at, end)
    return found


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _lines_of(data: bytes) -> dict[str, int]:
    """Path of a resource -> line at which it stands: where it is a key, else where it first names itself."""
    keys: dict[str, int] = {}
    named: dict[str, int] = {}
    line, last = 1, 0
    for found in _AT.finditer(data):
        line += data.count(b"\n", last, found.start())
        last = found.start()
        path = found[1].decode("utf-8", errors="replace")
        (keys if found[2] else named).setdefault(path, line)
        if len(named) + len(keys) > 4 * MAX_BODIES:
            break
    return named | keys
