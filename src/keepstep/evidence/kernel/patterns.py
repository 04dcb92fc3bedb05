"""One pattern for one sort of log line: what must stand in it, which signal it is, and which part it names.

Owns the table form that the matchers beside it share; knows no signal itself, and must not look at more than one record.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from keepstep.core.observation import Observation, pci_name
from keepstep.evidence.kernel.frames import Record, seen

MAX_VALUE_CHARS = 120
MAX_SEARCHED_CHARS = 4096
"""A pattern looks no further into a record: everything that names the fault stands at its beginning."""

PCI = r"(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])"

NEAR_PCI = rf"^(?=(?:[^\n]{{0,100}}?{PCI})?)[^\n]{{0,200}}?"
"""The address that stands near the beginning of a line, if one does, and then whatever comes before what is looked for."""

Values = Mapping[str, str]
Named = Callable[[Values], str]


class Pattern(Struct, frozen=True):
    """``needle`` must stand in the line, then ``regex`` decides.

    ``signal`` and ``part`` may name groups (``nic/{pci}``); a function may choose either. A pattern without a signal says that
    the line is ordinary: nothing after it is tried.
    """

    signal: str | Named
    needle: str
    regex: re.Pattern[str]
    part: str | Named = ""
    programs: tuple[str, ...] = ()
    """Programs that may write it; none: the kernel."""


def pattern(
    signal: str | Named, needle: str, regex: str, part: str | Named = "", programs: tuple[str, ...] = ()
) -> Pattern:
    return Pattern(signal, needle, re.compile(regex), part, programs)


def hints(patterns: Iterable[Pattern]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.needle for one in patterns))


def first(patterns: Iterable[Pattern], record: Record) -> Sequence[Observation] | None:
    """What the first pattern that fits makes of a record; None where none does."""
    text = record.text[:MAX_SEARCHED_CHARS]
    for one in patterns:
        if one.needle in text and _may_write(one, record):
            found = one.regex.search(text)
            if found is not None:
                return _observed(one, found, record)
    return None


def _may_write(one: Pattern, record: Record) -> bool:
    if not one.programs:
        return record.kernel
    return record.program in one.programs or (not record.framed and not record.program)


def _observed(one: Pattern, found: re.Match[str], record: Record) -> Sequence[Observation]:
    values = {name: value.strip()[:MAX_VALUE_CHARS] for name, value in found.groupdict().items() if value}
    signal = _filled(one.signal, values)
    if not signal:
        return ()
    return (seen(record, signal, _filled(one.part, values), values),)


def _filled(template: str | Named, values: Values) -> str:
    """A template with the groups of a match in it; empty where the line does not say what it needs."""
    if not isinstance(template, str):
        return template(values)
    if "{" not in template:
        return template
    try:
        return template.format(**{**values, **({"pci": pci_name(values["pci"])} if "pci" in values else {})})
    except (KeyError, ValueError):
        return ""
