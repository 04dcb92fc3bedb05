"""Frames of log lines: who wrote a line, when, on which host, and what is left once that is taken off.

Peels one prefix after another, so that any mixture of them reads (a container's stamp before a syslog line before the kernel's
own). Must not know what any message means, and never raises.
"""

import re

from msgspec import Struct

from keepstep.core.observation import Observation
from keepstep.evidence.kernel import stamps

SOURCE = "kernel_log"
MAX_DETAIL = 500
MAX_PREFIXES = 7

_KMSG = re.compile(r"(\d{1,4}),(\d+),(\d+),[^;]{0,160};")
_LEVEL = re.compile(r"<(\d{1,3})>")
_RFC5424 = re.compile(
    r"1 (\S{1,64}) (\S{1,255}) (\S{1,48}) (\S{1,128}) (\S{1,32}) (?:-|(?:\[[^\]]{0,2000}\])+) ?(?:\xef\xbb\xbf|\ufeff)?"
)
_MONOTONIC = re.compile(r"\[ {0,11}(\d{1,10}(?:\.\d{1,9})?)(?: {1,3}<[^>]{0,20}>)?\](?:\[ {0,8}[TC]\d+\])?:? ?")
_NO_TIME = re.compile(r"\[(?:\.{3}|…| {0,11}[+<] {0,11}\d[\d.]*>?|[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d)\] ?")
_FACILITY = re.compile(
    r"(kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local\d) *: *"
    r"(emerg|alert|crit|err|error|warn|warning|notice|info|debug) *: *"
)
_LEVELS = {
    "emerg": 0,
    "alert": 1,
    "crit": 2,
    "err": 3,
    "error": 3,
    "warn": 4,
    "warning": 4,
    "notice": 5,
    "info": 6,
    "debug": 7,
}
_UNIX = re.compile(r"(\d{9,10}\.\d{3,9}) (?=[\w.-]+ )")
_WEEKDAY = re.compile(r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? (?=\d{4}-|[A-Z][a-z]{2} {1,2}\d)")
_CONTAINER = re.compile(r"(?:stdout|stderr) [FP] |[A-Z][a-z]\(\d{1,3}\) ")
_KERNEL_TAG = re.compile(r"(?:(?:vm)?kernel|kern|klogd)(?:\[\d+\])?: ?")
_HOST_KERNEL = re.compile(r"([\w.-]{1,253}) (?:(?:vm)?kernel|kern)(?:\[\d+\])?: ?")
_HOST_PROGRAM = re.compile(r"([\w.:/@-]{1,253}) ([A-Za-z0-9_(][\w./@+-]{0,100}(?:\([\w-]+\)|\))?)(?:\[(\d+)\])?: ?")
_HOST_PID = re.compile(r"([\w.-]{1,253}) ([A-Za-z_][\w./@+-]{0,100})\[(\d+)\]: ?")
_HOST = re.compile(r"([\w.-]{1,253}) ")
_BEFORE_FRAME = re.compile(
    r"([\w.-]{1,253}): (?=(?:kern|user|daemon) *: |\[ {0,11}\d|\[[A-Z][a-z]{2} |<\d|NVRM: |kernel: "
    r"|[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:|\d{4}-\d\d-\d\dT|\d+,\d+,\d+,)"
)
_GREP = re.compile(r"[\w./-]{0,255}(?:/[\w.-]+|\.(?:log|txt|out|gz)|syslog|messages|dmesg)(?:[:-]\d{1,9})?[:-](?=\S)")
_IN_KMSG = re.compile(r"(systemd(?:-[\w-]+)?|dracut[\w-]*|multipathd|cloud-init|audit[\w-]*)\[(\d+)\]: ?")
_RAS = re.compile(
    r"\S{1,16} (\d{9,10}) \d{4}\.\d\d\.\d\d (\S{1,64}) \d{4}-\d\d-\d\d-\d\d\.\d\d\.\d\d\.\d+ \S{1,64} RAS (\w+) (\w+) ?"
)
_VMKERNEL = re.compile(r"cpu\d{1,4}:\d{1,9}(?: opID=\w{1,40})?\)")
_COLLECTED = re.compile(r"\S{1,16} (\d{9,10}) \d{4}\.\d\d\.\d\d (\S{1,64}) (?=[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:)")
"""A collection of several machines' logs: a label, seconds, the day and the host before each line."""
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})|#(\d{3})")
_OWN_FORMS = frozenset(("monotonic", "kmsg", "ctime", "decoded", "iso", "level"))
"""Forms in which only the kernel's ring is printed; other programs may write to that ring."""
_KERNEL_WORDS = frozenset(
    [
        "nvme",
        "usb",
        "ata",
        "EDAC",
        "NETDEV",
        "Memory",
        "Hardware",
        "ACPI",
        "CIFS",
        "mlx5_core",
        "pcieport",
        "pci",
        "hub",
        "tg3",
        "igb",
        "block",
        "device",
        "md",
        "scsi",
        "sd",
        "BERT",
        "HEST",
        "GHES",
    ]
)
"""First words of kernel messages that look like a host where a line has a stamp and no host."""


class Record(Struct, frozen=True, kw_only=True):
    """One record of a log. ``text`` is the message alone; further lines of the same record follow after ``\\n``."""

    line: int
    text: str
    at_s: float | None = None
    clock: str = ""
    node: str = ""
    program: str = ""
    """Who wrote it; ``kernel``, or empty where the form has no such field."""
    kernel: bool = True
    """From the kernel, as far as can be told; a line without any frame counts as such (see ``framed``)."""
    framed: bool = False
    """Whether any prefix was understood. What is said on a bare line weighs less than on the kernel's own."""
    priority: int | None = None
    """0 emergency … 7 debug."""
    facility: int | None = None
    boot: int = 0
    """Counts up at each sign of a reboot: nothing is joined across it."""
    repeats: int = 1
    """How many equal records it stands for, where the logger said so."""


def seen(
    record: Record, signal: str, part: str = "", attributes: dict[str, str] | None = None, detail: str = ""
) -> Observation:
    """What a record says, as an observation with its line, host and time."""
    more = {key: value for key, value in (attributes or {}).items() if value != ""}
    if record.boot:
        more["boot"] = str(record.boot)
    return Observation(
        signal=signal, node=record.node, part=part, at_s=record.at_s, clock=record.clock, line=record.line,
        detail=(detail or record.text)[:MAX_DETAIL], attributes=more, source=SOURCE, count=record.repeats,
    )  # fmt: skip


class Frame:
    """What has been peeled off one line so far."""

    __slots__ = ("at_s", "boot_id", "clock", "facility", "form", "kernel", "node", "priority", "program", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.node = self.program = self.clock = self.form = self.boot_id = ""
        self.at_s: float | None = None
        self.priority: int | None = None
        self.facility: int | None = None
        self.kernel: bool | None = None

    def take(self, found: re.Match[str], form: str) -> None:
        self.text = self.text[found.end() :]
        self.form = form

    def set_time(self, at_s: float | None, clock: str) -> None:
        """A wall clock says more than the kernel's own, and the outermost stamp is the same in every line of a file."""
        if at_s is not None and self.at_s is None:
            self.at_s, self.clock = at_s, clock

    def set_level(self, code: int) -> None:
        self.priority, self.facility = code & 7, code >> 3

    @property
    def is_kernel(self) -> bool:
        if self.kernel is not None:
            return self.kernel
        return not self.facility

    @property
    def is_framed(self) -> bool:
        """Whether the form is one of kernel or system logs: a time alone is in front of everybody's lines."""
        return self.form not in ("", "stamp", "unix")

    def named_clock(self) -> str:
        return f"{self.clock}:{self.node}" if self.clock and self.node else self.clock


def frame(text: str) -> Frame:
    """The frame of one line; its ``text`` is what is left."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    got = Frame(text.lstrip("\ufeff\x1e"))
    for _ in range(MAX_PREFIXES):
        first = got.text[:1]
        peel = _PEELS.get(first) or (_peel_digit if first.isdecimal() else _peel_word)
        if not first or not peel(got):
            break
    return got


def unescaped(text: str) -> str:
    """Undoes ``\\x0a`` of /dev/kmsg and ``#012`` of rsyslog: both stand for bytes that a line cannot hold."""
    if "\\x" not in text and "#0" not in text:
        return text
    return _ESCAPED.sub(_byte, text)


def _byte(found: re.Match[str]) -> str:
    code = int(found[1], 16) if found[1] else int(found[2], 8)
    return chr(code) if code in (9, 10) or (found[1] and 32 <= code < 127) else found[0] if code >= 32 else " "


def _peel_bracket(got: Frame) -> bool:
    if found := _MONOTONIC.match(got.text):
        got.set_time(float(found[1]), "kernel")
        # A stamp has a fraction; a whole number in brackets may be one that was shortened, or a rank.
        got.take(found, got.form or ("monotonic" if "." in found[1] else "whole"))
        return _peel_host_after_bracket(got)
    if found := stamps.CTIME.match(got.text):
        got.set_time(stamps.ctime_s(found), "wall")
        got.take(found, "ctime")
        return _peel_host_after_bracket(got)
    if found := _NO_TIME.match(got.text):
        got.take(found, got.form or "no_time")
        return True
    found = stamps.ISO.match(got.text, 1)
    if found is None or got.text[found.end() : found.end() + 1] != "]":
        return False
    got.set_time(stamps.iso_s(found), "wall")
    got.text = got.text[found.end() + 1 :].lstrip(":").lstrip(" ")
    got.form = got.form or "stamp"
    return True


def _peel_host_after_bracket(got: Frame) -> bool:
    """journalctl's monotonic form has host and program after the stamp; a kernel message may begin the same way."""
    if got.form == "monotonic" and not got.program:
        if found := _HOST_KERNEL.match(got.text):
            got.node, got.program, got.kernel = found[1], "kernel", True
            got.take(found, "journal")
        elif found := _HOST_PID.match(got.text):
            got.node, got.program, got.kernel = found[1], found[2], False
            got.take(found, "journal")
    return True


def _peel_angle(got: Frame) -> bool:
    found = _LEVEL.match(got.text)
    if found is None or int(found[1]) > 191:
        return False
    got.set_level(int(found[1]))
    got.take(found, "level")
    if found := _RFC5424.match(got.text):
        _rfc5424(got, found)
    return True


def _rfc5424(got: Frame, found: re.Match[str]) -> None:
    stamp = stamps.ISO.match(found[1])
    got.set_time(stamps.iso_s(stamp) if stamp else None, "wall")
    got.node = "" if found[2] == "-" else found[2]
    got.program = "" if found[3] == "-" else found[3]
    got.kernel = got.program == "kernel" or (not got.program and not got.facility)
    got.take(found, "rfc5424")


def _peel_digit(got: Frame) -> bool:
    text = got.text
    if found := _KMSG.match(text):
        got.set_level(int(found[1]))
        got.set_time(int(found[3][:18]) / 1e6, "kernel")
        got.take(found, "kmsg")
        got.text = unescaped(got.text)
        return True
    if found := stamps.ISO.match(text):
        got.set_time(stamps.iso_s(found), "wall")
        dmesg = found[7] == "," and found[9] is not None and found[0][10] == "T"
        got.take(found, got.form or ("iso" if dmesg else "stamp"))
        got.text = got.text.lstrip(": ")
        return dmesg or _peel_host_and_program(got)
    if found := _UNIX.match(text):
        got.set_time(float(found[1]), "wall")
        got.take(found, "unix")
        return _peel_host_and_program(got)
    return _peel_calendar(got) or _peel_word(got)


def _peel_host_and_program(got: Frame) -> bool:
    text = got.text
    if found := _CONTAINER.match(text):
        got.take(found, got.form)
        return True
    if text[:1] in "[<{":
        return True
    if found := _KERNEL_TAG.match(text):
        got.program, got.kernel = "kernel", True
        got.take(found, got.form)
        return True
    found = _HOST_PROGRAM.match(text)
    if found is None or found[1].endswith(":") or (got.form != "syslog" and found[1] in _KERNEL_WORDS):
        return _peel_host_alone(got)
    got.node, got.program = got.node or found[1], found[2]
    got.kernel = got.program in ("kernel", "kern", "vmkernel")
    if got.kernel:
        got.program = "kernel"
    got.take(found, "syslog")
    return True


def _peel_host_alone(got: Frame) -> bool:
    """A syslog line always names its host; one without a program is nobody's kernel."""
    if got.form == "syslog" and (found := _HOST.match(got.text)):
        got.node, got.kernel = found[1], False
        got.take(found, "syslog")
    return True


def _peel_word(got: Frame) -> bool:
    """The cheap looks at single characters come first: most lines of a log are a message by now."""
    text = got.text
    if _day_follows(text) and _peel_calendar(got):
        return True
    if text[0] in "kuvdmaslncf" and (":" in text[:14]):
        if found := _FACILITY.match(text):
            got.facility = 0 if found[1] == "kern" else 3
            got.priority = _LEVELS[found[2]]
            got.take(found, "decoded")
            return True
        if found := _KERNEL_TAG.match(text):
            got.program, got.kernel = "kernel", True
            got.take(found, got.form or "tag")
            return True
    if text.startswith("cpu") and (found := _VMKERNEL.match(text)):
        got.take(found, got.form or "tag")
        return True
    if got.form in _OWN_FORMS:
        if text[0] in "sdmca" and (found := _IN_KMSG.match(text)):
            got.program, got.kernel = found[1], False
            got.take(found, got.form)
        return False
    return not got.form and _peel_outer(got)


def _day_follows(text: str) -> bool:
    """A cheap look: the first word is as short as a month's or a weekday's name, or a number comes after a longer one."""
    if text[3:4] in (" ", ",", ".") or text[4:6].lstrip(".") == " ":
        return True
    space = text.find(" ", 5, 11)
    return space > 0 and text[space + 1 : space + 3].strip().isdecimal()


def _peel_calendar(got: Frame) -> bool:
    if found := stamps.RFC3164.match(got.text):
        at_s, year_said = stamps.rfc3164_s(found)
        got.set_time(at_s, "wall" if year_said else "syslog")
        got.take(found, "syslog")
        return _peel_host_and_program(got)
    if found := _WEEKDAY.match(got.text):
        got.take(found, got.form)
        return True
    return False


def _peel_outer(got: Frame) -> bool:
    """What other tools put before a whole line: a host (pdsh, Talos), a file name (grep), a RAS stream's fields."""
    if found := _RAS.match(got.text):
        got.set_time(float(found[1]), "wall")
        got.node, got.program, got.kernel = found[2], "ras", False
        got.priority = {"FATAL": 2, "FAILURE": 2, "SEVERE": 3, "ERROR": 3, "WARNING": 4}.get(found[4], 6)
        got.take(found, "ras")
        return False
    if found := _COLLECTED.match(got.text):
        got.set_time(float(found[1]), "wall")
        got.node = found[2]
        got.text = got.text[found.end() :]
        return True
    if (found := _BEFORE_FRAME.match(got.text)) and found[1] not in ("NVRM", "BUG", "WARNING", "INFO"):
        got.node = found[1]
        got.text = got.text[found.end() :]
        return True
    if found := _GREP.match(got.text):
        rest = got.text[found.end() :]
        if frame_begins(rest):
            got.text = rest
            return True
    return False


def frame_begins(text: str) -> bool:
    """Whether a line begins with a stamp or a level that is understood here."""
    return bool(
        _KMSG.match(text) or stamps.ISO.match(text) or stamps.RFC3164.match(text) or stamps.CTIME.match(text)
        or _MONOTONIC.match(text) or _LEVEL.match(text) or _FACILITY.match(text)
    )  # fmt: skip


_PEELS = {"[": _peel_bracket, "<": _peel_angle, "-": _peel_outer}
