"""Log lines: as text for a person, or as JSON for a machine, with what they are about. Owns the format and nothing else.

Standard logging carries all of it: what a line is about travels as ``extra``, or is set for a stretch of work by ``about``.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TextIO

from keepstep.wire.environment import LOG_FORMAT

Format = Literal["text", "json"]
FORMATS: tuple[Format, ...] = ("text", "json")
TEXT = "%(asctime)s %(levelname)s %(message)s"

FIELDS = ("job", "generation", "incident", "fault", "resource", "node", "session", "stage", "trace_id")
"""What a line may be about; in JSON each stands under its own name, where it is known."""

_NOTHING: Mapping[str, object] = {}
_about: ContextVar[Mapping[str, object] | None] = ContextVar("keepstep_log_about", default=None)


@contextmanager
def about(**subjects: object) -> Iterator[None]:
    """Lines logged within carry these fields (see FIELDS), in this task or thread and those that it starts."""
    unknown = next((name for name in subjects if name not in FIELDS), None)
    if unknown is not None:
        raise ValueError(f"a log line is not about {unknown!r}; there are {', '.join(FIELDS)}")
    token = _about.set({**(_about.get() or _NOTHING), **subjects})
    try:
        yield
    finally:
        _about.reset(token)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time`` (UTC, RFC 3339), ``level``, ``logger``, ``message``, and what it is about."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        around = _about.get() or _NOTHING
        for name in FIELDS:
            value = getattr(record, name, None)
            value = around.get(name) if value is None else value
            if value not in (None, ""):
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(
    chosen: str | None = None, stream: TextIO | None = None, *, text: str = TEXT, level: int = logging.INFO
) -> None:
    """Send the log to ``stream`` (standard error). ``chosen``: ``text`` or ``json``; None takes $KEEPSTEP_LOG_FORMAT, else
    text. ``text`` is the pattern of text lines. Raises ValueError for another word."""
    wanted = chosen or os.environ.get(LOG_FORMAT) or "text"
    if wanted not in FORMATS:
        raise ValueError(f"there is no log format {wanted!r}; there are {', '.join(FORMATS)}")
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if wanted == "json" else logging.Formatter(text))
    logging.basicConfig(level=level, handlers=[handler], force=True)
