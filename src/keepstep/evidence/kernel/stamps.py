"""Time stamps of log lines: owns reading them into seconds and the name of their clock. Pure arithmetic; knows no clock."""

import re
from functools import lru_cache

_OTHER_MONTHS = {
    "Mai": 5,
    "Okt": 10,
    "Dez": 12,
    "Mrz": 3,
    "Mär": 3,
    "Ene": 1,
    "Abr": 4,
    "Ago": 8,
    "Dic": 12,
    "Gen": 1,
    "Mag": 5,
}
"""Of the commonest other languages; a month that is none of these leaves a line without a time."""
MONTHS = _OTHER_MONTHS | {
    name: number
    for number, name in enumerate(
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], 1
    )
}
ISO = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:([.,])(\d{1,9}))?"
    r"(Z|[+-]\d\d:?\d\d| (?:UTC|GMT|CES?T|[ECMP][SD]T|JST|KST|IST|BST)(?= ))?"
)
CTIME = re.compile(
    r"\[[A-Z][a-z]{2} ([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.\d{1,9})? (?:[A-Z]{3,4} )?(\d{4})"
    r"(?: {1,4}<[^>]{0,20}>)?\] ?"
)
RFC3164 = re.compile(
    r"([^\W\d_]{3,9}\.?|\d{1,2}[月월]) {1,2}(\d{1,2}) (?:(\d{4}) )?(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?: (\d{4})(?= ))? "
)
NO_YEAR = 2000
"""RFC 3164 prints no year: such stamps live on a clock of their own, in a leap year."""


@lru_cache(maxsize=512)
def midnight_s(year: int, month: int, day: int) -> int | None:
    """Seconds since 1970 at the beginning of a day (UTC); None where there is no such day."""
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    shifted = year - (month <= 2)
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return 86_400 * (era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468)


def iso_s(found: re.Match[str]) -> float | None:
    """Seconds of a match of ``ISO``, in UTC where it says its zone."""
    year, month, day, hour, minute, second, _, fraction, zone = found.groups()
    start = midnight_s(int(year), int(month), int(day))
    if start is None:
        return None
    at_s = start + int(hour) * 3600 + int(minute) * 60 + int(second) + _fraction(fraction)
    if zone and zone[0] in "+-":
        offset_s = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        at_s += -offset_s if zone[0] == "+" else offset_s
    return at_s


def ctime_s(found: re.Match[str]) -> float | None:
    """Seconds of a match of ``CTIME``: local time of a host, of which the zone is not said."""
    month, day, hour, minute, second, year = found.groups()
    start = midnight_s(int(year), MONTHS.get(month, 0), int(day))
    return None if start is None else float(start + int(hour) * 3600 + int(minute) * 60 + int(second))


def rfc3164_s(found: re.Match[str]) -> tuple[float | None, bool]:
    """(seconds of a match of ``RFC3164``, whether its year was said)."""
    month, day, year, hour, minute, second, fraction, late_year = found.groups()
    said = year or late_year
    number = int(month[:-1]) if month[0].isdecimal() else MONTHS.get(month[:3].title(), 0)
    start = midnight_s(int(said) if said else NO_YEAR, number, int(day))
    if start is None:
        return None, False
    return start + int(hour) * 3600 + int(minute) * 60 + int(second) + _fraction(fraction), said is not None


def _fraction(digits: str | None) -> float:
    return int(digits) / 10 ** len(digits) if digits else 0.0
