"""What a reader of evidence is, and what it hands back."""

from collections.abc import Callable

from msgspec import Struct, field

from keepstep.core.observation import Observation, Same
from keepstep.evidence.document import Document

MAX_NOT_UNDERSTOOD = 20


class Fine(Struct, frozen=True, kw_only=True):
    """Something that was looked at and is well: evidence against a fault of that part."""

    part: str
    text: str
    node: str = ""
    file: str = ""
    line: int = 0


class Reading(Struct, kw_only=True):
    """Everything that one document says."""

    reader: str
    file: str
    node: str = ""
    """The host that the document is of, where it says so."""
    observations: list[Observation] = field(default_factory=list)
    same: list[Same] = field(default_factory=list)
    fine: list[Fine] = field(default_factory=list)
    records: int = 0
    """Records read: lines, entries, samples. With no observation it says that something was looked at."""
    not_understood: list[tuple[int, str]] = field(default_factory=list)
    """(line, text) that this reader should have understood and did not; at most ``MAX_NOT_UNDERSTOOD``."""
    not_understood_count: int = 0

    def puzzled(self, line: int, text: str) -> None:
        self.not_understood_count += 1
        if len(self.not_understood) < MAX_NOT_UNDERSTOOD:
            self.not_understood.append((line, text[:200]))


class Reader(Struct, frozen=True, kw_only=True):
    """One format. ``recognise`` looks at content only and says how sure it is, 0 … 1; ``read`` never raises on content."""

    name: str
    text: str
    """What it reads, for a person."""
    recognise: Callable[[Document], float]
    read: Callable[[Document], Reading]
