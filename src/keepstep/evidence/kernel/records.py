"""Records of a log out of its lines: owns what belongs together (continuations, journal entries) and where a boot begins.

Incremental: a file and a live source are read by the same code. Must not know what any message means, except where the driver
itself breaks one sentence over several lines.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from keepstep.core.figures import whole
from keepstep.evidence.document import Document
from keepstep.evidence.kernel import stamps
from keepstep.evidence.kernel.frames import Frame, Record, frame, frame_begins, unescaped

MAX_JOINED_CHARS = 16_384
MAX_FIELDS = 200
BACKWARDS_S = 30.0
"""A kernel's own clock that falls by more than this has started again: lines of several processors are never that far apart."""

_BOOT = re.compile(r"-- (?:Boot [0-9a-f]{32}|Reboot) --")
_HEADER = re.compile(
    r"-- (?:Logs begin|Journal begins|No entries)|(?:Panic|Oops|Emergency|Shutdown)#\d+ Part ?\d+|dmesg-[\w-]+-\d+:"
)
_EXPORT = re.compile(r"(_{0,2}[A-Z][A-Z0-9_]{0,63})(?:=(.*))?$", re.S)
_STRUCTURED = frozenset("{_d\x1e")
"""First characters of lines that may be a structured entry; of all other lines nothing more is asked."""
_EXPORT_START = ("__CURSOR=", "__REALTIME_TIMESTAMP=", "_TRANSPORT=", "__SEQNUM=")
_KMSG_FIELD = re.compile(r" [A-Z_]+=")
_BROKEN_SENTENCE = re.compile(r"NVRM: (?:The NVIDIA GPU\b|GPU at \S+ \(PCI ID)")
_GPU_NAME = "NVRM: GPU at "
_BOARD = "NVRM: GPU Board Serial Number:"
_REPEATED = re.compile(r"message repeated (\d{1,6}) times: \[ ?(.*?)\]?$", re.S)
_LAST_REPEATED = re.compile(r"(?:--- )?last message (?:buffered|repeated) (\d{1,6}) times?(?: ---)?$")
_REST_OF_SENTENCE = re.compile(
    r"NVRM: +(?:\(PCI ID|\(?installed in this system|installed|has fallen|fallen off the bus|Xid \()"
)
_MESSAGE_KEYS = ("MESSAGE", "message", "msg", "log", "line", "textPayload")
_WRAPPERS = ("jsonPayload", "_source", "fields", "record")
"""Where collectors put the entry that they were given."""
_HOST_KEYS = ("_HOSTNAME", "hostname", "host", "node")
_STAMP_KEYS = ("time", "timestamp", "@timestamp", "ts")
_NOT_KERNEL_KEYS = ("logger", "caller", "logName", "stacktrace")


def records(document: Document) -> Iterator[Record]:
    """All records of a document."""
    framer = Framer()
    for number, text in document.lines():
        yield from framer.feed(number, text)
    yield from framer.flush()


class Framer:
    """Takes lines, gives records. A record is given once it is known to be complete: at the next line, or at ``flush``."""

    def __init__(self) -> None:
        self._pending: Record | None = None
        self._pending_form = ""
        self._last: Record | None = None
        self._boot = 0
        self._since_boot = 0
        self._last_s: dict[str, float] = {}
        self._boot_id = ""
        self._entry: dict[str, Any] = {}
        self._entry_line = 0
        self._binary_field = ""
        self._pretty: list[str] | None = None

    def feed(self, number: int, text: str) -> list[Record]:
        if text[:1] not in _STRUCTURED and not self._entry and not self._binary_field and self._pretty is None:
            return self._feed_text(number, text)
        text = text.lstrip("\x1e")
        if self._pretty is not None or text == "{":
            return self._feed_pretty(number, text)
        if self._entry or self._binary_field or text.startswith(_EXPORT_START):
            return self._feed_export(number, text)
        if text.startswith(("{", "data: {")):
            return self._feed_json(number, text.removeprefix("data: "))
        return self._feed_text(number, text)

    def flush(self) -> list[Record]:
        """The record that was still waiting for further lines."""
        done = self._take_pending()
        if self._entry:
            done += self._end_entry()
        return done

    def _take_pending(self) -> list[Record]:
        pending, self._pending = self._pending, None
        if pending is None:
            return []
        if pending.text.startswith("[s=") and "\n" in pending.text:
            return self._verbose(pending)
        return [pending]

    def _verbose(self, pending: Record) -> list[Record]:
        """journalctl's verbose form: a stamp with the cursor, then an indented line for each field."""
        fields = dict(line.split("=", 1) for line in pending.text.split("\n")[1:] if "=" in line)
        got = framed_fields(fields)
        return [] if got is None else [self._record(pending.line, got)]

    def _hold(self, record: Record, form: str) -> list[Record]:
        done = self._take_pending()
        self._pending, self._pending_form = record, form
        return done

    def _feed_text(self, number: int, text: str) -> list[Record]:
        if not text or text.isspace():
            return self._take_pending()
        if text[0] in " \t":
            if self._continues(text):
                return []
            text = text.lstrip()
        elif text.startswith(("-- ", "Panic#", "Oops#", "dmesg-")) and (_BOOT.match(text) or _HEADER.match(text)):
            return self._mark(number, text)
        got = frame(text)
        if self._joins(got.text):
            self._join(got.text)
            return []
        return self._hold(self._record(number, got), got.form)

    def _mark(self, number: int, text: str) -> list[Record]:
        """A line of the tool that wrote the file: a new boot, or a part of a dump, whose time may lie before."""
        self._last_s.clear()
        if text.startswith("-- ") and _BOOT.match(text):
            self._next_boot()
            return self._take_pending()
        return self._hold(Record(line=number, text=text, kernel=True, boot=self._boot), "")

    def _continues(self, text: str) -> bool:
        """Whether an indented line belongs to the record before it; takes it in if so."""
        if self._pending is None:
            return False
        if self._pending_form == "kmsg" and _KMSG_FIELD.match(text):
            return True
        stripped = text.lstrip()
        if frame_begins(stripped):
            return False
        self._join(stripped)
        return True

    def _joins(self, text: str) -> bool:
        pending = self._pending
        if pending is None or not text.startswith("NVRM:") or not pending.text.startswith("NVRM:"):
            return False
        whole = pending.text
        if whole.startswith(_GPU_NAME) and text.startswith(_BOARD):
            return True
        return "fallen off the bus" not in whole and bool(
            _BROKEN_SENTENCE.match(whole) and _REST_OF_SENTENCE.match(text)
        )

    def _join(self, text: str) -> None:
        pending = self._pending
        if pending is not None and len(pending.text) + len(text) < MAX_JOINED_CHARS:
            self._pending = msgspec.structs.replace(pending, text=f"{pending.text}\n{text}")

    def _record(self, number: int, got: Frame) -> Record:
        self._watch_boot(got)
        self._since_boot += 1
        if "message " in got.text[:12] and (again := self._repeated(number, got)) is not None:
            return again
        text = unescaped(got.text) if "#01" in got.text else got.text
        self._last = Record(
            line=number, text=text, at_s=got.at_s, clock=got.named_clock(), node=got.node, program=got.program,
            kernel=got.is_kernel, framed=got.is_framed, priority=got.priority, facility=got.facility, boot=self._boot,
        )  # fmt: skip
        return self._last

    def _repeated(self, number: int, got: Frame) -> Record | None:
        """What the logger says instead of equal lines: how many more there were, with or without their text."""
        if found := _LAST_REPEATED.match(got.text.strip()):
            if self._last is None or self._last.node != got.node:
                return None
            return msgspec.structs.replace(self._last, line=number, at_s=got.at_s, repeats=max(1, int(found[1])))
        if found := _REPEATED.match(got.text):
            got.text = frame(found[2]).text
            return msgspec.structs.replace(self._record(number, got), repeats=max(1, int(found[1])))
        return None

    def _watch_boot(self, got: Frame) -> None:
        began = got.text[:6] == "Linux " and got.text.startswith("Linux version ") and got.is_kernel
        if got.clock == "kernel" and got.at_s is not None:
            clock = got.named_clock()
            last_s = self._last_s.get(clock)
            began = began or (last_s is not None and got.at_s < last_s - BACKWARDS_S)
            self._last_s[clock] = got.at_s
        if got.boot_id and got.boot_id != self._boot_id:
            began = began or bool(self._boot_id)
            self._boot_id = got.boot_id
        if began:
            self._next_boot()

    def _next_boot(self) -> None:
        if self._since_boot:
            self._boot += 1
            self._since_boot = 0
        self._last_s.clear()

    def _feed_json(self, number: int, text: str) -> list[Record]:
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            return self._feed_text(number, text)
        got = framed_fields(fields) if isinstance(fields, dict) else None
        if got is None:
            return self._take_pending()
        return [*self._take_pending(), self._record(number, got)]

    def _feed_pretty(self, number: int, text: str) -> list[Record]:
        """journalctl's json-pretty: one entry over many lines."""
        if self._pretty is None:
            self._pretty, self._entry_line = [text], number
            return self._take_pending()
        self._pretty.append(text)
        if text.rstrip(",") != "}":
            if len(self._pretty) > MAX_FIELDS:
                self._pretty = None
            return []
        whole, self._pretty = "\n".join([*self._pretty[:-1], "}"]), None
        return self._feed_json(self._entry_line, whole)

    def _feed_export(self, number: int, text: str) -> list[Record]:
        """journalctl's export: ``FIELD=value`` lines, or a field's name, a binary size and the value; a blank line ends it."""
        if not text:
            return self._end_entry()
        found = _EXPORT.match(text)
        if self._binary_field and (found is None or found[2] is None):
            before = self._entry.get(self._binary_field, "")
            if len(before) + len(text) < MAX_JOINED_CHARS:
                self._entry[self._binary_field] = f"{before}\n{text}" if before else text
            return []
        if found is None or len(self._entry) > MAX_FIELDS:
            return [*self._end_entry(), *self._feed_text(number, text)]
        if not self._entry:
            self._entry_line = number
        self._binary_field = found[1] if found[2] is None else ""
        if found[2] is not None:
            self._entry[found[1]] = found[2]
        elif found[1] in _MESSAGE_KEYS:
            self._entry[found[1]] = ""
        return []

    def _end_entry(self) -> list[Record]:
        entry, self._entry, self._binary_field = self._entry, {}, ""
        text = entry.get("MESSAGE", "")
        if "\n" in text or text[:1] < " " or text[:1] == "\ufffd":
            entry["MESSAGE"] = _without_size(text)
        got = framed_fields(entry)
        return [*self._take_pending(), self._record(self._entry_line, got)] if got is not None else self._take_pending()


def _without_size(text: str) -> str:
    """A binary field begins with its length in eight bytes, of which those that are no NUL are left."""
    return text[2 if len(text) > 256 else 1 :]


def framed_fields(fields: dict[str, Any]) -> Frame | None:
    """The frame of a structured entry; None where it holds no message."""
    for key in _WRAPPERS:
        if isinstance(inner := fields.get(key), dict):
            fields = {**fields, **inner}
    message = next((fields[key] for key in _MESSAGE_KEYS if fields.get(key)), None)
    if isinstance(message, list):
        message = bytes(x for x in message if isinstance(x, int) and 0 <= x < 256).decode("utf-8", errors="replace")
    if not isinstance(message, str):
        return None
    got = frame(message.rstrip("\n"))
    _set_fields(got, fields)
    return got


def _set_fields(got: Frame, fields: dict[str, Any]) -> None:
    transport, program = (
        fields.get("_TRANSPORT"),
        _text(fields, ("SYSLOG_IDENTIFIER", "_COMM", "ident", "program", "appname")),
    )
    if transport is not None or program:
        got.kernel = transport == "kernel" or (transport in (None, "syslog", "stdout") and program == "kernel")
        got.program = "kernel" if got.kernel else program
        got.form = got.form or "journal"
    elif any(key in fields for key in _NOT_KERNEL_KEYS):
        got.kernel, got.program = False, got.program or "log"
    elif "priority" in fields and "sequence" in fields:
        got.form = got.form or "kmsg"
    got.node = _text(fields, _HOST_KEYS) or got.node
    got.boot_id = _text(fields, ("_BOOT_ID",))
    if str(fields.get("PRIORITY", "")) in tuple("01234567"):
        got.priority = int(fields["PRIORITY"])
    realtime = fields.get("_SOURCE_REALTIME_TIMESTAMP") or fields.get("__REALTIME_TIMESTAMP")
    monotonic = fields.get("_SOURCE_MONOTONIC_TIMESTAMP") or fields.get("__MONOTONIC_TIMESTAMP")
    if (at_us := _number(realtime)) is not None:
        got.at_s, got.clock = at_us / 1e6, "wall"
    elif (at_us := _number(monotonic)) is not None:
        got.at_s, got.clock = at_us / 1e6, "kernel"
    elif found := stamps.ISO.match(_text(fields, _STAMP_KEYS)):
        got.set_time(stamps.iso_s(found), "wall")


def _text(fields: dict[str, Any], keys: tuple[str, ...]) -> str:
    return next((value[:253] for key in keys if isinstance(value := fields.get(key), str) and value), "")


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else whole(value) if isinstance(value, str) else None
