"""Figures as a person reads them: times, sizes, shares. Owns their spelling, but for durations and what is counted: see
``review.wording``. No clock, no locale."""

from datetime import UTC, datetime

from markupsafe import Markup, escape

from keepstep.review.wording import duration

NOTHING = "–"
"""Where there is no figure. Never 0, which would be one."""


def percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share * 100:.1f} %"


def count(value: float | None) -> str:
    """With thousands apart."""
    return NOTHING if value is None else f"{value:,.0f}"


def number(value: float | None, digits: int = 3) -> str:
    """Significant digits; whole from a thousand on."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def size(value_bytes: float | None) -> str:
    if value_bytes is None:
        return NOTHING
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value_bytes < 1024:
            return f"{value_bytes:.3g} {unit}"
        value_bytes /= 1024
    return f"{value_bytes:.3g} TiB"


def words(value: str) -> str:
    """``no_fault`` as ``no fault``."""
    return value.replace("_", " ")


def utc(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def time(at_s: float | None) -> str:
    """UTC, which the page turns into the viewer's own zone and keeps as the tip."""
    return NOTHING if at_s is None else _tag(at_s, utc(at_s))


def moment(at_s: float) -> str:
    """The same, with its date even where that is today: as the end of a period."""
    return _tag(at_s, utc(at_s), "data-at data-whole")


def ago(at_s: float | None, now_s: float) -> str:
    """``4 min 10 s ago``; the moment itself is the tip."""
    if at_s is None:
        return NOTHING
    return _tag(at_s, f"{duration(max(0.0, now_s - at_s))} ago", "data-ago")


def _tag(at_s: float, text: str, mark: str = "data-at") -> Markup:
    machine = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Markup("<time datetime='{}' title='{}' {}>{}</time>").format(machine, utc(at_s), Markup(mark), escape(text))
