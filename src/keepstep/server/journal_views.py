"""Answers about the journal, as structs. Computes nothing."""

from typing import Any

from msgspec import Struct


class EntryView(Struct, frozen=True, kw_only=True):
    seq: int
    at_s: float
    """When the server took it, by its clock."""
    kind: str
    """Type of the fact, or the stage that decided."""
    decision: bool
    reason: str
    """Of a decision."""
    record: dict[str, Any]
    """The fact or the decision itself, see docs/reference/facts-and-intents.md."""
    prev: str
    hash: str
    """BLAKE2b-256 over the hash before, the number, the time and the record: whoever has both can check the link."""


class Entries(Struct, frozen=True, kw_only=True):
    """Newest first."""

    entries: tuple[EntryView, ...]
    next: int | None
    """To be handed in as ``before`` for the following page; None on the last one."""
    first: int
    """Oldest entry that was not compacted away."""
    last: int
