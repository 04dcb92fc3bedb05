"""What a check of an installation says. Owns the shape."""

from typing import Literal

from msgspec import Struct


class Finding(Struct, frozen=True, kw_only=True):
    check: str
    verdict: Literal["good", "note", "bad"]
    """``note``: works, and is worth knowing."""
    text: str
    mend: str = ""
    """What to do about it."""


def good(check: str, text: str) -> Finding:
    return Finding(check=check, verdict="good", text=text)


def note(check: str, text: str, mend: str = "") -> Finding:
    return Finding(check=check, verdict="note", text=text, mend=mend)


def bad(check: str, text: str, mend: str) -> Finding:
    return Finding(check=check, verdict="bad", text=text, mend=mend)
