"""Whole numbers as programs print them. Owns what counts as one; never raises, whatever was sent or lies in a file."""

MOST_DIGITS = 20


def whole(text: str, most_digits: int = MOST_DIGITS) -> int | None:
    """The number; None for anything else. Python itself refuses thousands of digits, and takes digits of every script."""
    return int(text) if len(text) <= most_digits and text.isascii() and text.isdigit() else None
