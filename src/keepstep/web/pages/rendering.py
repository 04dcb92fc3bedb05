"""From a context to HTML: the one template environment. Everything is escaped; owns filters, knows no page."""

from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from keepstep.review.wording import count as counted
from keepstep.review.wording import duration
from keepstep.web.pages import units


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("keepstep.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        duration=duration,
        percent=units.percent,
        count=units.count,
        counted=counted,
        number=units.number,
        size=units.size,
        words=units.words,
        time=units.time,
        moment=units.moment,
        ago=units.ago,
        age=lambda now_s, since_s: duration(max(0.0, now_s - since_s)),
        segment=lambda value: quote(str(value), safe=""),
        path=lambda value: quote(str(value), safe="/"),
    )
    made.globals["query"] = query
    return made


def query(values: Mapping[str, Any], **changes: Any) -> str:
    """``?a=1&b=2`` of the values that are not empty, some of them changed."""
    kept = {name: value for name, value in {**values, **changes}.items() if value not in ("", None)}
    return "?" + urlencode(kept) if kept else "?"


def render(template: str, **context: Any) -> str:
    return environment().get_template(template).render(**context)
