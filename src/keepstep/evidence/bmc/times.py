"""Times of controllers: many of them were never set. Reads them; must not compare two clocks."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone

FIRST_SANE_YEAR = 2010
LAST_SANE_YEAR = 2100
CLOCK = "bmc"
UNSET_CLOCK = "bmc:unset"
"""The controller counted from its own zero: order and durations mean something, the date nothing."""
BOOT_CLOCK = "bmc:boot"
"""Seconds since the controller started, before it knew the time."""

_ISO = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})[T ](\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,9}))?\s*(Z|[+-]\d{2}:?\d{2})?", re.I
)  # fmt: skip
_DOTTED = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{2,4})\s+(\d{1,2}):(\d{2}):(\d{2})(?:\s*(AM|PM))?", re.I)
_NAMES = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_MONTHS = {name: number for number, name in enumerate(re.split("[|]", _NAMES), 1)}
_NAMED = re.compile(r"([A-Z][a-z]{2})-(\d{1,2})-(\d{4})\s+(\d{1,2}):(\d{2}):(\d{2})")
_CTIME = re.compile(r"\[[A-Z][a-z]{2} ([A-Z][a-z]{2})\s+(\d{1,2}) (\d{2}):(\d{2}):(\d{2}) (?:[A-Z]{2,5} )?(\d{4})\]")


def read_time(text: object) -> tuple[float | None, str]:
    """(seconds, clock) of a time stamp; (None, "") where there is none, or one that no calendar knows."""
    if not isinstance(text, str):
        return None, ""
    found = _ISO.search(text)
    if found is not None:
        year, month, day, hour, minute, second = (int(x) for x in found.groups()[:6])
        seconds = _seconds((year, month, day, hour, minute, second), found[8] or "Z")
        fraction = float(f"0.{found[7]}") if found[7] else 0.0
        return _clocked(None if seconds is None else seconds + fraction, year)
    found = _DOTTED.search(text)
    if found is not None:
        month, day, year, hour, minute, second = (int(x) for x in found.groups()[:6])
        if found[7]:
            hour = hour % 12 + (12 if found[7].upper() == "PM" else 0)
        year += 2000 if year < 70 else 1900 if year < 100 else 0
        return _clocked(_seconds((year, month, day, hour, minute, second), "Z"), year)
    found = _NAMED.search(text)
    if found is not None and found[1].lower() in _MONTHS:
        day, year, hour, minute, second = (int(x) for x in found.groups()[1:6])
        return _clocked(_seconds((year, _MONTHS[found[1].lower()], day, hour, minute, second), "Z"), year)
    return None, ""


def host_time(text: str) -> float | None:
    """The host's own time inside a message of the driver, ``[Tue Dec 5 23:25:41 UTC 2023]``; None where none is sane."""
    found = _CTIME.search(text[:400])
    if found is None or found[1].lower() not in _MONTHS:
        return None
    day, hour, minute, second, year = (int(x) for x in found.groups()[1:6])
    if not FIRST_SANE_YEAR <= year < LAST_SANE_YEAR:
        return None
    return _seconds((year, _MONTHS[found[1].lower()], day, hour, minute, second), "Z")


def estimate_offset_s(pairs: Iterable[tuple[float, float]]) -> tuple[float, float] | None:
    """(host minus controller in seconds, spread) from pairs of (controller's time, host's time); the median, so that one
    late record does not matter. None for fewer than two pairs."""
    offsets = sorted(host - bmc for bmc, host in pairs)
    if len(offsets) < 2:
        return None
    return offsets[len(offsets) // 2], offsets[-1] - offsets[0]


def _clocked(seconds: float | None, year: int) -> tuple[float | None, str]:
    if seconds is None or year >= LAST_SANE_YEAR:
        return None, ""
    return seconds, CLOCK if year >= FIRST_SANE_YEAR else UNSET_CLOCK


def _seconds(fields: tuple[int, int, int, int, int, int], zone: str) -> float | None:
    try:
        return datetime(*fields, tzinfo=_zone(zone)).timestamp()
    except (ValueError, OverflowError):
        return None  # 0000-00-00, or the 31st of a short month


def _zone(text: str) -> timezone:
    if text in ("Z", "z"):
        return UTC
    digits = text[1:].replace(":", "")
    ahead = timedelta(hours=int(digits[:2]), minutes=int(digits[2:4]))
    return timezone(-ahead if text[0] == "-" else ahead)
