"""Kernel logs in all their forms, read into observations. Owns which matchers there are and that it stays fast and bounded.

A matcher is a pure function over one record. It is asked only about records that hold one of its hints, so a log of ordinary
lines costs little more than the peeling of its prefixes. The agent feeds the same ``KernelLog`` line by line.
"""

import re
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from keepstep.core.observation import Observation, Same
from keepstep.evidence.document import Document
from keepstep.evidence.kernel import (
    crash,
    disks,
    fabric_manager,
    lost_gpu,
    machine,
    modules,
    nic,
    pcie,
    services,
    shared_storage,
    sxid,
    xid,
)
from keepstep.evidence.kernel.bursts import Bursts
from keepstep.evidence.kernel.frames import SOURCE, Record, frame
from keepstep.evidence.kernel.records import Framer
from keepstep.evidence.reading import Fine, Reader, Reading

Found = Observation | Same | Fine
Match = Callable[[Record], Sequence[Found] | None]


class Matcher(Struct, frozen=True, kw_only=True):
    """``hints``: a record without any of these (case counts) is not shown to ``match``.

    ``match`` gives None for a record that is not its own, an empty list for one that it understood and that says nothing.
    ``ours`` tells a record that it should have understood, so that it is counted where nothing was found.
    """

    name: str
    hints: tuple[str, ...]
    match: Match
    ours: re.Pattern[str] | None = None


MATCHERS: tuple[Matcher, ...] = (
    Matcher(name="xid", hints=xid.HINTS, match=xid.match, ours=xid.OURS),
    Matcher(name="sxid", hints=sxid.HINTS, match=sxid.match, ours=sxid.OURS),
    Matcher(name="lost_gpu", hints=lost_gpu.HINTS, match=lost_gpu.match),
    Matcher(name="fabric_manager", hints=fabric_manager.HINTS, match=fabric_manager.match),
    Matcher(name="pcie", hints=pcie.HINTS, match=pcie.match),
    Matcher(name="nic", hints=nic.HINTS, match=nic.match),
    Matcher(name="machine", hints=machine.HINTS, match=machine.match),
    Matcher(name="crash", hints=crash.HINTS, match=crash.match),
    Matcher(name="disks", hints=disks.HINTS, match=disks.match),
    Matcher(name="shared_storage", hints=shared_storage.HINTS, match=shared_storage.match),
    Matcher(name="modules", hints=modules.HINTS, match=modules.match),
    Matcher(name="services", hints=services.HINTS, match=services.match),
)


class KernelLog:
    """Reads a log line by line. ``feed`` and ``flush`` give what is new; a burst is given once and counted in ``bursts``."""

    def __init__(self, reading: Reading | None = None, matchers: Sequence[Matcher] = MATCHERS) -> None:
        self.reading = reading if reading is not None else Reading(reader=SOURCE, file="")
        self.bursts = Bursts()
        self._framer = Framer()
        self._matchers = [(matcher.hints, matcher.match, matcher.ours) for matcher in matchers]

    def feed(self, number: int, text: str) -> list[Observation]:
        new: list[Observation] = []
        for record in self._framer.feed(number, text):
            new += self._read(record)
        return new

    def flush(self) -> list[Observation]:
        """Reads the record that was still waiting for further lines. The agent asks as soon as its source is silent."""
        return [seen for record in self._framer.flush() for seen in self._read(record)]

    def _read(self, record: Record) -> list[Observation]:
        self.reading.records += 1
        text = record.text
        new: list[Observation] = []
        for hints, match, ours in self._matchers:
            for hint in hints:
                if hint in text:
                    break
            else:
                continue
            found = match(record)
            if found is None:
                if ours is not None and record.kernel and ours.search(text):
                    self.reading.puzzled(record.line, text)
                continue
            new += self._keep(found)
        return new

    def _keep(self, found: Sequence[Found]) -> list[Observation]:
        new = []
        for thing in found:
            if isinstance(thing, Observation):
                if self.bursts.add(thing):
                    new.append(thing)
            elif isinstance(thing, Same):
                if thing not in self.reading.same[-64:]:
                    self.reading.same.append(thing)
            else:
                self.reading.fine.append(thing)
        return new


LONG_LINES = 2_048
CHUNK_BYTES = 4 * 1024 * 1024
MAX_WORDS = 200_000
_DIGITS = bytes(ord("0") if chr(code).isdigit() and code < 128 else code for code in range(256))


def useful(matchers: Sequence[Matcher], data: bytes) -> list[Matcher]:
    """The matchers with only those hints that may occur in a document at all: most of them occur in none.

    Structured entries may hold their message as numbers: nothing can be told from their bytes. And of endless lines only
    the beginnings are read: a search through all of them costs more than it saves.
    """
    if data[:1] in (b"{", b"\n", b" ", b"\x1e") or len(data) > LONG_LINES * (data.count(b"\n") + 1):
        return list(matchers)
    words = _words(data)
    if words is None:
        return list(matchers)
    kept = []
    for matcher in matchers:
        hints = tuple(hint for hint in matcher.hints if _longest_word(hint) in words)
        if hints:
            kept.append(Matcher(name=matcher.name, hints=hints, match=matcher.match, ours=matcher.ours))
    return kept


def _words(data: bytes) -> bytes | None:
    """Every word of a document once, digits alike: a log of any length has a small vocabulary. None where it has not."""
    words: set[bytes] = set()
    start = 0
    while start < len(data):
        end = data.find(b"\n", start + CHUNK_BYTES)
        end = len(data) if end < 0 else end
        words.update(data[start:end].replace(b"\0", b"").translate(_DIGITS).split())
        if len(words) > MAX_WORDS:
            return None
        start = end
    return b" ".join(words)


def _longest_word(hint: str) -> bytes:
    return max(hint.encode().translate(_DIGITS).split(), key=len, default=b"")


def read(document: Document) -> Reading:
    reading = Reading(reader=SOURCE, file=document.path)
    log = KernelLog(reading, useful(MATCHERS, document.data))
    for number, text in document.lines():
        log.feed(number, text)
    log.flush()
    reading.not_understood_count += log.bursts.lost
    reading.observations = [_filed(seen, document.path) for seen in log.bursts.settled()]
    nodes = {seen.node for seen in reading.observations if seen.node}
    reading.node = nodes.pop() if len(nodes) == 1 else ""
    return reading


def _filed(seen: Observation, path: str) -> Observation:
    return msgspec.structs.replace(seen, file=path)


SAMPLE_LINES = 200
STRONG_FORMS = {"kmsg": 0.9, "decoded": 0.8, "monotonic": 0.7, "ctime": 0.7, "level": 0.7}


def recognise(document: Document) -> float:
    """How much of the beginning looks like a kernel's or a system's log."""
    if document.is_binary and not _export(document.head):
        return 0.0
    lines = [line for line in document.head.splitlines()[:SAMPLE_LINES] if line.strip()]
    if not lines:
        return 0.0
    if _export(document.head) or _journal(lines):
        return 0.9
    framed = [got for got in (frame(line.lstrip()) for line in lines) if got.is_framed and got.form != "whole"]
    kernel = [got for got in framed if got.is_kernel]
    share = len(framed) / len(lines)
    if share >= 0.3 and kernel:
        return min(0.9, max(STRONG_FORMS.get(got.form, 0.6) for got in kernel) * (0.7 + 0.3 * share))
    if share >= 0.5 and any(got.program for got in framed):
        return 0.55
    return _recognise_bare(lines)


def _recognise_bare(lines: list[str]) -> float:
    """Lines without any prefix: ours if enough of them say something that a matcher knows."""
    log = KernelLog()
    for number, line in enumerate(lines, 1):
        log.feed(number, line)
    log.flush()
    reading = log.reading
    known = sum(seen.count for seen in log.bursts.settled()) + len(reading.same) + reading.not_understood_count
    if not known:
        return 0.0
    return 0.55 if known / max(reading.records, 1) >= 0.3 else 0.35


def _export(head: str) -> bool:
    return head.startswith(("__CURSOR=", "__REALTIME_TIMESTAMP=", "__SEQNUM=")) or "\n__CURSOR=" in head[:4096]


def _journal(lines: list[str]) -> bool:
    first = "\n".join(lines[:80])
    return '"__REALTIME_TIMESTAMP"' in first and "MESSAGE" in first


READER = Reader(
    name=SOURCE,
    text="kernel and system logs: /dev/kmsg, dmesg, syslog, journal exports, pstore dumps, bare kernel lines",
    recognise=recognise,
    read=read,
)
