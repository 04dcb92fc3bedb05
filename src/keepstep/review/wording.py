"""How numbers are written in sentences, tables and plots. Pure; owns spelling only."""

import math


def duration(seconds: float | None) -> str:
    """Two units at most: ``0.35 s``, ``42 s``, ``12 min 30 s``, ``3 h 10 min``, ``5 d 2 h``. Pages and reports spell them
    alike: the same recovery is looked up in both."""
    if seconds is None:
        return "–"
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    for size_s, name, part_s, part in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size_s:
            rest = whole % size_s // part_s
            return f"{whole // size_s} {name} {rest} {part}" if rest else f"{whole // size_s} {name}"
    return f"{whole} s"


def hours(gpu_h: float | None) -> str:
    return "–" if gpu_h is None else f"{number(gpu_h)} GPU-h"


def percent(value: float | None, signed: bool = False) -> str:
    if value is None:
        return "–"
    digits = 1 if abs(value) >= 0.001 or value == 0 else 2
    return f"{100 * value:+.{digits}f} %" if signed else f"{100 * value:.{digits}f} %"


def number(value: float | None) -> str:
    """Three digits, without an exponent."""
    if value is None:
        return "–"
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "∞"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def size(value_bytes: float | None) -> str:
    if value_bytes is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value_bytes) < 1000 or unit == "TB":
            return f"{number(value_bytes)} {unit}"
        value_bytes /= 1000
    return ""


def count(value: int, one: str, many: str = "") -> str:
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def day(at_s: float) -> str:
    """``2026-11-30``, UTC, by the proleptic Gregorian calendar."""
    return "{:04d}-{:02d}-{:02d}".format(*_civil(math.floor(at_s / 86_400)))


def moment(at_s: float | None) -> str:
    """``2026-11-30 03:14:15 UTC``."""
    if at_s is None:
        return "–"
    rest = int(at_s) % 86_400
    return f"{day(at_s)} {rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d} UTC"


def _civil(days: int) -> tuple[int, int, int]:
    """Days since the epoch to year, month, day; in eras of 400 years that begin in March."""
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year + era * 400 + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1
