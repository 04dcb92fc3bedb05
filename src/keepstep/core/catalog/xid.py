"""Rows of Xid signals: what each code of NVIDIA's driver means, in our own words. Data only.

The vendor's catalogue gives the immediate action; where field reports or other monitors disagree the row says what we
take and why. Codes 144 to 150 have rows of their own (``nvlink5``). Xid 154 carries the driver's own verdict: it wins
over every other row.
"""

from keepstep.core.catalog.accelerator import BOTH, FIELD, VENDOR, card, ordinary, program, watch
from keepstep.core.catalog.recovery import DRIVER, RECOVERY
from keepstep.core.catalog.row import Remedy, Row, Scope, Verdict, row
from keepstep.core.incident import Cause, Urgency

REPEATS = "five of one card within a day: its maker's support"
MEDIA = "gpu.engine.media"
COPY = "gpu.engine.copy"


def engine(name: str, failure_class: str) -> Row:
    return watch(
        failure_class,
        f"an exception in {name}: the process that used it ends",
        cause=Cause.APPLICATION,
        corroborate=REPEATS,
    )


MEMORY: dict[str, Row] = {
    "xid.48": card(
        "gpu.memory.dbe",
        "an uncorrectable error in the card's memory; what was computed on it cannot be trusted",
        confidence=0.95,
        source=BOTH,
        corroborate="63 or 64 of the same card beside it; the driver's counter of uncorrectable errors",
    ),
    "xid.63": watch(
        "gpu.memory.remap",
        "a row of memory (on older cards a page) is marked to be replaced: takes effect at the next reset",
        urgency=Urgency.JOB_END,
        remedy=Remedy.RESET_DEVICE,
        confidence=0.8,
        source="vendor catalogue 2025-10 (ignore); other monitors reboot",
        corroborate="48 of the same card beside it: drain and reset. Alone it never preempts",
    ),
    "xid.64": card(
        "gpu.memory.remap_failed",
        "a broken row of memory could not be recorded for replacement",
        confidence=0.95,
        source=BOTH,
        corroborate="a remap failure that stays after the reset: replace the card",
    ),
    "xid.92": watch(
        "gpu.memory.sbe_rate",
        "corrected memory errors come at a high rate",
        urgency=Urgency.JOB_END,
        remedy=Remedy.VALIDATE,
    ),
    "xid.93": ordinary("a write to the card's information memory was refused because of its provisioned limit"),
    "xid.94": row(
        Cause.DEVICE,
        "gpu.memory.contained",
        Scope.CARD,
        Verdict.SUSPECT,
        "an uncorrectable memory error that was contained: only the process that used the page ends",
        confidence=0.8,
        source=BOTH,
        corroborate="48 or a pending remap of the same card; printed by an abort in a collective too",
    ),
    "xid.95": card(
        "gpu.memory.uncontained",
        "an uncorrectable memory error that was not contained: every process on the card is affected",
        confidence=0.95,
        source=BOTH,
        corroborate="copies on other cards are sympathetic: the first one is the source",
    ),
    "xid.140": card("gpu.memory.unrecovered", "a memory error that the hardware could not recover from", source=BOTH),
    "xid.156": watch(
        "gpu.resource_retired",
        "a unit of the card was retired: takes effect at the next reset",
        urgency=Urgency.JOB_END,
        remedy=Remedy.RESET_DEVICE,
        confidence=0.8,
    ),
    "xid.157": watch(
        "gpu.resource_retire_failed",
        "a unit of the card could not be retired",
        urgency=Urgency.JOB_END,
        remedy=Remedy.VALIDATE,
    ),
    "xid.160": ordinary("a memory channel was retired"),
    "xid.161": ordinary("a memory channel could not be retired"),
    "xid.168": card(
        "gpu.memory.capacity",
        "errors in the protected region of memory: the card has less memory until it is restarted",
        confidence=0.8,
    ),
    "xid.171": watch(
        "gpu.memory.dbe", "where in the card's memory the uncorrectable error of Xid 48 was", confidence=0.8
    ),
    "xid.172": card(
        "gpu.memory.sram", "an uncorrectable error in on-chip memory", corroborate="the count of such errors over life"
    ),
    "xid.185": watch(
        "gpu.memory.remap",
        "a spare of the card's memory was put to use (announced for driver R620)",
        urgency=Urgency.JOB_END,
        source="vendor announcement",
    ),
}

DEVICE: dict[str, Row] = {
    "xid.46": card("gpu.compute_engine", "the card stopped processing and did not come back", source=BOTH),
    "xid.54": card(
        "gpu.power.aux",
        "the card's auxiliary power is not connected",
        remedy=Remedy.INSPECT,
        confidence=0.95,
        corroborate="power supplies and the event log of the BMC",
    ),
    "xid.61": card(
        "gpu.firmware", "the card's power controller stopped (older drivers)", confidence=0.85, source=FIELD
    ),
    "xid.62": card(
        "gpu.firmware",
        "the card's power controller halted",
        source=BOTH,
        corroborate="some exporters do not pass it on",
    ),
    "xid.79": card(
        "gpu.fallen_off_bus",
        "the card has fallen off the PCIe bus: it does not answer any more",
        remedy=Remedy.REBOOT,
        confidence=0.97,
        source=BOTH,
        corroborate="fewer cards than before, the port's errors before it; a second time: power-cycle, then inspect",
    ),
    "xid.109": card(
        "gpu.compute_engine",
        "switching between contexts timed out on the card",
        confidence=0.8,
        corroborate="on many cards at once it is the program or the collective library",
    ),
    "xid.110": card("gpu.security", "a security fault of the card", confidence=0.85),
    "xid.119": card(
        "gpu.firmware.gsp",
        "the card's system processor does not answer the driver",
        source=BOTH,
        corroborate="one driver version over the fleet: software. The process that is named is a victim",
    ),
    "xid.120": card("gpu.firmware.gsp", "the card's system processor reported an error of its own", source=BOTH),
    "xid.143": card("gpu.init", "the card could not be initialised", corroborate="at boot: it never entered service"),
    "xid.151": card(
        "gpu.security", "keys could not be rotated (confidential computing)", remedy=Remedy.REBOOT, confidence=0.8
    ),
    "xid.158": card("gpu.fatal_timeout", "the card ran into a fatal timeout"),
    "xid.167": card("gpu.pcie", "a fatal timeout on the card's PCIe side", remedy=Remedy.REBOOT, confidence=0.85),
    "xid.169": card("gpu.firmware", "a controller of the card halted", confidence=0.85),
}

LINKS: dict[str, Row] = {
    "xid.74": card(
        "nvlink.link",
        "an NVLink failed: at this card, at its peer, or at the switch between them",
        confidence=0.7,
        source=BOTH,
        corroborate="several cards with links to one switch: the switch; both ends until it is told apart",
    ),
    "xid.74.hardware": card(
        "nvlink.link",
        "an NVLink failed with an error in its own memory: most likely the card's hardware",
        confidence=0.85,
        corroborate="more than twice on the same link: replace",
    ),
    "xid.74.mechanical": card(
        "nvlink.link",
        "an NVLink failed with signs of a bad connection: seating, bridge or board",
        remedy=Remedy.INSPECT,
        confidence=0.8,
        corroborate="diagnostics once the connection was looked at",
    ),
    "xid.74.sympathetic": watch(
        "nvlink.link",
        "an NVLink error that follows another one: that one counts",
        verdict=Verdict.SUSPECT,
        urgency=Urgency.NOW,
        remedy=Remedy.VALIDATE,
        confidence=0.5,
    ),
    "xid.74.threshold": watch("nvlink.link", "many corrected errors in an NVLink's memory; nothing was lost"),
    "xid.74.ignorable": ordinary("an NVLink notice that may be ignored", "nvlink.link"),
    "xid.108": ordinary("a translation was refused at the far end of an NVLink: see 137"),
    "xid.121": watch(
        "c2c",
        "an error on the link between processor and card",
        urgency=Urgency.JOB_END,
        corroborate="the link's own counters",
    ),
    "xid.136": card("nvlink.link", "an NVLink could not be trained", confidence=0.85),
    "xid.137": row(
        Cause.APPLICATION,
        "nvlink.link",
        Scope.JOB,
        Verdict.WATCH,
        "an access over NVLink was refused: most often the peer's program",
        confidence=0.6,
        source=BOTH,
        corroborate="with 144 to 150 the link; printed by an abort in a collective too",
    ),
    "xid.155": card("nvlink.sw", "a link was taken down by software, perhaps on request", confidence=0.75),
    "xid.159": watch("c2c", "an error without data on the coherent link: see what the unified memory driver says"),
    "xid.166": watch("unclassified", "traffic on an NVLink before it was set up for encryption"),
    "xid.170": watch("unclassified", "an interrupt in confidential mode"),
}

PROGRAMS: dict[str, Row] = {
    "xid.8": row(
        Cause.DEVICE,
        "gpu.compute_engine",
        Scope.CARD,
        Verdict.SUSPECT,
        "the card stopped processing one channel",
        urgency=Urgency.NOW,
        confidence=0.5,
        source=VENDOR,
        corroborate="again on the same card, or another code beside it",
    ),
    "xid.11": program("a command stream that was invalid or corrupted"),
    "xid.13": program(
        "an exception in the compute engine: most often an illegal access of the program",
        source=BOTH,
        corroborate="the same GPC and TPC of one card again: the card. Several cards, or once: the program",
    ),
    "xid.25": program("a command stream that was illegal"),
    "xid.31": program(
        "a memory access of the program to an address that is not mapped",
        source=BOTH,
        corroborate="twice within a day on one card: run its diagnostic. On different cards: the program",
    ),
    "xid.32": program(
        "a command stream that arrived corrupted",
        "software.driver",
        confidence=0.5,
        corroborate="errors or replays on the card's PCIe port",
    ),
    "xid.43": program(
        "a channel was stopped after a fault of its program; the card is well",
        source=BOTH,
        corroborate="never isolates alone",
    ),
    "xid.45": row(
        Cause.APPLICATION,
        "derived",
        Scope.JOB,
        Verdict.WATCH,
        "channels were removed after an earlier error, or because their process was killed",
        source=BOTH,
        confidence=0.5,
        corroborate="the other Xid within a minute is the cause; alone and repeated: restart the fabric manager",
    ),
    "xid.69": program("a method that the compute engine's class does not have", "gpu.compute_engine"),
    "xid.80": program("data sent to the card failed its checksum", corroborate="errors on the card's PCIe port"),
    "xid.141": program("an error on the driver's fast path", "software.driver", confidence=0.5),
    "xid.66": program("the driver accessed a register that it must not", "software.driver", confidence=0.5),
    "xid.78": row(
        Cause.HOST_SOFTWARE,
        "software.driver",
        Scope.NODE,
        Verdict.SUSPECT,
        "a virtual GPU could not be started: versions",
        remedy=Remedy.FIX_CONFIG,
        confidence=0.6,
        source=VENDOR,
    ),
    "xid.44": watch("gpu.compute_engine", "a fault while the compute engine switched contexts", source=BOTH),
    "xid.68": watch("gpu.compute_engine", "an exception in the first video decoder", cause=Cause.APPLICATION),
}

POWER: dict[str, Row] = {
    "xid.162": ordinary("the card's power smoothing works again: clears 163", failure_class="gpu.power.smoothing"),
    "xid.163": watch(
        "gpu.power.smoothing", "the card's power smoothing is switched off", corroborate="a 162 after it clears it"
    ),
    "xid.164": watch(
        "gpu.power.smoothing",
        "the card's power smoothing is nearly worn out",
        urgency=Urgency.JOB_END,
        remedy=Remedy.INSPECT,
    ),
    "xid.165": watch(
        "gpu.power.smoothing",
        "the card's power smoothing is worn out",
        urgency=Urgency.JOB_END,
        remedy=Remedy.REPLACE,
    ),
}

INFORMATIONAL: dict[str, Row] = {
    "xid.14": ordinary("an internal marker of the driver"),
    "xid.37": ordinary("the driver used a method that the card's firmware does not have"),
    "xid.38": ordinary(
        "the card's front-end firmware was slow",
        confidence=0.6,
        corroborate="some monitors reboot for it; the vendor ignores it",
    ),
    "xid.67": ordinary("an access by the driver was refused"),
    "xid.106": ordinary("a test message of the management interface"),
    "xid.107": ordinary("a silent test message of the management interface"),
    "xid.152": ordinary("an access of the deep-learning accelerator was refused"),
    "xid.153": ordinary("the deep-learning accelerator timed out"),
}


def _engines() -> dict[str, Row]:
    """Engines beside the compute engine, of which the driver numbers each instance apart."""
    copies = {39: 0, 40: 1, 41: 2, 70: 3, 71: 4, 72: 5, 75: 6, 76: 7, 77: 8, 85: 9} | {
        code: code - 116 for code in range(126, 136)
    }
    rows = {f"xid.{code}": engine(f"copy engine {number}", COPY) for code, number in copies.items()}
    decoders = {83: 1, 84: 2, 88: 3, 89: 4, 96: 5, 97: 6, 98: 7}
    rows |= {f"xid.{code}": engine(f"video decoder {number}", MEDIA) for code, number in decoders.items()}
    jpeg = {82: 0} | {code: code - 98 for code in range(99, 106)}
    rows |= {f"xid.{code}": engine(f"JPEG engine {number}", MEDIA) for code, number in jpeg.items()}
    others = {
        60: "the security engine",
        86: "optical flow engine 0",
        139: "optical flow engine 1",
        142: "video encoder 3",
    }
    return rows | {f"xid.{code}": engine(name, MEDIA) for code, name in others.items()}


def _unused() -> dict[str, Row]:
    """Numbers that no card of today prints. A line with one is kept and looked at by a person."""
    codes = [
        *range(1, 8),
        9,
        10,
        12,
        *range(15, 25),
        *range(26, 31),
        *range(33, 37),
        42,
        47,
        *range(49, 54),
        *range(55, 60),
        65,
        73,
        81,
        87,
        90,
        91,
        *range(111, 119),
        *range(122, 126),
        138,
    ]
    text = "a number that the vendor lists as unused: kept, and shown to a person"
    return {f"xid.{code}": watch("unclassified", text, confidence=0.3) for code in codes}


ROWS: dict[str, Row] = {
    "xid": watch(
        "unclassified", "a number that the catalogue does not know: kept, and shown to a person", confidence=0.3
    ),
    **MEMORY,
    **DEVICE,
    **LINKS,
    **PROGRAMS,
    **POWER,
    **INFORMATIONAL,
    **_engines(),
    **_unused(),
    **DRIVER,
    **RECOVERY,
}
