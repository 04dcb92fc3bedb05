"""One device as some program describes it, in this project's own words. Owns reading values; judges nothing.

Every reader of device state translates into these names, so that one set of rules (``judge.py``) serves them all. A value
that says "not available" is no value: it is neither zero nor a fault.
"""

import re

from msgspec import Struct, field

from keepstep.core.observation import pci_name

FLAGS = (
    "ecc.sram.exceeded", "retired.pending", "remap.pending", "remap.failed", "repair.pending", "reset.required", "reset.drain",
    "throttle.idle", "throttle.sw_power", "throttle.hw_slowdown", "throttle.hw_thermal", "throttle.power_brake",
    "throttle.sw_thermal", "memory.unrepairable", "fabric.unhealthy",
)  # fmt: skip
NUMBERS = (
    "ecc.volatile", "ecc.volatile.sram", "ecc.volatile.dram", "ecc.lifetime", "ecc.lifetime.sram", "ecc.corrected",
    "retired.sbe", "retired.dbe", "remap.uncorrectable", "remap.correctable", "remap.banks.none", "remap.banks.low",
    "pcie.width", "pcie.width.max", "pcie.gen", "pcie.gen.max", "pcie.replay", "pcie.fatal",
    "temperature", "temperature.slowdown", "temperature.max", "temperature.margin", "temperature.margin.slowdown",
    "temperature.memory", "temperature.memory.max", "power", "power.limit", "utilisation", "clock.sm", "clock.sm.max",
    "xid.last", "nvlink.replay", "nvlink.recovery", "nvlink.crc", "nvlink.recovery_failed", "nvlink.ber", "c2c.errors",
)  # fmt: skip
TEXTS = (
    "recovery",
    "fabric.state",
    "fabric.status",
    "pstate",
    "mode.ecc",
    "mode.mig",
    "mode.persistence",
    "name",
    "serial",
)

_ABSENT = re.compile(
    r"^\[?(?:n/?a|not supported|not available|unknown|none|nan|null|insufficient permissions|no permission|"
    r"function not found|not found|disabled|-|)\]?$", re.IGNORECASE,
)  # fmt: skip
_NUMBER = re.compile(r"^\s*([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?)\s*[%A-Za-z/()²°µ]{0,16}\s*$")
_TRUE = frozenset(("yes", "active", "true", "1", "pending", "occurred"))
_FALSE = frozenset(("no", "not active", "false", "0", "inactive"))


class Said(Struct, frozen=True):
    text: str
    line: int = 0


class Card(Struct, kw_only=True):
    """``facts`` are keyed by the names above; what a program does not say is not there."""

    pci: str = ""
    uuid: str = ""
    index: str = ""
    node: str = ""
    line: int = 0
    parent: str = ""
    """UUID or part of the device that this one is a slice of."""
    facts: dict[str, Said] = field(default_factory=dict)
    trouble: str = ""
    """What the driver says in place of an answer."""

    @property
    def part(self) -> str:
        names = self.names
        return names[0] if names else ""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that is known, the best first: a PCI address, a UUID, an index."""
        found = []
        if self.pci:
            found.append(f"gpu/{self.pci}")
        if self.uuid:
            found.append(f"gpu/{self.uuid}")
        if self.index:
            found.append(f"gpu/{self.index}")
        return tuple(found)

    def say(self, name: str, text: str, line: int = 0) -> None:
        """Keep a value, unless it says that there is none. The first word stands, but a count before a zero.

        Programs say one thing in parts (parity and other errors of one memory): any part that is not zero is the news.
        """
        if is_absent(text):
            return
        before = self.facts.get(name)
        if before is None or (name.startswith(("ecc.", "repair.", "nvlink.", "c2c.")) and _is_zero(before.text)):
            self.facts[name] = Said(text.strip()[:200], line)

    def number(self, name: str) -> float | None:
        said = self.facts.get(name)
        return number(said.text) if said is not None else None

    def flag(self, name: str) -> bool | None:
        said = self.facts.get(name)
        return flag(said.text) if said is not None else None

    def text(self, name: str) -> str:
        said = self.facts.get(name)
        return said.text if said is not None else ""

    def line_of(self, *names: str) -> int:
        """Where one of these was said; where the device itself stands otherwise."""
        lines = [self.facts[name].line for name in names if name in self.facts and self.facts[name].line]
        return lines[0] if lines else self.line


def _is_zero(text: str) -> bool:
    return not flag(text)


def is_absent(text: str) -> bool:
    return _ABSENT.match(text.strip()[:64]) is not None


def number(text: str) -> float | None:
    """``27 C`` → 27.0, ``16x`` → 16.0; None for anything that is no plain number with a unit, and for absurd ones."""
    match = _NUMBER.match(text[:64])
    if match is None:
        return None
    value = float(match[1])
    # A driver's mark for "no value" is one of the largest numbers of its type.
    return value if abs(value) < 9.0e18 and value not in _BLANKS else None


_BLANKS = frozenset((
    *(2147483632.0 + n for n in range(8)), *(140737488355328.0 + n for n in range(8)), 9223372036854775792.0,
    4294967295.0, 18446744073709551615.0,
))  # fmt: skip


def flag(text: str) -> bool | None:
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    value = number(word)
    return None if value is None else value > 0


def pci_or_empty(text: str) -> str:
    """The one spelling of a PCI address; empty for what is none."""
    try:
        return pci_name(text)
    except ValueError:
        return ""
