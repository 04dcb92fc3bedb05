"""What the state of one device says: facts in, observations out. The one set of rules for files and for the live driver.

A snapshot cannot say how long a thing lasts: what needs a duration is said with less confidence here, and sustained by
whoever samples (``adapters``). Limits are those of the vendors' monitoring defaults.
"""

from collections.abc import Callable, Iterator

from msgspec import Struct

from keepstep.core.observation import Observation, Same
from keepstep.evidence.gpu.card import Card
from keepstep.evidence.gpu.driver_words import trouble_of
from keepstep.evidence.reading import Fine, Reading

RETIRED_PAGES_MAX = 60
RETIRED_FOR_DBE = 15
REMAPPED_ROWS_MANY = 512
SBE_MANY = 20_000_000
SRAM_LIFETIME = 4
REPLAYS_MANY = 10_000
NVLINK_BER_MAX = 1e-6
WARM_C = 70.0
LINK_ERRORS_MANY = 1000
"""A total without its rate says little: links with four levels a symbol are never free of errors."""
LANES = frozenset((1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 32.0))
WHOLE_SLOT = (
    "SXM",
    "HGX",
    "H100",
    "H200",
    "H800",
    "B100",
    "B200",
    "B300",
    "GB200",
    "GB300",
    "GH200",
    "A100",
    "A800",
    "MI300",
    "MI250",
)
"""Models that are never built behind half a slot. Cloud instances give T4, A10 and the like eight lanes on purpose."""

_SWITCHED = ("SXM", "HGX", "GB200", "GB300", "B200", "B300", "H200", "H20", "H800", "HBM3")
_BRIDGED = ("PCIE", "NVL", "GH200", "SXM2")

RECOVERY = {
    "1": "reset", "gpu reset": "reset", "reset": "reset", "gpu_reset": "reset", "reset gpu": "reset",
    "2": "reboot", "node reboot": "reboot", "reboot": "reboot", "node_reboot": "reboot",
    "3": "drain_p2p", "drain p2p": "drain_p2p", "drain_p2p": "drain_p2p",
    "4": "drain_reset", "drain and reset": "drain_reset", "drain_and_reset": "drain_reset",
    "6": "reset", "bus reset": "reset", "bus_reset": "reset",
    "7": "reboot", "system reboot": "reboot", "system_reboot": "reboot",
    "5": "imex", "recover imex domain": "imex", "recover_imex_domain": "imex",
}  # fmt: skip

_IDLE_PSTATES = frozenset(("P8", "P9", "P10", "P11", "P12", "P15"))


class Found(Struct, frozen=True):
    signal: str
    detail: str
    fact: str = ""
    """The fact whose line is the evidence."""
    attributes: dict[str, str] = {}


def judge(card: Card) -> list[Found]:
    """Everything that one device's facts say, gravest rules first within each subject."""
    if card.trouble:
        signal, detail = trouble_of(card.trouble)
        return [Found(signal, detail)]
    return [found for rule in _RULES for found in rule(card)]


def is_switched(name: str) -> bool:
    """Boards whose links all lead to switches: an inactive one is a fault. Where bridges join cards, unused ones are."""
    upper = name.upper()
    return any(word in upper for word in _SWITCHED) and not any(word in upper for word in _BRIDGED)


def report(card: Card, reading: Reading) -> None:
    """Put what a device says into a reading; a device with nothing worse than ordinary is evidence of health."""
    if len(card.names) > 1:
        reading.same.append(Same(parts=card.names, node=card.node))
    found = judge(card)
    for one in found:
        reading.observations.append(observation(card, one, reading))
    if card.facts and all(one.signal in ORDINARY for one in found):
        reading.fine.append(
            Fine(part=card.part, text=_well(card), node=card.node, file=reading.file, line=card.line)
        )  # fmt: skip


def observation(card: Card, found: Found, reading: Reading) -> Observation:
    attributes = dict(found.attributes)
    if card.parent:
        attributes["parent"] = card.parent
    if "serial" in card.facts:
        attributes["serial"] = card.text("serial")
    return Observation(
        signal=found.signal, node=card.node or reading.node, part=card.part, detail=found.detail[:500],
        attributes=attributes, source=reading.reader, file=reading.file, line=card.line_of(found.fact),
    )  # fmt: skip


ORDINARY = frozenset((
    "gpu.ecc.sbe", "gpu.remap.some", "gpu.retired.some", "gpu.throttle.sw_power", "gpu.throttle.idle", "gpu.pcie.width.alone",
    "gpu.nvlink.unused", "gpu.nvlink.errors.some",
))  # fmt: skip


def _well(card: Card) -> str:
    looked = [
        word
        for word, prefix in (
            ("memory errors", "ecc."), ("row remaps", "remap."), ("retired pages", "retired."), ("throttling", "throttle."),
            ("PCI Express", "pcie."), ("temperature", "temperature"), ("fabric", "fabric."), ("links", "nvlink."),
            ("recovery action", "recovery"), ("clocks", "clock."), ("use", "utilisation"),
        )
        if any(name.startswith(prefix) for name in card.facts)
    ]  # fmt: skip
    return f"looked at and well: {', '.join(looked) or 'it answers'}"


def _action(card: Card) -> Iterator[Found]:
    wanted = RECOVERY.get(card.text("recovery").lower())
    if wanted is None:
        value = card.number("recovery")
        wanted = RECOVERY.get(str(int(value))) if value is not None else None
    if wanted is not None:
        yield Found(f"gpu.recovery_action.{wanted}", f"recovery action: {card.text('recovery')}", "recovery")
    elif card.flag("reset.required"):
        yield Found("gpu.recovery_action.reset", "reset required", "reset.required")
    elif card.flag("reset.drain"):
        yield Found("gpu.recovery_action.drain_reset", "drain and reset recommended", "reset.drain")


def _memory(card: Card) -> Iterator[Found]:
    if card.flag("memory.unrepairable"):
        yield Found("gpu.memory.unrepairable", "memory unrepairable", "memory.unrepairable")
    if card.flag("ecc.sram.exceeded"):
        yield Found("gpu.ecc.sram", "SRAM error threshold exceeded", "ecc.sram.exceeded")
    fact = next((name for name in ("ecc.volatile", "ecc.volatile.dram", "ecc.volatile.sram") if card.number(name)), "")
    if fact:
        value = card.number(fact) or 0
        yield Found(
            "gpu.ecc.dbe", f"{value:g} uncorrectable errors since the driver loaded", fact, {"value": f"{value:g}"}
        )
    else:
        lifetime = card.number("ecc.lifetime")
        if lifetime:
            yield Found(
                "gpu.ecc.dbe.history",
                f"{lifetime:g} uncorrectable errors in its life",
                "ecc.lifetime",
                {"value": f"{lifetime:g}"},
            )
    sram = card.number("ecc.lifetime.sram")
    if sram is not None and sram > SRAM_LIFETIME and not card.flag("ecc.sram.exceeded"):
        yield Found("gpu.ecc.sram.history", f"{sram:g} uncorrectable SRAM errors in its life", "ecc.lifetime.sram")
    corrected = card.number("ecc.corrected")
    if corrected:
        signal = "gpu.ecc.sbe.many" if corrected >= SBE_MANY else "gpu.ecc.sbe"
        yield Found(signal, f"{corrected:g} corrected errors", "ecc.corrected", {"value": f"{corrected:g}"})


def _spares(card: Card) -> Iterator[Found]:
    if card.flag("remap.failed"):
        yield Found("gpu.remap.failed", "row remapping failure occurred", "remap.failed")
    if card.flag("remap.pending"):
        yield Found("gpu.remap.pending", "row remap pending", "remap.pending")
    if card.flag("repair.pending"):
        yield Found("gpu.memory.repair_pending", "repair pending", "repair.pending")
    if card.number("remap.banks.none"):
        yield Found("gpu.remap.spares", f"{card.text('remap.banks.none')} without spare rows", "remap.banks.none")
    uncorrectable, correctable = card.number("remap.uncorrectable") or 0, card.number("remap.correctable") or 0
    if uncorrectable >= REMAPPED_ROWS_MANY:
        yield Found(
            "gpu.remap.many", f"{uncorrectable:g} rows remapped for uncorrectable errors", "remap.uncorrectable"
        )
    elif uncorrectable or correctable:
        fact = "remap.uncorrectable" if uncorrectable else "remap.correctable"
        yield Found("gpu.remap.some", f"{uncorrectable + correctable:g} rows remapped", fact)


def _pages(card: Card) -> Iterator[Found]:
    single, double = card.number("retired.sbe"), card.number("retired.dbe")
    total = (single or 0) + (double or 0)
    if total > RETIRED_PAGES_MAX:
        fact = "retired.dbe" if (double or 0) > (single or 0) else "retired.sbe"
        yield Found(
            "gpu.retired.limit", f"{total:g} pages retired, {double or 0:g} of them for double-bit errors", fact
        )
    elif (double or 0) > RETIRED_FOR_DBE:
        yield Found("gpu.retired.dbe", f"{double:g} pages retired for double-bit errors", "retired.dbe")
    elif total:
        yield Found("gpu.retired.some", f"{total:g} pages retired", "retired.dbe" if double else "retired.sbe")
    if card.flag("retired.pending"):
        yield Found("gpu.retired.pending", "page retirement pending", "retired.pending")


def _throttle(card: Card) -> Iterator[Found]:
    idle = card.flag("throttle.idle") or card.text("pstate") in _IDLE_PSTATES
    if card.flag("throttle.hw_thermal"):
        yield Found("gpu.throttle.hw_thermal", "hardware thermal slowdown active", "throttle.hw_thermal")
    if card.flag("throttle.power_brake"):
        yield Found("gpu.throttle.power_brake", "hardware power brake active", "throttle.power_brake")
    named = card.flag("throttle.hw_thermal") or card.flag("throttle.power_brake")
    if card.flag("throttle.hw_slowdown") and not named:
        # An idle card may hold the general bit; where one of its causes is active, that one is the news.
        signal = "gpu.throttle.idle" if idle else "gpu.throttle.hw_slowdown"
        yield Found(signal, "hardware slowdown active", "throttle.hw_slowdown")
    if card.flag("throttle.sw_thermal"):
        yield Found("gpu.throttle.sw_thermal", "software thermal slowdown active", "throttle.sw_thermal")
    if card.flag("throttle.sw_power"):
        yield Found("gpu.throttle.sw_power", "software power cap active", "throttle.sw_power")


def _heat(card: Card) -> Iterator[Found]:
    now = card.number("temperature")
    limit, slow = card.number("temperature.max"), card.number("temperature.slowdown")
    margin, margin_slow = card.number("temperature.margin"), card.number("temperature.margin.slowdown")
    if now is not None and slow is not None and slow > 50 and slow <= now < 150:
        yield Found(
            "gpu.temperature.margin", f"{now:g} C, slowdown at {slow:g} C", "temperature", {"value": f"{now:g}"}
        )
    elif (
        margin is not None
        and margin_slow is not None
        and margin < margin_slow < 0
        and now is not None
        and now >= WARM_C
    ):
        # Some cards report a margin of zero or below at all times: only a warm card can be beyond its limit.
        yield Found(
            "gpu.temperature.margin", f"margin {margin:g} C, slowdown at {margin_slow:g} C", "temperature.margin"
        )
    elif now is not None and limit is not None and limit > 50 and limit < now < 150:
        yield Found("gpu.temperature.high", f"{now:g} C, highest operating temperature {limit:g} C", "temperature")
    memory, memory_limit = card.number("temperature.memory"), card.number("temperature.memory.max")
    if memory is not None and memory_limit is not None and memory_limit > 50 and memory_limit < memory < 150:
        yield Found("gpu.temperature.memory", f"memory {memory:g} C, limit {memory_limit:g} C", "temperature.memory")


def _bus(card: Card) -> Iterator[Found]:
    width, most = card.number("pcie.width"), card.number("pcie.width.max")
    if width in LANES and most in LANES and width is not None and most is not None and width < most:
        whole = any(word in card.text("name").upper() for word in WHOLE_SLOT)
        signal = "gpu.pcie.width" if whole else "gpu.pcie.width.alone"
        yield Found(signal, f"{width:g} of {most:g} lanes", "pcie.width", {"value": f"{width:g}", "max": f"{most:g}"})
    if card.number("pcie.fatal"):
        yield Found("gpu.pcie.fatal", f"{card.text('pcie.fatal')} fatal PCI Express errors", "pcie.fatal")
    replays = card.number("pcie.replay")
    if replays is not None and replays >= REPLAYS_MANY:
        yield Found("gpu.pcie.replay", f"{replays:g} PCI Express replays", "pcie.replay", {"value": f"{replays:g}"})


def _links(card: Card) -> Iterator[Found]:
    if card.number("nvlink.recovery_failed"):
        yield Found(
            "gpu.nvlink.recovery_failed",
            f"{card.text('nvlink.recovery_failed')} failed recoveries",
            "nvlink.recovery_failed",
        )
    for name in ("nvlink.recovery", "nvlink.replay", "nvlink.crc"):
        value = card.number(name)
        if value:
            signal = "gpu.nvlink.errors" if value >= LINK_ERRORS_MANY else "gpu.nvlink.errors.some"
            yield Found(signal, f"{value:g} link errors ({name[7:]})", name, {"value": f"{value:g}"})
            break
    ber = card.number("nvlink.ber")
    if ber is not None and NVLINK_BER_MAX < ber < 1:
        yield Found("gpu.nvlink.ber", f"effective bit error rate {ber:g}", "nvlink.ber")
    if card.number("c2c.errors"):
        yield Found("gpu.c2c", f"{card.text('c2c.errors')} errors", "c2c.errors")
    down = card.number("nvlink.inactive")
    if down and card.number("nvlink.active") and is_switched(card.text("name")) and card.text("mode.mig") != "Enabled":
        yield Found("gpu.nvlink.down", f"{down:g} links inactive", "nvlink.inactive")
    state, status = card.text("fabric.state").lower(), card.text("fabric.status").lower()
    if state in ("in progress", "2"):
        yield Found("gpu.fabric.joining", "fabric state: in progress", "fabric.state")
    elif state in ("not started", "1"):
        yield Found("gpu.fabric.state", "fabric state: not started", "fabric.state")
    elif state in ("completed", "3") and status not in ("", "success", "0"):
        yield Found("gpu.fabric.state", f"fabric status: {card.text('fabric.status')}", "fabric.status")
    if card.flag("fabric.unhealthy"):
        yield Found("gpu.fabric.health", "fabric health: not healthy", "fabric.unhealthy")


def _last_xid(card: Card) -> Iterator[Found]:
    value = card.number("xid.last")
    if value and 0 < value < 1000:
        # A gauge of the LAST code never goes back: it says that it happened once, not that it is so now.
        attributes = {"sticky": "true", "xid": f"{value:g}"}
        yield Found("gpu.xid.last", f"last Xid that the exporter saw: {int(value)}", "xid.last", attributes)


def _own_word(card: Card) -> Iterator[Found]:
    if card.flag("healthy") is False:
        yield Found("gpu.diag.failed", "the exporter says that the device is not healthy", "healthy")


Rule = Callable[[Card], Iterator[Found]]
_RULES: tuple[Rule, ...] = (_action, _memory, _spares, _pages, _throttle, _heat, _bus, _links, _last_xid, _own_word)
