"""A journal entry as a line that a person can read, with its hash. Owns the words."""

from typing import Any

import msgspec
from msgspec import Struct

from keepstep.core.decision import Decision, Entry, Record

TOLD_MAX = 400
_QUIET = ("job", "incident", "session", "type", "inventory", "traceback", "digest")
"""Fields that say nothing here."""


class EntryLine(Struct, frozen=True, kw_only=True):
    seq: int
    at_s: float
    kind: str
    """``decision`` or ``fact``."""
    name: str
    """Stage of the decision, type of the fact."""
    text: str
    prev: str
    hash: str


def entry_line(entry: Entry) -> EntryLine:
    record = entry.record
    is_decision = isinstance(record, Decision)
    return EntryLine(
        seq=entry.seq, at_s=entry.at_s, kind="decision" if is_decision else "fact",
        name=record.stage if isinstance(record, Decision) else type(record).__name__,
        text=_text(record)[:TOLD_MAX], prev=entry.prev, hash=entry.hash,
    )  # fmt: skip


def _text(record: Record) -> str:
    if isinstance(record, Decision):
        return f"{record.subject}: {record.reason}"
    return " · ".join(_fields(record))


def _fields(fact: Any) -> list[str]:
    """Its fields that say something, in their order. Of lists only the length."""
    told = []
    for field in msgspec.structs.fields(fact):
        value = getattr(fact, field.name)
        if field.name in _QUIET or value in (None, "", (), {}, field.default):
            continue
        told.append(f"{field.name} {_value(value)}")
    return told


def _value(value: Any) -> str:
    if isinstance(value, (tuple, dict)) and len(value) > 4:
        return f"{len(value)} of them"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(item)}" for name, item in value.items())
    if isinstance(value, msgspec.Struct):
        return "(" + " · ".join(_fields(value)) + ")"
    if isinstance(value, tuple):
        return ", ".join(_value(item) for item in value)
    return str(value)
