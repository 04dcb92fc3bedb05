"""A review as a table of figures, for spreadsheets. Owns the flattening; the figures are review's."""

import csv
import io
from collections.abc import Iterator
from typing import Any

import msgspec

from keepstep.review.figures import Review

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a text begins that a spreadsheet would compute."""


def review_csv(review: Review) -> str:
    """One line a figure: where it stands in the review, its name there, its value. An empty value: too few to tell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(("section", "figure", "value"))
    for path, value in _leaves("", review):
        section, _, figure = path.partition(".")
        writer.writerow((section, figure, _cell(value)))
    return out.getvalue()


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _leaves(f"{path}.{name}" if path else name, getattr(value, name))
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(f"{path}.{name}", item)
    elif isinstance(value, (tuple, list)):
        for place, item in enumerate(value):
            yield from _leaves(f"{path}.{place}", item)
    else:
        yield path, value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.10g}"
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text
