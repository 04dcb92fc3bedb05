"""The read side of the journal: its entries as they are, with their hashes, found by what they are about."""

from collections.abc import Sequence
from typing import Any

import msgspec

from keepstep.core.decision import Decision, Entry
from keepstep.server import journal_views as views
from keepstep.server.desk import Desk, UnknownSubject
from keepstep.server.paging import check_limit

LIMIT = 100


def entries(desk: Desk, about: Sequence[str] = (), before: int | None = None, limit: int = LIMIT) -> views.Entries:
    """Newest first. ``about``: subjects as core.mentions names them, any of which an entry must mention; none: all entries.
    ``before``: only entries with a smaller number; the ``next`` of one page is the ``before`` of the following."""
    check_limit(limit)
    if desk.journal is None:
        raise UnknownSubject("there is no journal here: this answer is from the books alone")
    if before is not None and before < 1:
        raise ValueError(f"before is {before}; entries are counted from 1")
    found = desk.journal.mentioning(list(about), before=before, limit=limit + 1)
    more = len(found) > limit
    return views.Entries(
        entries=tuple(map(view, found[:limit])),
        next=found[limit - 1].seq if more else None,
        first=desk.journal.first(),
        last=desk.journal.last(),
    )


def view(entry: Entry) -> views.EntryView:
    record = entry.record
    told: dict[str, Any] = msgspec.to_builtins(record)
    decided = isinstance(record, Decision)
    return views.EntryView(
        seq=entry.seq,
        at_s=entry.at_s,
        kind=record.stage if isinstance(record, Decision) else type(record).__name__,
        decision=decided,
        reason=record.reason if isinstance(record, Decision) else "",
        record=told,
        prev=entry.prev,
        hash=entry.hash,
    )
