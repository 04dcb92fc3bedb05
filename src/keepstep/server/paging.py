"""Pages of lists. Owns cursors, limits and how what is open and what is over become one list; knows no view.

A cursor is opaque to whoever gets it. It names where the next page begins: a place in the World's order, or the archive's own
cursor. What is open comes first; what closes between two pages is seen again further down, never missed.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

from keepstep.ports import Archive, JournalUnavailable
from keepstep.review.records import FaultRecord, IncidentRecord, JobRecord

LIMIT_MAX = 500
Item = TypeVar("Item")
Record = IncidentRecord | JobRecord | FaultRecord


class Cursor(Struct, frozen=True, array_like=True):
    part: Literal["world", "archive"]
    at: int = 0
    """How many of the World's items lie before it."""
    archive: str = ""


class Slice(Struct, Generic[Item], frozen=True, kw_only=True):
    items: tuple[Item, ...]
    next: str
    """Empty on the last page."""
    total: int
    """How many fit, on all pages."""
    missing: str = ""
    """Why what is over is not among them; empty where it is."""


class Closed(Struct, frozen=True, kw_only=True):
    """Which part of the archive continues a list."""

    kind: Literal["incident", "job", "fault"]
    where: Mapping[str, str]
    since_s: float = 0.0
    until_s: float | None = None


def check_limit(limit: int) -> None:
    """Raises ValueError where a page would have no or too many items."""
    if not 1 <= limit <= LIMIT_MAX:
        raise ValueError(f"limit is {limit}; a page has 1 to {LIMIT_MAX} items, and `next` leads to the following one")


def encode_cursor(cursor: Cursor) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")


def decode_cursor(text: str) -> Cursor:
    """Raises ValueError for what is none of ours."""
    if not text:
        return Cursor("world")
    try:
        found = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=Cursor)
    except (binascii.Error, msgspec.DecodeError, UnicodeError, ValueError):
        found = None
    if found is None or found.at < 0:
        raise ValueError(f"{text[:80]!r} is no cursor; take `next` of the page before")
    return found


def page(items: Iterable[Item], total: int, cursor: str, limit: int) -> Slice[Item]:
    """Of a list that is in the World only; ``items`` are all that fit, in order, and may be lazy."""
    check_limit(limit)
    start = decode_cursor(cursor)
    if start.part != "world":
        raise ValueError("that cursor is of another list; take `next` of the page before")
    chosen = tuple(islice(items, start.at, start.at + limit))
    more = start.at + limit < total
    return Slice(items=chosen, next=encode_cursor(Cursor("world", start.at + limit)) if more else "", total=total)


def page_of_all(
    items: Sequence[Item],
    archive: Archive,
    closed: Closed | None,
    view: Callable[[Record], Item],
    *,
    cursor: str,
    limit: int,
) -> Slice[Item]:
    """``items``, newest first, then what the archive has: ``closed`` says which part of it; None where nothing of it fits.

    Where the archive's medium is away, what the World has is answered alone, and ``missing`` says so; a page of the archive
    itself raises JournalUnavailable.
    """
    check_limit(limit)
    start = decode_cursor(cursor)
    chosen = list(items[start.at : start.at + limit]) if start.part == "world" else []
    if closed is None:
        return page(items, len(items), cursor, limit)
    room = limit - len(chosen)
    try:
        kept = archive.list(
            closed.kind, closed.where, cursor=start.archive, limit=max(room, 1), since_s=closed.since_s,
            until_s=closed.until_s,
        )  # fmt: skip
    except JournalUnavailable as error:
        if start.part == "archive":
            raise
        return msgspec.structs.replace(page(items, len(items), cursor, limit), missing=str(error))
    total = len(items) + kept.total
    if room == 0:
        more = start.at + limit < len(items) or kept.total > 0
        at = start.at + limit
        return Slice(items=tuple(chosen), next=encode_cursor(Cursor("world", at)) if more else "", total=total)
    chosen += map(view, kept.records)
    following = encode_cursor(Cursor("archive", 0, kept.next)) if kept.next else ""
    return Slice(items=tuple(chosen), next=following, total=total)
