"""Reads the error file that torch's launcher keeps for a rank. Owns its forms in every version."""

import re
from typing import Any

from keepstep.core.observation import Observation
from keepstep.evidence.document import Document
from keepstep.evidence.job import errors
from keepstep.evidence.job.comm import Communication
from keepstep.evidence.job.ends import Ends
from keepstep.evidence.job.sighting import Sighting
from keepstep.evidence.reading import Reader, Reading

NAME = "elastic_error"
_ATTEMPT = re.compile(r"attempt_\d+/(\d{1,4})/[^/]*$")
_MAX_CHARS = 200_000


def recognise(document: Document) -> float:
    if b'"message"' not in document.data[:4096]:
        return 0.0
    value = document.json
    if not isinstance(value, dict) or "message" not in value:
        return 0.0
    message = value["message"]
    if (
        isinstance(message, dict)
        and isinstance(message.get("extraInfo"), dict)
        and "py_callstack" in message["extraInfo"]
    ):
        return 0.9
    told = {"extraInfo", "errorCode", "timestamp", "py_callstack"}
    if isinstance(message, dict) and "message" in message and told & message.keys():
        return 0.8
    return 0.6 if {"errorCode", "timestamp"} & value.keys() and isinstance(message, str) else 0.0


def read(document: Document) -> Reading:
    reading = Reading(reader=NAME, file=document.path, records=1)
    message, stack, stamp = _parts(document.json)
    if not message and not stack:
        reading.puzzled(1, "an error file without a message")
        return reading
    found = _meaning(message, stack)
    rank = _ATTEMPT.search(document.path)
    attributes = found.attributes | ({"local_rank": rank[1]} if rank is not None else {})
    at_s = _seconds(stamp)
    reading.observations.append(
        Observation(
            signal=found.key, part=f"rank/local{rank[1]}" if rank is not None else "job", source=NAME,
            file=document.path, line=1, at_s=at_s, clock="wall" if at_s is not None else "",
            detail=(message or stack[-400:])[:500], attributes={"exception": "yes"} | attributes,
        )
    )  # fmt: skip
    return reading


def _parts(value: Any) -> tuple[str, str, Any]:
    """Message, stack and time, wherever the version keeps them."""
    told: Any = value
    stack, stamp = "", None
    while isinstance(told, dict):
        extra = told.get("extraInfo")
        for place in (told, extra if isinstance(extra, dict) else {}):
            stack = place["py_callstack"] if isinstance(place.get("py_callstack"), str) else stack
            stamp = place.get("timestamp", stamp)
        inner = told.get("message")
        if inner is told:
            break
        told = inner
    return (told if isinstance(told, str) else "")[:_MAX_CHARS], stack[-_MAX_CHARS:], stamp


def _meaning(message: str, stack: str) -> Sighting:
    """The message names the error; the last exceptions of the stack say more where it is a general one."""
    lines = [
        message,
        *[line for line in reversed(stack.splitlines()) if line and not line.startswith((" ", "Traceback"))][:8],
    ]
    for line in lines:
        found = Ends().take(line) or Communication().take(line)
        if found is not None:
            return found
    keys = [errors.raised(line) for line in lines if line]
    particular = [key for key in keys if key and key != "job.error.application"]
    return Sighting(particular[0] if particular else "job.error.application", {})


def _seconds(stamp: Any) -> float | None:
    try:
        value = float(stamp)
    except (TypeError, ValueError, OverflowError):
        return None
    return value if 0 < value < 1e11 else None


READER = Reader(name=NAME, text="error file of torch's launcher, one rank", recognise=recognise, read=read)
