"""One port of an adapter, however it was looked at, and what its state says. Pure; knows no file format.

Shared by the readers of tool output and by the agent's source. A port without a link is a fault only with positive evidence:
others of its role are up, or it is configured to carry traffic. What is merely absent proves nothing.
"""

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from keepstep.core.observation import Observation, Same
from keepstep.evidence.network import counters
from keepstep.evidence.reading import Fine

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_WIDTH = re.compile(r"\b(\d+)X\b", re.IGNORECASE)
_VERSION = re.compile(r"^\d+(?:\.\d+)+")
_VIRTUAL = re.compile(r"bond|(?:^|_)vf\d|v\d+$", re.IGNORECASE)


class Port(Struct, kw_only=True):
    """What is known of one port; empty where the evidence does not say."""

    device: str
    number: str = "1"
    state: str = ""
    """``active``, ``init``, ``armed``, ``down`` or empty."""
    physical: str = ""
    """``linkup``, ``polling``, ``disabled``, ``sleep``, ``training``, ``recovery`` or empty."""
    rate_gbps: float | None = None
    width: int = 0
    link_layer: str = ""
    model: str = ""
    firmware: str = ""
    pci: str = ""
    netdev: str = ""
    netdev_state: str = ""
    netdev_speed_mbps: float | None = None
    netdev_downs: int | None = None
    counters: dict[str, int] = field(default_factory=dict)
    line: int = 0

    @property
    def part(self) -> str:
        return f"nic/{self.device}/{self.number}"

    @property
    def role(self) -> tuple[str, str, str]:
        """Ports of one role are alike: what most of them are, each should be."""
        return (self.link_layer, self.model, self.number)

    @property
    def virtual(self) -> bool:
        """A bond or a virtual function: its state follows from others."""
        return _VIRTUAL.search(self.device) is not None


class Origin(Struct, frozen=True, kw_only=True):
    """Where observations come from."""

    source: str
    node: str = ""
    file: str = ""
    at_s: float | None = None
    clock: str = ""

    def seen(self, signal: str, part: str, detail: str, line: int = 0, /, **attributes: str) -> Observation:
        return Observation(
            signal=signal, node=self.node, part=part, detail=detail[:500], attributes=attributes, source=self.source,
            file=self.file, line=line, at_s=self.at_s, clock=self.clock,
        )  # fmt: skip


class Judged(Struct, kw_only=True):
    observations: list[Observation] = field(default_factory=list)
    fine: list[Fine] = field(default_factory=list)
    same: list[Same] = field(default_factory=list)


def state_of(text: str) -> str:
    """``4: ACTIVE``, ``PORT_ACTIVE (4)``, ``Active``, ``4`` → ``active``."""
    word = text.lower()
    for name in ("active", "init", "armed", "down"):
        if name in word:
            return "active" if name == "active" and "defer" not in word else ("down" if name == "active" else name)
    return {"1": "down", "2": "init", "3": "armed", "4": "active"}.get(word.strip(), "")


def physical_of(text: str) -> str:
    """``5: LinkUp``, ``LINK_UP``, ``LinkErrorRecovery``, ``PortConfigurationTraining`` → one word each."""
    word = text.lower().replace("_", "").replace(" ", "")
    for name, meaning in (
        ("recovery", "recovery"), ("training", "training"), ("linkup", "linkup"), ("polling", "polling"),
        ("disabled", "disabled"), ("sleep", "sleep"), ("phytest", "training"),
    ):  # fmt: skip
        if name in word:
            return meaning
    numbers = {"1": "sleep", "2": "polling", "3": "disabled", "4": "training", "5": "linkup", "6": "recovery"}
    return numbers.get(word.strip(), "")


def rate_of(text: str) -> tuple[float | None, int]:
    """(Gb/s, lanes) of ``200 Gb/sec (4X HDR)`` or ``400``; (None, 0) where there is no figure."""
    number = _NUMBER.search(text)
    width = _WIDTH.search(text)
    rate = float(number.group()) if number and len(number.group()) < 12 else None
    return (rate if rate else None), (int(width.group(1)) if width and len(width.group(1)) < 4 else 0)


def judge(ports: Sequence[Port], origin: Origin) -> Judged:
    """What the ports of one node say when each is looked at beside the others."""
    told = Judged()
    real = [port for port in ports if not port.virtual]
    _judge_states(real, origin, told)
    _judge_rates(real, origin, told)
    _judge_netdevs(real, origin, told)
    _judge_firmware(real, origin, told)
    _judge_binding(real, origin, told)
    for port in ports:
        told.observations += counters.judge_levels(port.part, port.counters, port.line, origin)
        told.same += _names(port, origin.node, alone=sum(other.device == port.device for other in ports) == 1)
    _judge_flaps(real, origin, told)
    blamed = {seen.part for seen in told.observations if seen.signal not in counters.BENIGN}
    for port in real:
        if port.state == "active" and port.part not in blamed:
            rate = f", {port.rate_gbps:g} Gb/s" if port.rate_gbps else ""
            text = f"port is active{rate}"
            told.fine.append(Fine(part=port.part, text=text, node=origin.node, file=origin.file, line=port.line))
    return told


def _names(port: Port, node: str, alone: bool) -> list[Same]:
    """An adapter with one port is that port; of one with several, only the port is its interface."""
    adapter = [f"nic/{port.pci}"] if port.pci else []
    adapter.append(f"nic/{port.device}")
    its_port = [f"nic/{port.device}/{port.number}"]
    if port.netdev:
        its_port.append(f"nic/{port.netdev}")
    groups = [adapter + its_port] if alone else [adapter, its_port]
    return [Same(parts=tuple(group), node=node) for group in groups if len(group) > 1]


def _judge_states(ports: Sequence[Port], origin: Origin, told: Judged) -> None:
    linked = [port for port in ports if port.physical == "linkup" and port.link_layer.lower() != "ethernet"]
    waiting = [port for port in linked if port.state in ("init", "armed")]
    if len(waiting) > 1 and len(waiting) == len(linked):
        names = ", ".join(port.device for port in waiting)
        told.observations.append(
            origin.seen("fabric.no_manager", "", f"no port is activated: {names}", waiting[0].line)
        )
        waiting_all = True
    else:
        waiting_all = False
    for port in ports:
        if port.state in ("", "active"):
            if port.physical == "recovery":
                told.observations.append(origin.seen("port.recovery", port.part, "link in error recovery", port.line))
            continue
        if waiting_all and port in waiting:
            continue
        key, why = _down(port, ports)
        detail = f"state {port.state}, physical state {port.physical or 'not told'}: {why}"
        told.observations.append(
            origin.seen(key, port.part, detail, port.line, state=port.state, physical=port.physical)
        )


def _down(port: Port, ports: Sequence[Port]) -> tuple[str, str]:
    """Key and reason for one port that is not active."""
    if port.physical == "disabled":
        return "port.disabled", "switched off"
    peers = [other for other in ports if other.role == port.role and other is not port and other.state]
    up = sum(other.state == "active" for other in peers)
    if port.state in ("init", "armed") and port.physical in ("linkup", ""):
        return "port.waiting", f"{up} of {len(peers)} ports of its role are active"
    if peers and up * 2 >= len(peers) and (up > 1 or len(peers) == 1):
        return "port.down", f"{up} of {len(peers)} other ports of its role are active"
    if any(other.state == "active" for other in ports):
        return "port.unused", f"{up} of {len(peers)} other ports of its role are active"
    if len(ports) > 1 and len({other.physical for other in ports}) == 1 and port.physical in ("polling", ""):
        return "port.down.alone", f"none of {len(ports)} ports is active"
    return "port.down.alone", "nothing to compare with"


def _most_common(values: Iterable[float]) -> float | None:
    tally: dict[float, int] = {}
    for value in values:
        tally[value] = tally.get(value, 0) + 1
    return max(sorted(tally), key=lambda value: (tally[value], value), default=None)


def _judge_rates(ports: Sequence[Port], origin: Origin, told: Judged) -> None:
    for port in ports:
        if port.state != "active" or not port.rate_gbps:
            continue
        peers = [
            x.rate_gbps for x in ports if x.role == port.role and x is not port and x.state == "active" and x.rate_gbps
        ]
        usual = _most_common(peers)
        speed = (port.netdev_speed_mbps or 0) / 1000
        # Two ports that differ do not say which of them is right; three do.
        if usual and len(peers) >= 2 and port.rate_gbps < usual * 0.9:
            detail = f"{port.rate_gbps:g} Gb/s where its peers run at {usual:g}"
        elif speed and port.rate_gbps < speed * 0.9:
            detail = f"{port.rate_gbps:g} Gb/s where its interface {port.netdev} says {speed:g}"
        elif port.width == 1 and port.rate_gbps < 50:
            detail = f"a single lane, {port.rate_gbps:g} Gb/s"
        else:
            continue
        told.observations.append(origin.seen("port.rate", port.part, detail, port.line, value=f"{port.rate_gbps:g}"))


def _judge_netdevs(ports: Sequence[Port], origin: Origin, told: Judged) -> None:
    """The interface of an active port is down while those of most other ports are up."""
    up = [port for port in ports if port.netdev_state == "up"]
    for port in ports:
        if port.netdev_state not in ("down", "lowerlayerdown", "notpresent") or port.state not in ("active", ""):
            continue
        if len(up) * 2 >= len(ports) and up:
            detail = f"interface {port.netdev} is {port.netdev_state}; {len(up)} of {len(ports)} are up"
            seen = origin.seen("netdev.down.peers", port.part, detail, port.line, netdev=port.netdev)
            told.observations.append(seen)


def _judge_flaps(ports: Sequence[Port], origin: Origin, told: Judged) -> None:
    """Far more losses of the link than the peers saw in the same time."""
    for key in ("link_downed", "carrier_down_count"):
        counted = [(port, _downs(port, key)) for port in ports]
        for port, value in counted:
            if value is None:
                continue
            others = sorted(x for other, x in counted if other is not port and x is not None)
            limit = 3 * max(others[len(others) // 2], 3) if len(others) >= 2 else 20
            if value > limit:
                middle = f"; its peers' median is {others[len(others) // 2]}" if others else " since an unknown time"
                detail = f"{key} {value}{middle}"
                told.observations.append(origin.seen("port.flaps", port.part, detail, port.line, value=str(value)))


def _downs(port: Port, key: str) -> int | None:
    value = port.netdev_downs if key == "carrier_down_count" else port.counters.get(key)
    return None if value is None or counters.saturated(key, value) else value


def _judge_firmware(ports: Sequence[Port], origin: Origin, told: Judged) -> None:
    models: dict[str, dict[str, list[Port]]] = {}
    blank = []
    for port in ports:
        if _VERSION.match(port.firmware):
            models.setdefault(port.model, {}).setdefault(port.firmware, []).append(port)
        elif port.firmware:
            blank.append(port)
    for model, versions in models.items():
        if len(versions) < 2 or not model:
            continue
        usual = max(sorted(versions), key=lambda version: len(versions[version]))
        for version, odd in versions.items():
            for port in odd if version != usual else ():
                detail = f"firmware {version} where most of {model} run {usual}"
                told.observations.append(origin.seen("nic.firmware.mixed", f"nic/{port.device}", detail, port.line))
    if blank:
        detail = f"{len(blank)} adapters tell no firmware version: {', '.join(port.device for port in blank)}"
        told.observations.append(
            origin.seen("nic.firmware.unreadable", f"nic/{blank[0].device}", detail, blank[0].line)
        )


_MLX = re.compile(r"^(mlx\d+)_(\d{1,4})$")


def _judge_binding(ports: Sequence[Port], origin: Origin, told: Judged) -> None:
    """Names that count adapters up in the order of their slots do so without a break where nobody has bound them by hand."""
    numbered = []
    for port in ports:
        match = _MLX.match(port.device)
        if match and port.pci and port.number == "1":
            numbered.append((port.pci, int(match.group(2)), port))
    numbered.sort(key=lambda x: x[0])
    if len(numbered) < 4:
        return
    kept = _longest_ascending([number for _, number, _ in numbered])
    for index, (pci, _, port) in enumerate(numbered):
        if index not in kept:
            detail = f"{port.device} at {pci} is out of the order of the slots"
            told.observations.append(origin.seen("nic.binding", f"nic/{port.device}", detail, port.line, pci=pci))


def _longest_ascending(values: Sequence[int]) -> set[int]:
    """Indices of a longest ascending run of values, gaps allowed."""
    best: list[list[int]] = []
    for index, value in enumerate(values):
        before: list[int] = []
        for run in best:
            if values[run[-1]] < value and len(run) > len(before):
                before = run
        best.append([*before, index])
    longest: list[int] = []
    for run in best:
        longest = run if len(run) > len(longest) else longest
    return set(longest)
