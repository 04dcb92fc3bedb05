"""A fleet of parts that wear and fail, and the counters that one would read from them. Owns the hidden truth for fitting and
judging the health score; deterministic by seed. It knows nothing of the score's weights, and must not.

What is made hard on purpose: more than half of the failures come without any sign; counters burst and mean nothing; some parts
count corrected errors for years; whole racks get warm, and their ports err with them; counters are reset, sampled with gaps, or
missing; a repair that did not cure is followed by the same failure.
"""

import bisect
import math
from collections.abc import Iterator
from functools import lru_cache
from random import Random

from msgspec import Struct

from keepstep.core.health.window import BUCKET_S, DAY_S, History, Sample, history

HOUR_S = 3600.0
PER_DAY = 96

SIGNS: dict[str, dict[str, float]] = {
    "memory": {"ecc_corrected": 400.0, "rows_remapped": 1.5, "ecc_uncorrected": 0.3},
    "pcie": {"pcie_replays": 600.0, "pcie_resets": 4.0},
    "package": {"ecc_corrected": 120.0, "pcie_resets": 6.0, "pcie_replays": 150.0},
    "heat": {"throttle_s": 14000.0},
    "link": {"nvlink_errors": 300.0},
    "port": {"nic_symbol_errors": 2500.0, "link_downed": 3.0},
    "slow": {"dram_corrected": 250.0},
    "silent": {},
}
"""What wears → events a day that it adds at full wear."""

MODES: dict[str, tuple[tuple[str, float], ...]] = {
    "gpu": (("silent", 0.55), ("memory", 0.19), ("pcie", 0.08), ("package", 0.07), ("heat", 0.06), ("link", 0.05)),
    "nic": (("silent", 0.40), ("port", 0.60)),
    "node": (("silent", 0.65), ("slow", 0.35)),
}
"""Kind → how its parts fail, with shares. More than half without a sign: so it is told of real fleets."""

ORDINARY: dict[str, dict[str, float]] = {
    "gpu": {"ecc_corrected": 0.05, "rows_remapped": 0.002, "pcie_replays": 2.0, "nvlink_errors": 0.5, "throttle_s": 20.0,
            "ecc_uncorrected": 0.0005, "pcie_resets": 0.02},
    "nic": {"nic_symbol_errors": 6.0, "link_downed": 0.01},
    "node": {"dram_corrected": 0.5},
}  # fmt: skip
GAUGES = {"gpu": ("temperature_c", "margin_c", "step_time_ratio"), "nic": ("temperature_c",), "node": ("inlet_c",)}
BURSTS: dict[str, tuple[tuple[str, float, float], ...]] = {
    "gpu": (
        ("ecc_corrected", 0.03, 300.0),
        ("pcie_replays", 0.02, 400.0),
        ("nvlink_errors", 0.01, 100.0),
        ("pcie_resets", 0.01, 3.0),
    ),
    "nic": (("nic_symbol_errors", 0.03, 1500.0), ("link_downed", 0.01, 2.0)),
    "node": (("dram_corrected", 0.02, 200.0),),
}
"""Kind → (counter, bursts a day, events of a burst): noise."""
CHRONIC: dict[str, tuple[dict[str, float], ...]] = {
    "gpu": ({"ecc_corrected": 60.0}, {"pcie_replays": 300.0}, {"nvlink_errors": 80.0}, {"throttle_s": 6000.0}),
    "nic": ({"nic_symbol_errors": 400.0}, {"nic_symbol_errors": 150.0, "link_downed": 0.3}),
    "node": ({"dram_corrected": 40.0},),
}
"""Kind → what a few of its parts count all their lives, and how much a day, without failing sooner."""
LIFETIME: dict[str, tuple[float, int]] = {
    "rows_remapped": (0.08, 4),
    "ecc_uncorrected": (0.05, 2),
    "link_downed": (0.5, 20),
}
"""Counter → (share of the parts on which it is not 0 from long ago, at most how much): history, not risk."""
EPISODES_PER_DAY = {"slow": 0.06, "unsteady": 0.04}
"""Days on which an accelerator is slower than the others, or its temperature unsteady, for reasons of the job."""
CHRONIC_HEAT_C = 9.0
"""How much warmer those are that throttle all their lives."""


class Setting(Struct, frozen=True, kw_only=True):
    """What fleet it is. The defaults are a fleet of 8-GPU nodes with a rate of failures as published."""

    racks: int = 8
    nodes_per_rack: int = 8
    days: int = 180
    per_day: tuple[tuple[str, float], ...] = (("gpu", 3.0e-4), ("nic", 5.0e-5), ("node", 5.0e-4))
    """First failures a day of each kind of part."""
    parts_per_node: tuple[tuple[str, int], ...] = (("gpu", 8), ("nic", 8), ("node", 1))
    sameness: float = 0.25
    """Shape of the gamma distribution over parts of how often they fail; the smaller, the more a few lemons fail for all."""
    uncured: float = 0.3
    """Share of the repairs that did not cure."""
    relapse_days: float = 5.0
    """How long an uncured part then lasts, on average."""
    repair_hours: float = 6.0
    wear_days: float = 3.0
    """How long wear shows before the failure, on average; much shorter and much longer occur."""
    noise: float = 1.0
    """Factor on bursts and on warm racks."""
    chronic: float = 0.03
    excursions_per_day: float = 0.03
    """Times that a rack gets warm."""


class Life(Struct, frozen=True, kw_only=True):
    """One stretch of a part in service, and how it ended."""

    start_s: float
    end_s: float
    failed: bool
    mode: str
    worn_from_s: float
    """From when on its wear shows; its end where it never does."""


class Device(Struct, frozen=True, kw_only=True):
    node: str
    rack: int
    part: str
    kind: str
    number: int
    lives: tuple[Life, ...]
    chronic: dict[str, float]

    @property
    def failures(self) -> tuple[float, ...]:
        return tuple(life.end_s for life in self.lives if life.failed)


class Day(Struct, frozen=True):
    """One day of one device: 96 quarters of growth per counter, and of gauges."""

    grown: dict[str, list[float]]
    gauges: dict[str, list[float]]


class WearFleet:
    """All devices with their lives; counters are made when they are asked for."""

    def __init__(self, seed: int, setting: Setting | None = None) -> None:
        self.seed = seed
        self.setting = setting or Setting()
        self.end_s = self.setting.days * DAY_S
        self._warm = {rack: tuple(self._excursions(rack)) for rack in range(self.setting.racks)}
        self.devices = tuple(self._devices())
        self.nodes: dict[str, list[Device]] = {}
        for device in self.devices:
            self.nodes.setdefault(device.node, []).append(device)
        self._day = lru_cache(maxsize=4096)(self._make_day)

    def history(self, device: Device, now_s: float, only: str = "") -> History:
        """What a collector would hold about a device: a day of samples (of one counter, where only that is wanted), some
        missing, and its failures so far."""
        samples = self._samples(device, now_s, only)
        back = [life.start_s for life in device.lives[1:] if life.start_s <= now_s]
        failed = [at_s for at_s in device.failures if at_s <= now_s]
        return history(samples, failed, back[-1] if back else None)

    def node_histories(self, node: str, now_s: float) -> dict[str, History]:
        return {device.part: self.history(device, now_s) for device in self.nodes[node]}

    def in_service(self, device: Device, now_s: float) -> Life | None:
        """The life that it is in; None while it is in repair."""
        at = bisect.bisect_right([life.start_s for life in device.lives], now_s) - 1
        life = device.lives[at] if at >= 0 else None
        return life if life is not None and now_s < life.end_s else None

    # How lives are drawn

    def _devices(self) -> Iterator[Device]:
        number = 0
        for rack in range(self.setting.racks):
            for place in range(self.setting.nodes_per_rack):
                for kind, count in self.setting.parts_per_node:
                    for slot in range(count):
                        rng = Random(f"{self.seed}/life/{number}")
                        yield Device(
                            node=f"r{rack}n{place}",
                            rack=rack,
                            part="" if kind == "node" else f"{kind}/{slot}",
                            kind=kind,
                            number=number,
                            lives=tuple(self._lives(kind, rng)),
                            chronic=rng.choice(CHRONIC[kind]) if rng.random() < self.setting.chronic else {},
                        )
                        number += 1

    def _lives(self, kind: str, rng: Random) -> Iterator[Life]:
        at_s, relapse = -rng.uniform(0, 30) * DAY_S, ""
        shape = self.setting.sameness
        rate = dict(self.setting.per_day)[kind] * max(0.01, rng.gammavariate(shape, 1 / shape))
        while at_s < self.end_s:
            mode = relapse or _drawn(MODES[kind], rng)
            days = rng.expovariate(1 / self.setting.relapse_days if relapse else rate)
            end_s = at_s + days * DAY_S
            failed = end_s < self.end_s
            shown_s = rng.lognormvariate(math.log(self.setting.wear_days * DAY_S), 1.0)
            worn_from_s = max(at_s, end_s - shown_s) if mode != "silent" else end_s
            yield Life(start_s=at_s, end_s=min(end_s, self.end_s), failed=failed, mode=mode, worn_from_s=worn_from_s)
            relapse = mode if rng.random() < self.setting.uncured else ""
            at_s = end_s + rng.lognormvariate(math.log(self.setting.repair_hours * HOUR_S), 1.0)

    def _excursions(self, rack: int) -> Iterator[tuple[float, float, float]]:
        """(from, until, degrees) that a rack is warm."""
        rng = Random(f"{self.seed}/rack/{rack}")
        at_s = -10 * DAY_S
        while at_s < self.end_s:
            at_s += rng.expovariate(self.setting.excursions_per_day * self.setting.noise) * DAY_S
            until_s = at_s + rng.uniform(2, 8) * HOUR_S
            yield at_s, until_s, rng.uniform(6, 15)
            at_s = until_s

    # How counters follow from them

    def _samples(self, device: Device, now_s: float, only: str) -> Iterator[Sample]:
        rng = Random(f"{self.seed}/read/{device.number}/{int(now_s)}")
        last = int(now_s // BUCKET_S) - 1  # What the quarter that runs now will show is not known yet.
        first = last - PER_DAY
        days = {day: self._day(device.number, day) for day in range(first // PER_DAY, last // PER_DAY + 1)}
        missing = {n for n in (*ORDINARY[device.kind], "temperature_c") if rng.random() < 0.03}
        reset = rng.randrange(first, last) if rng.random() < 0.05 else None
        read = [bucket for bucket in range(first, last + 1) if rng.random() > 0.03]
        missing.update(n for n in (*ORDINARY[device.kind], *GAUGES[device.kind]) if only and n != only)
        names = [n for n in ORDINARY[device.kind] if n not in missing]
        total = {name: self._lifetime(device, name, first * BUCKET_S) for name in names}
        wanted = set(read)
        for bucket in range(first, last + 1):
            day, quarter = days[bucket // PER_DAY], bucket % PER_DAY
            at_s = bucket * BUCKET_S + BUCKET_S - 1.0
            for name in names:
                total[name] = (0.0 if bucket == reset else total[name]) + day.grown[name][quarter]
                if bucket in wanted:
                    yield Sample(name, at_s, math.floor(total[name]))
            if bucket in wanted:
                for name, values in day.gauges.items():
                    if name not in missing:
                        yield Sample(name, at_s, round(values[quarter], 2))

    def _lifetime(self, device: Device, name: str, at_s: float) -> float:
        """Where a counter stands at a time: what it had from long ago, and what this wear has added since."""
        rng = Random(f"{self.seed}/past/{device.number}/{name}")
        share, most = LIFETIME.get(name, (1.0, 50 if ORDINARY[device.kind][name] > 1 else 1))
        total = float(rng.randint(1, most)) if rng.random() < share else 0.0
        life = self.in_service(device, at_s)
        rate = SIGNS[life.mode].get(name, 0.0) if life is not None else 0.0
        if life is not None and rate and at_s > life.worn_from_s:
            days, whole = (at_s - life.worn_from_s) / DAY_S, (life.end_s - life.worn_from_s) / DAY_S
            total += math.floor(rate * (0.15 * days + 0.85 * days**3 / (3 * whole**2)))
        return total

    def _make_day(self, number: int, day: int) -> Day:
        device = self.devices[number]
        rng = Random(f"{self.seed}/day/{number}/{day}")
        grown: dict[str, list[float]] = {}
        wear = [self._wear(device, (day * PER_DAY + quarter) * BUCKET_S) for quarter in range(PER_DAY)]
        warm = [self._degrees(device.rack, (day * PER_DAY + quarter) * BUCKET_S) for quarter in range(PER_DAY)]
        for name, ordinary in ORDINARY[device.kind].items():
            grown[name] = _scattered(ordinary + device.chronic.get(name, 0.0), rng)
            _add_signs(grown[name], name, wear, rng)
            _add_warmth(grown[name], name, warm, rng)
        for name, often, size in BURSTS[device.kind]:
            if rng.random() < often * self.setting.noise:
                grown[name][rng.randrange(PER_DAY)] += rng.lognormvariate(math.log(size), 1.2)
        return Day(grown, self._gauges(device, day, (wear, warm), rng))

    def _gauges(
        self, device: Device, day: int, course: tuple[list[tuple[str, float]], list[float]], rng: Random
    ) -> dict[str, list[float]]:
        wear, warm = course
        if device.kind == "node":
            return {"inlet_c": [24.0 + degrees + rng.gauss(0, 0.4) for degrees in warm]}
        if device.kind == "nic":
            return {"temperature_c": [55.0 + degrees + rng.gauss(0, 1.0) for degrees in warm]}
        own = Random(f"{self.seed}/place/{device.number}").gauss(0, 2.0)
        own += CHRONIC_HEAT_C if "throttle_s" in device.chronic else 0.0
        idle = _idle(Random(f"{self.seed}/load/{device.node}/{day}"))
        episode = rng.uniform(0.02, 0.15) if rng.random() < EPISODES_PER_DAY["slow"] else 0.0
        restless = rng.uniform(2, 7) if rng.random() < EPISODES_PER_DAY["unsteady"] else 0.0
        begin = rng.randrange(PER_DAY)
        heat, ratio = [], []
        for quarter in range(PER_DAY):
            mode, worn = wear[quarter]
            unsteady = restless + (6.0 * worn if mode in ("package", "heat") else 0.0)
            extra = 12.0 * worn if mode == "heat" else 0.0
            load = -20.0 if quarter in idle else 0.0
            heat.append(66.0 + own + warm[quarter] + extra + load + rng.gauss(0, 1.0 + unsteady))
            slow = 0.06 * worn if mode in ("heat", "link", "pcie") else 0.0
            slow += episode if begin <= quarter < begin + 24 else 0.0
            ratio.append(1.0 + slow + max(0.0, heat[-1] - 80.0) * 0.004 + rng.gauss(0, 0.01))
        return {"temperature_c": heat, "margin_c": [87.0 - degrees for degrees in heat], "step_time_ratio": ratio}

    def _wear(self, device: Device, at_s: float) -> tuple[str, float]:
        """(mode, 0 … 1) at a time: it grows from when it shows until the failure."""
        life = self.in_service(device, at_s)
        if life is None or at_s < life.worn_from_s:
            return "silent", 0.0
        whole_s = max(HOUR_S, life.end_s - life.worn_from_s)
        return life.mode, 0.15 + 0.85 * ((at_s - life.worn_from_s) / whole_s) ** 2

    def _degrees(self, rack: int, at_s: float) -> float:
        return max((degrees for a, b, degrees in self._warm[rack] if a <= at_s < b), default=0.0)


def _drawn(shares: tuple[tuple[str, float], ...], rng: Random) -> str:
    return rng.choices([name for name, _ in shares], [share for _, share in shares])[0]


def _poisson(mean: float, rng: Random) -> int:
    if mean > 30:
        return max(0, round(rng.gauss(mean, math.sqrt(mean))))
    limit, k, p = math.exp(-mean), 0, rng.random()
    while p > limit:
        k, p = k + 1, p * rng.random()
    return k


def _scattered(per_day: float, rng: Random) -> list[float]:
    """A day's events at a constant rate, by quarter."""
    quarters = [0.0] * PER_DAY
    for _ in range(_poisson(per_day, rng)):
        quarters[rng.randrange(PER_DAY)] += 1.0
    return quarters


def _add_signs(quarters: list[float], name: str, wear: list[tuple[str, float]], rng: Random) -> None:
    for quarter, (mode, worn) in enumerate(wear):
        rate = SIGNS[mode].get(name, 0.0) * worn
        if rate > 0:
            quarters[quarter] += _poisson(rate / PER_DAY * rng.lognormvariate(-0.32, 0.8), rng)


def _add_warmth(quarters: list[float], name: str, warm: list[float], rng: Random) -> None:
    """A warm rack throttles its accelerators and makes its ports err; neither fails sooner for it."""
    rate = {"throttle_s": 0.3, "nic_symbol_errors": 8.0}.get(name, 0.0)
    for quarter, degrees in enumerate(warm):
        if rate and degrees > 5:
            mean = rate * (degrees - 5) ** 2
            quarters[quarter] += min(900.0, mean) if name == "throttle_s" else _poisson(mean, rng)


def _idle(rng: Random) -> frozenset[int]:
    """Quarters of a day in which a node has no load."""
    if rng.random() < 0.7:
        return frozenset()
    start = rng.randrange(PER_DAY)
    return frozenset((start + k) % PER_DAY for k in range(rng.randrange(4, 24)))
