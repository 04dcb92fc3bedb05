"""What of many sweeps is news: said once, after it has lasted, and again when it has gone and come back. Reads no clock."""

from collections import deque

from keepstep.core.observation import Observation

LASTING: dict[str, int] = {
    "gpu.count": 2, "gpu.unreadable": 2, "gpu.nvlink.down": 2, "gpu.nvlink.partial": 2, "gpu.nvlink.slow": 2,
    "gpu.pcie.width": 3, "gpu.pcie.gen": 3, "gpu.fabric.state": 12, "gpu.fabric.joining": 30, "gpu.fabric.health": 2,
    "gpu.throttle.hw_thermal": 3, "gpu.throttle.power_brake": 3, "gpu.throttle.hw_slowdown": 3, "gpu.throttle.sw_thermal": 6,
    "gpu.temperature.margin": 3, "gpu.temperature.high": 30, "gpu.temperature.memory": 30, "gpu.temperature.peers": 6,
    "gpu.clock.peers": 30,
}  # fmt: skip
"""Sweeps in a row before it is said; one where nothing stands here."""

NOT_NEWS = frozenset((
    "gpu.throttle.sw_power", "gpu.throttle.idle", "gpu.ecc.sbe", "gpu.remap.some", "gpu.retired.some", "gpu.pcie.width.alone",
    "gpu.nvlink.unused", "gpu.xid.last",
))  # fmt: skip
COUNTING = frozenset(("gpu.ecc.dbe", "gpu.pcie.fatal", "gpu.nvlink.recovery_failed"))
"""A higher count is news again."""
CLEAR_AFTER = 3
WINDOW_S, DUTY, LEAST_S = 600.0, 0.6, 300.0
BRAKE_S = 180.0

_Key = tuple[str, str, str]


class Steady:
    """Fed with everything that each sweep shows; gives what is to be said now."""

    def __init__(self) -> None:
        self._row: dict[_Key, int] = {}
        self._said: set[_Key] = set()
        self._gone: dict[_Key, int] = {}

    def sweep(self, seen: list[Observation]) -> list[Observation]:
        now = {_key(one): one for one in seen if one.signal not in NOT_NEWS}
        news = []
        for key, one in now.items():
            self._row[key] = self._row.get(key, 0) + 1
            self._gone.pop(key, None)
            if key not in self._said and self._row[key] >= LASTING.get(one.signal, 1):
                self._said.add(key)
                news.append(one)
        for key in [key for key in self._row if key not in now]:
            self._row[key] = 0
            self._gone[key] = self._gone.get(key, 0) + 1
            if self._gone[key] >= CLEAR_AFTER:
                self._said.discard(key)
                del self._row[key], self._gone[key]
        return news


def _key(one: Observation) -> _Key:
    value = one.attributes.get("value", one.detail) if one.signal in COUNTING else ""
    return (one.part, one.signal, value)


class Duty:
    """How much of the last ten minutes a device was slowed down, by reason."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], deque[tuple[float, bool]]] = {}

    def sample(self, part: str, reason: str, active: bool, at_s: float) -> bool:
        """True while the reason is sustained. ``at_s`` on any clock that does not run backwards."""
        samples = self._samples.setdefault((part, reason), deque(maxlen=1200))
        samples.append((at_s, active))
        while samples and samples[0][0] < at_s - WINDOW_S:
            samples.popleft()
        if not active:
            return False
        if reason == "throttle.power_brake":
            last_free_s = max((at for at, was in samples if not was), default=samples[0][0])
            return len(samples) >= 3 and at_s - last_free_s >= BRAKE_S
        long_enough = at_s - samples[0][0] >= LEAST_S
        return long_enough and sum(was for _, was in samples) >= DUTY * len(samples)
