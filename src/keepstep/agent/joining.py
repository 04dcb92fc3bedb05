"""Repeated signals: the first is told at once, the further ones of a minute as one with their count. Pure; owns the windows.

A storm costs one fact a minute for each part that takes part in it, and no more than a fixed number of parts are told apart.
"""

from dataclasses import dataclass

import msgspec

from keepstep.core.observation import Observation

WINDOW_S = 60.0
WINDOWS_MAX = 1024
VARIANTS_MAX = 4
_APART = ("unit", "gpc", "tpc", "sm", "link", "subcode", "rank", "dimm", "port", "old")
"""What rules tell apart: equal signals that differ in these are two, up to ``VARIANTS_MAX`` of one part in a window."""

Key = tuple[str, str, tuple[str, ...]]


@dataclass
class _Window:
    since_s: float
    last: Observation
    waiting: int = 0


class Joining:
    """``part`` below is the canonical name of the observation's part."""

    def __init__(self, windows_max: int = WINDOWS_MAX) -> None:
        self._windows_max = windows_max
        self._windows: dict[Key, _Window] = {}
        self._variants: dict[tuple[str, str], int] = {}
        self.overrun = 0
        """Observations that were dropped since the last ``due``: too many different ones at once."""

    def add(self, seen: Observation, part: str, now_s: float) -> Observation | None:
        """What is to be told now; None while the window of an earlier one is open."""
        key = self._key(seen, part)
        window = self._windows.get(key)
        if window is not None:
            window.waiting += seen.count
            window.last = seen
            return None
        if len(self._windows) >= self._windows_max:
            self.overrun += seen.count
            return None
        self._windows[key] = _Window(now_s, seen)
        self._variants[key[:2]] = self._variants.get(key[:2], 0) + 1
        return seen

    def due(self, now_s: float) -> list[Observation]:
        """What has gathered in windows that are over; their parts begin new ones."""
        told = []
        for key, window in list(self._windows.items()):
            if now_s - window.since_s < WINDOW_S:
                continue
            if window.waiting:
                told.append(msgspec.structs.replace(window.last, count=window.waiting))
                window.since_s, window.waiting = now_s, 0
            else:
                self._close(key)
        return told

    def rest(self) -> list[Observation]:
        """What still waits, at the end of the agent."""
        return [msgspec.structs.replace(w.last, count=w.waiting) for w in self._windows.values() if w.waiting]

    def _close(self, key: Key) -> None:
        del self._windows[key]
        left = self._variants[key[:2]] - 1
        if left:
            self._variants[key[:2]] = left
        else:
            del self._variants[key[:2]]

    def _key(self, seen: Observation, part: str) -> Key:
        apart = tuple(f"{name}={seen.attributes[name]}" for name in _APART if name in seen.attributes)
        key = (seen.signal, part, apart)
        if key in self._windows or self._variants.get(key[:2], 0) < VARIANTS_MAX:
            return key
        return (seen.signal, part, ("and more", "old" if "old" in seen.attributes else ""))
