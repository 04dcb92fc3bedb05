"""Bursts: many equal signals of one part within a short time are one observation. Owns joining them; judges nothing."""

import msgspec

from keepstep.core.observation import Observation

WINDOW_S = 180.0
"""Equal signals that are closer than this belong to one storm; every further one extends it."""
MAX_UNITS = 64
MAX_BURSTS = 4_000
"""Beyond it a further burst of a known part only counts: what combines signals stays quick, on a hostile log too."""
MAX_PARTS = 10_000
"""Beyond it nothing new is kept."""
COLLECTED = {"unit": "units", "pid": "pids", "process": "processes", "link": "links"}
"""Attributes of which all values matter: the first keeps its name, all of them go to the plural."""


class Burst:
    """The first observation of a storm, and what the further ones added."""

    __slots__ = ("count", "first", "last_s", "values")

    def __init__(self, first: Observation) -> None:
        self.first = first
        self.count = first.count
        self.last_s = first.at_s
        self.values: dict[str, dict[str, None]] = {}
        self._collect(first)

    def takes(self, seen: Observation) -> bool:
        if seen.at_s is None or self.last_s is None or seen.clock != self.first.clock:
            return True
        return abs(seen.at_s - self.last_s) <= WINDOW_S

    def add(self, seen: Observation) -> None:
        self.count += seen.count
        self.last_s = seen.at_s if seen.at_s is not None else self.last_s
        self._collect(seen)

    def settled(self) -> Observation:
        if self.count == self.first.count and not self.values:
            return self.first
        more = {COLLECTED[name]: ",".join(values) for name, values in self.values.items() if len(values) > 1}
        if self.last_s is not None and self.last_s != self.first.at_s:
            more["last_s"] = f"{self.last_s:.6f}".rstrip("0").rstrip(".")
        return msgspec.structs.replace(self.first, count=self.count, attributes={**self.first.attributes, **more})

    def _collect(self, seen: Observation) -> None:
        for name in COLLECTED:
            value = seen.attributes.get(name)
            if value:
                values = self.values.setdefault(name, {})
                if len(values) < MAX_UNITS:
                    values[value] = None


class Bursts:
    """All bursts of one log."""

    def __init__(self) -> None:
        self.lost = 0
        """Observations that were not kept."""
        self._all: list[Burst] = []
        self._open: dict[tuple[str, ...], Burst] = {}

    def add(self, seen: Observation) -> bool:
        """Whether it is the first of a burst, and so new."""
        attributes = seen.attributes
        key = (seen.signal, seen.node, seen.part, attributes.get("boot", ""), attributes.get("apart", ""))
        burst = self._open.get(key)
        if burst is not None and (burst.takes(seen) or len(self._all) >= MAX_BURSTS):
            burst.add(seen)
            return False
        if len(self._all) >= MAX_PARTS:
            self.lost += seen.count
            return False
        self._open[key] = Burst(seen)
        self._all.append(self._open[key])
        return True

    def settled(self) -> list[Observation]:
        """One observation for each burst so far, in the order of their first lines."""
        return [burst.settled() for burst in self._all]
