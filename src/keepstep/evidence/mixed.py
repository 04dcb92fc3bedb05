"""One text that holds the outputs of several commands: a driver's bug report, a support bundle, a terminal's scroll-back.

Owns where each output begins and ends, and what becomes of lines that two outputs repeat. Knows no format of an output, and
must not split what is one log: a heading counts only if it names a command or a file that such bundles hold.
"""

import re
from collections.abc import Callable

import msgspec
from msgspec import Struct

from keepstep.core.observation import Observation
from keepstep.evidence.document import Document
from keepstep.evidence.reading import Reader, Reading

MAX_SECTIONS = 4_000
MAX_HEADING_CHARS = 400
FIRST_LINES = 60
"""A bundle says at its beginning what it is: a heading that comes later belongs to the log it stands in."""
MIN_CONFIDENCE = 0.35
"""Below it a section says nothing: prose between two outputs is no evidence."""

_TOOLS = (
    r"dmesg|journalctl|nvidia-smi|nvidia-debugdump|nvidia-bug-report|dcgmi|lspci|lsmod|lsblk|lscpu|lsusb|lshw|ibstat|ibstatus"
    r"|ibv_devinfo|ibdev2netdev|ibnetdiscover|iblinkinfo|ibqueryerrors|perfquery|mlxlink|mst|smartctl|nvme|ipmitool|ethtool"
    r"|rocm-smi|amd-smi|rocminfo|rvs|sinfo|squeue|scontrol|sacct|systemctl|uname|hostname|uptime|date|free|df|mount|ps|top|ip"
    r"|ifconfig|numactl|dmidecode|sensors|cat|tail|head|zcat|grep|env|docker|kubectl|crictl|netstat|ss|ls|echo|sysctl|modinfo"
    r"|nvidia-container-cli|nvcc|py-spy|edac-util|ras-mc-ctl|mcelog|lfs|nfsstat|showmount|findmnt|vmstat|iostat|mpstat"
)
_PLACES = r"/(?:var/log|proc|sys|etc|dev|run|tmp|home|root|opt|usr)/[^\s:]{1,200}"
_COMMAND = rf"(?:sudo (?:-\w+ )*)?(?:(?:/usr)?(?:/local)?/s?bin/)?(?:{_TOOLS})(?=[\s|;&:]|$)"
_WHAT = rf"(?P<title>(?:{_COMMAND}|{_PLACES})[^\n]{{0,200}}?)"
_RULE = re.compile(r"_{20,}$")
_FENCE = re.compile(r"(?:```|~~~)[\w+-]{0,20}$")
_PROMPT = re.compile(
    r"(?:\([\w.-]{1,40}\) ?)?"
    r"(?:\[?[\w.-]{1,40}@(?P<host>[\w.-]{1,100})[^$#%\n]{0,80}[$#%]|[$#+]|>>>"
    r"|(?:Running|Command|CMD|COMMAND|Output of|File)\b:?)"
    rf" {{0,2}}[`'\"]?{_WHAT}[`'\"]?:?$"
)
_BANNER = re.compile(
    rf"(?:(?i:command|cmd|output of|running|file|begin|start(?: of)?|section)\b:? {{0,2}})?[`'\"]?{_WHAT}[`'\"]?:?$"
)
_DECORATION = "=#*~+<>[]- "
_TRACED = re.compile(r"\+{1,3} [\w./-]{1,200}(?: |$)")
"""What a shell prints before each command where it was told to: then every command ends the output of the one before."""
_TITLE = re.compile(r"(?:\*\*\* )?(?P<title>\S[^\n]{0,300})$")
_UNAME = re.compile(r"(?:uname: )?Linux ([\w.-]{1,253}) \d+\.\d+\S* #\d")


class Section(Struct, frozen=True, kw_only=True):
    first: int
    """Line of the document, from 1, with which it begins."""
    title: str
    data: bytes


def is_mixed(document: Document) -> bool:
    """Whether a heading stands near the beginning. Cheap for all that is no bundle."""
    if document.is_binary or document.head[:1] in "{[":
        return False
    lines = document.head.split("\n", FIRST_LINES + 1)[: FIRST_LINES + 1]
    if any(_RULE.match(line) for line in lines):
        return "bug report log file" in document.head[:4096] or sum(_RULE.match(x) is not None for x in lines) > 1
    return any(_heading(line.rstrip("\r")) is not None for line in lines)


def _heading(line: str) -> str | None:
    """The title of a heading; None for any other line. A fence of a page in Markdown has no title."""
    if not line or len(line) > MAX_HEADING_CHARS:
        return None
    if line[0] in "`~" and _FENCE.match(line):
        return ""
    found = None
    if line[0].isalpha() or line[0] in "([$#+>":
        found = _PROMPT.match(line)
    if found is None and line[0] in _DECORATION:
        bare = line.lstrip(_DECORATION)
        if len(line) - len(bare) >= 2 or line[0] == "[":
            found = _BANNER.match(bare.rstrip(_DECORATION))
    return found["title"].strip() if found else None


def sections(document: Document) -> list[Section]:
    """The outputs, in order; what stands before the first heading is the first of them."""
    found: list[Section] = []
    first, title = 1, ""
    lines: list[str] = []
    ruled, traced = 0, False
    for number, text in document.lines():
        begins = _RULE.match(text) is not None
        named = None if begins or ruled else _heading(text)
        if named is None and traced and _TRACED.match(text):
            named = text
        traced = traced or (named is not None and text.startswith("+ "))
        if ruled and text and not begins:
            # After a rule the next line names what comes: the bug report of the driver does it so.
            found_title = _TITLE.match(text)
            title, first, ruled = found_title["title"] if found_title else "", number, 0
        if begins or named is not None:
            _end(found, first, title, lines)
            if len(found) >= MAX_SECTIONS:
                return found
            lines = []
            first, title, ruled = number + 1, named or "", number if begins else 0
            continue
        lines.append(text)
    _end(found, first, title, lines)
    return found


def _end(found: list[Section], first: int, title: str, lines: list[str]) -> None:
    while lines and (not lines[0].strip() or lines[0].startswith("*** ") or lines[0].strip() == title.strip()):
        lines.pop(0)
        first += 1
    if any(line.strip() for line in lines):
        found.append(Section(first=first, title=title, data="\n".join(lines).encode()))


def read(document: Document, reader_of: Callable[[Document], tuple[Reader, float] | None]) -> Reading | None:
    """What all outputs say together; None where none of them is in a known form."""
    whole = Reading(reader="", file=document.path)
    names: dict[str, None] = {}
    for section in sections(document):
        part = Document(document.path, section.data)
        found = reader_of(part)
        if found is None or found[1] < MIN_CONFIDENCE:
            continue
        names[found[0].name] = None
        _add(whole, found[0].read(part), section.first - 1)
    if not names:
        return None
    whole.reader = "+".join(names)[:200]
    whole.node = whole.node or _host(document)
    return whole


def _host(document: Document) -> str:
    """The machine's name as a prompt or the kernel's own line gives it."""
    for line in document.head.splitlines():
        found = _UNAME.match(line) or _PROMPT.match(line)
        host = (found["host"] if "host" in found.re.groupindex else found[1]) if found else ""
        if host and host != "localhost":
            return host
    return ""


def _add(whole: Reading, part: Reading, before: int) -> None:
    """Puts a section's reading into the whole, its lines counted from the document's beginning."""
    told = {_what(seen) for seen in whole.observations}
    whole.observations += [
        msgspec.structs.replace(seen, line=seen.line + before if seen.line else 0)
        for seen in part.observations
        if _what(seen) not in told
    ]
    whole.fine += [msgspec.structs.replace(fine, line=fine.line + before if fine.line else 0) for fine in part.fine]
    whole.same += part.same
    whole.records += part.records
    whole.node = whole.node or part.node
    for number, text in part.not_understood:
        whole.puzzled(number + before, text)
    whole.not_understood_count += part.not_understood_count - len(part.not_understood)


def _what(seen: Observation) -> tuple[str, str, str]:
    """Two outputs that print the same line tell one thing: the kernel's ring and the journal of the same boot."""
    return seen.signal, seen.part, seen.detail
